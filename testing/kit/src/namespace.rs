//! Enters a namespace of the cluster with this process or with one thread.

use std::{
    fs::{self, File},
    os::{fd::AsFd, unix::process::CommandExt},
    path::Path,
    process::Command,
    thread,
};

use anyhow::{Context, Error, Result, anyhow};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::{
    address_plan::{HostId, NodeId, control_namespace},
    cache::Cache,
    cgroup::CgroupTree,
    network::namespace_file,
    node,
};

/// Location of a process in the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Location {
    /// The network namespace of the control plane, with the machine's files.
    ControlPlane,
    /// All namespaces of a node.
    Node(NodeId),
    /// The network namespace and host name of a host outside the cluster, with the machine's files.
    Host(HostId),
}

impl Location {
    /// Prefix of the names of its cgroups and logs.
    pub fn name(self) -> String {
        match self {
            Location::ControlPlane => "control".to_owned(),
            Location::Node(node) => node.name(),
            Location::Host(host) => host.name(),
        }
    }

    /// Replaces this process by a command in this location, in the cgroup of `component`. Returns only if that fails.
    pub fn exec(self, component: &str, detach: bool, arguments: &[String]) -> Error {
        match self.prepare(component, detach, arguments) {
            Ok(mut command) => {
                let error = command.exec();
                anyhow!(error).context(format!("run {:?} in {}", command.get_program(), self.name()))
            }
            Err(error) => error,
        }
    }

    fn prepare(self, component: &str, detach: bool, arguments: &[String]) -> Result<Command> {
        let (program, arguments) = arguments.split_first().context("the command is missing")?;
        let mut command = match self {
            Location::ControlPlane => {
                enter_network(&control_namespace())?;
                Command::new(program)
            }
            Location::Node(node) => {
                let mut nsenter = Command::new("nsenter");
                let init = node::init_process(node)?.to_string();
                nsenter.args(["-t", &init, "-m", "-u", "-i", "-n", "-p", "--", program]);
                nsenter
            }
            Location::Host(host) => {
                enter_network(&host.namespace())?;
                let mut unshare = Command::new("unshare");
                unshare.args(["-u", "--", "sh", "-c", "hostname \"$0\" && exec \"$@\"", &host.name(), program]);
                unshare
            }
        };
        CgroupTree::find()?.join(&format!("{}/{component}", self.name()))?;
        if detach {
            rustix::process::setsid().context("cannot start a session")?;
        }
        command.args(arguments).env("PATH", Cache::open()?.search_path()?);
        Ok(command)
    }
}

fn enter_network(name: &str) -> Result<()> {
    let path = namespace_file(name);
    let file =
        File::open(&path).with_context(|| format!("{}: is the cluster running? See `kit status`", path.display()))?;
    move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
        .with_context(|| format!("cannot enter network namespace {name}"))
}

/// Runs `work` in a network namespace, in a thread of its own. Sockets created there stay in that namespace.
pub fn run_in<T: Send>(name: &str, work: impl FnOnce() -> T + Send) -> Result<T> {
    let inside = || enter_network(name).map(|()| work());
    let done = thread::scope(|scope| scope.spawn(inside).join());
    done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Writes settings below /proc/sys/net of a network namespace. Settings of kernel modules that are not loaded are
/// skipped.
pub fn sysctl(name: &str, settings: &[(&str, &str)]) -> Result<()> {
    run_in(name, || {
        let paths = settings.iter().map(|(key, value)| (Path::new("/proc/sys/net").join(key), value));
        for (path, value) in paths.filter(|(path, _)| path.exists()) {
            fs::write(&path, value).with_context(|| format!("cannot write {value} to {}", path.display()))?;
        }
        Ok(())
    })?
}
