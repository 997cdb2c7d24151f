//! Network of the cluster: a namespace for the control plane with a bridge in it, one namespace for each node, and
//! routes between the pods of all nodes. Every device is created inside these namespaces.

use std::{
    fs,
    io::{Read, Write},
    net::{IpAddr, TcpStream},
    path::Path,
    process::Command,
    time::Duration,
};

use anyhow::{Context, Result};

use crate::{
    address_plan::{CONTROL, NAME, NodeId, OUTSIDE, SINK, control_namespace},
    namespace, subprocess,
};

const BRIDGE: &str = "kit0";
/// Bridge port of a virtual machine.
pub const TAP: &str = "guest0";
const NETNS_DIR: &str = "/run/netns";
/// Link-layer address of the sink, which no device has.
const SINK_MAC: &str = "02:00:00:00:00:99";
const PROBE_TIMEOUT: Duration = Duration::from_secs(1);

pub fn make(nodes: &[NodeId]) -> Result<()> {
    let namespaces = [control_namespace()].into_iter().chain(nodes.iter().map(|node| node.namespace()));
    ip(None, &namespaces.map(|name| format!("netns add {name}\n")).collect::<String>())?;
    ip(Some(&control_namespace()), &control(nodes))?;
    namespace::sysctl(&control_namespace(), &CONTROL_SETTINGS)?;
    for node in nodes {
        namespace::sysctl(&node.namespace(), &NODE_SETTINGS)?;
        ip(Some(&node.namespace()), &inside(*node, nodes))?;
    }
    Ok(())
}

const CONTROL_SETTINGS: [(&str, &str); 6] = [
    ("ipv4/ip_forward", "1"),
    ("ipv6/conf/all/forwarding", "1"),
    // Multipath routes to load-balancer addresses hash the ports too, as a load balancer does.
    ("ipv4/fib_multipath_hash_policy", "1"),
    ("ipv6/fib_multipath_hash_policy", "1"),
    // No packet filter sees frames on the bridge.
    ("bridge/bridge-nf-call-iptables", "0"),
    ("bridge/bridge-nf-call-ip6tables", "0"),
];
const NODE_SETTINGS: [(&str, &str); 5] = [
    ("ipv4/ip_forward", "1"),
    ("ipv4/conf/all/rp_filter", "0"),
    ("ipv4/conf/default/rp_filter", "0"),
    ("ipv6/conf/all/forwarding", "1"),
    ("ipv6/conf/default/forwarding", "1"),
];

fn control(nodes: &[NodeId]) -> String {
    let mut lines = format!(
        "link set lo up\nlink add {BRIDGE} type bridge\nlink set {BRIDGE} up\n\
         addr add {}/24 dev {BRIDGE}\naddr add {}/64 dev {BRIDGE} nodad\n\
         link add sink0 type veth peer name sink1\nlink set sink0 up\nlink set sink1 up\n\
         addr add 198.18.0.1/30 dev sink0\naddr add fd00:18::1/64 dev sink0 nodad\n\
         addr add {}/32 dev lo\naddr add {}/128 dev lo nodad\n",
        CONTROL[0], CONTROL[1], OUTSIDE[0], OUTSIDE[1]
    );
    for sink in SINK {
        lines +=
            &format!("neigh replace {sink} lladdr {SINK_MAC} dev sink0 nud permanent\nroute add default via {sink}\n");
    }
    for node in nodes {
        lines += &format!("link add v{node} type veth peer name eth0 netns {}\n", node.namespace());
        lines += &format!("link set v{node} master {BRIDGE} up\n");
        lines += &pod_routes(*node);
    }
    lines
}

fn inside(node: NodeId, nodes: &[NodeId]) -> String {
    let [v4, v6] = node.addresses();
    let mut lines = format!(
        "link set lo up\naddr add {v4}/24 dev eth0\naddr add {v6}/64 dev eth0 nodad\nlink set eth0 up\n\
         route add default via {}\nroute add default via {}\n",
        CONTROL[0], CONTROL[1]
    );
    lines.extend(nodes.iter().filter(|other| **other != node).map(|other| pod_routes(*other)));
    lines
}

/// Routes to this node's pods, for hosts on the nodes' network.
pub fn pod_routes(node: NodeId) -> String {
    let pairs = node.pods().into_iter().zip(node.addresses());
    pairs.map(|(pods, address)| format!("route add {pods} via {address}\n")).collect()
}

/// Adds the bridge port of a virtual machine, or replaces it.
pub fn add_tap() -> Result<()> {
    let _ = ip(Some(&control_namespace()), &format!("link del {TAP}\n"));
    ip(Some(&control_namespace()), &format!("tuntap add dev {TAP} mode tap\nlink set {TAP} master {BRIDGE} up\n"))
}

/// Creates a namespace whose `eth0` is connected to the bridge.
pub fn add_port(namespace: &str, port: &str) -> Result<()> {
    ip(None, &format!("netns add {namespace}\n"))?;
    // The kernel removes a deleted namespace, and its bridge port, only after a while.
    let _ = ip(Some(&control_namespace()), &format!("link del {port}\n"));
    ip(
        Some(&control_namespace()),
        &format!("link add {port} type veth peer name eth0 netns {namespace}\nlink set {port} master {BRIDGE} up\n"),
    )
}

/// Routes a load-balancer address to these nodes, or to the sink if there are none. Runs in the control plane's
/// namespace.
pub fn add_balanced_route(address: IpAddr, nodes: &[IpAddr]) -> Result<()> {
    let family = usize::from(address.is_ipv6());
    let hops = match nodes {
        [] => format!(" via {}", SINK[family]),
        nodes => nodes.iter().map(|node| format!(" nexthop via {node}")).collect(),
    };
    // `ip route replace` adds a second route when the number of next hops differs.
    let _ = remove_balanced_route(address);
    ip(None, &format!("route replace {address} src {}{hops}\n", OUTSIDE[family]))
}

pub fn remove_balanced_route(address: IpAddr) -> Result<()> {
    ip(None, &format!("route del {address}\n"))
}

/// Whether GET /healthz returns 200, from the network namespace of this thread.
pub fn is_healthy(address: IpAddr, port: u16) -> bool {
    get_healthz(address, port).is_ok_and(|response| response.split(' ').nth(1) == Some("200"))
}

fn get_healthz(address: IpAddr, port: u16) -> Result<String> {
    let mut stream = TcpStream::connect_timeout(&(address, port).into(), PROBE_TIMEOUT)?;
    stream.set_read_timeout(Some(PROBE_TIMEOUT))?;
    stream.write_all(b"GET /healthz HTTP/1.0\r\n\r\n")?;
    let mut response = String::new();
    stream.take(64).read_to_string(&mut response)?;
    Ok(response)
}

/// Names of the kit's network namespaces that exist.
pub fn namespaces() -> Vec<String> {
    let entries = fs::read_dir(NETNS_DIR).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| name.starts_with(&format!("{NAME}-"))).collect()
}

/// Removes the network namespaces and the devices in them.
pub fn remove() -> Result<()> {
    for name in namespaces() {
        // If `ip` was killed while creating one, the name is a plain file, which `ip netns del` removes too.
        ip(None, &format!("netns del {name}\n")).with_context(|| format!("cannot remove {NETNS_DIR}/{name}"))?;
    }
    Ok(())
}

pub fn namespace_file(name: &str) -> std::path::PathBuf {
    Path::new(NETNS_DIR).join(name)
}

/// Runs `ip -batch` with these lines, in a namespace or in that of this thread.
pub fn ip(namespace: Option<&str>, lines: &str) -> Result<()> {
    let mut command = Command::new("ip");
    command.args(namespace.iter().flat_map(|name| ["-n", name])).args(["-batch", "-"]);
    subprocess::run_with_input(&mut command, lines.as_bytes()).with_context(|| format!("network {namespace:?}"))?;
    Ok(())
}
