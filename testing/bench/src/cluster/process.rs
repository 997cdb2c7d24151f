//! A program in a cgroup and a network namespace. It is killed with its children on drop, and by the kernel when the
//! thread that started it ends.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};

use crate::isolation::BenchNamespace;

/// Shell script that enters the cgroup and executes the program.
const ENTER: &str = "echo $$ > \"$0/cgroup.procs\" && exec \"$@\"";
const LAST_LINES: usize = 5;

pub struct BenchProcess {
    child: Child,
    name: String,
    cgroup: PathBuf,
    log: PathBuf,
}

impl BenchProcess {
    /// `words` are the program and its arguments.
    pub fn start(
        name: &str,
        cgroup: &Path,
        netns: &BenchNamespace,
        words: &[String],
        settings: &[(&str, String)],
        log: &Path,
    ) -> Result<Self> {
        fs::create_dir_all(cgroup).with_context(|| format!("cannot create {}", cgroup.display()))?;
        let output = File::create(log).with_context(|| format!("cannot create {}", log.display()))?;
        let mut command = Command::new("sh");
        command.args(["-c", ENTER]).arg(cgroup).args(["setpriv", "--pdeathsig", "KILL", "nsenter"]);
        command.arg(format!("--net={}", netns.file().display())).arg("--").args(words);
        command.envs(settings.iter().map(|(name, value)| (name, value)));
        let child = command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output).spawn();
        let child = child.with_context(|| format!("cannot start {name}"))?;
        Ok(Self { child, name: name.into(), cgroup: cgroup.into(), log: log.into() })
    }

    /// Returns an error with the end of its log if the program has ended.
    pub fn require_running(&mut self) -> Result<()> {
        if let Some(status) = self.child.try_wait()? {
            bail!("{} ended ({status}): {}", self.name, self.log_tail());
        }
        Ok(())
    }

    pub fn log_tail(&self) -> String {
        let text = fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text).into_owned();
        let lines: Vec<&str> = text.lines().collect();
        format!("{}\n(full log: {})", lines[lines.len().saturating_sub(LAST_LINES)..].join("\n"), self.log.display())
    }

    /// Processor time of the program and its children in seconds, including kernel time.
    pub fn cpu(&self) -> Result<f64> {
        let file = self.cgroup.join("cpu.stat");
        let text = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
        let usage = text.lines().find_map(|line| line.strip_prefix("usage_usec ")?.parse::<f64>().ok());
        Ok(usage.with_context(|| format!("{} has no usage_usec", file.display()))? / 1e6)
    }

    /// Peak resident memory of the program in bytes.
    pub fn peak_memory(&self) -> Result<u64> {
        memory(self.child.id(), "VmHWM").with_context(|| format!("no VmHWM of {}", self.name))
    }

    /// Returns a function that sums the resident memory of all processes in the cgroup. Shared pages are counted
    /// repeatedly.
    pub fn sampler(&self) -> impl Fn() -> u64 + Send + 'static {
        let file = self.cgroup.join("cgroup.procs");
        move || {
            let pids = fs::read_to_string(&file).unwrap_or_default();
            pids.lines().filter_map(|pid| memory(pid.parse().ok()?, "VmRSS")).sum()
        }
    }

    /// Kills the program and its children, and removes the cgroup.
    pub fn end(mut self) -> Result<()> {
        self.kill()
    }

    fn kill(&mut self) -> Result<()> {
        fs::write(self.cgroup.join("cgroup.kill"), "1")?;
        self.child.wait()?;
        let end = Instant::now() + Duration::from_secs(60);
        while fs::remove_dir(&self.cgroup).is_err() {
            ensure!(Instant::now() < end, "processes of {} did not end", self.name);
            thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }
}

impl Drop for BenchProcess {
    fn drop(&mut self) {
        if self.cgroup.exists()
            && let Err(error) = self.kill()
        {
            eprintln!("{}: {error:#}", self.name);
        }
    }
}

/// A field of /proc/PID/status in bytes; None if the process has ended.
fn memory(pid: u32, field: &str) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))?;
    Some(line.trim().strip_suffix(" kB")?.parse::<u64>().ok()? * 1024)
}
