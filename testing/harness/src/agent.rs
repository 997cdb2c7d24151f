//! An agent of the first node, with a manifest directory, pins and a socket of its own. All of it is removed on drop,
//! also after a panic. The tests, the demo and the kernel check start their agents with it.

use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;

use crate::{
    manifest_dir::ManifestDir,
    network::TestNetwork,
    program::{ProgramOutput, RunningProgram, TestProgram},
};

const PREFIX: &str = "beeline-harness-";
const PINS: &str = "/sys/fs/bpf";
/// A busy or emulated machine needs this long to verify eight BPF programs.
const START_TIMEOUT: Duration = Duration::from_secs(120);
const STOP_TIMEOUT: Duration = Duration::from_secs(60);

/// Options of an agent that serves no metrics and no health checks, and has small tables.
const SMALL: [&str; 6] = ["--metrics-bind-address", "off", "--healthz-bind-address", "off", "--max-services", "256"];

#[derive(Debug)]
pub struct AgentProcess {
    running: Option<RunningProgram>,
    binary: PathBuf,
    pub manifests: ManifestDir,
    /// Contains the manifests and the agent's socket.
    dir: PathBuf,
    pins: PathBuf,
    /// The cgroup to serve instead of that of the first node.
    pub cgroup: Option<PathBuf>,
}

impl AgentProcess {
    /// Prepares an agent of the `beeline` program next to this one, with these manifest files; `start` starts it.
    pub fn new(files: &[(&str, &str)]) -> Result<Self> {
        let agent = Self::with_binary(beeline()?)?;
        files.iter().try_for_each(|(name, text)| agent.write(name, text))?;
        Ok(agent)
    }

    /// Prepares an agent of this binary with an empty manifest directory.
    pub fn with_binary(binary: impl Into<PathBuf>) -> Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        remove_stale(Path::new(PINS));
        remove_stale(&std::env::temp_dir());
        let name = format!("{PREFIX}{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let (dir, pins) = (std::env::temp_dir().join(&name), Path::new(PINS).join(&name));
        let manifests = ManifestDir::create(dir.join("manifests"))?;
        Ok(AgentProcess { running: None, binary: binary.into(), manifests, dir, pins, cgroup: None })
    }

    /// Waits until the packet path of the agent serves.
    pub fn wait_for_packet_path(&self) {
        let is_serving = || self.status().is_ok_and(|status| status["packetPath"]["serving"] == true);
        crate::wait_until("the packet path serves", START_TIMEOUT, is_serving);
    }

    // ---- the process ----

    /// Starts the agent with small tables, and returns once it serves.
    pub fn start(&mut self, network: &TestNetwork) -> Result<()> {
        self.start_with(network, SMALL)
    }

    /// Starts the agent with these further options, and returns once it serves.
    pub fn start_with<S: Into<OsString>>(
        &mut self,
        network: &TestNetwork,
        options: impl IntoIterator<Item = S>,
    ) -> Result<()> {
        let binary = self.binary.clone();
        let options = self.manifest_options(network).into_iter().chain(options.into_iter().map(Into::into));
        self.spawn(&binary, network, options)?;
        self.wait_until_serving()
    }

    /// Starts the agent with small tables and this configuration file, and returns once it serves.
    pub fn start_with_config(&mut self, network: &TestNetwork, config: &Path) -> Result<()> {
        let binary = self.binary.clone();
        let options = SMALL.into_iter().map(OsString::from).chain(["--config".into(), config.into()]);
        self.spawn(&binary, network, options)?;
        self.wait_until_serving()
    }

    /// Starts an agent of this binary in the node's namespace and cgroup, and does not wait. `options` must name the
    /// source; the cgroup, the pin directory and the socket are given by this function.
    pub fn spawn<S: Into<OsString>>(
        &mut self,
        binary: &Path,
        network: &TestNetwork,
        options: impl IntoIterator<Item = S>,
    ) -> Result<()> {
        ensure!(self.running.is_none(), "an agent is already running");
        let program = network.node().program(binary)?.args(["agent"]).args(options.into_iter().map(Into::into));
        let cgroup = self.cgroup.as_deref().unwrap_or(network.cgroup().path());
        let program = program.args([Path::new("--cgroup"), cgroup]).args(self.location_options());
        self.running = Some(program.env("BEELINE_LOG", "debug").spawn()?);
        Ok(())
    }

    pub fn wait_until_serving(&mut self) -> Result<()> {
        self.running()?.wait_for("serving", START_TIMEOUT)
    }

    pub fn running(&mut self) -> Result<&mut RunningProgram> {
        self.running.as_mut().context("no agent is running")
    }

    /// Options by which an agent follows the manifest directory as the first node.
    pub fn manifest_options(&self, network: &TestNetwork) -> Vec<OsString> {
        let manifests = self.manifests.path().into();
        vec!["--node-name".into(), network.node().name.clone().into(), "--manifests".into(), manifests]
    }

    /// Options by which a command finds this agent.
    pub fn location_options(&self) -> [PathBuf; 4] {
        ["--pin-dir".into(), self.pins.clone(), "--socket".into(), self.socket()]
    }

    pub fn pin_dir(&self) -> &Path {
        &self.pins
    }

    pub fn socket(&self) -> PathBuf {
        self.dir.join("agent.sock")
    }

    pub fn read(&self, file: &str) -> Result<String> {
        self.manifests.read(file)
    }

    pub fn write(&self, file: &str, text: &str) -> Result<()> {
        self.manifests.write(file, text)
    }

    // ---- commands ----

    /// Prepares `beeline ARGS` for this agent.
    pub fn command(&self, args: &[&str]) -> Result<TestProgram> {
        Ok(TestProgram::new(&self.binary, None, None)?.args(args).args(self.location_options()).limit(START_TIMEOUT))
    }

    /// Runs `beeline ARGS` to its end and returns its output; an error unless it succeeds.
    pub fn run(&self, args: &[&str]) -> Result<String> {
        let ProgramOutput { status, stdout, stderr } = self.command(args)?.run()?;
        ensure!(status.success(), "beeline {}: {status}: {}{}", args.join(" "), stdout.trim(), stderr.trim());
        Ok(stdout)
    }

    pub fn status(&self) -> Result<serde_json::Value> {
        Ok(serde_json::from_str(&self.run(&["status", "-o", "json"])?)?)
    }

    /// Sends SIGKILL, waits, and returns the agent's log. The agent's hooks and maps stay.
    pub fn kill(&mut self) -> String {
        let Some(mut running) = self.running.take() else { return String::new() };
        let _ = running.kill();
        running.stderr()
    }

    /// Sends SIGTERM, waits, and returns the agent's log. The agent's hooks and maps stay.
    pub fn stop(&mut self) -> Result<String> {
        let Some(running) = self.running.take() else { return Ok(String::new()) };
        running.signal(Signal::TERM)?;
        let output = running.finish(STOP_TIMEOUT)?;
        ensure!(output.status.success(), "the agent ended with {}: {}", output.status, output.stderr.trim());
        Ok(output.stderr)
    }

    /// Whether the agent's pins have been removed.
    pub fn is_removed(&self) -> bool {
        !self.pins.exists()
    }
}

impl Drop for AgentProcess {
    fn drop(&mut self) {
        if let Some(agent) = self.running.take().filter(|_| std::thread::panicking()) {
            eprintln!("log of the agent:\n{}{}", agent.stdout(), agent.stderr());
        }
        for path in [&self.pins, &self.dir] {
            if let Err(error) = fs::remove_dir_all(path)
                && path.exists()
            {
                eprintln!("harness: cannot remove {}: {error}", path.display());
            }
        }
    }
}

fn beeline() -> Result<PathBuf> {
    let own = std::env::current_exe().context("cannot find this program")?;
    let path = own.with_file_name("beeline");
    ensure!(path.exists(), "no agent at {}: run `cargo build --workspace` first", path.display());
    Ok(path)
}

/// Removes the files of harness processes that were killed before they could clean up.
fn remove_stale(dir: &Path) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let owner = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next()?.parse::<u32>().ok());
        if owner.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}
