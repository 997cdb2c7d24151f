//! A long-running program of the cluster, in the control plane, on a node or on a host outside.

use std::{
    env,
    fs::File,
    path::PathBuf,
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal};

use crate::{
    cache::Cache,
    cgroup::{self, CgroupTree},
    namespace::Location,
    wait::{self, Timeout},
};

/// Time between SIGTERM and SIGKILL. A kube-apiserver with open watches would take a minute to end.
const GRACE_PERIOD: Duration = Duration::from_secs(5);

pub struct Component {
    pub location: Location,
    /// Name of the component's cgroup and log.
    pub name: String,
    /// Program and its arguments.
    pub arguments: Vec<String>,
    cache: Cache,
}

impl Component {
    pub fn new(location: Location, name: &str, arguments: Vec<String>) -> Result<Component> {
        Ok(Component { location, name: name.to_owned(), arguments, cache: Cache::open()? })
    }

    /// `control/etcd`, `n1/kubelet`.
    pub fn title(&self) -> String {
        format!("{}/{}", self.location.name(), self.name)
    }

    pub fn log(&self) -> PathBuf {
        self.cache.log(&format!("{}-{}", self.location.name(), self.name))
    }

    /// Starts the component and checks that it does not end at once. The log is appended to that of the last run.
    pub fn start(&self) -> Result<()> {
        ensure!(!self.arguments.is_empty(), "{} was never started: run `kit agent N start`", self.title());
        ensure!(!self.running()?, "{0} is already running: use `kit restart {0}`", self.title());
        let log = File::options().create(true).append(true).open(self.log());
        let log = log.with_context(|| format!("cannot open {}", self.log().display()))?;
        let mut command = Command::new(program()?);
        let name = self.location.name();
        match self.location {
            Location::ControlPlane => command.arg("control"),
            Location::Node(_) => command.args(["node", &name]),
            Location::Host(_) => command.args(["host", &name]),
        };
        command.args(["--component", &self.name, "--detach", "--"]).args(&self.arguments);
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let mut child = command.spawn().with_context(|| format!("cannot start {}", self.title()))?;
        wait::until(self.timeout("start of", 20), || {
            if let Some(status) = child.try_wait()? {
                bail!("{} ended at once ({status}): read {}", self.title(), self.log().display());
            }
            Ok(self.running()?.then_some(()))
        })
    }

    pub fn pids(&self) -> Result<Vec<Pid>> {
        Ok(CgroupTree::find()?.pids(&self.title(), &self.program_name()))
    }

    pub fn running(&self) -> Result<bool> {
        Ok(!self.pids()?.is_empty())
    }

    /// Returns an error that names the log if the component does not run.
    pub fn require_running(&self) -> Result<()> {
        ensure!(self.running()?, "{} is not running: read {}", self.title(), self.log().display());
        Ok(())
    }

    /// Sends SIGTERM, and SIGKILL after a grace period. Succeeds if the component does not run.
    pub fn stop(&self) -> Result<()> {
        cgroup::signal(&self.pids()?, Signal::TERM);
        let grace = Timeout { what: format!("end of {}", self.title()), limit: GRACE_PERIOD, log: None };
        match wait::until(grace, || Ok(self.pids()?.is_empty().then_some(()))) {
            Ok(()) => Ok(()),
            Err(_) => self.kill(),
        }
    }

    pub fn kill(&self) -> Result<()> {
        cgroup::signal(&self.pids()?, Signal::KILL);
        wait::until(self.timeout("end of", 30), || Ok(self.pids()?.is_empty().then_some(())))
    }

    /// Stops the processes by SIGSTOP until [`Component::thaw`]. They keep their sockets but do not respond.
    pub fn freeze(&self) -> Result<()> {
        cgroup::signal(&self.pids()?, Signal::STOP);
        Ok(())
    }

    pub fn thaw(&self) -> Result<()> {
        cgroup::signal(&self.pids()?, Signal::CONT);
        Ok(())
    }

    fn program_name(&self) -> String {
        let program = self.arguments.first().map(PathBuf::from).unwrap_or_default();
        program.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    fn timeout(&self, what: &str, seconds: u64) -> Timeout {
        Timeout::new(format!("{what} {}", self.title()), seconds, self.log())
    }
}

/// Path of the `kit` program, which is executed again to enter namespaces. Tests find it beside their own program.
pub fn program() -> Result<PathBuf> {
    if let Some(path) = env::var_os("BEELINE_KIT") {
        return Ok(path.into());
    }
    let own = env::current_exe().context("cannot find the path of this program")?;
    let beside = own.ancestors().skip(1).take(2).map(|dir| dir.join("kit")).find(|path| path.is_file());
    beside.with_context(|| format!("no `kit` program near {}: run `cargo build --workspace`", own.display()))
}
