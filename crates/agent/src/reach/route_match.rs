//! The result of a route lookup, and the arithmetic on networks that finds the routed service addresses.

use ipnet::IpNet;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The route that the kernel would use for one address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouteMatch {
    /// A route more specific than the default route.
    Specific(IpNet),
    /// Only a default route. Only a probe shows whether a router behind it reaches the address.
    Default,
    Blocked(BlockReason),
}

/// Why no packet can be sent to an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockReason {
    NoRoute,
    Blackhole,
    Unreachable,
    Prohibit,
}

impl fmt::Display for BlockReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            BlockReason::NoRoute => "no route",
            BlockReason::Blackhole => "a blackhole route",
            BlockReason::Unreachable => "an unreachable route",
            BlockReason::Prohibit => "a prohibit route",
        })
    }
}

impl RouteMatch {
    /// `destination` is the destination of the route that the kernel would use.
    pub fn new(destination: IpNet) -> RouteMatch {
        if is_default(destination) { RouteMatch::Default } else { RouteMatch::Specific(destination) }
    }

    /// The less favourable of two: a group of pods is direct only if all its addresses are.
    pub fn worst(self, other: RouteMatch) -> RouteMatch {
        if self.rank() >= other.rank() { self } else { other }
    }

    fn rank(self) -> u8 {
        match self {
            RouteMatch::Specific(_) => 0,
            RouteMatch::Default => 1,
            RouteMatch::Blocked(_) => 2,
        }
    }
}

/// VPN clients often split the default route (0.0.0.0/1 and 128.0.0.0/1, 2000::/3) so that it takes precedence over the
/// existing one. Such a route says no more about pods than a default route, so a probe decides.
pub fn is_default(destination: IpNet) -> bool {
    match destination {
        IpNet::V4(net) => net.prefix_len() <= 1,
        IpNet::V6(net) => net.prefix_len() <= 3,
    }
}

/// Removes the blocked networks (`false`) from the usable ones (`true`). A more specific network takes precedence over a
/// wider one, as in the kernel.
pub fn subtract_blocked(mut routes: Vec<(IpNet, bool)>) -> Vec<IpNet> {
    routes.sort_by_key(|(net, _)| (net.prefix_len(), *net));
    let mut left: Vec<IpNet> = Vec::new();
    for (net, usable) in routes {
        if usable {
            left.push(net);
        } else {
            left = left.into_iter().flat_map(|other| subtract(other, net)).collect();
        }
    }
    let nested = |net: &IpNet| left.iter().any(|other| other != net && other.contains(net));
    let mut outer: Vec<IpNet> = left.iter().copied().filter(|net| !nested(net)).collect();
    outer.sort();
    outer.dedup();
    outer
}

/// Up to three addresses of a network for which none of the other networks is more specific. Three, because the first is
/// often this host's own or the gateway's.
pub fn unshadowed_hosts(net: IpNet, all: &[IpNet]) -> Vec<IpAddr> {
    let inner = |other: &&IpNet| **other != net && net.contains(*other);
    let mut at = net.network();
    let mut holes: Vec<&IpNet> = all.iter().filter(inner).collect();
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

fn subtract(net: IpNet, hole: IpNet) -> Vec<IpNet> {
    if hole.contains(&net) {
        return Vec::new();
    }
    if !net.contains(&hole) {
        return vec![net];
    }
    let halves = net.subnets(net.prefix_len() + 1).into_iter().flatten();
    halves.flat_map(|half| subtract(half, hole)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn net(text: &str) -> IpNet {
        text.parse().unwrap()
    }

    #[test]
    fn a_split_default_route_counts_as_default() {
        for text in ["0.0.0.0/0", "0.0.0.0/1", "128.0.0.0/1", "::/0", "2000::/3"] {
            assert_eq!(RouteMatch::new(net(text)), RouteMatch::Default, "{text}");
        }
        for text in ["10.0.0.0/8", "0.0.0.0/2", "fd00::/8", "10.244.1.2/32"] {
            assert_eq!(RouteMatch::new(net(text)), RouteMatch::Specific(net(text)), "{text}");
        }
    }

    #[test]
    fn the_least_favourable_route_decides_for_a_group() {
        let (specific, blocked) = (RouteMatch::new(net("10.0.0.0/8")), RouteMatch::Blocked(BlockReason::NoRoute));
        assert_eq!(specific.worst(RouteMatch::Default), RouteMatch::Default);
        assert_eq!(blocked.worst(specific), blocked);
    }

    #[test]
    fn hosts_are_taken_where_no_more_specific_network_shadows_them() {
        let ips = |text: &str, all: &[&str]| {
            let all: Vec<IpNet> = all.iter().map(|text| net(text)).collect();
            unshadowed_hosts(net(text), &all).iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(ips("10.0.0.0/8", &["10.0.0.0/8"]), ["10.0.0.1", "10.0.0.2", "10.0.0.3"]);
        assert_eq!(ips("10.0.0.0/8", &["10.0.0.0/24", "10.0.1.0/24", "10.9.0.0/16"])[0], "10.0.2.1");
        assert_eq!(ips("10.0.0.0/8", &["10.0.0.0/16", "10.0.1.0/24"])[0], "10.1.0.1", "one inside another");
        assert_eq!(ips("10.0.0.0/31", &["10.0.0.0/32", "10.0.0.1/32"]), [""; 0], "no address is left");
        assert_eq!(ips("10.0.0.7/32", &[]), ["10.0.0.7"]);
        assert_eq!(ips("fd00::/64", &["fd00::/65"])[0], "fd00::8000:0:0:1");
        assert_eq!(ips("255.255.255.0/24", &["255.255.255.0/24"]).len(), 3);
    }

    #[test]
    fn a_blocked_route_is_subtracted_and_a_usable_one_inside_it_is_kept() {
        let routes = vec![
            (net("10.0.0.0/8"), true),
            (net("10.96.0.0/12"), false),
            (net("10.96.1.0/24"), true),
            (net("fd00::/16"), true),
        ];
        let left = subtract_blocked(routes);
        let routed = |text: &str| left.iter().any(|net| net.contains(&text.parse::<std::net::IpAddr>().unwrap()));
        assert!(routed("10.1.0.1") && routed("10.95.255.255") && routed("10.112.0.1") && routed("fd00::1"));
        assert!(routed("10.96.1.7") && !routed("10.96.0.1") && !routed("10.111.0.1") && !routed("11.0.0.1"));
        assert_eq!(subtract_blocked(vec![(net("10.0.0.0/8"), true), (net("10.1.0.0/16"), true)]), [net("10.0.0.0/8")]);
        assert_eq!(
            subtract_blocked(vec![(net("10.1.0.0/16"), true), (net("10.0.0.0/8"), false)]),
            [net("10.1.0.0/16")]
        );
    }
}
