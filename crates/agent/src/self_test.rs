//! The self-test dial: a child process below our cgroup dials an address that only our tables know, and must be refused.
//! It proves that the programs are at the hooks, that nothing else there overrules them, and that they read the tables
//! that we write. Whether the cgroup is the one that the node's processes live in, `doctor` tells.

use crate::state::State;
use anyhow::Context;
use beeline_model::op::{Maps, Op};
use beeline_model::row::{FrontendKey, FrontendRow, Kind, PortBits, SET_CLOSED};
use beeline_model::{Address, Protocol};
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A frozen cgroup, or a machine that starves: the test says nothing then, and must not hold the agent up.
const PATIENCE: Duration = Duration::from_secs(5);

/// From the discard-only block: nobody's address.
const AT: Ipv6Addr = Ipv6Addr::new(0x100, 0, 0, 0, 0, 0, 0xbee, 1);
/// Where the kernel has no IPv6: from a block for documentation.
const AT_V4: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 99);
const PORT: u16 = 9;

/// The child's cgroup, below ours.
const OWN: &str = "beeline-self-test-";

/// The hidden argument that makes our binary the child.
pub const CHILD: &str = "__self-test-dial";

/// In the child: waits for its go, dials, says what came of it.
pub fn dial() -> std::io::Result<()> {
    std::io::stdin().read_exact(&mut [0; 1])?;
    let (from, to) = match address() {
        IpAddr::V4(_) => ("0.0.0.0:0", address()),
        IpAddr::V6(_) => ("[::]:0", address()),
    };
    let dialled = UdpSocket::bind(from).and_then(|s| s.connect(SocketAddr::from((to, PORT))));
    let code = dialled.err().and_then(|e| e.raw_os_error()).unwrap_or(0);
    println!("{code}");
    Ok(())
}

fn address() -> IpAddr {
    if Path::new("/proc/net/if_inet6").exists() { AT.into() } else { AT_V4.into() }
}

pub fn run(cgroup: &Path, state: &mut State) -> anyhow::Result<String> {
    let key = FrontendKey::new(Address::from(address()), PORT, Protocol::Udp);
    let bits = state.tables.rows().ports.get(&(Protocol::Udp, PORT)).copied().unwrap_or_default();
    let row = FrontendRow { set: SET_CLOSED, kind: Kind::Virtual };
    let kernel = state.kernel_mut();
    kernel.write(&Op::Port(Protocol::Udp, PORT, PortBits { frontend: true, ..bits }))?;
    kernel.write(&Op::Frontend(key, Some(row)))?;
    let result = child(cgroup);
    let kernel = state.kernel_mut();
    kernel.write(&Op::Frontend(key, None))?;
    kernel.write(&Op::Port(Protocol::Udp, PORT, bits))?;
    match result {
        Ok(code) if code == rustix::io::Errno::CONNREFUSED.raw_os_error() => Ok("passed".into()),
        Ok(code) => anyhow::bail!(
            "a dial below {} did not meet our hook (error {code}): `beeline doctor` shows what stands at the hooks",
            cgroup.display()
        ),
        Err(error) => Ok(format!("could not be run: {error:#}")),
    }
}

fn child(cgroup: &Path) -> anyhow::Result<i32> {
    sweep(cgroup);
    // Every process lives below the root, this one too; and only who may overrule modes (CAP_DAC_OVERRIDE) can make
    // a cgroup there.
    if is_root(cgroup) {
        return dial_from(None);
    }
    let own = cgroup.join(format!("{OWN}{}", std::process::id()));
    std::fs::create_dir(&own).with_context(|| format!("cannot create {}", own.display()))?;
    let result = dial_from(Some(&own));
    // The child has ended, but its cgroup may take a moment to be empty.
    for _ in 0..50 {
        if std::fs::remove_dir(&own).is_ok() {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    result
}

/// Those of agents that were killed in their own test; the kernel refuses while a process is inside.
fn sweep(cgroup: &Path) {
    for entry in std::fs::read_dir(cgroup).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(OWN) {
            let _ = std::fs::remove_dir(entry.path());
        }
    }
}

/// Of the whole hierarchy: it alone has no type.
fn is_root(cgroup: &Path) -> bool {
    cgroup.join("cgroup.procs").exists() && !cgroup.join("cgroup.type").exists()
}

/// `None`: from where we are.
fn dial_from(cgroup: Option<&Path>) -> anyhow::Result<i32> {
    let exe = std::env::current_exe().context("cannot find our own binary")?;
    let mut child = Command::new(exe).arg(CHILD).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let moved = cgroup.map_or(Ok(()), |cgroup| std::fs::write(cgroup.join("cgroup.procs"), child.id().to_string()));
    if let Some(mut stdin) = child.stdin.take() {
        let _ = stdin.write_all(b"\n");
    }
    let said = patiently(child)?;
    moved.with_context(|| format!("cannot move a process into {}", cgroup.unwrap_or(Path::new("")).display()))?;
    said.trim().parse().context("the child said nothing")
}

fn patiently(mut child: Child) -> anyhow::Result<String> {
    let deadline = Instant::now() + PATIENCE;
    while child.try_wait()?.is_none() {
        if Instant::now() >= deadline {
            // In a frozen cgroup it ends when that thaws; nobody waits for it.
            let _ = child.kill();
            anyhow::bail!("the child did not dial within {} s: is the cgroup frozen?", PATIENCE.as_secs());
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    let mut said = String::new();
    child.stdout.take().map_or(Ok(0), |mut stdout| stdout.read_to_string(&mut said))?;
    Ok(said)
}
