//! How a host outside reaches the cluster.

use std::{net::IpAddr, process::Command};

use anyhow::Result;

use crate::{
    call, namespace,
    network::{add_port, ip, namespaces, pod_routes},
    plan::{CONTROL, Host, Node, PODS, control_namespace},
};

/// All but the last see the nodes themselves, and the API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Road {
    /// A static route to the pods of each node; the default route does not lead to pods.
    Static,
    /// The same routes, learned: see [`super::announce`].
    Bgp,
    /// Nothing but a default route, to a router that knows the pods.
    Default,
    /// Nothing but a default route, to a router that swallows what goes to pods.
    Blind,
    /// The nodes' network, and nothing beyond.
    Lone,
    /// Behind a router that masquerades, and swallows what goes to pods: an edge host.
    Hidden,
    /// No road at all but to that host: a pod of it, with these addresses.
    Pod { of: Host, addresses: [IpAddr; 2] },
}

impl Road {
    fn has_default(self) -> bool {
        matches!(self, Road::Static | Road::Bgp | Road::Default | Road::Blind)
    }

    /// Whether the nodes' router swallows what this host sends to pods.
    fn is_blind(self) -> bool {
        matches!(self, Road::Static | Road::Bgp | Road::Blind | Road::Hidden)
    }
}

const ROUTER: [(&str, &str); 2] = [("ipv4/ip_forward", "1"), ("ipv6/conf/all/forwarding", "1")];
/// Between a router and what is behind it.
const INNER: &str = "inner0";

pub fn lay(host: Host, road: Road, nodes: &[Node]) -> Result<()> {
    match road {
        Road::Pod { of, addresses } => return lay_pod(host, of, addresses),
        Road::Hidden => lay_hidden(host)?,
        _ => {
            add_port(&host.namespace(), &port(host))?;
            ip(Some(&host.namespace()), &on_switch(host, road.has_default()))?;
        }
    }
    if road == Road::Static {
        ip(Some(&host.namespace()), &nodes.iter().map(|node| pod_routes(*node)).collect::<String>())?;
    }
    if road.is_blind() {
        blind("add", host)?;
    }
    Ok(())
}

/// A host that is made again is the same card to its neighbours, as a real one: they remember it for some seconds.
fn on_switch(host: Host, default: bool) -> String {
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

/// Rules know their family by an option only, so there is no batch for both.
fn blind(verb: &str, host: Host) -> Result<()> {
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
        call::run(&mut command)?;
    }
    Ok(())
}

fn lay_hidden(host: Host) -> Result<()> {
    let router = host.router_namespace();
    add_port(&router, &port(host))?;
    ip(None, &format!("netns add {}\n", host.namespace()))?;
    ip(
        Some(&router),
        &format!("{}link add {INNER} type veth peer name eth0 netns {}\n", on_switch(host, true), host.namespace()),
    )?;
    ip(
        Some(&router),
        &format!(
            "addr add 192.168.77.1/24 dev {INNER}\naddr add fd00:77::1/64 dev {INNER} nodad\nlink set {INNER} up\n"
        ),
    )?;
    namespace::sysctl(&router, &ROUTER)?;
    masquerade(&router)?;
    let [v4, v6] = host.hidden_addresses();
    let inside = format!(
        "link set lo up\naddr add {v4}/24 dev eth0\naddr add {v6}/64 dev eth0 nodad\nlink set eth0 up\n\
         route add default via 192.168.77.1\nroute add default via fd00:77::1\n"
    );
    ip(Some(&host.namespace()), &inside)
}

fn masquerade(router: &str) -> Result<()> {
    let rules = "add table inet kit\nadd chain inet kit out { type nat hook postrouting priority srcnat; }\n\
                 add rule inet kit out oifname \"eth0\" masquerade\n";
    namespace::run_in(router, || call::run_with_input(Command::new("nft").args(["-f", "-"]), rules.as_bytes()))?
        .map(drop)
}

fn lay_pod(pod: Host, of: Host, addresses: [IpAddr; 2]) -> Result<()> {
    let (device, [v4, v6]) = (format!("v{pod}"), addresses);
    ip(None, &format!("netns add {}\n", pod.namespace()))?;
    namespace::sysctl(&of.namespace(), &ROUTER)?;
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

/// Its port of the switch goes with the namespace at the other end.
pub fn remove(host: Host) -> Result<()> {
    let there = namespaces();
    for name in [host.namespace(), host.router_namespace()].iter().filter(|name| there.contains(name)) {
        ip(None, &format!("netns del {name}\n"))?;
    }
    while blind("del", host).is_ok() {}
    Ok(())
}

fn port(host: Host) -> String {
    format!("v{host}")
}
