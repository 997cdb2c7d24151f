//! Who has which name and address. All of it lives in network namespaces of the kit; the ranges differ from those that
//! people (and the lab) like to use, so that a socket of another cluster on this machine is never taken for ours.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    str::FromStr,
};

use anyhow::{Result, ensure};
use ipnet::IpNet;
use serde::{Deserialize, Serialize};

/// Prefix of every network namespace, and the name of the cgroup below which all processes of the kit are.
pub const NAME: &str = "beeline-kit";
pub const API_PORT: u16 = 6443;
pub const SERVICES: [&str; 2] = ["10.97.0.0/16", "fd00:10:97::/112"];
/// Of a cluster beside the first that has a range of its own.
pub const OTHER_SERVICES: [&str; 2] = ["10.98.0.0/16", "fd00:10:98::/112"];
pub const PODS: [&str; 2] = ["10.245.0.0/16", "fd00:10:245::/56"];
/// The control plane's address: gateway of the nodes, API server and name server.
pub const CONTROL: [IpAddr; 2] = [v4(172, 31, 0, 1), v6([0xfd00, 0x31, 0, 0, 0, 0, 0, 1])];
/// The first address of the Service range, which the API server takes for itself.
pub const KUBERNETES: [IpAddr; 2] = [v4(10, 97, 0, 1), v6([0xfd00, 0x10, 0x97, 0, 0, 0, 0, 1])];
pub const DNS: IpAddr = v4(10, 97, 0, 10);
pub const DOMAIN: &str = "cluster.local";
/// From where the control plane dials load-balancer addresses: outside the nodes' networks, as upstream's tests want.
pub const OUTSIDE: [IpAddr; 2] = [v4(198, 51, 100, 1), v6([0xfd00, 0x51, 0, 0, 0, 0, 0, 1])];
/// "The internet": a neighbour that swallows packets, so that a dial to nowhere times out instead of being refused.
pub const SINK: [IpAddr; 2] = [v4(198, 18, 0, 2), v6([0xfd00, 0x18, 0, 0, 0, 0, 0, 2])];

/// A virtual machine on the nodes' switch.
pub const GUEST: [IpAddr; 2] = [v4(172, 31, 0, 200), v6([0xfd00, 0x31, 0, 0, 0, 0, 0, 0x200])];
/// The network between a host and the router that hides it.
pub const HIDDEN: [&str; 2] = ["192.168.77.0/24", "fd00:77::/64"];

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

/// The network namespace of the control plane, as `ip netns` knows it.
pub fn control_namespace() -> String {
    format!("{NAME}-control")
}

/// An address that the load-balancer stand-in may hand out, `index` counting from 1.
pub fn balancer_address(v6: bool, index: u8) -> IpAddr {
    match v6 {
        false => v4(172, 31, 1, index),
        true => self::v6([0xfd00, 0x31, 1, 0, 0, 0, 0, index.into()]),
    }
}

/// A node's number, from 1. On the command line "2" and "n2" are the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Node(u8);

impl Node {
    pub fn new(number: u8) -> Result<Node> {
        ensure!((1..=MAXIMUM).contains(&number), "node {number}: the kit has room for nodes 1 to {MAXIMUM}");
        Ok(Node(number))
    }

    /// The first `count` nodes.
    pub fn first(count: u8) -> Result<Vec<Node>> {
        Node::new(count)?;
        (1..=count).map(Node::new).collect()
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

    /// The part of `PODS` that this node's pods live in.
    pub fn pods(self) -> [IpNet; 2] {
        let ranges = [format!("10.245.{}.0/24", self.0), format!("fd00:10:245:{}::/64", self.0)];
        ranges.map(|range| range.parse().expect("a range made from a small number"))
    }

    /// The subnet of the nodes, and the part of it that this node's pods may have where they stand beside the nodes.
    pub fn neighbours(self) -> [(&'static str, [IpAddr; 2]); 2] {
        let first = 128 + (self.0 - 1) * 8;
        let sixth = |last: u16| v6([0xfd00, 0x31, 0, 0, 0, 0x128, self.0.into(), last]);
        [
            ("172.31.0.0/24", [v4(172, 31, 0, first), v4(172, 31, 0, first + 7)]),
            ("fd00:31::/64", [sixth(1), sixth(0xff)]),
        ]
    }

    pub fn zone(self) -> String {
        format!("z{}", (self.0 - 1) % 3 + 1)
    }
}

/// A host outside the cluster, by its number, from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Host(u8);

impl Host {
    pub fn new(number: u8) -> Result<Host> {
        ensure!((1..=MAXIMUM).contains(&number), "host {number}: the kit has room for hosts 1 to {MAXIMUM}");
        Ok(Host(number))
    }

    /// Every one that there can be.
    pub fn all() -> impl Iterator<Item = Host> {
        (1..=MAXIMUM).map(Host)
    }

    pub fn name(self) -> String {
        format!("h{}", self.0)
    }

    pub fn namespace(self) -> String {
        format!("{NAME}-{self}")
    }

    /// The router that hides it, where there is one.
    pub fn router_namespace(self) -> String {
        format!("{NAME}-{self}-router")
    }

    /// On the nodes' network; behind a router that masquerades, these are the router's.
    pub fn addresses(self) -> [IpAddr; 2] {
        [v4(172, 31, 0, 100 + self.0), v6([0xfd00, 0x31, 0, 0, 0, 0, 0, 0x100 + u16::from(self.0)])]
    }

    /// Its own addresses behind such a router, which has the first of the range.
    pub fn hidden_addresses(self) -> [IpAddr; 2] {
        [v4(192, 168, 77, 10 + self.0), v6([0xfd00, 0x77, 0, 0, 0, 0, 0, 0x10 + u16::from(self.0)])]
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(&self.name())
    }
}

impl FromStr for Host {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Host> {
        let number = text.strip_prefix('h').unwrap_or(text).parse().ok();
        ensure!(number.is_some(), "{text:?} is no host: say 1 or h1");
        Host::new(number.unwrap_or_default())
    }
}

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(&self.name())
    }
}

impl FromStr for Node {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Node> {
        let number = text.strip_prefix('n').unwrap_or(text).parse().ok();
        ensure!(number.is_some(), "{text:?} is no node: say 1 or n1");
        Node::new(number.unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_numbers_with_or_without_a_letter() {
        assert_eq!("2".parse::<Node>().unwrap(), "n2".parse().unwrap());
        for bad in ["", "n", "0", "10", "x1"] {
            assert!(bad.parse::<Node>().is_err(), "{bad:?} was taken for a node");
        }
        assert_eq!(Node::first(3).unwrap().iter().map(|n| n.name()).collect::<Vec<_>>(), ["n1", "n2", "n3"]);
    }

    #[test]
    fn ranges_contain_what_they_must_and_do_not_overlap() {
        let ranges = |texts: [&str; 2]| texts.map(|text| text.parse::<IpNet>().unwrap());
        for family in 0..2 {
            let (pods, services) = (ranges(PODS)[family], ranges(SERVICES)[family]);
            assert!(!pods.contains(&services) && !services.contains(&pods));
            assert!(services.contains(&KUBERNETES[family]));
            let nodes = Node::first(MAXIMUM).unwrap();
            for node in &nodes {
                assert!(pods.contains(&node.pods()[family]), "{node}: {:?}", node.pods());
                assert!(!pods.contains(&node.addresses()[family]) && node.addresses()[family] != CONTROL[family]);
            }
            assert!(nodes.windows(2).all(|pair| pair[0].pods()[family] != pair[1].pods()[family]));
        }
        assert!(ranges(SERVICES)[0].contains(&DNS));
    }

    #[test]
    fn zones_take_turns() {
        let zones: Vec<_> = Node::first(4).unwrap().iter().map(|n| n.zone()).collect();
        assert_eq!(zones, ["z1", "z2", "z3", "z1"]);
    }
}
