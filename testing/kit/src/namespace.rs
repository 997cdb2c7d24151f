//! Into a namespace of the cluster, with this process or with one thread of it.

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
    cache::Cache,
    cgroup::Tree,
    network::namespace_file,
    node,
    plan::{Host, Node, control_namespace},
};

/// Where a command of the cluster runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Outside the nodes: the network of the control plane, the files of the machine.
    Control,
    /// All namespaces of a node.
    Node(Node),
    /// The network and the name of a host outside the cluster, the files of the machine.
    Host(Host),
}

impl Place {
    /// First part of the names of its cgroups and logs.
    pub fn name(self) -> String {
        match self {
            Place::Control => "control".to_owned(),
            Place::Node(node) => node.name(),
            Place::Host(host) => host.name(),
        }
    }

    /// Becomes `words` in this place, in the cgroup of `part`. Returns only if that fails.
    pub fn exec(self, part: &str, detach: bool, words: &[String]) -> Error {
        match self.prepare(part, detach, words) {
            Ok(mut command) => {
                let error = command.exec();
                anyhow!(error).context(format!("run {:?} in {}", command.get_program(), self.name()))
            }
            Err(error) => error,
        }
    }

    fn prepare(self, part: &str, detach: bool, words: &[String]) -> Result<Command> {
        let (program, arguments) = words.split_first().context("no command is given")?;
        let mut command = match self {
            Place::Control => {
                enter_network(&control_namespace())?;
                Command::new(program)
            }
            Place::Node(node) => {
                let mut nsenter = Command::new("nsenter");
                let first = node::first_process(node)?.to_string();
                nsenter.args(["-t", &first, "-m", "-u", "-i", "-n", "-p", "--", program]);
                nsenter
            }
            Place::Host(host) => {
                enter_network(&host.namespace())?;
                let mut unshare = Command::new("unshare");
                unshare.args(["-u", "--", "sh", "-c", "hostname \"$0\" && exec \"$@\"", &host.name(), program]);
                unshare
            }
        };
        Tree::find()?.join(&format!("{}/{part}", self.name()))?;
        if detach {
            rustix::process::setsid().context("start a session")?;
        }
        command.args(arguments).env("PATH", Cache::open()?.search_path()?);
        Ok(command)
    }
}

fn enter_network(name: &str) -> Result<()> {
    let path = namespace_file(name);
    let file = File::open(&path).with_context(|| format!("{}: is the cluster up? (`kit status`)", path.display()))?;
    move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
        .with_context(|| format!("enter network namespace {name}"))
}

/// Runs `work` in a network namespace, in a thread of its own: sockets made there belong to it for good.
pub fn run_in<T: Send>(name: &str, work: impl FnOnce() -> T + Send) -> Result<T> {
    let inside = || enter_network(name).map(|()| work());
    let done = thread::scope(|scope| scope.spawn(inside).join());
    done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Settings below /proc/sys/net, which show the namespace of the thread that opens them. Those of a part of the kernel
/// that is not loaded are left out: what they would switch off is not there.
pub fn sysctl(name: &str, settings: &[(&str, &str)]) -> Result<()> {
    run_in(name, || {
        let paths = settings.iter().map(|(key, value)| (Path::new("/proc/sys/net").join(key), value));
        for (path, value) in paths.filter(|(path, _)| path.exists()) {
            fs::write(&path, value).with_context(|| format!("write {value} to {}", path.display()))?;
        }
        Ok(())
    })?
}
