//! The real agent on a folder of manifests: what it holds, and how soon a changed file is felt by a dial.

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
    world::{NODE, SERVICE_PORT, service_address},
};
use crate::{
    ground::{Cgroup, Netns, pins},
    stats::Samples,
};

const FLIPS: usize = 10;
/// The agent's own default, unless there are more services.
const DEFAULT_ROOM: u32 = 16_384;

pub struct Figures {
    pub services: u32,
    /// Seconds from start to serving.
    pub start: f64,
    /// Bytes, after the first load and some changes; of those, what is not mapped from elsewhere.
    pub resident: u64,
    pub anonymous: u64,
    /// Nanoseconds from writing a file until a dial meets it.
    pub change: Samples,
}

pub fn measure(services: u32) -> Result<Figures> {
    // A thread of its own: it leaves the network namespace of the process alone.
    thread::spawn(move || measure_here(services)).join().expect("the agent's keeper panicked")
}

fn measure_here(services: u32) -> Result<Figures> {
    let netns = Netns::create("beeline-bench-agent")?;
    netns.ip("route add default dev lo")?;
    netns.enter()?;
    let cgroup = Cgroup::enter("beeline-bench")?;
    let folder = tempfile::tempdir()?;
    manifest::write_folder(folder.path(), services)?;
    manifest::write_file(folder.path(), services, 0..0)?;
    let mut agent = Agent::start(folder.path(), cgroup.path(), services)?;
    let started = Instant::now();
    let address = service_address(services);
    agent.wait(address, Answer::Refused, Duration::from_secs(180))?;
    let start = started.elapsed().as_secs_f64();
    let mut change = Samples::default();
    for flip in 0..FLIPS * 2 {
        let answer = if flip % 2 == 0 { Answer::Resolved } else { Answer::Refused };
        let written = Instant::now();
        manifest::write_file(folder.path(), services, 0..u32::from(answer == Answer::Resolved))?;
        agent.wait(address, answer, Duration::from_secs(10))?;
        change.push(written.elapsed().as_nanos() as u64);
        thread::sleep(Duration::from_millis(50));
    }
    let (resident, anonymous) = (agent.status("VmRSS")?, agent.status("RssAnon")?);
    Ok(Figures { services, start, resident, anonymous, change })
}

/// What connect() says to a service without endpoints, and to one with some.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answer {
    Refused,
    Resolved,
}

fn dial(address: Ipv4Addr) -> Result<Answer> {
    let socket = rustix::net::socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    match rustix::net::connect(&socket, &SocketAddrV4::new(address, SERVICE_PORT)) {
        Ok(()) => Ok(Answer::Resolved),
        Err(Errno::CONNREFUSED) => Ok(Answer::Refused),
        Err(error) => Err(error).with_context(|| format!("connect to {address}")),
    }
}

struct Agent {
    child: Child,
    pins: PathBuf,
    log: tempfile::NamedTempFile,
}

impl Agent {
    fn start(folder: &Path, cgroup: &Path, services: u32) -> Result<Self> {
        let binary = std::env::current_exe()?.with_file_name("beeline");
        ensure!(binary.exists(), "{} is missing: cargo build --workspace --release", binary.display());
        let pins = pins("agent")?;
        let log = tempfile::NamedTempFile::new()?;
        let mut command = Command::new(binary);
        command.args(["agent", "--node-name", NODE, "--metrics-address", "off", "--health-address", "off"]);
        command.arg("--manifests").arg(folder).arg("--cgroup").arg(cgroup).arg("--pin-dir").arg(&pins);
        command.arg("--socket").arg(folder.join("agent.sock"));
        if services > DEFAULT_ROOM {
            command.args(["--max-services", &(services + 1).to_string()]);
        }
        let child = command.stderr(log.reopen()?).spawn().context("cannot start the agent")?;
        Ok(Self { child, pins, log })
    }

    fn wait(&mut self, address: Ipv4Addr, answer: Answer, patience: Duration) -> Result<()> {
        let until = Instant::now() + patience;
        while dial(address)? != answer {
            if self.child.try_wait()?.is_some() || Instant::now() > until {
                let said = fs::read_to_string(self.log.path())?;
                bail!("{address} is not {answer:?}; the agent's last words: {}", said.lines().last().unwrap_or("none"));
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

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let Err(error) = cleanup(&self.pins) {
            eprintln!("{error}");
        }
    }
}
