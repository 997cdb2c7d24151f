//! Watches the nodes' reports: each is a small Lease in the report namespace.

use crate::cluster_state::{ClusterState, SharedState};
use beeline_cluster::{REPORT_LABEL, read_report};
use futures::TryStreamExt;
use k8s_openapi::api::coordination::v1::Lease;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client};

pub async fn watch_reports(client: Client, namespace: String, state: SharedState) -> anyhow::Result<()> {
    let api: Api<Lease> = Api::namespaced(client, &namespace);
    let events = watcher(api, watcher::Config::default().labels(REPORT_LABEL)).default_backoff();
    let mut events = std::pin::pin!(events);
    loop {
        match events.try_next().await {
            Ok(Some(event)) => state.with(|state| apply(state, event)),
            Ok(None) => anyhow::bail!("the watch of the nodes' reports ended"),
            Err(error) => {
                tracing::warn!(namespace, %error, "cannot watch the nodes' reports, retrying");
                state.with(|state| state.reports_listed = true);
            }
        }
    }
}

/// A report that a new list does not name is kept: its node is deleted too, or sends its next report soon.
fn apply(state: &mut ClusterState, event: watcher::Event<Lease>) {
    match event {
        watcher::Event::Apply(lease) | watcher::Event::InitApply(lease) => {
            if let Some((node, report)) = read_report(&lease) {
                state.rollout.set_report(&node, Some(report));
            }
        }
        watcher::Event::Delete(lease) => {
            let node = lease.metadata.name.as_deref().and_then(|name| name.strip_prefix("beeline."));
            node.into_iter().for_each(|node| state.rollout.set_report(node, None));
        }
        watcher::Event::InitDone => state.reports_listed = true,
        watcher::Event::Init => {}
    }
}
