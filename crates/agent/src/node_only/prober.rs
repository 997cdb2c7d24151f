//! Replaces `reach::prober` in a binary for Nodes: on a Node the query is always `None`, so there is nothing to look up.

use super::{ProbeRate, ReachQuery, ReachUpdate};
use tokio::sync::watch;

/// Never ends.
pub async fn run(
    _rate: ProbeRate,
    _query: watch::Receiver<ReachQuery>,
    _publish: impl Fn(ReachUpdate) -> bool,
) -> anyhow::Result<()> {
    std::future::pending().await
}
