//! The start-up taint: a node that is new carries it, so that no pod starts before services can be dialled. It is taken
//! away when everything has been programmed, and whenever it comes back while that holds.

use super::pause::Pause;
use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, Patch, PatchParams};
use tokio::sync::watch;

pub const STARTUP_TAINT: &str = "beeline.dev/not-ready";

pub(crate) fn is_tainted(node: &Node) -> bool {
    let mut taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
    taints.any(|taint| taint.key == STARTUP_TAINT)
}

/// Ends with whoever tells it.
pub(crate) async fn clear(
    client: kube::Client,
    node: String,
    mut tainted: watch::Receiver<bool>,
    mut programmed: watch::Receiver<bool>,
) {
    let mut pause = Pause::default();
    loop {
        if programmed.wait_for(|yes| *yes).await.is_err() || tainted.wait_for(|yes| *yes).await.is_err() {
            return;
        }
        match remove(&client, &node).await {
            Ok(()) => {
                tracing::info!(node, "the taint {STARTUP_TAINT} is taken away: services can be dialled");
                pause.reset();
                // The watch tells when it has seen it.
                let again = tainted.wait_for(|yes| !*yes);
                let _ = tokio::time::timeout(std::time::Duration::from_secs(10), again).await;
            }
            Err(error) => {
                tracing::warn!(
                    node,
                    "the taint {STARTUP_TAINT} cannot be taken away: {error}; it needs the right to patch nodes"
                );
                tokio::time::sleep(pause.next()).await;
            }
        }
    }
}

/// With the version that was read: a taint that somebody adds in between is not lost.
async fn remove(client: &kube::Client, node: &str) -> Result<(), kube::Error> {
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
