//! Which addresses of the clusters can be dialled from this host: which pods are reachable, and which cluster owns an
//! address if several clusters use the same ranges. The rules are those of the planner, so that DNS never returns an
//! address that the tables do not serve.

use crate::change::DnsEndpoint;
use crate::cluster_records::ClusterRecords;
use beeline_model::cluster::order::{ClusterOrder, RangeConflict, Ranges};
use beeline_model::cluster::path::{EndpointPath, PathContext};
use beeline_model::reach::Reach;
use beeline_model::rules::HostRole;
use beeline_model::select::Candidate;
use beeline_model::virtual_address::{default_ranges, is_reserved};
use beeline_model::{Address, Name};
use ipnet::IpNet;
use std::collections::BTreeSet;

/// This host's view of the clusters, as the agent knows it now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostContext {
    /// The order of the clusters, in every view.
    pub order: ClusterOrder,
    pub reach: Reach,
    /// This host's name, if it is a node of a cluster.
    pub node: Name,
    /// This host's own addresses. No remote cluster may claim them.
    pub own: Vec<Address>,
    /// The ranges of virtual addresses. A cloud's metadata address can be claimed only if it is listed here itself.
    pub virtual_address_cidrs: Vec<IpNet>,
}

impl Default for HostContext {
    fn default() -> HostContext {
        let order = ClusterOrder::new(HostRole::Node, &[], &Ranges::new(), &BTreeSet::new());
        let (reach, own, virtual_address_cidrs) = (Reach::default(), Vec::new(), default_ranges());
        HostContext { order, reach, node: "".into(), own, virtual_address_cidrs }
    }
}

/// Why a ClusterIP is not returned.
pub(crate) enum Withheld {
    /// Dialling the address would reach something else.
    Reason(String),
    /// The service ranges of this earlier cluster are not known yet.
    NotReady(Name),
}

impl HostContext {
    /// Whether an address lies in the cluster's service ranges.
    pub(crate) fn owns(&self, name: &str, address: Address) -> bool {
        self.order.get(name).is_some_and(|cluster| cluster.ranges.iter().any(|range| range.contains(&address.ip())))
    }

    /// Whether a dial to the endpoint reaches it directly. A DNS answer cannot fall back to a nodePort.
    pub(crate) fn is_reachable(&self, records: &ClusterRecords, name: &str, endpoint: &DnsEndpoint) -> bool {
        let Some(context) = self.order.get(name) else { return false };
        if context.is_remote() && self.is_local_only(endpoint.address) {
            return false;
        }
        let paths = PathContext {
            host_role: context.host_role,
            cluster: &context.rules,
            nodes: &records.nodes,
            hosts: &records.node_addresses,
            reach: &self.reach,
            own: &self.own,
        };
        paths.path(&self.candidate(endpoint), 0) == EndpointPath::Direct
    }

    /// Addresses that the tables never redirect for a remote cluster, because a dial reaches this host or its cloud.
    fn is_local_only(&self, address: Address) -> bool {
        address.is_special() || self.own.contains(&address) || is_reserved(&self.virtual_address_cidrs, address)
    }

    fn candidate(&self, endpoint: &DnsEndpoint) -> Candidate {
        Candidate {
            address: endpoint.address,
            port: 0,
            ready: endpoint.ready,
            serving: endpoint.ready,
            terminating: false,
            local: endpoint.node.as_ref() == Some(&self.node),
            node: endpoint.node.clone(),
            hints: None,
        }
    }

    /// Why an address of a cluster is not returned in a view; `None` if it is returned. `first` is the cluster that the
    /// view puts first, or `None` for the configured order.
    pub(crate) fn withheld(&self, first: Option<&Name>, name: &str, address: Address) -> Option<Withheld> {
        let context = self.order.get(name)?;
        if context.is_remote() && self.is_local_only(address) {
            let reason = "an address of this host, link-local or a cloud's metadata address";
            return Some(Withheld::Reason(format!("{address} is {reason}, which a remote cluster may not use")));
        }
        let view = first.map_or(Some(0), |first| self.order.view(first));
        let Some(rank) = context.view_ranks.iter().find(|rank| Some(rank.view) == view) else {
            return Some(Withheld::Reason("no process uses this view".into()));
        };
        rank.conflict_at(address).map(|conflict| match conflict {
            RangeConflict::Unknown(earlier) => Withheld::NotReady(earlier),
            RangeConflict::Owned { by, .. } => {
                Withheld::Reason(format!("{address} belongs to cluster {by} in this view: dial it in a view of {name}"))
            }
        })
    }
}
