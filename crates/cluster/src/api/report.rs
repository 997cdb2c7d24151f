//! Reports what this node has programmed, in one small Lease per node that only the controller watches.
//!
//! The first report is written at once. Later the Lease is written when the report changes, at most once in a period. A
//! random part of the period is waited first, because every node of the cluster reports the same change at the same moment.
//! The Lease is also written now and then without a change, in case it was deleted; writing an unchanged Lease costs the API
//! server no write to etcd.

use crate::backoff::Backoff;
use beeline_model::rollout::RolloutReport;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{Api, Patch, PatchParams};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

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
pub(crate) async fn write_reports(client: kube::Client, namespace: String, node: String, settings: ReportSettings) {
    let api: Api<Lease> = Api::namespaced(client, &namespace);
    write_changes(settings, |report| write_logged(&api, &namespace, &node, report)).await;
}

async fn write_logged(api: &Api<Lease>, namespace: &str, node: &str, report: RolloutReport) -> bool {
    let written = write(api, node, &report).await;
    if let Err(error) = &written {
        tracing::warn!(
            namespace,
            node,
            %error,
            "cannot write the report of this node; the account needs the permission to create and patch leases \
             (--report-interval=off disables reports)"
        );
    }
    written.is_ok()
}

/// Decides when the report is written. `write` returns whether it succeeded.
async fn write_changes<F: Future<Output = bool>>(
    ReportSettings { mut report, period }: ReportSettings,
    mut write: impl FnMut(RolloutReport) -> F,
) {
    let (mut backoff, mut written) = (Backoff::default(), None);
    // The first report is written at once: agents do not start at the same moment, and the status of every policy waits.
    let mut delay = Duration::ZERO;
    if report.wait_for(Option::is_some).await.is_err() {
        return;
    }
    loop {
        let start = Instant::now();
        tokio::time::sleep(delay).await;
        delay = period.mul_f64(fastrand::f64());
        let current = report.borrow_and_update().clone();
        if let Some(changed) = current.clone().filter(|_| written != current) {
            if !write(changed).await {
                tokio::time::sleep(backoff.next()).await;
                continue;
            }
            written = current;
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    /// The times of the writes, from the start on.
    fn start(period: Duration, fail_first: bool) -> (watch::Sender<Option<RolloutReport>>, Arc<Mutex<Vec<Duration>>>) {
        let (sender, report) = watch::channel(None);
        let (start, times) = (Instant::now(), Arc::new(Mutex::new(Vec::new())));
        let writes = times.clone();
        tokio::spawn(write_changes(ReportSettings { report, period }, move |_| {
            let mut writes = writes.lock().unwrap();
            writes.push(start.elapsed());
            std::future::ready(!(fail_first && writes.len() == 1))
        }));
        (sender, times)
    }

    fn report(more: u32) -> Option<RolloutReport> {
        Some(RolloutReport { more, ..RolloutReport::default() })
    }

    #[tokio::test]
    async fn the_first_report_is_written_at_once() {
        let (sender, times) = start(Duration::from_secs(600), false);
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert!(times.lock().unwrap().is_empty(), "there is no report yet");
        sender.send_replace(report(0));
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert_eq!(times.lock().unwrap().len(), 1);
    }

    #[tokio::test]
    async fn later_reports_are_written_once_in_a_period() {
        let (sender, times) = start(Duration::from_millis(200), false);
        for n in 0..100 {
            sender.send_replace(report(n));
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let times = times.lock().unwrap();
        assert!((4..=12).contains(&times.len()), "{times:?}");
    }

    #[tokio::test]
    async fn a_failed_report_is_written_again() {
        let (sender, times) = start(Duration::from_millis(100), true);
        sender.send_replace(report(0));
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert_eq!(times.lock().unwrap().len(), 2);
    }
}
