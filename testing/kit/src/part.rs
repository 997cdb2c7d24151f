//! A program that keeps running in the cluster: in the control plane, or on one node.

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
    cgroup::{self, Tree},
    namespace::Place,
    wait::{self, Patience},
};

/// A kube-apiserver with open watches would take a minute to end by itself.
const GRACE: Duration = Duration::from_secs(5);

pub struct Part {
    pub place: Place,
    /// Name of its program, its cgroup and its log.
    pub name: String,
    pub words: Vec<String>,
    cache: Cache,
}

impl Part {
    pub fn new(place: Place, name: &str, words: Vec<String>) -> Result<Part> {
        Ok(Part { place, name: name.to_owned(), words, cache: Cache::open()? })
    }

    /// `control/etcd`, `n1/kubelet`.
    pub fn title(&self) -> String {
        format!("{}/{}", self.place.name(), self.name)
    }

    pub fn log(&self) -> PathBuf {
        self.cache.log(&format!("{}-{}", self.place.name(), self.name))
    }

    /// Starts it and sees that it has not ended at once. Its log goes on where the last run ended.
    pub fn start(&self) -> Result<()> {
        ensure!(!self.words.is_empty(), "{} was never started here: `kit agent N start`", self.title());
        ensure!(!self.running()?, "{} runs already: `kit restart {0}`", self.title());
        let log = File::options().create(true).append(true).open(self.log());
        let log = log.with_context(|| format!("open {}", self.log().display()))?;
        let mut command = Command::new(program()?);
        let place = self.place.name();
        match self.place {
            Place::Control => command.arg("control"),
            Place::Node(_) => command.args(["node", &place]),
            Place::Host(_) => command.args(["host", &place]),
        };
        command.args(["--part", &self.name, "--detach", "--"]).args(&self.words);
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let mut child = command.spawn().with_context(|| format!("start {}", self.title()))?;
        wait::until(self.patience("start of", 20), || {
            if let Some(status) = child.try_wait()? {
                bail!("{} ended at once ({status}): read {}", self.title(), self.log().display());
            }
            Ok(self.running()?.then_some(()))
        })
    }

    pub fn pids(&self) -> Result<Vec<Pid>> {
        Ok(Tree::find()?.pids(&self.title(), &self.program_name()))
    }

    pub fn running(&self) -> Result<bool> {
        Ok(!self.pids()?.is_empty())
    }

    /// Fails, naming the log, if it should run and does not.
    pub fn require_running(&self) -> Result<()> {
        ensure!(self.running()?, "{} has ended: read {}", self.title(), self.log().display());
        Ok(())
    }

    /// Asks it to end, and after a while ends it. Fine if it does not run.
    pub fn stop(&self) -> Result<()> {
        cgroup::signal(&self.pids()?, Signal::TERM);
        let polite = Patience { what: format!("end of {}", self.title()), limit: GRACE, log: None };
        match wait::until(polite, || Ok(self.pids()?.is_empty().then_some(()))) {
            Ok(()) => Ok(()),
            Err(_) => self.kill(),
        }
    }

    pub fn kill(&self) -> Result<()> {
        cgroup::signal(&self.pids()?, Signal::KILL);
        wait::until(self.patience("end of", 30), || Ok(self.pids()?.is_empty().then_some(())))
    }

    /// It keeps its sockets, and says nothing on them until [`Part::thaw`].
    pub fn freeze(&self) -> Result<()> {
        cgroup::signal(&self.pids()?, Signal::STOP);
        Ok(())
    }

    pub fn thaw(&self) -> Result<()> {
        cgroup::signal(&self.pids()?, Signal::CONT);
        Ok(())
    }

    fn program_name(&self) -> String {
        let program = self.words.first().map(PathBuf::from).unwrap_or_default();
        program.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    fn patience(&self, what: &str, seconds: u64) -> Patience {
        Patience::new(format!("{what} {}", self.title()), seconds, self.log())
    }
}

/// The kit itself, which is run again to enter places. A test that uses the library finds it beside its own program.
pub fn program() -> Result<PathBuf> {
    if let Some(path) = env::var_os("BEELINE_KIT") {
        return Ok(path.into());
    }
    let own = env::current_exe().context("find the path of this program")?;
    let beside = own.ancestors().skip(1).take(2).map(|dir| dir.join("kit")).find(|path| path.is_file());
    beside.with_context(|| format!("no program `kit` near {}: cargo build -p beeline-kit", own.display()))
}
