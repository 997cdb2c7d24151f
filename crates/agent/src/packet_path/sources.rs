//! Tells the packet program which packets come from pods, under the names of kube-proxy (`--detect-local-mode`).

use super::PacketSettings;
use crate::reconciler::Reconciler;
use beeline_datapath::Program;
use beeline_datapath::control::Control;
use beeline_datapath::packet::PodRangeTable;
use ipnet::IpNet;
use std::collections::BTreeSet;
use tokio::sync::watch;

/// How packets of pods are recognised.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LocalMode {
    /// `--cluster-cidr` if it is set, else the `podCIDRs` of the Node.
    #[default]
    Automatic,
    ClusterCidr,
    NodeCidr,
    /// By the device: `--pod-bridge-interface` or `--pod-interface-name-prefix`.
    Device,
}

/// Keeps the table of pod ranges up to date. Owned by the main loop.
pub struct PacketSources {
    mode: LocalMode,
    masquerades_all: bool,
    table: PodRangeTable,
    written: Option<BTreeSet<IpNet>>,
    /// The addresses of the CNI's own devices are in these ranges.
    ranges: watch::Sender<Vec<IpNet>>,
}

impl PacketSources {
    pub fn new(program: &Program, settings: &PacketSettings) -> beeline_datapath::Result<PacketSources> {
        let (mode, masquerades_all) = (settings.local_mode, settings.masquerades_all);
        let ranges = watch::channel(Vec::new()).0;
        Ok(PacketSources { mode, masquerades_all, table: program.pod_ranges()?, written: None, ranges })
    }

    pub fn subscribe(&self) -> watch::Receiver<Vec<IpNet>> {
        self.ranges.subscribe()
    }

    /// Called after every change of the plan. Writes only if the ranges changed.
    pub fn update(&mut self, reconciler: &Reconciler, control: &Control) -> beeline_datapath::Result<()> {
        let of_cluster = &reconciler.planner.rules().pod_ranges;
        let of_node = reconciler.planner.own_node().map(|node| node.pod_ranges.to_vec()).unwrap_or_default();
        let ranges = pod_ranges(self.mode, of_cluster, &of_node);
        if self.written.as_ref() != Some(&ranges) {
            self.table.set(&ranges)?;
            control.set_packet_flags(self.mode == LocalMode::Device || !ranges.is_empty(), self.masquerades_all);
            self.written = Some(ranges);
        }
        let all: Vec<IpNet> = of_cluster.iter().copied().chain(of_node).collect();
        self.ranges.send_if_modified(|known| std::mem::replace(known, all.clone()) != all);
        Ok(())
    }
}

/// The ranges whose addresses are those of pods.
fn pod_ranges(mode: LocalMode, of_cluster: &[IpNet], of_node: &[IpNet]) -> BTreeSet<IpNet> {
    let chosen = match mode {
        LocalMode::Automatic if of_cluster.is_empty() => of_node,
        LocalMode::Automatic | LocalMode::ClusterCidr => of_cluster,
        LocalMode::NodeCidr => of_node,
        LocalMode::Device => &[],
    };
    chosen.iter().map(|net| net.trunc()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mode_selects_the_ranges_of_pods() {
        let [cluster, node]: [IpNet; 2] = ["10.244.0.0/16", "10.244.1.0/24"].map(|text| text.parse().unwrap());
        let ranges = |mode, of_cluster: &[IpNet]| pod_ranges(mode, of_cluster, &[node]).into_iter().collect::<Vec<_>>();
        assert_eq!(ranges(LocalMode::Automatic, &[cluster]), [cluster]);
        assert_eq!(ranges(LocalMode::Automatic, &[]), [node]);
        assert_eq!(ranges(LocalMode::NodeCidr, &[cluster]), [node]);
        assert!(ranges(LocalMode::ClusterCidr, &[]).is_empty());
        assert!(ranges(LocalMode::Device, &[cluster]).is_empty());
    }
}
