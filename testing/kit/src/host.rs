//! Hosts outside the cluster: each has a network namespace, a host name and a cgroup of its own, and one of several
//! kinds of routes to the cluster's pods.

mod agent;
mod bgp;
mod client;
mod route;

use std::{fs, mem::ManuallyDrop, path::PathBuf, time::Duration};

use anyhow::{Context, Result};

use crate::{
    address_plan::{HostId, NAME, NodeId},
    cgroup::CgroupTree,
    cluster::TestCluster,
    component::Component,
    kubeconfig::agent_user,
    namespace::Location,
    progress::{report, timed},
    state, subprocess,
    wait::{self, Timeout},
};
pub use agent::HostAgent;
pub use bgp::BgpSpeaker;
pub use client::{ClientContext, DialClient, DialCounts};
pub use route::HostRoute;

/// The machine's bpffs, in which the agent of each host has a pin directory of its own.
const PINS: &str = "/sys/fs/bpf";

/// A host outside the cluster. It is removed when the value is dropped, or with the cluster.
pub struct OutsideHost {
    pub host: HostId,
    pub route: HostRoute,
    cluster: TestCluster,
}

impl OutsideHost {
    pub fn create(host: HostId, route: HostRoute) -> Result<OutsideHost> {
        let outside = OutsideHost { host, route, cluster: TestCluster::find()? };
        outside.remove()?;
        route::create(host, route, &outside.cluster.nodes())
            .with_context(|| format!("cannot create host {host} ({route:?})"))?;
        if route == HostRoute::Bgp {
            bgp::start_host(host, &outside.cluster.nodes())?;
        }
        Ok(outside)
    }

    /// Runs a program on the host and returns its output.
    pub fn run(&self, arguments: &[&str]) -> Result<String> {
        self.cluster.host(self.host, arguments)
    }

    /// Joins the cluster with a code from `beeline grant`, and returns the kubeconfig that `beeline join` wrote. The
    /// files are below the host's own directory, because the machine's files are shared by all hosts.
    fn join(&self, code: &str) -> Result<PathBuf> {
        let root = self.files().join("root");
        fs::create_dir_all(&root).with_context(|| format!("cannot create {}", root.display()))?;
        let (binary, root) = (crate::agent::binary(None)?.display().to_string(), root.display().to_string());
        let output = self.run(&[&binary, "join", code, "--root", &root])?;
        let mut words = output.lines().filter_map(|line| line.split_whitespace().last());
        let kubeconfig = words.find(|word| word.starts_with(&root) && word.contains("kubeconfig"));
        kubeconfig.map(PathBuf::from).with_context(|| format!("`beeline join` named no kubeconfig: {output}"))
    }

    /// A long-running program on the host.
    pub fn component(&self, name: &str, arguments: Vec<String>) -> Result<Component> {
        Component::new(Location::Host(self.host), name, arguments)
    }

    /// A command prefix that runs a program on the host. The caller adds the program and its arguments.
    pub fn command(&self) -> Result<std::process::Command> {
        self.cluster.command(Location::Host(self.host))
    }

    /// Kubeconfig of a user with an agent's permissions.
    pub fn kubeconfig(&self) -> PathBuf {
        state::kubeconfig(&agent_user(self.host))
    }

    pub fn files(&self) -> PathBuf {
        state::path("host").join(self.host.name())
    }

    pub fn cgroup(&self) -> Result<PathBuf> {
        Ok(CgroupTree::find()?.path(&self.host.name()))
    }

    /// The kernel's route to this address, or an error if there is none.
    pub fn route_to(&self, to: &str) -> Result<String> {
        self.run(&["ip", "-o", "route", "get", to])
    }

    /// Name of the server that answers at this address, or `failed` and curl's exit code (7: refused, 28: timed out).
    pub fn dial(&self, at: &str) -> Result<String> {
        Ok(self.run(&["sh", "-c", &dial_script(at)])?.trim().to_owned())
    }

    fn remove(&self) -> Result<()> {
        CgroupTree::find()?.remove_subtree(&self.host.name())?;
        route::remove(self.host)?;
        let _ = fs::remove_dir_all(self.files()); // Usually the directory does not exist.
        remove_dir(&pin_dir(&format!("{NAME}-{}", self.host)));
        Ok(())
    }
}

impl Drop for OutsideHost {
    fn drop(&mut self) {
        let _ = self.remove(); // `kit down` removes what is left.
    }
}

fn dial_script(at: &str) -> String {
    format!("curl -s --max-time 5 http://{at}/hostname || printf 'failed %s' $?")
}

/// Creates a host that joins the cluster with a code from `beeline grant`, and starts its agent. The host stays until
/// [`remove`] or `kit down`.
pub fn add(host: HostId, route: HostRoute) -> Result<()> {
    let outside = ManuallyDrop::new(OutsideHost::create(host, route)?);
    let code = grant(&outside.cluster, host)?;
    let kubeconfig = outside.join(&code)?;
    let options = ["--host-role=outside", &format!("--kubeconfig={}", kubeconfig.display())];
    timed(&format!("agent on {host}"), || outside.agent(&options)?.start())?;
    let [pin_dir, socket] = outside.agent_options();
    report(format!(
        "host {host} has joined the cluster. Try it:\n\nkit host {host} -- beeline services {pin_dir} {socket}"
    ));
    Ok(())
}

/// Stops the host's agent, removes its account from the cluster and removes the host.
pub fn remove(host: HostId) -> Result<()> {
    let cluster = TestCluster::find()?;
    let outside = OutsideHost { host, route: HostRoute::Static, cluster: TestCluster::find()? };
    // A host that a test created has no account to revoke.
    let _ = run_beeline(&cluster, &["revoke", &host.name()]);
    outside.remove()
}

/// The join code that `beeline grant` prints for this host.
fn grant(cluster: &TestCluster, host: HostId) -> Result<String> {
    let output = run_beeline(cluster, &["grant", &host.name()])?;
    let code = output.lines().find_map(|line| line.strip_prefix("beeline join "));
    code.map(str::to_owned).with_context(|| format!("`beeline grant {host}` printed no join code: {output}"))
}

/// Runs a beeline command with the administrator's kubeconfig.
fn run_beeline(cluster: &TestCluster, arguments: &[&str]) -> Result<String> {
    let mut command = cluster.command(Location::ControlPlane)?;
    command.arg(crate::agent::binary(None)?).args(arguments).arg("--kubeconfig").arg(cluster.kubeconfig("admin"));
    subprocess::run(&mut command)
}

/// Announces the pod ranges of these nodes to hosts with [`HostRoute::Bgp`].
pub fn announce_pods(nodes: &[NodeId]) -> Result<Vec<BgpSpeaker>> {
    nodes.iter().map(|node| bgp::start_node(*node)).collect()
}

/// Removes the pin directories of all hosts' agents.
pub fn remove_pins() {
    HostId::all().for_each(|host| remove_dir(&pin_dir(&format!("{NAME}-{host}"))));
}

fn pin_dir(name: &str) -> PathBuf {
    PathBuf::from(PINS).join(name)
}

/// Removes a directory of the bpffs recursively. Pins are removed like files.
fn remove_dir(dir: &std::path::Path) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        match entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            true => remove_dir(&entry.path()),
            false => drop(fs::remove_file(entry.path())),
        }
    }
    let _ = fs::remove_dir(dir); // Usually the directory does not exist.
}

/// Waits up to a minute for a condition, such as a route learned by BGP.
pub fn wait_until(what: &str, mut condition: impl FnMut() -> Result<bool>) -> Result<()> {
    let timeout = Timeout { what: what.to_owned(), limit: Duration::from_secs(60), log: None };
    wait::until(timeout, || Ok(condition()?.then_some(())))
}
