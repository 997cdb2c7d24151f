//! What the kernel says of the way to an address, and which service addresses the network itself leads to.

use ipnet::IpNet;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The way to one address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// A route more specific than the default route.
    Specific(IpNet),
    /// Nothing but a default route: whether somebody behind it knows the address, only an answer tells.
    Default,
    Barred(Bar),
}

/// Why there is no way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bar {
    NoRoute,
    Blackhole,
    Unreachable,
    Prohibit,
}

impl fmt::Display for Bar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Bar::NoRoute => "there is no route",
            Bar::Blackhole => "a blackhole route",
            Bar::Unreachable => "an unreachable route",
            Bar::Prohibit => "a prohibit route",
        })
    }
}

impl Way {
    /// By the destination of the route that the kernel would take.
    pub fn by(destination: IpNet) -> Way {
        if is_default(destination) { Way::Default } else { Way::Specific(destination) }
    }

    /// Of several addresses of one group: direct is what holds for all of them.
    pub fn worst(self, other: Way) -> Way {
        if self.rank() >= other.rank() { self } else { other }
    }

    fn rank(self) -> u8 {
        match self {
            Way::Specific(_) => 0,
            Way::Default => 1,
            Way::Barred(_) => 2,
        }
    }
}

/// Tunnels like to lay the default route in pieces (0.0.0.0/1 and 128.0.0.0/1, 2000::/3), so that it goes before the one
/// that is there. They say no more about pods than the whole would: an answer decides.
pub fn is_default(destination: IpNet) -> bool {
    match destination {
        IpNet::V4(net) => net.prefix_len() <= 1,
        IpNet::V6(net) => net.prefix_len() <= 3,
    }
}

/// What is left of the usable destinations after the barred ones inside them are cut out. A more specific one counts
/// before a wider one, as in the kernel.
pub fn cut(mut routes: Vec<(IpNet, bool)>) -> Vec<IpNet> {
    routes.sort_by_key(|(net, _)| (net.prefix_len(), *net));
    let mut left: Vec<IpNet> = Vec::new();
    for (net, usable) in routes {
        if usable {
            left.push(net);
        } else {
            left = left.into_iter().flat_map(|other| without(other, net)).collect();
        }
    }
    let nested = |net: &IpNet| left.iter().any(|other| other != net && other.contains(net));
    let mut outer: Vec<IpNet> = left.iter().copied().filter(|net| !nested(net)).collect();
    outer.sort();
    outer.dedup();
    outer
}

/// Addresses of a network that no other of these takes out of it. Three: the first is often this host's own, or the
/// gateway's.
pub fn free(net: IpNet, known: &[IpNet]) -> Vec<IpAddr> {
    let inner = |other: &&IpNet| **other != net && net.contains(*other);
    let mut at = net.network();
    let mut holes: Vec<&IpNet> = known.iter().filter(inner).collect();
    holes.sort();
    for hole in holes {
        if hole.contains(&at) {
            let Some(next) = after(hole.broadcast()) else { return Vec::new() };
            at = next;
        }
    }
    let hosts = std::iter::successors(after(at).or(Some(at)), |ip| after(*ip));
    let all = std::iter::once(at).filter(|_| net.prefix_len() >= net.max_prefix_len() - 1).chain(hosts);
    all.take(3).filter(|ip| net.contains(ip)).collect()
}

fn after(ip: IpAddr) -> Option<IpAddr> {
    match ip {
        IpAddr::V4(ip) => ip.to_bits().checked_add(1).map(|bits| Ipv4Addr::from_bits(bits).into()),
        IpAddr::V6(ip) => ip.to_bits().checked_add(1).map(|bits| Ipv6Addr::from_bits(bits).into()),
    }
}

fn without(net: IpNet, hole: IpNet) -> Vec<IpNet> {
    if hole.contains(&net) {
        return Vec::new();
    }
    if !net.contains(&hole) {
        return vec![net];
    }
    let halves = net.subnets(net.prefix_len() + 1).into_iter().flatten();
    halves.flat_map(|half| without(half, hole)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn net(text: &str) -> IpNet {
        text.parse().unwrap()
    }

    #[test]
    fn a_default_route_in_pieces_is_one() {
        for text in ["0.0.0.0/0", "0.0.0.0/1", "128.0.0.0/1", "::/0", "2000::/3"] {
            assert_eq!(Way::by(net(text)), Way::Default, "{text}");
        }
        for text in ["10.0.0.0/8", "0.0.0.0/2", "fd00::/8", "10.244.1.2/32"] {
            assert_eq!(Way::by(net(text)), Way::Specific(net(text)), "{text}");
        }
    }

    #[test]
    fn the_worst_way_speaks_for_a_group() {
        let (specific, barred) = (Way::by(net("10.0.0.0/8")), Way::Barred(Bar::NoRoute));
        assert_eq!(specific.worst(Way::Default), Way::Default);
        assert_eq!(barred.worst(specific), barred);
    }

    #[test]
    fn a_route_is_asked_for_where_no_other_goes_before_it() {
        let ips = |text: &str, known: &[&str]| {
            let known: Vec<IpNet> = known.iter().map(|text| net(text)).collect();
            free(net(text), &known).iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(ips("10.0.0.0/8", &["10.0.0.0/8"]), ["10.0.0.1", "10.0.0.2", "10.0.0.3"]);
        assert_eq!(ips("10.0.0.0/8", &["10.0.0.0/24", "10.0.1.0/24", "10.9.0.0/16"])[0], "10.0.2.1");
        assert_eq!(ips("10.0.0.0/8", &["10.0.0.0/16", "10.0.1.0/24"])[0], "10.1.0.1", "one inside another");
        assert_eq!(ips("10.0.0.0/31", &["10.0.0.0/32", "10.0.0.1/32"]), [""; 0], "nothing is left of it");
        assert_eq!(ips("10.0.0.7/32", &[]), ["10.0.0.7"]);
        assert_eq!(ips("fd00::/64", &["fd00::/65"])[0], "fd00::8000:0:0:1");
        assert_eq!(ips("255.255.255.0/24", &["255.255.255.0/24"]).len(), 3);
    }

    #[test]
    fn a_barred_route_cuts_a_hole_and_one_inside_it_leads_again() {
        let routes = vec![
            (net("10.0.0.0/8"), true),
            (net("10.96.0.0/12"), false),
            (net("10.96.1.0/24"), true),
            (net("fd00::/16"), true),
        ];
        let left = cut(routes);
        let leads = |text: &str| left.iter().any(|net| net.contains(&text.parse::<std::net::IpAddr>().unwrap()));
        assert!(leads("10.1.0.1") && leads("10.95.255.255") && leads("10.112.0.1") && leads("fd00::1"));
        assert!(leads("10.96.1.7") && !leads("10.96.0.1") && !leads("10.111.0.1") && !leads("11.0.0.1"));
        assert_eq!(cut(vec![(net("10.0.0.0/8"), true), (net("10.1.0.0/16"), true)]), [net("10.0.0.0/8")]);
        assert_eq!(cut(vec![(net("10.1.0.0/16"), true), (net("10.0.0.0/8"), false)]), [net("10.1.0.0/16")]);
    }
}
