//! Where this host stands, cluster by cluster: what an administrator says of each, and what follows from it for an
//! endpoint that is not next door.

pub mod order;
pub mod spread;
pub mod way;

use crate::fact::AddressType;
use crate::name::Name;
use crate::rules::StandPoint;
use ipnet::IpNet;
use serde::{Deserialize, Serialize};

/// How this host reaches the pods of a cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Pods {
    /// By their own addresses.
    Direct,
    /// Through their nodes' NodePorts.
    Node,
    /// As `Reach` found out.
    #[default]
    Auto,
}

/// What the configuration says of one cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterRules {
    pub name: Name,
    pub pods: Pods,
    /// Whatever `pods` says: endpoints in these are reached by their own addresses.
    pub direct: Vec<IpNet>,
    /// Which of a node's addresses is dialled from here: the first type of which it has one.
    pub node_address_types: Vec<AddressType>,
    /// Which zone hints are meant for us.
    pub zone: Option<Name>,
    /// Which addresses are this cluster's own. `None`: as its ServiceCIDR objects say.
    pub service_ranges: Option<Vec<IpNet>>,
    /// Under which name processes ask to see this cluster first. `None`: nobody can.
    pub view: Option<Name>,
}

impl ClusterRules {
    pub fn named(name: &str) -> ClusterRules {
        ClusterRules {
            name: name.into(),
            pods: Pods::default(),
            direct: Vec::new(),
            node_address_types: vec![AddressType::Internal, AddressType::External],
            zone: None,
            service_ranges: None,
            view: None,
        }
    }

    /// With what is usual where we stand.
    pub fn standing(name: &str, stand: StandPoint) -> ClusterRules {
        let mut rules = ClusterRules::named(name);
        if stand == StandPoint::Edge {
            rules.node_address_types.reverse();
        }
        rules
    }
}
