//! passt connects the guest's network card to ordinary sockets of the node. It runs in a cgroup of the node, so the
//! node's hooks resolve its dials.

use std::{fs, path::Path};

use anyhow::{Context, Result, ensure};

use crate::{
    address_plan::NodeId,
    component::Component,
    namespace::Location,
    wait::{self, Timeout},
};

pub const SOCKET: &str = "passt.sock";
const NAME: &str = "passt";
const PROGRAM: &str = "/usr/bin/passt";

pub fn start(node: NodeId, dir: &Path) -> Result<()> {
    ensure!(Path::new(PROGRAM).exists(), "{PROGRAM} is missing: run scripts/setup.sh guest");
    let (socket, program) = (dir.join(SOCKET), dir.join(NAME));
    // passt executes passt.avx2 beside it if there is one, and a component is found by its program's name. The copy
    // stays `passt`.
    fs::copy(PROGRAM, &program).with_context(|| format!("cannot copy {PROGRAM} to {}", program.display()))?;
    let component = component(node, dir)?;
    component.start()?;
    wait::until(Timeout::new("passt's socket", 20, component.log()), || {
        component.require_running()?;
        Ok(socket.exists().then_some(()))
    })
}

/// Runs as root, because the default user `nobody` may not enter the directory of the socket.
fn component(node: NodeId, dir: &Path) -> Result<Component> {
    let [program, socket] = [NAME, SOCKET].map(|name| dir.join(name).display().to_string());
    let fixed = "--foreground --stderr --runas 0:0 --mtu 1500 --no-map-gw --socket";
    let arguments = [program.as_str()].into_iter().chain(fixed.split(' ')).chain([socket.as_str()]);
    Component::new(Location::Node(node), NAME, arguments.map(str::to_owned).collect())
}

pub fn stop(node: NodeId) -> Result<()> {
    component(node, Path::new(""))?.stop()
}
