//! bird (Debian's bird2) on nodes and hosts: each node announces its pods' ranges, a host takes them into its own table.

use std::{fmt::Write, path::Path};

use anyhow::{Result, ensure};

use crate::{
    namespace::Place,
    part::Part,
    plan::{Host, Node},
    state,
};

const PROGRAM: &str = "/usr/sbin/bird";
const NODES: u32 = 64512;
const HOSTS: u32 = 64513;
/// A session that breaks is to be noticed, and one that may be built is to be built, within seconds.
const TIMES: &str = "hold time 6; keepalive time 2; connect delay time 1; connect retry time 2; error wait time 1, 2;";

/// A node's bird. What it announced is withdrawn when it ends.
pub struct Speaker {
    pub part: Part,
}

impl Drop for Speaker {
    fn drop(&mut self) {
        let _ = self.part.stop(); // `kit down` ends it as well.
    }
}

pub fn start_node(node: Node) -> Result<Speaker> {
    let part = part(Place::Node(node), &node_settings(node))?;
    part.stop()?;
    part.start()?;
    Ok(Speaker { part })
}

pub fn start_host(host: Host, nodes: &[Node]) -> Result<()> {
    part(Place::Host(host), &host_settings(host, nodes))?.start()
}

fn part(place: Place, settings: &str) -> Result<Part> {
    ensure!(Path::new(PROGRAM).exists(), "{PROGRAM} is missing: run scripts/setup.sh outside");
    let file = |extension: &str| state::path("bird").join(format!("{}.{extension}", place.name()));
    state::write(&file("conf"), settings)?;
    let words = [PROGRAM.to_owned(), "-f".into(), "-c".into(), file("conf").display().to_string()];
    Part::new(place, "bird", words.into_iter().chain(["-s".into(), file("sock").display().to_string()]).collect())
}

/// The kernel of a node knows its pods already, so bird only speaks of them.
fn node_settings(node: Node) -> String {
    let ([v4, v6], pods) = (node.addresses(), node.pods());
    let mut text = format!("router id {v4};\nprotocol device {{}}\n");
    for (family, pods) in ["ipv4", "ipv6"].iter().zip(pods) {
        let _ = writeln!(text, "protocol static {{ {family}; route {pods} blackhole; }}");
    }
    for host in Host::all() {
        text += &session(
            &format!("{host}"),
            ([v4, v6], NODES),
            (host.addresses(), HOSTS),
            "import none; export all; next hop self;",
        );
    }
    text
}

fn host_settings(host: Host, nodes: &[Node]) -> String {
    let mut text = format!("router id {};\nprotocol device {{}}\n", host.addresses()[0]);
    for family in ["ipv4", "ipv6"] {
        let _ = writeln!(text, "protocol kernel {{ {family} {{ import none; export all; }}; }}");
    }
    for node in nodes {
        text +=
            &session(&node.name(), (host.addresses(), HOSTS), (node.addresses(), NODES), "import all; export none;");
    }
    text
}

type Side = ([std::net::IpAddr; 2], u32);

/// One for each family: a next hop is then of the family that is announced.
fn session(name: &str, own: Side, other: Side, what: &str) -> String {
    let of = |index: usize, family: &str| {
        format!(
            "protocol bgp {name}_{family} {{ local {} as {}; neighbor {} as {}; {TIMES} {family} {{ {what} }}; }}\n",
            own.0[index], own.1, other.0[index], other.1
        )
    };
    of(0, "ipv4") + &of(1, "ipv6")
}
