//! Requirements of the harness on the machine. Tests fail with this list and are never skipped.

use std::{
    path::Path,
    process::{Command, Stdio},
};

use anyhow::{Result, bail};

use crate::{cgroup, sys};

/// Returns an error that lists every missing requirement with its next step.
pub fn check_requirements() -> Result<()> {
    let missing: Vec<String> = [root(), ip(), ipv6(), cgroup2(), bpf()].into_iter().flatten().collect();
    if missing.is_empty() {
        return Ok(());
    }
    bail!("this machine cannot run the test harness:\n  - {}", missing.join("\n  - "))
}

fn root() -> Option<String> {
    let root = rustix::process::geteuid().is_root();
    (!root).then(|| "not root: the harness creates network namespaces and cgroups; run as root".into())
}

fn ip() -> Option<String> {
    let run = Command::new("ip").arg("-V").stdout(Stdio::null()).stderr(Stdio::null()).status();
    let found = run.is_ok_and(|status| status.success());
    (!found).then(|| "no `ip`: install iproute2".into())
}

fn ipv6() -> Option<String> {
    let there = Path::new("/proc/sys/net/ipv6").exists();
    (!there).then(|| "no IPv6 in this kernel: boot without ipv6.disable=1".into())
}

fn cgroup2() -> Option<String> {
    let made = cgroup::mount().and_then(|_| cgroup::Cgroup::new());
    made.err().map(|error| format!("no usable cgroup2: {error:#}"))
}

fn bpf() -> Option<String> {
    let error = sys::probe_bpf().err()?;
    Some(format!("no BPF: {error}; needs a kernel with CONFIG_BPF_SYSCALL, and CAP_BPF"))
}
