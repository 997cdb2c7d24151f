//! BGP by bird (Debian's bird2): each node announces its pod ranges, and a host imports them into its routing table.

use std::{fmt::Write, path::Path};

use anyhow::{Result, ensure};

use crate::{
    address_plan::{HostId, NodeId},
    component::Component,
    namespace::Location,
    state,
};

const PROGRAM: &str = "/usr/sbin/bird";
const NODE_AS: u32 = 64512;
const HOST_AS: u32 = 64513;
/// Short timers, so that sessions break and come up within seconds.
const TIMERS: &str = "hold time 6; keepalive time 2; connect delay time 1; connect retry time 2; error wait time 1, 2;";

/// The bird process of a node. Its announcements are withdrawn when it ends.
pub struct BgpSpeaker {
    pub component: Component,
}

impl Drop for BgpSpeaker {
    fn drop(&mut self) {
        let _ = self.component.stop(); // `kit down` stops it too.
    }
}

pub fn start_node(node: NodeId) -> Result<BgpSpeaker> {
    let component = component(Location::Node(node), &node_settings(node))?;
    component.stop()?;
    component.start()?;
    Ok(BgpSpeaker { component })
}

pub fn start_host(host: HostId, nodes: &[NodeId]) -> Result<()> {
    component(Location::Host(host), &host_settings(host, nodes))?.start()
}

fn component(location: Location, settings: &str) -> Result<Component> {
    ensure!(Path::new(PROGRAM).exists(), "{PROGRAM} is missing: run scripts/setup.sh outside");
    let file = |extension: &str| state::path("bird").join(format!("{}.{extension}", location.name()));
    state::write(&file("conf"), settings)?;
    let arguments = [PROGRAM.to_owned(), "-f".into(), "-c".into(), file("conf").display().to_string()];
    Component::new(
        location,
        "bird",
        arguments.into_iter().chain(["-s".into(), file("sock").display().to_string()]).collect(),
    )
}

/// The node's kernel already has routes to its pods, so bird only announces them.
fn node_settings(node: NodeId) -> String {
    let ([v4, v6], pods) = (node.addresses(), node.pods());
    let mut text = format!("router id {v4};\nprotocol device {{}}\n");
    for (family, pods) in ["ipv4", "ipv6"].iter().zip(pods) {
        let _ = writeln!(text, "protocol static {{ {family}; route {pods} blackhole; }}");
    }
    for host in HostId::all() {
        text += &session(
            &format!("{host}"),
            ([v4, v6], NODE_AS),
            (host.addresses(), HOST_AS),
            "import none; export all; next hop self;",
        );
    }
    text
}

fn host_settings(host: HostId, nodes: &[NodeId]) -> String {
    let mut text = format!("router id {};\nprotocol device {{}}\n", host.addresses()[0]);
    for family in ["ipv4", "ipv6"] {
        let _ = writeln!(text, "protocol kernel {{ {family} {{ import none; export all; }}; }}");
    }
    for node in nodes {
        text += &session(
            &node.name(),
            (host.addresses(), HOST_AS),
            (node.addresses(), NODE_AS),
            "import all; export none;",
        );
    }
    text
}

type Peer = ([std::net::IpAddr; 2], u32);

/// One session for each address family, so that next hops have the announced family.
fn session(name: &str, own: Peer, other: Peer, what: &str) -> String {
    let of = |index: usize, family: &str| {
        format!(
            "protocol bgp {name}_{family} {{ local {} as {}; neighbor {} as {}; {TIMERS} {family} {{ {what} }}; }}\n",
            own.0[index], own.1, other.0[index], other.1
        )
    };
    of(0, "ipv4") + &of(1, "ipv6")
}
