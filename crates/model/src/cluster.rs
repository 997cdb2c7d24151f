//! Clusters as seen from this host: the settings of each, their order (`order`), the paths to their endpoints (`path`)
//! and their views (`view`).

pub mod order;
pub mod path;
pub mod view;

use crate::name::Name;
use crate::object::AddressType;
use crate::rules::HostRole;
use ipnet::IpNet;
use serde::{Deserialize, Serialize};

/// How this host reaches the pods of a cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PodAccess {
    /// At the pods' own addresses.
    Direct,
    /// Through the NodePorts of the pods' nodes.
    Node,
    /// As `Reach` found out.
    #[default]
    Auto,
}

/// The settings of one cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterRules {
    pub name: Name,
    pub pod_access: PodAccess,
    /// Endpoints in these ranges are reached at their own addresses, whatever `pod_access` says.
    pub direct: Vec<IpNet>,
    /// The node address to dial: the first of these types that the node has.
    pub node_address_types: Vec<AddressType>,
    /// The zone whose topology hints apply to this host.
    pub zone: Option<Name>,
    /// The service ranges of the cluster. `None` takes them from the cluster's ServiceCIDR objects.
    pub service_ranges: Option<Vec<IpNet>>,
    /// The name by which processes select the view of this cluster. `None` means that only the cluster's name selects
    /// it.
    pub view: Option<Name>,
}

impl ClusterRules {
    pub fn named(name: &str) -> ClusterRules {
        ClusterRules {
            name: name.into(),
            pod_access: PodAccess::default(),
            direct: Vec::new(),
            node_address_types: vec![AddressType::Internal, AddressType::External],
            zone: None,
            service_ranges: None,
            view: None,
        }
    }

    /// The defaults for a host role.
    pub fn for_role(name: &str, role: HostRole) -> ClusterRules {
        let mut rules = ClusterRules::named(name);
        if role == HostRole::Edge {
            rules.node_address_types.reverse();
        }
        rules
    }
}
