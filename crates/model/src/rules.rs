//! The settings that decide what a dial means on this host. They are an input of the planner, and the same for the
//! agent and for `plan`.

use crate::address::{Address, Family};
use crate::cluster::ClusterRules;
use crate::name::Name;
use crate::object::Node;
use crate::virtual_address;
use ipnet::{IpNet, Ipv4Net};
use std::net::Ipv4Addr;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum LocalTrafficPolicy {
    /// internalTrafficPolicy applies to the ClusterIP, externalTrafficPolicy to all other addresses.
    #[default]
    Kubernetes,
    /// A Local policy of either kind applies to every address of the Service.
    Strict,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NoLocalEndpointAction {
    #[default]
    Refuse,
    /// The dial is left unchanged, so the packet is lost, as with kube-proxy.
    Drop,
}

#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum ExternalIps {
    /// On in the cluster that this host is a node of, off in all others: their tenants are not trusted with addresses
    /// that this host dials.
    #[default]
    Home,
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

/// The role of this host in its (first) cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HostRole {
    /// A Node of the cluster.
    #[default]
    Node,
    /// A host that is not a Node of any cluster.
    Outside,
    /// A Node without a pod network. It reaches its own pods directly, and other pods through their nodes.
    Edge,
}

#[derive(Clone, Debug)]
pub struct Rules {
    pub host_role: HostRole,
    /// In the order of the configuration, which is also the order in which clusters own service ranges. An empty list
    /// stands for `LOCAL_CLUSTER` alone.
    pub clusters: Vec<ClusterRules>,
    pub node_name: Name,
    pub local_traffic_policy: LocalTrafficPolicy,
    pub no_local_endpoint_action: NoLocalEndpointAction,
    pub external_ips: ExternalIps,
    pub node_port_addresses: Vec<NodePortAddress>,
    /// The addresses of this host's interfaces, without loopback. The first of a family is the primary address if there
    /// is no Node object.
    pub own_addresses: Vec<Address>,
    /// The ranges in which policies may use virtual addresses.
    pub virtual_address_cidrs: Vec<IpNet>,
    /// The pod ranges of the clusters, besides those that the Nodes name.
    pub pod_ranges: Vec<IpNet>,
    /// Whether this host serves packets from outside (the packet path), which needs rows of its own.
    pub packet_path: bool,
}

impl Rules {
    pub fn for_node(name: &str) -> Rules {
        Rules {
            host_role: HostRole::default(),
            clusters: Vec::new(),
            node_name: name.into(),
            local_traffic_policy: LocalTrafficPolicy::default(),
            no_local_endpoint_action: NoLocalEndpointAction::default(),
            external_ips: ExternalIps::default(),
            node_port_addresses: vec![NodePortAddress::Primary],
            own_addresses: Vec::new(),
            virtual_address_cidrs: virtual_address::default_ranges(),
            pod_ranges: Vec::new(),
            packet_path: false,
        }
    }

    /// The addresses at which another node serves NodePorts, from its Node status.
    pub fn node_port_addresses_of(&self, node: &Node) -> Vec<Address> {
        let all: Vec<Address> = node.addresses.iter().map(|(_, a)| *a).collect();
        self.choose(&all, |family| node.primary(family))
    }

    /// The addresses at which this node serves NodePorts. The Node object may be missing, for example in a folder of
    /// manifests.
    pub fn own_node_port_addresses(&self, node: Option<&Node>) -> Vec<Address> {
        let first = |family| self.own_addresses.iter().copied().find(|a| a.family() == family);
        let primary = |family| node.map_or_else(|| first(family), |n| n.primary(family));
        let mut all = self.own_addresses.clone();
        all.extend(node.iter().flat_map(|n| n.addresses.iter().map(|(_, a)| *a)));
        self.choose(&all, primary)
    }

    /// Whether NodePorts are served at the loopback addresses of a family.
    pub fn localhost_node_ports(&self, family: Family) -> bool {
        let loopback = Address::loopback(family);
        self.node_port_addresses.contains(&NodePortAddress::Localhost)
            || !self.choose_family(family, &[loopback], None).is_empty()
    }

    /// Whether NodePorts are served at all of 127.0.0.0/8. A configured range that contains only a part of it selects
    /// from the addresses of the loopback interface, which is 127.0.0.1.
    pub fn is_loopback_block_served(&self) -> bool {
        let block = Ipv4Net::new_assert(Ipv4Addr::new(127, 0, 0, 0), 8);
        let covers_block = |setting: &NodePortAddress| match setting {
            NodePortAddress::Localhost | NodePortAddress::All => true,
            NodePortAddress::Range(IpNet::V4(net)) => net.contains(&block),
            NodePortAddress::Range(IpNet::V6(_)) | NodePortAddress::Primary => false,
        };
        self.node_port_addresses.iter().any(covers_block) || self.is_unlisted(Family::V4)
    }

    /// Configured ranges restrict only the families that they contain.
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
        for setting in &self.node_port_addresses {
            match setting {
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

fn as_range(setting: &NodePortAddress) -> Option<&IpNet> {
    match setting {
        NodePortAddress::Range(net) => Some(net),
        _ => None,
    }
}
