//! Ends UDP flows whose frontend was removed: a Service or its port was deleted, or lost an address. The packet program
//! does not see such a flow any more, and its conntrack entry would translate it until the client pauses.

use crate::reconciler::Reconciler;
use anyhow::Context;
use beeline_model::row::{FrontendKey, Scope};
use beeline_netfilter::conntrack::IpProtocol;
use beeline_netfilter::{Conntrack, ConntrackEntry};
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;
use tokio::sync::mpsc;

/// A packet that was decided just before the frontend was removed may create an entry after the first search.
const SECOND_SEARCH: Duration = Duration::from_millis(500);

/// A UDP destination that is no frontend any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RemovedFrontend {
    pub address: IpAddr,
    pub port: u16,
}

/// The main loop's end: reports removed frontends.
pub struct UdpFlowReporter {
    sender: mpsc::UnboundedSender<BTreeSet<RemovedFrontend>>,
}

/// The end of the task that searches conntrack.
pub struct UdpFlowSweeper {
    receiver: mpsc::UnboundedReceiver<BTreeSet<RemovedFrontend>>,
}

pub fn channel() -> (UdpFlowReporter, UdpFlowSweeper) {
    let (sender, receiver) = mpsc::unbounded_channel();
    (UdpFlowReporter { sender }, UdpFlowSweeper { receiver })
}

impl UdpFlowReporter {
    /// Called after every write of the tables.
    pub fn report(&self, reconciler: &mut Reconciler) {
        let keys = reconciler.kernel_mut().take_removed_udp_frontends();
        let rows = reconciler.tables.rows();
        let own: Vec<IpAddr> = rows.nodes.iter().filter(|(_, node)| node.own).map(|(at, _)| at.ip()).collect();
        let removed: BTreeSet<RemovedFrontend> = keys
            .iter()
            .filter(|key| key.scope == Scope::Inside && !rows.frontends.contains_key(key))
            .flat_map(|key| destinations(key, &own))
            .collect();
        if !removed.is_empty() {
            // The task ends only with the agent.
            let _ = self.sender.send(removed);
        }
    }
}

/// The row of a NodePort stands for all addresses of this node.
fn destinations(key: &FrontendKey, own: &[IpAddr]) -> Vec<RemovedFrontend> {
    let port = key.port;
    if !key.is_node_port_row() {
        return vec![RemovedFrontend { address: key.address.ip(), port }];
    }
    let is_v4 = key.address.ip().is_ipv4();
    own.iter().filter(|at| at.is_ipv4() == is_v4).map(|at| RemovedFrontend { address: *at, port }).collect()
}

impl UdpFlowSweeper {
    /// Runs until the agent stops.
    pub async fn run(mut self) -> anyhow::Result<()> {
        while let Some(mut removed) = self.receiver.recv().await {
            while let Ok(more) = self.receiver.try_recv() {
                removed.extend(more);
            }
            sweep(removed.clone()).await?;
            tokio::time::sleep(SECOND_SEARCH).await;
            sweep(removed).await?;
        }
        // The main loop has ended, which ends the agent.
        std::future::pending().await
    }
}

/// A failure does not end the agent: the flows end when their clients pause.
async fn sweep(removed: BTreeSet<RemovedFrontend>) -> anyhow::Result<()> {
    let deleted = tokio::task::spawn_blocking(move || delete_flows(&removed)).await;
    match deleted.context("the search for UDP flows panicked")? {
        Ok(0) => {}
        Ok(flows) => tracing::debug!(flows, "ended UDP flows to removed frontends"),
        Err(error) => tracing::warn!(%error, "cannot end UDP flows to removed frontends; check CAP_NET_ADMIN"),
    }
    Ok(())
}

fn delete_flows(removed: &BTreeSet<RemovedFrontend>) -> beeline_netfilter::Result<usize> {
    let mut conntrack = Conntrack::open()?;
    let is_stale = |entry: &ConntrackEntry| {
        let to = entry.original.destination;
        let removed = removed.contains(&RemovedFrontend { address: to.ip(), port: to.port() });
        removed && entry.status.translates_destination()
    };
    let mut deleted = 0;
    for entry in conntrack.list(IpProtocol::UDP, is_stale)? {
        deleted += usize::from(conntrack.delete(&entry)?);
    }
    Ok(deleted)
}
