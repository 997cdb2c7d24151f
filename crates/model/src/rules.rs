//! The options that decide what a dial means on this node: input of the planner, the same for agent and `plan`.

use crate::address::{Address, Family};
use crate::fact::Node;
use crate::name::Name;
use crate::stand::ClusterRules;
use crate::virtual_address;
use ipnet::{IpNet, Ipv4Net};
use std::net::Ipv4Addr;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum LocalPolicy {
    /// Internal policy speaks for the ClusterIP, external policy for the rest.
    #[default]
    Kubernetes,
    /// A Local policy of either kind holds for every address of the service.
    Strict,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum EmptyLocal {
    #[default]
    Refuse,
    /// Left alone, so that the packet is lost as with kube-proxy.
    Drop,
}

#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum ExternalIps {
    #[default]
    On,
    Off,
    Within(Vec<IpNet>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodePortAddress {
    Primary,
    Localhost,
    All,
    Range(IpNet),
}

/// Where this host stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum StandPoint {
    /// A Node of the cluster.
    #[default]
    Node,
    /// A host that is none.
    Outside,
    /// A Node that has no pod network: it reaches its own pods, and others through their nodes.
    Edge,
}

#[derive(Clone, Debug)]
pub struct Rules {
    pub stand_point: StandPoint,
    /// In the order of the configuration, which is the order in which ranges are owned. None: `LOCAL_CLUSTER` alone.
    pub clusters: Vec<ClusterRules>,
    pub node_name: Name,
    pub local_policy: LocalPolicy,
    pub empty_local: EmptyLocal,
    pub external_ips: ExternalIps,
    pub node_port_addresses: Vec<NodePortAddress>,
    /// This host's own addresses, as the interfaces show them (no loopback); the first of a family is the primary one
    /// where no Node object says otherwise.
    pub own_addresses: Vec<Address>,
    /// Where policies may put virtual addresses.
    pub virtual_ranges: Vec<IpNet>,
}

impl Rules {
    pub fn for_node(name: &str) -> Rules {
        Rules {
            stand_point: StandPoint::default(),
            clusters: Vec::new(),
            node_name: name.into(),
            local_policy: LocalPolicy::default(),
            empty_local: EmptyLocal::default(),
            external_ips: ExternalIps::default(),
            node_port_addresses: vec![NodePortAddress::Primary],
            own_addresses: Vec::new(),
            virtual_ranges: virtual_address::default_ranges(),
        }
    }

    /// The addresses of another node at which its NodePorts answer, from its Node status.
    pub fn node_port_addresses_of(&self, node: &Node) -> Vec<Address> {
        let all: Vec<Address> = node.addresses.iter().map(|(_, a)| *a).collect();
        self.choose(&all, |family| node.primary(family))
    }

    /// The same for this node: its Node object may be missing (a folder without one).
    pub fn own_node_port_addresses(&self, node: Option<&Node>) -> Vec<Address> {
        let first = |family| self.own_addresses.iter().copied().find(|a| a.family() == family);
        let primary = |family| node.map_or_else(|| first(family), |n| n.primary(family));
        let mut all = self.own_addresses.clone();
        all.extend(node.iter().flat_map(|n| n.addresses.iter().map(|(_, a)| *a)));
        self.choose(&all, primary)
    }

    /// Whether NodePorts answer at this family's loopback addresses.
    pub fn localhost_node_ports(&self, family: Family) -> bool {
        let loopback = Address::loopback(family);
        self.node_port_addresses.contains(&NodePortAddress::Localhost)
            || !self.choose_family(family, &[loopback], None).is_empty()
    }

    /// Whether NodePorts answer at all of 127.0.0.0/8. A range that holds only a part of it chooses as from a node's
    /// other addresses: among those that the interface has, which is 127.0.0.1.
    pub fn is_loopback_block_served(&self) -> bool {
        let block = Ipv4Net::new_assert(Ipv4Addr::new(127, 0, 0, 0), 8);
        let whole = |word: &NodePortAddress| match word {
            NodePortAddress::Localhost | NodePortAddress::All => true,
            NodePortAddress::Range(IpNet::V4(net)) => net.contains(&block),
            NodePortAddress::Range(IpNet::V6(_)) | NodePortAddress::Primary => false,
        };
        self.node_port_addresses.iter().any(whole) || self.is_unlisted(Family::V4)
    }

    /// Ranges restrict only the families that they list.
    fn is_unlisted(&self, family: Family) -> bool {
        let mut ranges = self.node_port_addresses.iter().filter_map(as_range).peekable();
        ranges.peek().is_some() && ranges.all(|net| Family::of(net.addr()) != family)
    }

    fn choose(&self, all: &[Address], primary: impl Fn(Family) -> Option<Address>) -> Vec<Address> {
        let mut chosen: Vec<Address> =
            Family::BOTH.iter().flat_map(|f| self.choose_family(*f, all, primary(*f))).collect();
        chosen.sort_unstable();
        chosen.dedup();
        chosen
    }

    fn choose_family(&self, family: Family, all: &[Address], primary: Option<Address>) -> Vec<Address> {
        let of_family = all.iter().copied().filter(|a| a.family() == family);
        let ranges: Vec<&IpNet> = self.node_port_addresses.iter().filter_map(as_range).collect();
        let mut chosen = Vec::new();
        for word in &self.node_port_addresses {
            match word {
                NodePortAddress::Primary => chosen.extend(primary),
                NodePortAddress::All => chosen.extend(of_family.clone()),
                NodePortAddress::Localhost | NodePortAddress::Range(_) => {}
            }
        }
        if self.is_unlisted(family) {
            chosen.extend(of_family);
        } else {
            chosen.extend(of_family.filter(|a| ranges.iter().any(|net| net.contains(&a.ip()))));
        }
        chosen
    }
}

fn as_range(word: &NodePortAddress) -> Option<&IpNet> {
    match word {
        NodePortAddress::Range(net) => Some(net),
        _ => None,
    }
}
