//! The agent of a lab's first node: the `beeline` next to this program, on a folder of manifests, pins and a socket of
//! its own. Removed with all of that on drop.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;

use crate::{
    lab::Lab,
    spawn::{Output, Program, Running},
};

const PREFIX: &str = "beeline-harness-";
const PINS: &str = "/sys/fs/bpf";
/// A busy machine, or one that is emulated, takes its time to verify eight programs.
const START: Duration = Duration::from_secs(120);

#[derive(Debug)]
pub struct Agent {
    running: Option<Running>,
    beeline: PathBuf,
    /// Holds the manifests and the agent's socket.
    dir: PathBuf,
    pins: PathBuf,
}

impl Agent {
    /// Not started yet; the folder holds these files.
    pub fn new(files: &[(&str, &str)]) -> Result<Self> {
        sweep(Path::new(PINS));
        sweep(&std::env::temp_dir());
        let name = format!("{PREFIX}{}", std::process::id());
        let (dir, pins) = (std::env::temp_dir().join(&name), Path::new(PINS).join(&name));
        fs::create_dir_all(dir.join("manifests")).with_context(|| format!("make {}", dir.display()))?;
        let agent = Agent { running: None, beeline: beeline()?, dir, pins };
        files.iter().try_for_each(|(name, text)| agent.write(name, text))?;
        Ok(agent)
    }

    /// In the node's namespace and cgroup; serves when it returns.
    pub fn start(&mut self, lab: &Lab) -> Result<()> {
        let (manifests, node) = (self.manifests(), lab.node());
        let own = ["agent", "--node-name", &node.name, "--metrics-address", "off", "--health-address", "off"];
        let program = node.program(&self.beeline)?.args(own).args(["--max-services", "256"]);
        let program = program.args([Path::new("--manifests"), &manifests, Path::new("--cgroup"), lab.cgroup().path()]);
        let mut running = program.args(self.place()).spawn()?;
        running.wait_for("serving", START)?;
        self.running = Some(running);
        Ok(())
    }

    fn manifests(&self) -> PathBuf {
        self.dir.join("manifests")
    }

    /// How every command finds this agent.
    fn place(&self) -> [PathBuf; 4] {
        ["--pin-dir".into(), self.pins.clone(), "--socket".into(), self.dir.join("agent.sock")]
    }

    pub fn read(&self, file: &str) -> Result<String> {
        let path = self.manifests().join(file);
        fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))
    }

    /// Visible at once and whole.
    pub fn write(&self, file: &str, text: &str) -> Result<()> {
        let aside = self.dir.join(file);
        fs::write(&aside, text)?;
        fs::rename(&aside, self.manifests().join(file)).with_context(|| format!("write {file}"))
    }

    /// `beeline ARGS` about this agent.
    pub fn command(&self, args: &[&str]) -> Result<Program> {
        Ok(Program::new(&self.beeline, None, None)?.args(args).args(self.place()).limit(START))
    }

    /// The same, run to its end; an error unless it succeeds.
    pub fn ask(&self, args: &[&str]) -> Result<String> {
        let Output { status, stdout, stderr } = self.command(args)?.run()?;
        ensure!(status.success(), "beeline {}: {status}: {}{}", args.join(" "), stdout.trim(), stderr.trim());
        Ok(stdout)
    }

    pub fn status(&self) -> Result<serde_json::Value> {
        Ok(serde_json::from_str(&self.ask(&["status", "-o", "json"])?)?)
    }

    /// By SIGKILL; its hooks and tables stay.
    pub fn kill(&mut self) {
        self.running = None;
    }

    /// By SIGTERM; its hooks and tables stay.
    pub fn stop(&mut self) -> Result<()> {
        let Some(running) = self.running.take() else { return Ok(()) };
        running.signal(Signal::TERM)?;
        let output = running.finish(Duration::from_secs(20))?;
        ensure!(output.status.success(), "the agent ended with {}: {}", output.status, output.stderr.trim());
        Ok(())
    }

    /// Whether anything of it is left in the file systems.
    pub fn is_gone(&self) -> bool {
        !self.pins.exists()
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.running = None;
        for path in [&self.pins, &self.dir] {
            if let Err(error) = fs::remove_dir_all(path)
                && path.exists()
            {
                eprintln!("lab: {} could not be removed: {error}", path.display());
            }
        }
    }
}

fn beeline() -> Result<PathBuf> {
    let own = std::env::current_exe().context("find this program")?;
    let path = own.with_file_name("beeline");
    ensure!(path.exists(), "no agent at {}: run `cargo build --workspace` first", path.display());
    Ok(path)
}

/// Removes what programs left that were killed before they could.
fn sweep(dir: &Path) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let owner = name.strip_prefix(PREFIX).and_then(|rest| rest.parse::<u32>().ok());
        if owner.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}
