//! Finds the cgroup2 mount, and the id and depth of a cgroup. Hybrid hosts mount cgroup2 beside the cgroup1 hierarchies.

use crate::{Context, Error, Result};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Mount points of cgroup2, from /proc/self/mountinfo.
pub fn mounts() -> Vec<PathBuf> {
    let text = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    text.lines().filter_map(cgroup2_mount).collect()
}

fn cgroup2_mount(line: &str) -> Option<PathBuf> {
    let (before, after) = line.split_once(" - ")?;
    (after.split(' ').next()? == "cgroup2").then(|| before.split(' ').nth(4)).flatten().map(PathBuf::from)
}

/// The root of the hierarchy as this process sees it.
pub fn root() -> Result<PathBuf> {
    mounts().into_iter().next().ok_or_else(|| {
        Error::Message(
            "no cgroup2 is mounted: mount it (mount -t cgroup2 none /sys/fs/cgroup/unified) or set --cgroup".into(),
        )
    })
}

/// The cgroup id as BPF programs see it, which is the inode of the cgroup's directory.
pub fn id(path: &Path) -> Result<u64> {
    Ok(std::fs::metadata(path).context(|| format!("cannot read the cgroup {}", path.display()))?.ino())
}

/// Whether a directory is on a cgroup2 file system.
pub fn is_cgroup2(path: &Path) -> bool {
    const CGROUP2_SUPER_MAGIC: i64 = 0x6367_7270;
    rustix::fs::statfs(path).is_ok_and(|s| s.f_type == CGROUP2_SUPER_MAGIC)
}

/// The id of the root of the hierarchy. A mount that shows only a part of the hierarchy has another id.
const ROOT: u64 = 1;

/// Depth of a cgroup below the root, as BPF programs count it.
pub fn level(path: &Path) -> Result<u32> {
    let mount = mounts().into_iter().find(|m| path.starts_with(m));
    let mount = mount.ok_or_else(|| Error::Message(format!("{} is not below a cgroup2 mount", path.display())))?;
    if id(&mount)? != ROOT {
        return Err(Error::Message(format!(
            "{} shows only a part of the cgroup2 hierarchy (a private cgroup namespace?), so the depth of {} is \
             unknown: mount the host's cgroup2 and use the path below that mount",
            mount.display(),
            path.display()
        )));
    }
    Ok(path.strip_prefix(&mount).map_or(0, |below| below.components().count() as u32))
}

/// The cgroup2 path of a process.
pub fn of_process(pid: u32) -> Result<PathBuf> {
    let path = format!("/proc/{pid}/cgroup");
    let text =
        std::fs::read_to_string(&path).context(|| format!("cannot read {path}: check that process {pid} exists"))?;
    let relative = text.lines().find_map(|l| l.strip_prefix("0::")).unwrap_or("/");
    Ok(root()?.join(relative.trim_start_matches('/')))
}
