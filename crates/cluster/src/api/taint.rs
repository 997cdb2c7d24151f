//! The startup taint. A new node carries it, so that no pod starts before services can be dialled. The agent removes
//! the taint when everything is programmed, and again whenever it reappears.

use crate::backoff::Backoff;
use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, Patch, PatchParams};
use std::time::Duration;
use tokio::sync::watch;

pub const STARTUP_TAINT: &str = "beeline.dev/not-ready";

/// How long to wait for the Node watch to show the removal, before the taint is removed again.
const CONFIRMATION_TIMEOUT: Duration = Duration::from_secs(10);

pub(crate) fn has_startup_taint(node: &Node) -> bool {
    let mut taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
    taints.any(|taint| taint.key == STARTUP_TAINT)
}

/// Runs until one of the senders is dropped.
pub(crate) async fn remove_startup_taint(
    client: kube::Client,
    node: String,
    mut is_tainted: watch::Receiver<bool>,
    mut is_programmed: watch::Receiver<bool>,
) {
    let mut backoff = Backoff::default();
    loop {
        if is_programmed.wait_for(|yes| *yes).await.is_err() || is_tainted.wait_for(|yes| *yes).await.is_err() {
            return;
        }
        match patch(&client, &node).await {
            Ok(()) => {
                tracing::info!(node, taint = STARTUP_TAINT, "removed the startup taint");
                backoff.reset();
                let removed = is_tainted.wait_for(|yes| !*yes);
                let _ = tokio::time::timeout(CONFIRMATION_TIMEOUT, removed).await;
            }
            Err(error) => {
                tracing::warn!(
                    node,
                    taint = STARTUP_TAINT,
                    %error,
                    "cannot remove the startup taint; the account needs the permission to patch nodes"
                );
                tokio::time::sleep(backoff.next()).await;
            }
        }
    }
}

/// The patch contains the resourceVersion that was read, so that a taint that is added in between is not lost.
async fn patch(client: &kube::Client, node: &str) -> Result<(), kube::Error> {
    let api: Api<Node> = Api::all(client.clone());
    let found = api.get(node).await?;
    let taints = found.spec.into_iter().flat_map(|spec| spec.taints.into_iter().flatten());
    let kept: Vec<_> = taints.filter(|taint| taint.key != STARTUP_TAINT).collect();
    let patch = serde_json::json!({
        "metadata": { "resourceVersion": found.metadata.resource_version },
        "spec": { "taints": kept },
    });
    api.patch(node, &PatchParams::default(), &Patch::Merge(patch)).await.map(drop)
}
