//! The self-test dial: a child process below our cgroup dials an address that only our tables know, and must be refused.
//! It proves that the hook is live where processes are: a wrong or hidden cgroup root would pass every other check.

use crate::state::State;
use anyhow::Context;
use beeline_model::op::{Maps, Op};
use beeline_model::row::{FrontendKey, FrontendRow, Kind, PortBits, SET_CLOSED};
use beeline_model::{Address, Protocol};
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, UdpSocket};
use std::path::Path;
use std::process::{Command, Stdio};

/// From the discard-only block: nobody's address.
const AT: Ipv6Addr = Ipv6Addr::new(0x100, 0, 0, 0, 0, 0, 0xbee, 1);
const PORT: u16 = 9;

/// The child's cgroup, below ours.
const OWN: &str = "beeline-self-test-";

/// The hidden argument that makes our binary the child.
pub const CHILD: &str = "__self-test-dial";

/// In the child: waits for its go, dials, says what came of it.
pub fn dial() -> std::io::Result<()> {
    std::io::stdin().read_exact(&mut [0; 1])?;
    let dialled = UdpSocket::bind("[::]:0").and_then(|s| s.connect(SocketAddr::from((AT, PORT))));
    let code = dialled.err().and_then(|e| e.raw_os_error()).unwrap_or(0);
    println!("{code}");
    Ok(())
}

pub fn run(cgroup: &Path, state: &mut State) -> anyhow::Result<String> {
    let key = FrontendKey::new(Address::from(IpAddr::V6(AT)), PORT, Protocol::Udp);
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
            "a dial below {} did not meet our hook (error {code}): is it the cgroup that the node's processes live in? `beeline doctor` shows what stands at the hooks",
            cgroup.display()
        ),
        Err(error) => Ok(format!("could not be run: {error:#}")),
    }
}

fn child(cgroup: &Path) -> anyhow::Result<i32> {
    sweep(cgroup);
    let own = cgroup.join(format!("{OWN}{}", std::process::id()));
    std::fs::create_dir(&own).with_context(|| format!("cannot create {}", own.display()))?;
    let result = dial_below(&own);
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

fn dial_below(cgroup: &Path) -> anyhow::Result<i32> {
    let exe = std::env::current_exe().context("cannot find our own binary")?;
    let mut child = Command::new(exe).arg(CHILD).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let moved = std::fs::write(cgroup.join("cgroup.procs"), child.id().to_string());
    if let Some(mut stdin) = child.stdin.take() {
        let _ = stdin.write_all(b"\n");
    }
    let output = child.wait_with_output()?;
    moved.with_context(|| format!("cannot move a process into {}", cgroup.display()))?;
    String::from_utf8_lossy(&output.stdout).trim().parse().context("the child said nothing")
}
