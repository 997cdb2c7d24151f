//! The real agent with a manifest directory: its memory, and the time until a changed file takes effect.

use std::{
    fs,
    net::{Ipv4Addr, SocketAddrV4},
    path::{Path, PathBuf},
    process::{Child, Command},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use beeline_datapath::program::cleanup;
use rustix::{
    io::Errno,
    net::{AddressFamily, SocketFlags, SocketType},
};

use super::{
    manifest,
    objects::{NODE, SERVICE_PORT, service_address},
};
use crate::{
    isolation::{BenchCgroup, BenchNamespace, pin_dir},
    stats::Samples,
};

const CHANGES: usize = 10;
/// The agent's default for --max-services.
const DEFAULT_MAX_SERVICES: u32 = 16_384;

pub struct AgentFigures {
    pub services: u32,
    /// Seconds from start to serving.
    pub start: f64,
    /// Resident memory in bytes after the start and some changes, and its anonymous part.
    pub resident: u64,
    pub anonymous: u64,
    /// Nanoseconds from writing a file until a dial uses it.
    pub change: Samples,
}

pub fn measure(services: u32) -> Result<AgentFigures> {
    // In a thread of its own, so that the process stays in its network namespace.
    thread::spawn(move || measure_here(services)).join().expect("the measuring thread panicked")
}

fn measure_here(services: u32) -> Result<AgentFigures> {
    let netns = BenchNamespace::create("beeline-bench-agent")?;
    netns.ip("route add default dev lo")?;
    netns.enter()?;
    let cgroup = BenchCgroup::enter("beeline-bench")?;
    let folder = tempfile::tempdir()?;
    manifest::write_folder(folder.path(), services)?;
    manifest::write_file(folder.path(), services, 0..0)?;
    let mut agent = BenchAgent::start(folder.path(), cgroup.path(), services)?;
    let started = Instant::now();
    let address = service_address(services);
    agent.wait(address, DialResult::Refused, Duration::from_secs(180))?;
    let start = started.elapsed().as_secs_f64();
    let mut change = Samples::default();
    for flip in 0..CHANGES * 2 {
        let answer = if flip % 2 == 0 { DialResult::Resolved } else { DialResult::Refused };
        let written = Instant::now();
        manifest::write_file(folder.path(), services, 0..u32::from(answer == DialResult::Resolved))?;
        agent.wait(address, answer, Duration::from_secs(10))?;
        change.push(written.elapsed().as_nanos() as u64);
        thread::sleep(Duration::from_millis(50));
    }
    let (resident, anonymous) = (agent.status("VmRSS")?, agent.status("RssAnon")?);
    Ok(AgentFigures { services, start, resident, anonymous, change })
}

/// Result of connect() to a Service without endpoints, and to one with endpoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DialResult {
    Refused,
    Resolved,
}

fn dial(address: Ipv4Addr) -> Result<DialResult> {
    let socket = rustix::net::socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    match rustix::net::connect(&socket, &SocketAddrV4::new(address, SERVICE_PORT)) {
        Ok(()) => Ok(DialResult::Resolved),
        Err(Errno::CONNREFUSED) => Ok(DialResult::Refused),
        Err(error) => Err(error).with_context(|| format!("cannot connect to {address}")),
    }
}

struct BenchAgent {
    child: Child,
    pins: PathBuf,
    log: tempfile::NamedTempFile,
}

impl BenchAgent {
    fn start(folder: &Path, cgroup: &Path, services: u32) -> Result<Self> {
        let binary = std::env::current_exe()?.with_file_name("beeline");
        ensure!(binary.exists(), "{} is missing: cargo build --workspace --release", binary.display());
        let pins = pin_dir("agent")?;
        let log = tempfile::NamedTempFile::new()?;
        let mut command = Command::new(binary);
        command.args(["agent", "--node-name", NODE, "--metrics-bind-address", "off", "--healthz-bind-address", "off"]);
        command.arg("--manifests").arg(folder).arg("--cgroup").arg(cgroup).arg("--pin-dir").arg(&pins);
        command.arg("--socket").arg(folder.join("agent.sock"));
        if services > DEFAULT_MAX_SERVICES {
            command.args(["--max-services", &(services + 1).to_string()]);
        }
        let child = command.stderr(log.reopen()?).spawn().context("cannot start the agent")?;
        Ok(Self { child, pins, log })
    }

    fn wait(&mut self, address: Ipv4Addr, expected: DialResult, timeout: Duration) -> Result<()> {
        let until = Instant::now() + timeout;
        while dial(address)? != expected {
            if self.child.try_wait()?.is_some() || Instant::now() > until {
                let log = fs::read_to_string(self.log.path())?;
                bail!(
                    "{address} is not {expected:?}; last line of the agent's log: {}",
                    log.lines().last().unwrap_or("none")
                );
            }
            thread::sleep(Duration::from_micros(200));
        }
        Ok(())
    }

    /// A field of /proc/PID/status, in bytes.
    fn status(&self, field: &str) -> Result<u64> {
        let text = fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        let kilobytes: Option<u64> = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse().ok());
        Ok(kilobytes.with_context(|| format!("the agent's status has no {field}"))? * 1024)
    }
}

impl Drop for BenchAgent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let Err(error) = cleanup(&self.pins) {
            eprintln!("{error}");
        }
    }
}
