//! What this node has programmed, told in one small object of its own: a Lease, which nobody but the controller watches.
//! Written when it changed, at most once in a period; a random part of it is waited first, since every node of the cluster
//! has the same news at the same moment. And now and then without news: somebody may have deleted it. What is there
//! already is no write to the API server.

use super::pause::Pause;
use beeline_model::report::Report;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{Api, Patch, PatchParams};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// On a node's report; its value is the version of the form.
pub const REPORT: &str = "beeline.dev/report";
/// The report itself, as JSON.
pub const PROGRAMMED: &str = "beeline.dev/programmed";

/// It is written again after about this long.
const AGAIN: Duration = Duration::from_secs(600);

#[derive(Clone, Debug)]
pub struct Reports {
    pub what: watch::Receiver<Option<Report>>,
    pub period: Duration,
}

/// Of a node's Lease.
pub fn report_name(node: &str) -> String {
    format!("beeline.{node}")
}

/// Whose report it is, and what it says; `None`: it is none.
pub fn read_report(lease: &Lease) -> Option<(String, Report)> {
    let name = lease.metadata.name.as_deref()?.strip_prefix("beeline.")?;
    let text = lease.metadata.annotations.as_ref()?.get(PROGRAMMED)?;
    Some((name.to_owned(), serde_json::from_str(text).ok()?))
}

/// Ends with whoever tells it.
pub(crate) async fn keep(client: kube::Client, namespace: String, node: String, mut reports: Reports) {
    let api: Api<Lease> = Api::namespaced(client, &namespace);
    let (mut pause, mut written) = (Pause::default(), None);
    loop {
        let start = Instant::now();
        tokio::time::sleep(reports.period.mul_f64(fastrand::f64())).await;
        let now = reports.what.borrow_and_update().clone();
        if let Some(report) = now.as_ref().filter(|now| written.as_ref() != Some(*now)) {
            match write(&api, &node, report).await {
                Ok(()) => written = now,
                Err(error) => {
                    tracing::warn!(
                        "what this node has programmed cannot be reported: {error}; it needs the right to create and patch leases in {namespace} (--report=off: never)"
                    );
                    tokio::time::sleep(pause.next()).await;
                    continue;
                }
            }
            pause.reset();
        }
        tokio::time::sleep(reports.period.saturating_sub(start.elapsed())).await;
        match tokio::time::timeout(AGAIN.mul_f64(0.75 + fastrand::f64() / 2.0), reports.what.changed()).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) => return,
            Err(_) => written = None,
        }
    }
}

async fn write(api: &Api<Lease>, node: &str, report: &Report) -> Result<(), kube::Error> {
    let text = serde_json::to_string(report).map_err(kube::Error::SerdeError)?;
    let lease = serde_json::json!({
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": { "name": report_name(node), "labels": { REPORT: "v1" }, "annotations": { PROGRAMMED: text } },
        "spec": { "holderIdentity": node },
    });
    let params = PatchParams::apply("beeline-agent").force();
    api.patch(&report_name(node), &params, &Patch::Apply(lease)).await.map(drop)
}
