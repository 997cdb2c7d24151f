//! Addresses of the packet test network: clients, frontends, and the lines for `ip -batch` that set them up.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::addressing::{digits, host_address};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IpFamily {
    V4,
    V6,
}

impl IpFamily {
    pub const ALL: [IpFamily; 2] = [IpFamily::V4, IpFamily::V6];

    /// Selects the address of this family.
    pub fn of(self, v4: Ipv4Addr, v6: Ipv6Addr) -> IpAddr {
        match self {
            IpFamily::V4 => v4.into(),
            IpFamily::V6 => v6.into(),
        }
    }
}

/// The client has the source addresses 192.0.2.n and fd00:c::n for these numbers.
pub const CLIENTS: std::ops::Range<u8> = 10..26;

/// All addresses of pods and of the vm.
pub const POD_RANGES: [&str; 2] = ["10.244.0.0/16", "fd00:244::/96"];

/// Number of the second address of the first node (172.31.0.111), which is on the same device as the first one.
pub const NODE_SECOND: u8 = 111;

/// 192.0.2.n and fd00:c::n with the same digits.
pub fn client_address(number: u8) -> (Ipv4Addr, Ipv6Addr) {
    (Ipv4Addr::new(192, 0, 2, number), Ipv6Addr::new(0xfd00, 0xc, 0, 0, 0, 0, 0, digits(number)))
}

/// The ranges from which Services get their addresses. The router sends all of them to the first node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrontendRange {
    ClusterIp,
    LoadBalancer,
    ExternalIp,
}

impl FrontendRange {
    pub const ALL: [FrontendRange; 3] =
        [FrontendRange::ClusterIp, FrontendRange::LoadBalancer, FrontendRange::ExternalIp];

    /// The n-th address of the range in each family, with the same digits.
    pub fn address(self, number: u8) -> (Ipv4Addr, Ipv6Addr) {
        let ([a, b, c], group) = match self {
            FrontendRange::ClusterIp => ([10, 96, 0], 0x96),
            FrontendRange::LoadBalancer => ([198, 51, 100], 0x51),
            FrontendRange::ExternalIp => ([203, 0, 113], 0x13),
        };
        (Ipv4Addr::new(a, b, c, number), Ipv6Addr::new(0xfd00, group, 0, 0, 0, 0, 0, digits(number)))
    }

    pub(super) fn cidrs(self) -> [String; 2] {
        let (v4, v6) = self.address(0);
        [format!("{v4}/24"), format!("{v6}/112")]
    }
}

/// The router is 172.31.0.2 on the nodes' bridge and 192.0.2.1 on the client's link.
pub(super) fn router() -> String {
    let ((v4, v6), (client4, client6), (node4, node6)) = (host_address(2), client_address(1), host_address(11));
    let mut lines = format!(
        "link set lo up\nlink set eth0 up\naddr add {v4}/24 dev eth0\naddr add {v6}/64 dev eth0 nodad\n\
         link set client0 up\naddr add {client4}/24 dev client0\naddr add {client6}/64 dev client0 nodad\n"
    );
    for [range4, range6] in FrontendRange::ALL.map(FrontendRange::cidrs) {
        lines += &format!("route add {range4} via {node4}\nroute add {range6} via {node6}\n");
    }
    lines
}

pub(super) fn client() -> String {
    let (gateway4, gateway6) = client_address(1);
    let addresses: String = CLIENTS
        .map(client_address)
        .map(|(v4, v6)| format!("addr add {v4}/24 dev eth0\naddr add {v6}/64 dev eth0 nodad\n"))
        .collect();
    format!(
        "link set lo up\nlink set eth0 up\n{addresses}route add default via {gateway4}\nroute add default via {gateway6}\n"
    )
}

/// Routes to the client's network, for hosts on the nodes' bridge.
pub(super) fn route_to_client() -> String {
    let ((v4, v6), (via4, via6)) = (client_address(0), host_address(2));
    format!("route add {v4}/24 via {via4}\nroute add {v6}/64 via {via6}\n")
}

/// The vm has an address of the pod ranges that belongs to no node's subnet.
pub(super) fn vm_address() -> (Ipv4Addr, Ipv6Addr) {
    crate::addressing::pod_address(101, 2)
}

/// The node's end of the vm's link has only addresses of link scope, as with CNIs that route every pod.
pub(super) fn vm_link(namespace: &str) -> String {
    let (v4, v6) = vm_address();
    format!(
        "link add vm0 type veth peer name eth0 netns {namespace}\nlink set vm0 up\n\
         addr add 169.254.1.1/32 dev vm0 scope link\naddr add fe80::1/64 dev vm0 nodad\n\
         route add {v4}/32 dev vm0\nroute add {v6}/128 dev vm0\n"
    )
}

pub(super) fn vm() -> String {
    let (v4, v6) = vm_address();
    format!(
        "link set lo up\nlink set eth0 up\naddr add {v4}/32 dev eth0\naddr add {v6}/128 dev eth0 nodad\n\
         route add 169.254.1.1/32 dev eth0\nroute add default via 169.254.1.1\nroute add default via fe80::1 dev eth0\n"
    )
}

/// Routes to the vm through the first node.
pub(super) fn route_to_vm() -> String {
    let ((v4, v6), (via4, via6)) = (vm_address(), host_address(11));
    format!("route add {v4}/32 via {via4}\nroute add {v6}/128 via {via6}\n")
}

/// Makes every frontend address local to the outside host, so that a server there answers packets that the node did not
/// translate.
pub(super) fn local_frontends() -> String {
    let all = FrontendRange::ALL.into_iter().flat_map(FrontendRange::cidrs);
    all.map(|cidr| format!("route add local {cidr} dev lo\n")).collect()
}
