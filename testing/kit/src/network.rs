//! The network: a namespace for the control plane with a switch in it, one for each node, and routes between the pods
//! of all nodes. Every device is made inside these namespaces; the machine's own network is not touched.

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
    call, namespace,
    plan::{CONTROL, NAME, Node, OUTSIDE, SINK, control_namespace},
};

const SWITCH: &str = "kit0";
/// A guest's port of the switch.
pub const TAP: &str = "guest0";
const NAMED: &str = "/run/netns";
/// Nobody has this address; the kernel is told that the sink does.
const NOBODY: &str = "02:00:00:00:00:99";
const PROBE: Duration = Duration::from_secs(1);

pub fn make(nodes: &[Node]) -> Result<()> {
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
    // A balanced address is to spread by port too, as a load balancer does.
    ("ipv4/fib_multipath_hash_policy", "1"),
    ("ipv6/fib_multipath_hash_policy", "1"),
    // The switch is a wire: no packet filter is to see what passes it.
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

fn control(nodes: &[Node]) -> String {
    let mut lines = format!(
        "link set lo up\nlink add {SWITCH} type bridge\nlink set {SWITCH} up\n\
         addr add {}/24 dev {SWITCH}\naddr add {}/64 dev {SWITCH} nodad\n\
         link add sink0 type veth peer name sink1\nlink set sink0 up\nlink set sink1 up\n\
         addr add 198.18.0.1/30 dev sink0\naddr add fd00:18::1/64 dev sink0 nodad\n\
         addr add {}/32 dev lo\naddr add {}/128 dev lo nodad\n",
        CONTROL[0], CONTROL[1], OUTSIDE[0], OUTSIDE[1]
    );
    for sink in SINK {
        lines +=
            &format!("neigh replace {sink} lladdr {NOBODY} dev sink0 nud permanent\nroute add default via {sink}\n");
    }
    for node in nodes {
        lines += &format!("link add v{node} type veth peer name eth0 netns {}\n", node.namespace());
        lines += &format!("link set v{node} master {SWITCH} up\n");
        lines += &pod_routes(*node);
    }
    lines
}

fn inside(node: Node, nodes: &[Node]) -> String {
    let [v4, v6] = node.addresses();
    let mut lines = format!(
        "link set lo up\naddr add {v4}/24 dev eth0\naddr add {v6}/64 dev eth0 nodad\nlink set eth0 up\n\
         route add default via {}\nroute add default via {}\n",
        CONTROL[0], CONTROL[1]
    );
    lines.extend(nodes.iter().filter(|other| **other != node).map(|other| pod_routes(*other)));
    lines
}

/// Routes to this node's pods, for whoever is on the nodes' network.
pub fn pod_routes(node: Node) -> String {
    let pairs = node.pods().into_iter().zip(node.addresses());
    pairs.map(|(pods, address)| format!("route add {pods} via {address}\n")).collect()
}

/// A port of the switch for a guest. Fine if it is there.
pub fn add_tap() -> Result<()> {
    let _ = ip(Some(&control_namespace()), &format!("link del {TAP}\n"));
    ip(Some(&control_namespace()), &format!("tuntap add dev {TAP} mode tap\nlink set {TAP} master {SWITCH} up\n"))
}

/// A new namespace with a port of the switch, which is `eth0` inside.
pub fn add_port(namespace: &str, port: &str) -> Result<()> {
    ip(None, &format!("netns add {namespace}\n"))?;
    // The kernel takes a namespace down in its own time, and the port of one that is gone with it.
    let _ = ip(Some(&control_namespace()), &format!("link del {port}\n"));
    ip(
        Some(&control_namespace()),
        &format!("link add {port} type veth peer name eth0 netns {namespace}\nlink set {port} master {SWITCH} up\n"),
    )
}

/// Routes an address of the load-balancer stand-in to these nodes; to the sink, if there is none. Run in the control
/// plane's namespace.
pub fn balance(address: IpAddr, nodes: &[IpAddr]) -> Result<()> {
    let family = usize::from(address.is_ipv6());
    let hops = match nodes {
        [] => format!(" via {}", SINK[family]),
        nodes => nodes.iter().map(|node| format!(" nexthop via {node}")).collect(),
    };
    let _ = unbalance(address); // `replace` adds a second route when the number of hops differs.
    ip(None, &format!("route replace {address} src {}{hops}\n", OUTSIDE[family]))
}

pub fn unbalance(address: IpAddr) -> Result<()> {
    ip(None, &format!("route del {address}\n"))
}

/// Whether `/healthz` there answers 200, asked from the network that this thread is in.
pub fn is_healthy(address: IpAddr, port: u16) -> bool {
    ask_health(address, port).is_ok_and(|answer| answer.split(' ').nth(1) == Some("200"))
}

fn ask_health(address: IpAddr, port: u16) -> Result<String> {
    let mut stream = TcpStream::connect_timeout(&(address, port).into(), PROBE)?;
    stream.set_read_timeout(Some(PROBE))?;
    stream.write_all(b"GET /healthz HTTP/1.0\r\n\r\n")?;
    let mut answer = String::new();
    stream.take(64).read_to_string(&mut answer)?;
    Ok(answer)
}

/// Names of our network namespaces that exist now.
pub fn namespaces() -> Vec<String> {
    let entries = fs::read_dir(NAMED).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| name.starts_with(&format!("{NAME}-"))).collect()
}

/// The devices go with the namespaces that they are in.
pub fn remove() -> Result<()> {
    for name in namespaces() {
        // One that `ip` was killed over is a plain file, which `ip netns del` takes as well.
        ip(None, &format!("netns del {name}\n")).with_context(|| format!("remove {NAMED}/{name}"))?;
    }
    Ok(())
}

pub fn namespace_file(name: &str) -> std::path::PathBuf {
    Path::new(NAMED).join(name)
}

/// Lines for `ip -batch`, in a namespace or in the one that this thread is in.
pub fn ip(namespace: Option<&str>, lines: &str) -> Result<()> {
    let mut command = Command::new("ip");
    command.args(namespace.iter().flat_map(|name| ["-n", name])).args(["-batch", "-"]);
    call::run_with_input(&mut command, lines.as_bytes()).with_context(|| format!("network {namespace:?}"))?;
    Ok(())
}
