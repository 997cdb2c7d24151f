//! What of the clusters can be dialled from here: which pods have a way of their own, and whose an address is where
//! several clusters use the same ones. The tables' own rules are asked, so that no answer leads past them.

use crate::index::{Cluster, Host};
use beeline_model::reach::Reach;
use beeline_model::rules::StandPoint;
use beeline_model::select::Candidate;
use beeline_model::stand::order::{Bar, Order, Ranges};
use beeline_model::stand::way::{Ground, Way};
use beeline_model::virtual_address::{default_ranges, is_reserved};
use beeline_model::{Address, Name};
use ipnet::IpNet;
use std::collections::BTreeSet;

/// Where this host stands, as the agent knows it now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outlook {
    /// Of the clusters, in every view.
    pub order: Order,
    pub reach: Reach,
    /// This host, where it is a Node.
    pub node: Name,
    /// This host's own addresses: no cluster that it is not part of leads to them.
    pub own: Vec<Address>,
    /// Where virtual addresses may be: a metadata address is nobody's that is not listed there by itself.
    pub virtual_ranges: Vec<IpNet>,
}

impl Default for Outlook {
    fn default() -> Outlook {
        let order = Order::new(StandPoint::Node, &[], &Ranges::new(), &BTreeSet::new());
        let (reach, own, virtual_ranges) = (Reach::default(), Vec::new(), default_ranges());
        Outlook { order, reach, node: "".into(), own, virtual_ranges }
    }
}

/// Why a service's own address is not told.
pub(crate) enum Hidden {
    /// A dial would meet somebody else.
    Because(String),
    /// This cluster, which comes before, has not said yet what its addresses are.
    Unheard(Name),
}

impl Outlook {
    /// Whether an address lies in the cluster's service ranges.
    pub(crate) fn owns(&self, name: &str, address: Address) -> bool {
        self.order.of(name).is_some_and(|outlook| outlook.ranges.iter().any(|range| range.contains(&address.ip())))
    }

    /// A name has no nodePort to fall back to.
    pub(crate) fn is_direct(&self, cluster: &Cluster, name: &str, host: &Host) -> bool {
        let Some(outlook) = self.order.of(name) else { return false };
        if outlook.is_remote() && self.is_withheld(host.address) {
            return false;
        }
        let ground = Ground {
            stand: outlook.stand,
            cluster: &outlook.rules,
            nodes: &cluster.nodes,
            hosts: &cluster.node_addresses,
            reach: &self.reach,
            own: &self.own,
        };
        ground.way(&self.candidate(host), 0) == Way::Direct
    }

    /// The tables leave these alone, whatever a cluster that this host is no part of says: a dial meets this host, or its
    /// cloud.
    fn is_withheld(&self, address: Address) -> bool {
        address.is_special() || self.own.contains(&address) || is_reserved(&self.virtual_ranges, address)
    }

    fn candidate(&self, host: &Host) -> Candidate {
        Candidate {
            address: host.address,
            port: 0,
            ready: host.ready,
            serving: host.ready,
            terminating: false,
            local: host.node.as_ref() == Some(&self.node),
            node: host.node.clone(),
            hints: None,
        }
    }

    /// `first`: of a view; `None` is the order of the configuration.
    pub(crate) fn hides(&self, first: Option<&Name>, name: &str, address: Address) -> Option<Hidden> {
        let outlook = self.order.of(name)?;
        if outlook.is_remote() && self.is_withheld(address) {
            let why = "is this host's own, link-local or a cloud's metadata address: no remote cluster's";
            return Some(Hidden::Because(format!("{address} {why}")));
        }
        let view = first.map_or(Some(0), |first| self.order.view(first));
        let Some(seat) = outlook.seats.iter().find(|seat| Some(seat.view) == view) else {
            return Some(Hidden::Because("nobody has this view".into()));
        };
        seat.bar(address).map(|bar| match bar {
            Bar::Unknown(earlier) => Hidden::Unheard(earlier),
            Bar::Owned { by, .. } => {
                Hidden::Because(format!("{address} is cluster {by}'s here: dial in a view of {name}"))
            }
        })
    }
}
