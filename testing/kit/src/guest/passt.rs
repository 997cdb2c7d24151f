//! passt: the guest's network card at one end, ordinary sockets of the node at the other. It runs in a cgroup of the node,
//! where the node's Beeline sees its dials.

use std::{fs, path::Path};

use anyhow::{Context, Result, ensure};

use crate::{
    namespace::Place,
    part::Part,
    plan::Node,
    wait::{self, Patience},
};

pub const SOCKET: &str = "passt.sock";
const NAME: &str = "passt";
const PROGRAM: &str = "/usr/bin/passt";

pub fn start(node: Node, dir: &Path) -> Result<()> {
    ensure!(Path::new(PROGRAM).exists(), "{PROGRAM} is missing: run scripts/setup.sh guest");
    let (socket, program) = (dir.join(SOCKET), dir.join(NAME));
    // A copy has no sibling for newer processors, which it would become, and which a part does not know by its name.
    fs::copy(PROGRAM, &program).with_context(|| format!("copy {PROGRAM} to {}", program.display()))?;
    let part = part(node, dir)?;
    part.start()?;
    wait::until(Patience::new("passt's socket", 20, part.log()), || {
        part.require_running()?;
        Ok(socket.exists().then_some(()))
    })
}

/// As root: it would become `nobody`, who may not go to the folder of its socket.
fn part(node: Node, dir: &Path) -> Result<Part> {
    let [program, socket] = [NAME, SOCKET].map(|name| dir.join(name).display().to_string());
    let fixed = "--foreground --stderr --runas 0:0 --mtu 1500 --no-map-gw --socket";
    let words = [program.as_str()].into_iter().chain(fixed.split(' ')).chain([socket.as_str()]);
    Part::new(Place::Node(node), NAME, words.map(str::to_owned).collect())
}

pub fn stop(node: Node) -> Result<()> {
    part(node, Path::new(""))?.stop()
}
