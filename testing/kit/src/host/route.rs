//! Routes of a host outside to the cluster.

use std::{net::IpAddr, process::Command};

use anyhow::Result;

use crate::{
    address_plan::{CONTROL, HostId, NodeId, PODS, control_namespace},
    namespace,
    network::{add_port, ip, namespaces, pod_routes},
    subprocess,
};

/// Kind of route. All hosts except `Pod` reach the nodes and the API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostRoute {
    /// A static route to the pods of each node. The default route does not lead to pods.
    Static,
    /// The same routes, learned by BGP; see [`super::announce_pods`].
    Bgp,
    /// Only a default route, to a router that forwards to pods.
    Default,
    /// Only a default route, to a router that drops packets to pods.
    Blackhole,
    /// Only the nodes' network, without a default route.
    Isolated,
    /// Behind a router that masquerades and drops packets to pods, like an edge host.
    Masqueraded,
    /// A pod of another host, with these addresses. It reaches only that host.
    Pod { of: HostId, addresses: [IpAddr; 2] },
}

impl HostRoute {
    fn has_default_route(self) -> bool {
        matches!(self, HostRoute::Static | HostRoute::Bgp | HostRoute::Default | HostRoute::Blackhole)
    }

    /// Whether the nodes' router drops packets from this host to pods.
    fn drops_pod_traffic(self) -> bool {
        matches!(self, HostRoute::Static | HostRoute::Bgp | HostRoute::Blackhole | HostRoute::Masqueraded)
    }
}

const FORWARDING: [(&str, &str); 2] = [("ipv4/ip_forward", "1"), ("ipv6/conf/all/forwarding", "1")];
/// The router's interface to the host behind it.
const INNER: &str = "inner0";

pub fn create(host: HostId, route: HostRoute, nodes: &[NodeId]) -> Result<()> {
    match route {
        HostRoute::Pod { of, addresses } => return create_pod(host, of, addresses),
        HostRoute::Masqueraded => create_masqueraded(host)?,
        _ => {
            add_port(&host.namespace(), &port(host))?;
            ip(Some(&host.namespace()), &configure_eth0(host, route.has_default_route()))?;
        }
    }
    if route == HostRoute::Static {
        ip(Some(&host.namespace()), &nodes.iter().map(|node| pod_routes(*node)).collect::<String>())?;
    }
    if route.drops_pod_traffic() {
        drop_pod_traffic("add", host)?;
    }
    Ok(())
}

/// Configures eth0 on the bridge. The MAC address depends on the host only, because its neighbours cache it when a host
/// is removed and created again.
fn configure_eth0(host: HostId, default: bool) -> String {
    let [v4, v6] = host.addresses();
    let IpAddr::V4(own) = v4 else { unreachable!("the first address of a host is IPv4") };
    let [a, b, c, d] = own.octets();
    let mut lines = format!(
        "link set lo up\nlink set eth0 address 02:00:{a:02x}:{b:02x}:{c:02x}:{d:02x}\n\
         addr add {v4}/24 dev eth0\naddr add {v6}/64 dev eth0 nodad\nlink set eth0 up\n"
    );
    if default {
        lines += &format!("route add default via {}\nroute add default via {}\n", CONTROL[0], CONTROL[1]);
    }
    lines
}

/// Adds or deletes the rules that drop packets to pods. `ip rule` takes the family as an option, so one batch cannot
/// contain both families.
fn drop_pod_traffic(verb: &str, host: HostId) -> Result<()> {
    for (family, (from, pods)) in ["-4", "-6"].iter().zip(host.addresses().into_iter().zip(PODS)) {
        let mut command = Command::new("ip");
        command.args([
            family,
            "-n",
            &control_namespace(),
            "rule",
            verb,
            "from",
            &from.to_string(),
            "to",
            pods,
            "blackhole",
        ]);
        subprocess::run(&mut command)?;
    }
    Ok(())
}

fn create_masqueraded(host: HostId) -> Result<()> {
    let router = host.router_namespace();
    add_port(&router, &port(host))?;
    ip(None, &format!("netns add {}\n", host.namespace()))?;
    ip(
        Some(&router),
        &format!(
            "{}link add {INNER} type veth peer name eth0 netns {}\n",
            configure_eth0(host, true),
            host.namespace()
        ),
    )?;
    ip(
        Some(&router),
        &format!(
            "addr add 192.168.77.1/24 dev {INNER}\naddr add fd00:77::1/64 dev {INNER} nodad\nlink set {INNER} up\n"
        ),
    )?;
    namespace::sysctl(&router, &FORWARDING)?;
    masquerade(&router)?;
    let [v4, v6] = host.masqueraded_addresses();
    let inside = format!(
        "link set lo up\naddr add {v4}/24 dev eth0\naddr add {v6}/64 dev eth0 nodad\nlink set eth0 up\n\
         route add default via 192.168.77.1\nroute add default via fd00:77::1\n"
    );
    ip(Some(&host.namespace()), &inside)
}

fn masquerade(router: &str) -> Result<()> {
    let rules = "add table inet kit\nadd chain inet kit out { type nat hook postrouting priority srcnat; }\n\
                 add rule inet kit out oifname \"eth0\" masquerade\n";
    namespace::run_in(router, || subprocess::run_with_input(Command::new("nft").args(["-f", "-"]), rules.as_bytes()))?
        .map(drop)
}

fn create_pod(pod: HostId, of: HostId, addresses: [IpAddr; 2]) -> Result<()> {
    let (device, [v4, v6]) = (format!("v{pod}"), addresses);
    ip(None, &format!("netns add {}\n", pod.namespace()))?;
    namespace::sysctl(&of.namespace(), &FORWARDING)?;
    ip(
        Some(&of.namespace()),
        &format!(
            "link add {device} type veth peer name eth0 netns {}\naddr add 169.254.77.1/32 dev {device}\n\
             addr add fe80::77/64 dev {device} nodad\nlink set {device} up\nroute add {v4} dev {device}\nroute add {v6} dev {device}\n",
            pod.namespace()
        ),
    )?;
    let inside = format!(
        "link set lo up\naddr add {v4}/32 dev eth0\naddr add {v6}/128 dev eth0 nodad\nlink set eth0 up\n\
         route add 169.254.77.1 dev eth0\nroute add default via 169.254.77.1\nroute add default via fe80::77 dev eth0\n"
    );
    ip(Some(&pod.namespace()), &inside)
}

/// Removes the host's namespaces and rules. Its bridge port is removed with the namespace.
pub fn remove(host: HostId) -> Result<()> {
    let existing = namespaces();
    for name in [host.namespace(), host.router_namespace()].iter().filter(|name| existing.contains(name)) {
        ip(None, &format!("netns del {name}\n"))?;
    }
    while drop_pod_traffic("del", host).is_ok() {}
    Ok(())
}

fn port(host: HostId) -> String {
    format!("v{host}")
}
