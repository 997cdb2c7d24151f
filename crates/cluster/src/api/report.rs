//! Reports what this node has programmed, in one small Lease per node that only the controller watches.
//!
//! The Lease is written when the report changes, at most once in a period. A random part of the period is waited first,
//! because every node of the cluster reports the same change at the same moment. The Lease is also written about every
//! ten minutes without a change, in case it was deleted; writing an unchanged Lease costs the API server no write to
//! etcd.

use crate::backoff::Backoff;
use beeline_model::rollout::RolloutReport;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{Api, Patch, PatchParams};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// Label of a report. Its value is the version of the format.
pub const REPORT_LABEL: &str = "beeline.dev/report";
/// Annotation with the report as JSON.
const PROGRAMMED: &str = "beeline.dev/programmed";

/// An unchanged report is written again after about this time.
const REWRITE_INTERVAL: Duration = Duration::from_secs(600);

#[derive(Clone, Debug)]
pub struct ReportSettings {
    /// The current report. `None` until there is one.
    pub report: watch::Receiver<Option<RolloutReport>>,
    /// The minimum time between two writes.
    pub period: Duration,
}

/// The name of the Lease of a node.
pub fn report_name(node: &str) -> String {
    format!("beeline.{node}")
}

/// The node and its report; `None` if the Lease is not a report.
pub fn read_report(lease: &Lease) -> Option<(String, RolloutReport)> {
    let name = lease.metadata.name.as_deref()?.strip_prefix("beeline.")?;
    let text = lease.metadata.annotations.as_ref()?.get(PROGRAMMED)?;
    Some((name.to_owned(), serde_json::from_str(text).ok()?))
}

/// Runs until the sender of the reports is dropped.
pub(crate) async fn write_reports(
    client: kube::Client,
    namespace: String,
    node: String,
    ReportSettings { mut report, period }: ReportSettings,
) {
    let api: Api<Lease> = Api::namespaced(client, &namespace);
    let (mut backoff, mut written) = (Backoff::default(), None);
    loop {
        let start = Instant::now();
        tokio::time::sleep(period.mul_f64(fastrand::f64())).await;
        let current = report.borrow_and_update().clone();
        if let Some(changed) = current.as_ref().filter(|current| written.as_ref() != Some(*current)) {
            match write(&api, &node, changed).await {
                Ok(()) => written = current,
                Err(error) => {
                    tracing::warn!(
                        namespace,
                        node,
                        %error,
                        "cannot write the report of this node; the account needs the permission to create and patch leases \
                         (--report-interval=off disables reports)"
                    );
                    tokio::time::sleep(backoff.next()).await;
                    continue;
                }
            }
            backoff.reset();
        }
        tokio::time::sleep(period.saturating_sub(start.elapsed())).await;
        let rewrite = REWRITE_INTERVAL.mul_f64(0.75 + fastrand::f64() / 2.0);
        match tokio::time::timeout(rewrite, report.changed()).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) => return,
            Err(_) => written = None,
        }
    }
}

async fn write(api: &Api<Lease>, node: &str, report: &RolloutReport) -> Result<(), kube::Error> {
    let text = serde_json::to_string(report).map_err(kube::Error::SerdeError)?;
    let metadata = serde_json::json!({
        "name": report_name(node),
        "labels": { REPORT_LABEL: "v1" },
        "annotations": { PROGRAMMED: text },
    });
    let lease = serde_json::json!({
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": metadata,
        "spec": { "holderIdentity": node },
    });
    let params = PatchParams::apply("beeline-agent").force();
    api.patch(&report_name(node), &params, &Patch::Apply(lease)).await.map(drop)
}
