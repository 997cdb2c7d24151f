//! Names and addresses of the cluster. All of them exist only in the kit's network namespaces. The ranges differ from
//! the common defaults and from those of the test harness, so that tests never confuse two clusters on one machine.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    str::FromStr,
};

use anyhow::{Result, ensure};
use ipnet::IpNet;
use serde::{Deserialize, Serialize};

/// Prefix of every network namespace, and name of the cgroup that contains all processes of the kit.
pub const NAME: &str = "beeline-kit";
pub const API_PORT: u16 = 6443;
pub const SERVICES: [&str; 2] = ["10.97.0.0/16", "fd00:10:97::/112"];
/// Service ranges of an extra cluster that does not share the first cluster's ranges.
pub const OTHER_SERVICES: [&str; 2] = ["10.98.0.0/16", "fd00:10:98::/112"];
pub const PODS: [&str; 2] = ["10.245.0.0/16", "fd00:10:245::/56"];
/// Addresses of the control plane: gateway of the nodes, API server and name server.
pub const CONTROL: [IpAddr; 2] = [v4(172, 31, 0, 1), v6([0xfd00, 0x31, 0, 0, 0, 0, 0, 1])];
/// The first address of each Service range, which the API server uses for its own Service.
pub const KUBERNETES: [IpAddr; 2] = [v4(10, 97, 0, 1), v6([0xfd00, 0x10, 0x97, 0, 0, 0, 0, 1])];
pub const DNS: IpAddr = v4(10, 97, 0, 10);
pub const DOMAIN: &str = "cluster.local";
/// Source addresses of dials from the control plane to load-balancer addresses. They are outside the nodes' networks,
/// as upstream's tests require.
pub const OUTSIDE: [IpAddr; 2] = [v4(198, 51, 100, 1), v6([0xfd00, 0x51, 0, 0, 0, 0, 0, 1])];
/// A next hop that drops all packets and stands for the internet: a dial to an unknown address times out.
pub const SINK: [IpAddr; 2] = [v4(198, 18, 0, 2), v6([0xfd00, 0x18, 0, 0, 0, 0, 0, 2])];

/// Addresses of a virtual machine on the nodes' bridge.
pub const GUEST: [IpAddr; 2] = [v4(172, 31, 0, 200), v6([0xfd00, 0x31, 0, 0, 0, 0, 0, 0x200])];
/// The network between a host and the router that masquerades it.
pub const MASQUERADED: [&str; 2] = ["192.168.77.0/24", "fd00:77::/64"];

const MAXIMUM: u8 = 9;

const fn v4(a: u8, b: u8, c: u8, d: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(a, b, c, d))
}

const fn v6(s: [u16; 8]) -> IpAddr {
    IpAddr::V6(Ipv6Addr::new(s[0], s[1], s[2], s[3], s[4], s[5], s[6], s[7]))
}

pub fn api_url() -> String {
    format!("https://{}:{API_PORT}", CONTROL[0])
}

/// Name of the control plane's network namespace, for `ip netns`.
pub fn control_namespace() -> String {
    format!("{NAME}-control")
}

/// Address number `index` of the load-balancer range, counting from 1.
pub fn balancer_address(v6: bool, index: u8) -> IpAddr {
    match v6 {
        false => v4(172, 31, 1, index),
        true => self::v6([0xfd00, 0x31, 1, 0, 0, 0, 0, index.into()]),
    }
}

/// Number of a node, from 1. On the command line "2" and "n2" are the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct NodeId(u8);

impl NodeId {
    pub fn new(number: u8) -> Result<NodeId> {
        ensure!((1..=MAXIMUM).contains(&number), "node {number}: the kit supports nodes 1 to {MAXIMUM}");
        Ok(NodeId(number))
    }

    /// The first `count` nodes.
    pub fn first(count: u8) -> Result<Vec<NodeId>> {
        NodeId::new(count)?;
        (1..=count).map(NodeId::new).collect()
    }

    pub fn name(self) -> String {
        format!("n{}", self.0)
    }

    pub fn namespace(self) -> String {
        format!("{NAME}-{self}")
    }

    pub fn addresses(self) -> [IpAddr; 2] {
        [v4(172, 31, 0, 10 + self.0), v6([0xfd00, 0x31, 0, 0, 0, 0, 0, 0x10 + u16::from(self.0)])]
    }

    /// This node's share of `PODS`.
    pub fn pods(self) -> [IpNet; 2] {
        let ranges = [format!("10.245.{}.0/24", self.0), format!("fd00:10:245:{}::/64", self.0)];
        ranges.map(|range| range.parse().expect("a range made from a small number"))
    }

    /// The subnets of the nodes, and the range in each for this node's pods when they use macvlan on the nodes'
    /// network.
    pub fn macvlan_ranges(self) -> [(&'static str, [IpAddr; 2]); 2] {
        let first = 128 + (self.0 - 1) * 8;
        let ipv6 = |last: u16| v6([0xfd00, 0x31, 0, 0, 0, 0x128, self.0.into(), last]);
        [("172.31.0.0/24", [v4(172, 31, 0, first), v4(172, 31, 0, first + 7)]), ("fd00:31::/64", [ipv6(1), ipv6(0xff)])]
    }

    pub fn zone(self) -> String {
        format!("z{}", (self.0 - 1) % 3 + 1)
    }
}

/// Number of a host outside the cluster, from 1. On the command line "1" and "h1" are the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct HostId(u8);

impl HostId {
    pub fn new(number: u8) -> Result<HostId> {
        ensure!((1..=MAXIMUM).contains(&number), "host {number}: the kit supports hosts 1 to {MAXIMUM}");
        Ok(HostId(number))
    }

    /// All host numbers that the kit supports.
    pub fn all() -> impl Iterator<Item = HostId> {
        (1..=MAXIMUM).map(HostId)
    }

    pub fn name(self) -> String {
        format!("h{}", self.0)
    }

    pub fn namespace(self) -> String {
        format!("{NAME}-{self}")
    }

    /// Network namespace of the router that masquerades this host, if it has one.
    pub fn router_namespace(self) -> String {
        format!("{NAME}-{self}-router")
    }

    /// Addresses on the nodes' network. For a masqueraded host these are the addresses of its router.
    pub fn addresses(self) -> [IpAddr; 2] {
        [v4(172, 31, 0, 100 + self.0), v6([0xfd00, 0x31, 0, 0, 0, 0, 0, 0x100 + u16::from(self.0)])]
    }

    /// The host's own addresses behind a masquerading router, which has the first address of the range.
    pub fn masqueraded_addresses(self) -> [IpAddr; 2] {
        [v4(192, 168, 77, 10 + self.0), v6([0xfd00, 0x77, 0, 0, 0, 0, 0, 0x10 + u16::from(self.0)])]
    }
}

impl fmt::Display for HostId {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(&self.name())
    }
}

impl FromStr for HostId {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<HostId> {
        let number = text.strip_prefix('h').unwrap_or(text).parse().ok();
        ensure!(number.is_some(), "{text:?} is not a host: use 1 or h1");
        HostId::new(number.unwrap_or_default())
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(&self.name())
    }
}

impl FromStr for NodeId {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<NodeId> {
        let number = text.strip_prefix('n').unwrap_or(text).parse().ok();
        ensure!(number.is_some(), "{text:?} is not a node: use 1 or n1");
        NodeId::new(number.unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_parsed_with_and_without_its_letter() {
        assert_eq!("2".parse::<NodeId>().unwrap(), "n2".parse().unwrap());
        for bad in ["", "n", "0", "10", "x1"] {
            assert!(bad.parse::<NodeId>().is_err(), "{bad:?} was parsed as a node");
        }
        assert_eq!(NodeId::first(3).unwrap().iter().map(|n| n.name()).collect::<Vec<_>>(), ["n1", "n2", "n3"]);
    }

    #[test]
    fn ranges_contain_their_addresses_and_do_not_overlap() {
        let ranges = |texts: [&str; 2]| texts.map(|text| text.parse::<IpNet>().unwrap());
        for family in 0..2 {
            let (pods, services) = (ranges(PODS)[family], ranges(SERVICES)[family]);
            assert!(!pods.contains(&services) && !services.contains(&pods));
            assert!(services.contains(&KUBERNETES[family]));
            let nodes = NodeId::first(MAXIMUM).unwrap();
            for node in &nodes {
                assert!(pods.contains(&node.pods()[family]), "{node}: {:?}", node.pods());
                assert!(!pods.contains(&node.addresses()[family]) && node.addresses()[family] != CONTROL[family]);
            }
            assert!(nodes.windows(2).all(|pair| pair[0].pods()[family] != pair[1].pods()[family]));
        }
        assert!(ranges(SERVICES)[0].contains(&DNS));
    }

    #[test]
    fn zones_are_assigned_round_robin() {
        let zones: Vec<_> = NodeId::first(4).unwrap().iter().map(|n| n.zone()).collect();
        assert_eq!(zones, ["z1", "z2", "z3", "z1"]);
    }
}
