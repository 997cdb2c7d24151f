//! The self-test: a child process below the agent's cgroup dials an address that only the agent's tables contain, and must
//! be refused. This proves that the programs are attached, that no other program overrules them, and that they read the
//! tables that the agent writes. It does not prove that the cgroup contains the node's processes; `doctor` checks that.

use crate::reconciler::Reconciler;
use anyhow::Context;
use beeline_model::op::{Maps, Op};
use beeline_model::row::{FrontendKey, FrontendKind, FrontendRow, PortBits, SET_CLOSED};
use beeline_model::{Address, Protocol};
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// In a frozen cgroup or on an overloaded machine the child does not finish; the agent must not wait longer.
const TIMEOUT: Duration = Duration::from_secs(5);

/// From the discard-only prefix (RFC 6666), which no host uses.
const ADDRESS_V6: Ipv6Addr = Ipv6Addr::new(0x100, 0, 0, 0, 0, 0, 0xbee, 1);
/// For a kernel without IPv6: from a block for documentation.
const ADDRESS_V4: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 99);
const PORT: u16 = 9;

/// The prefix of the child's cgroup, below the agent's.
const CGROUP_PREFIX: &str = "beeline-self-test-";

/// The hidden argument that makes this binary the child.
pub const CHILD_ARGUMENT: &str = "__self-test-dial";

/// Runs in the child: waits for a byte on stdin, dials, and prints the errno.
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
    if Path::new("/proc/net/if_inet6").exists() { ADDRESS_V6.into() } else { ADDRESS_V4.into() }
}

/// Returns the result for the status. An error means that the programs did not answer the dial.
pub fn run(cgroup: &Path, reconciler: &mut Reconciler) -> anyhow::Result<String> {
    let key = FrontendKey::new(Address::from(address()), PORT, Protocol::Udp);
    let bits = reconciler.tables.rows().ports.get(&(Protocol::Udp, PORT)).copied().unwrap_or_default();
    let row = FrontendRow { set: SET_CLOSED, kind: FrontendKind::Virtual };
    let kernel = reconciler.kernel_mut();
    kernel.write(&Op::Port(Protocol::Udp, PORT, PortBits { frontend: true, ..bits }))?;
    kernel.write(&Op::Frontend(key, Some(row)))?;
    let result = dial_below(cgroup);
    let kernel = reconciler.kernel_mut();
    kernel.write(&Op::Frontend(key, None))?;
    kernel.write(&Op::Port(Protocol::Udp, PORT, bits))?;
    match result {
        Ok(code) if code == rustix::io::Errno::CONNREFUSED.raw_os_error() => Ok("passed".into()),
        Ok(code) => anyhow::bail!(
            "connect() of a process below {} did not trigger the BPF program (errno {code}): run `beeline doctor` to see \
             which programs are attached",
            cgroup.display()
        ),
        Err(error) => Ok(format!("could not run: {error:#}")),
    }
}

fn dial_below(cgroup: &Path) -> anyhow::Result<i32> {
    remove_leftovers(cgroup);
    // This process is below the root cgroup already, and creating a cgroup there needs CAP_DAC_OVERRIDE.
    if is_root(cgroup) {
        return dial_from(None);
    }
    let own = cgroup.join(format!("{CGROUP_PREFIX}{}", std::process::id()));
    std::fs::create_dir(&own).with_context(|| format!("cannot create {}", own.display()))?;
    let result = dial_from(Some(&own));
    // The cgroup becomes empty a moment after the child has ended.
    for _ in 0..50 {
        if std::fs::remove_dir(&own).is_ok() {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    result
}

/// Removes cgroups of agents that were killed during their self-test. The kernel refuses if a process is inside.
fn remove_leftovers(cgroup: &Path) {
    for entry in std::fs::read_dir(cgroup).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(CGROUP_PREFIX) {
            let _ = std::fs::remove_dir(entry.path());
        }
    }
}

/// Only the root of the hierarchy has no `cgroup.type`.
fn is_root(cgroup: &Path) -> bool {
    cgroup.join("cgroup.procs").exists() && !cgroup.join("cgroup.type").exists()
}

/// `None` means in the agent's own cgroup.
fn dial_from(cgroup: Option<&Path>) -> anyhow::Result<i32> {
    let exe = std::env::current_exe().context("cannot find the agent's binary")?;
    let mut child = Command::new(exe).arg(CHILD_ARGUMENT).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let moved = cgroup.map_or(Ok(()), |cgroup| std::fs::write(cgroup.join("cgroup.procs"), child.id().to_string()));
    if let Some(mut stdin) = child.stdin.take() {
        let _ = stdin.write_all(b"\n");
    }
    let output = wait_with_timeout(child)?;
    moved.with_context(|| format!("cannot move a process into {}", cgroup.unwrap_or(Path::new("")).display()))?;
    output.trim().parse().context("the child printed no errno")
}

fn wait_with_timeout(mut child: Child) -> anyhow::Result<String> {
    let deadline = Instant::now() + TIMEOUT;
    while child.try_wait()?.is_none() {
        if Instant::now() >= deadline {
            // In a frozen cgroup the child ends only when the cgroup thaws.
            let _ = child.kill();
            anyhow::bail!("the child did not dial within {} s: is the cgroup frozen?", TIMEOUT.as_secs());
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    let mut output = String::new();
    child.stdout.take().map_or(Ok(0), |mut stdout| stdout.read_to_string(&mut output))?;
    Ok(output)
}
