//! Deletes the reports of nodes that no longer exist, a few at a time.

use crate::cluster_state::SharedState;
use crate::publisher::ignore_not_found;
use beeline_cluster::report_name;
use beeline_model::Name;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::DeleteParams;
use kube::{Api, Client};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// Limit of deletions per round.
const MAX_PER_ROUND: usize = 20;
const INTERVAL: Duration = Duration::from_secs(2);

pub async fn delete_orphaned_reports(
    client: Client,
    namespace: String,
    state: SharedState,
    mut leader: watch::Receiver<bool>,
) -> anyhow::Result<()> {
    let api: Api<Lease> = Api::namespaced(client, &namespace);
    loop {
        leader.wait_for(|leading| *leading).await?;
        for node in orphaned_reports(&state) {
            match ignore_not_found(api.delete(&report_name(&node), &DeleteParams::default()).await.map(drop)) {
                Ok(()) => state.with(|state| state.rollout.set_report(&node, None)),
                Err(error) => tracing::warn!(%node, %error, "cannot delete the report of a deleted node, retrying"),
            }
        }
        tokio::time::sleep(INTERVAL).await;
    }
}

fn orphaned_reports(state: &SharedState) -> Vec<Name> {
    state.with(|state| match state.is_current() {
        true => state.rollout.orphaned_reports(Instant::now(), MAX_PER_ROUND),
        false => Vec::new(),
    })
}
