//! Addresses and links of the standard test network, as lines for `ip -batch`.

use std::{
    fmt::Write,
    net::{Ipv4Addr, Ipv6Addr},
};

/// Settings of every namespace: no duplicate address detection or router advertisements, so that addresses are usable
/// at once; TCP Fast Open without a cookie; ping sockets for all groups; and no ICMP rate limit, so that a closed UDP
/// port always answers.
pub(crate) const SYSCTL: &[(&str, &str)] = &[
    ("ipv6/conf/all/accept_dad", "0"),
    ("ipv6/conf/default/accept_dad", "0"),
    ("ipv6/conf/default/accept_ra", "0"),
    ("ipv4/icmp_ratemask", "0"),
    ("ipv6/icmp/ratelimit", "0"),
    ("ipv6/icmp/ratemask", "\n"),
    ("ipv4/tcp_fastopen", "1543"),
    ("ipv4/ping_group_range", "0 2147483647"),
];

/// Additional settings of nodes.
pub(crate) const FORWARD: &[(&str, &str)] = &[("ipv4/ip_forward", "1"), ("ipv6/conf/all/forwarding", "1")];

const BRIDGE: &str = "type bridge forward_delay 0 stp_state 0 mcast_snooping 0";

/// 172.31.0.n and fd00:31::n with the same digits, so that 11 is `::11`.
pub(crate) fn host_address(number: u8) -> (Ipv4Addr, Ipv6Addr) {
    (Ipv4Addr::new(172, 31, 0, number), Ipv6Addr::new(0xfd00, 0x31, 0, 0, 0, 0, 0, digits(number)))
}

/// 10.244.node.n and fd00:244::node:n.
pub(crate) fn pod_address(node: u8, number: u8) -> (Ipv4Addr, Ipv6Addr) {
    let v6 = Ipv6Addr::new(0xfd00, 0x244, 0, 0, 0, 0, digits(node), digits(number));
    (Ipv4Addr::new(10, 244, node, number), v6)
}

/// Returns the number whose hexadecimal digits read like the decimal digits of `number`.
pub(crate) fn digits(number: u8) -> u16 {
    let number = u16::from(number);
    (number / 100) << 8 | (number / 10 % 10) << 4 | (number % 10)
}

pub(crate) fn outside(v4: Ipv4Addr, v6: Ipv6Addr) -> String {
    format!(
        "link set lo up\nlink add bridge0 {BRIDGE}\n{}",
        set_up("bridge0", &format!("{v4}/24"), &format!("{v6}/64"))
    )
}

/// A link from the outside host's bridge to a node's eth0.
pub(crate) fn node_link(number: u8, namespace: &str) -> String {
    node_link_of(&format!("node{number}"), namespace)
}

/// A link from the outside host's bridge to the eth0 of another host.
pub(crate) fn node_link_of(port: &str, namespace: &str) -> String {
    bridge_port(port, "bridge0", namespace)
}

/// A link from a node's bridge to a pod's eth0.
pub(crate) fn pod_link(index: usize, namespace: &str) -> String {
    bridge_port(&format!("pod{index}"), "cni0", namespace)
}

fn bridge_port(port: &str, bridge: &str, namespace: &str) -> String {
    format!("link add {port} type veth peer name eth0 netns {namespace}\nlink set {port} master {bridge} up\n")
}

pub(crate) fn node(number: u8, nodes: u8) -> String {
    let ((v4, v6), (pod4, pod6)) = (host_address(10 + number), pod_address(number, 1));
    let (gateway4, gateway6) = host_address(1);
    let mut lines = format!("link set lo up\nlink add cni0 {BRIDGE}\n");
    lines += &set_up("cni0", &format!("{pod4}/24"), &format!("{pod6}/112"));
    lines += &set_up("eth0", &format!("{v4}/24"), &format!("{v6}/64"));
    let _ = writeln!(lines, "route add default via {gateway4}\nroute add default via {gateway6}");
    for other in (1..=nodes).filter(|&other| other != number) {
        let ((via4, via6), (net4, net6)) = (host_address(10 + other), pod_address(other, 0));
        let _ = writeln!(lines, "route add {net4}/24 via {via4}\nroute add {net6}/112 via {via6}");
    }
    lines
}

pub(crate) fn pod(node: u8, v4: Ipv4Addr, v6: Ipv6Addr) -> String {
    let (gateway4, gateway6) = pod_address(node, 1);
    let address = set_up("eth0", &format!("{v4}/24"), &format!("{v6}/112"));
    format!("link set lo up\n{address}route add default via {gateway4}\nroute add default via {gateway6}\n")
}

fn set_up(device: &str, v4: &str, v6: &str) -> String {
    format!("link set {device} up\naddr add {v4} dev {device}\naddr add {v6} dev {device} nodad\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ipv4_and_ipv6_addresses_have_the_same_digits() {
        let (v4, v6) = pod_address(1, 120);
        assert_eq!((v4.to_string(), v6.to_string()), ("10.244.1.120".into(), "fd00:244::1:120".into()));
        assert_eq!(host_address(11).1.to_string(), "fd00:31::11");
    }
}
