//! `beeline agent`: checks the options and runs the agent until it is stopped.

use super::serve::serve;
use super::usage;
use crate::options::Options;
use anyhow::bail;
use beeline_datapath::namespace_opener::{self, NamespaceOpener};
use beeline_datapath::{cgroup, packet};
use rustix::fs::statfs;
use std::path::Path;
use std::process::ExitCode;

/// `BPF_FS_MAGIC` of linux/magic.h.
const BPF_FS_MAGIC: u32 = 0xcafe_4a11;

pub fn run(options: Options) -> anyhow::Result<ExitCode> {
    let options = options.load().map_err(usage)?;
    let settings = options.settings().map_err(usage)?;
    check_cgroup(&settings.kernel.cgroup).map_err(usage)?;
    check_pin_dir(&settings.kernel.pin_dir).map_err(usage)?;
    // Before the first thread is started: afterwards CAP_SYS_ADMIN could not be given up for all of them.
    let (namespaces, helper) = match settings.packet_path.is_some() && packet::needs_module_btf() {
        true => (NamespaceOpener::Direct, None),
        false => namespace_opener::start()?,
    };
    serve(2, options.log_format.unwrap_or_default(), beeline_agent::run(settings, namespaces, helper))
}

fn check_cgroup(cgroup: &Path) -> anyhow::Result<()> {
    if !cgroup::is_cgroup2(cgroup) {
        bail!("--cgroup {}: not a directory of cgroup2, such as /sys/fs/cgroup/kubepods", cgroup.display());
    }
    Ok(())
}

/// Maps can be pinned in a bpffs only. The check comes first, so that the agent creates no directory elsewhere.
fn check_pin_dir(pin_dir: &Path) -> anyhow::Result<()> {
    if !is_bpffs(pin_dir) {
        bail!(
            "--pin-dir {}: not in a bpffs; mount one (`mount -t bpf bpf /sys/fs/bpf`), or choose a directory below it",
            pin_dir.display()
        );
    }
    Ok(())
}

/// Whether the nearest existing directory of this path is in a bpffs.
pub fn is_bpffs(path: &Path) -> bool {
    let existing = path.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/"));
    statfs(existing).is_ok_and(|stat| stat.f_type as u32 == BPF_FS_MAGIC)
}
