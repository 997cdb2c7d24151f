//! Hosts outside the cluster, beside its nodes: each a network namespace with a name and a cgroup of its own, and one of
//! the roads by which such a host may reach pods, or not.

mod agent;
mod bgp;
mod client;
mod road;

use std::{fs, path::PathBuf, time::Duration};

use anyhow::{Context, Result};

use crate::{
    cgroup::Tree,
    cluster::Cluster,
    kubeconfig::agent_user,
    namespace::Place,
    part::Part,
    plan::{Host, NAME, Node},
    state,
    wait::{self, Patience},
};
pub use agent::Resolver;
pub use bgp::Speaker;
pub use client::{Client, Score, Seat};
pub use road::Road;

/// Where Beeline pins its maps on a host: the files are the machine's, so each host has a folder of its own.
const PINS: &str = "/sys/fs/bpf";

/// A host that is there; it is gone when this is dropped, or with the cluster.
pub struct Outside {
    pub host: Host,
    pub road: Road,
    cluster: Cluster,
}

impl Outside {
    pub fn make(host: Host, road: Road) -> Result<Outside> {
        let outside = Outside { host, road, cluster: Cluster::find()? };
        outside.remove()?;
        road::lay(host, road, &outside.cluster.nodes()).with_context(|| format!("make host {host} ({road:?})"))?;
        if road == Road::Bgp {
            bgp::start_host(host, &outside.cluster.nodes())?;
        }
        Ok(outside)
    }

    /// Runs a program on it; gives what it printed.
    pub fn run(&self, words: &[&str]) -> Result<String> {
        self.cluster.host(self.host, words)
    }

    /// A program that keeps running on it.
    pub fn part(&self, name: &str, words: Vec<String>) -> Result<Part> {
        Part::new(Place::Host(self.host), name, words)
    }

    /// To which a program and its arguments are added.
    pub fn command(&self) -> Result<std::process::Command> {
        self.cluster.command(Place::Host(self.host))
    }

    /// A user of the API who may do what an agent may.
    pub fn kubeconfig(&self) -> PathBuf {
        state::kubeconfig(&agent_user(self.host))
    }

    pub fn files(&self) -> PathBuf {
        state::path("host").join(self.host.name())
    }

    pub fn cgroup(&self) -> Result<PathBuf> {
        Ok(Tree::find()?.path(&self.host.name()))
    }

    /// What the kernel would do with a packet to this address: the device and the next hop, or why not.
    pub fn route(&self, to: &str) -> Result<String> {
        self.run(&["ip", "-o", "route", "get", to])
    }

    /// Who answers at this address; a dial that fails is curl's exit code (7: refused, 28: no answer).
    pub fn dial(&self, at: &str) -> Result<String> {
        Ok(self.run(&["sh", "-c", &dialling(at)])?.trim().to_owned())
    }

    fn remove(&self) -> Result<()> {
        Tree::find()?.end(&self.host.name())?;
        road::remove(self.host)?;
        let _ = fs::remove_dir_all(self.files()); // Not there, as a rule.
        remove_dir(&pins(&format!("{NAME}-{}", self.host)));
        Ok(())
    }
}

impl Drop for Outside {
    fn drop(&mut self) {
        let _ = self.remove(); // `kit down` removes the rest.
    }
}

fn dialling(at: &str) -> String {
    format!("curl -s --max-time 5 http://{at}/hostname || printf 'failed %s' $?")
}

/// Announces the pods of these nodes to hosts on a road of [`Road::Bgp`].
pub fn announce(nodes: &[Node]) -> Result<Vec<Speaker>> {
    nodes.iter().map(|node| bgp::start_node(*node)).collect()
}

/// What agents on hosts left below the machine's own bpffs.
pub fn remove_pins() {
    Host::all().for_each(|host| remove_dir(&pins(&format!("{NAME}-{host}"))));
}

fn pins(name: &str) -> PathBuf {
    PathBuf::from(PINS).join(name)
}

/// bpffs knows no difference between a pin and a file, but wants folders empty.
fn remove_dir(dir: &std::path::Path) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        match entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            true => remove_dir(&entry.path()),
            false => drop(fs::remove_file(entry.path())),
        }
    }
    let _ = fs::remove_dir(dir); // Not there, as a rule.
}

/// Routes that are learned take a moment.
pub fn eventually(what: &str, mut is_so: impl FnMut() -> Result<bool>) -> Result<()> {
    let patience = Patience { what: what.to_owned(), limit: Duration::from_secs(60), log: None };
    wait::until(patience, || Ok(is_so()?.then_some(())))
}
