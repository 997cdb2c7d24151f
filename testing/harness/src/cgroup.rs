//! A private cgroup2, created below the host's mount and removed together with its processes.
//!
//! Tests attach BPF programs to such a cgroup only. At the root they would affect every socket of the machine, so this
//! module refuses the root.

use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering},
    thread::sleep,
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, getpid, kill_process};

const PREFIX: &str = "beeline-harness-";
/// Attempts to remove a cgroup. A killed process leaves its cgroup only when it has been reaped.
const REMOVE_ATTEMPTS: u32 = 400;
const REMOVE_INTERVAL: Duration = Duration::from_millis(5);

/// Exists as long as the value lives. Child cgroups are values of their own; dropping a parent removes its children
/// too.
#[derive(Debug)]
pub struct Cgroup {
    path: PathBuf,
}

impl Cgroup {
    /// Creates a cgroup directly below the mount, named after this process.
    pub fn new() -> Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let mount = mount()?;
        remove_stale(&mount);
        let name = format!("{PREFIX}{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        Self::create(mount.join(name))
    }

    /// Creates a cgroup below this one. `name` may have several parts ("kubepods/burstable/pod-a").
    pub fn child(&self, name: &str) -> Result<Self> {
        ensure!(
            !name.is_empty() && !name.split('/').any(|part| matches!(part, "" | "." | "..")),
            "bad cgroup name {name:?}"
        );
        Self::create(self.path.join(name))
    }

    fn create(path: PathBuf) -> Result<Self> {
        require_ours(&path)?;
        fs::create_dir_all(&path).with_context(|| format!("cannot create cgroup {}", path.display()))?;
        Ok(Cgroup { path })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The cgroup id (`bpf_get_current_cgroup_id`): the inode of the directory.
    pub fn id(&self) -> Result<u64> {
        Ok(fs::metadata(&self.path)?.ino())
    }

    /// Moves a process into the cgroup. A socket belongs to the cgroup in which it was created, so the sockets that the
    /// process already has stay outside.
    pub fn join(&self, pid: u32) -> Result<()> {
        write_pid(&self.path, pid).with_context(|| format!("cannot move process {pid} into {}", self.path.display()))
    }

    /// Processes directly in this cgroup, without those of its children.
    pub fn procs(&self) -> Vec<u32> {
        procs(&self.path)
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        if require_ours(&self.path).is_err() {
            return;
        }
        for _ in 0..REMOVE_ATTEMPTS {
            if remove(&self.path) {
                return;
            }
            sleep(REMOVE_INTERVAL);
        }
        eprintln!("harness: cgroup {} could not be removed: processes {:?}", self.path.display(), self.procs());
    }
}

/// Mount point of cgroup2 on this machine. On a hybrid host it is not /sys/fs/cgroup.
pub fn mount() -> Result<PathBuf> {
    let table = fs::read_to_string("/proc/self/mountinfo").context("cannot read /proc/self/mountinfo")?;
    match find_mount(&table) {
        Some(path) => Ok(path),
        None => bail!("no cgroup2 is mounted: mount -t cgroup2 none /sys/fs/cgroup/unified"),
    }
}

/// In mountinfo the mount point is the fifth field and the type is the first one after " - ". The root of a hierarchy
/// is preferred to a bind mount of a subtree.
fn find_mount(table: &str) -> Option<PathBuf> {
    let cgroup2 = |line: &str| {
        let (left, right) = line.split_once(" - ")?;
        let mut fields = left.split(' ').skip(3);
        let (root, point) = (fields.next()?, fields.next()?);
        right.starts_with("cgroup2 ").then(|| (root != "/", PathBuf::from(point)))
    };
    table.lines().filter_map(cgroup2).min().map(|(_, path)| path)
}

/// Refuses every path that is not a cgroup of the harness.
fn require_ours(path: &Path) -> Result<()> {
    let mount = mount()?;
    let below = path.strip_prefix(&mount).with_context(|| format!("{} is outside {mount:?}", path.display()))?;
    let is_ours = below.components().next().is_some_and(|part| part.as_os_str().to_string_lossy().starts_with(PREFIX));
    ensure!(is_ours, "{} is not a cgroup of the test harness", path.display());
    Ok(())
}

/// Tries once to empty and remove a cgroup tree, leaves first. Returns true once the tree is gone.
fn remove(path: &Path) -> bool {
    let Ok(entries) = fs::read_dir(path) else { return !path.exists() };
    for entry in entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
        remove(&entry.path());
    }
    // Membership is inherited by fork only, so the harness started every process in this cgroup.
    procs(path).into_iter().for_each(|pid| evict(path, pid));
    fs::remove_dir(path).is_ok() || !path.exists()
}

fn evict(path: &Path, pid: u32) {
    let Some(known) = Pid::from_raw(pid as i32) else { return };
    if known == getpid() {
        let root = mount().map(|mount| write_pid(&mount, pid));
        return drop(root); // A test may join its own process; that process moves back to the root instead of being killed.
    }
    if procs(path).contains(&pid) {
        let _ = kill_process(known, Signal::KILL);
    }
}

fn procs(path: &Path) -> Vec<u32> {
    let text = fs::read_to_string(path.join("cgroup.procs")).unwrap_or_default();
    text.lines().filter_map(|line| line.parse().ok()).collect()
}

fn write_pid(path: &Path, pid: u32) -> std::io::Result<()> {
    fs::write(path.join("cgroup.procs"), pid.to_string())
}

/// Removes the empty cgroups of harness processes that were killed before they could clean up.
fn remove_stale(mount: &Path) {
    for entry in fs::read_dir(mount).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let owner = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next()?.parse::<u32>().ok());
        if owner.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            remove_empty(&entry.path());
        }
    }
}

fn remove_empty(path: &Path) {
    for entry in fs::read_dir(path).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_empty(&entry.path());
        }
    }
    let _ = fs::remove_dir(path); // The kernel refuses while a process is inside.
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_mount_of_a_hybrid_host() {
        let table = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n\
                     40 31 0:37 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd\n\
                     42 31 0:38 /part /mnt/part rw - cgroup2 cgroup2 rw\n\
                     41 31 0:38 / /sys/fs/cgroup/unified rw,relatime shared:9 - cgroup2 cgroup2 rw\n";
        assert_eq!(find_mount(table), Some("/sys/fs/cgroup/unified".into()));
        assert_eq!(find_mount("31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n"), None);
    }

    #[test]
    fn refuses_the_root_and_foreign_cgroups() {
        let mount = mount().unwrap();
        assert!(require_ours(&mount).is_err());
        assert!(require_ours(&mount.join("system.slice")).is_err());
        assert!(require_ours(Path::new("/tmp/beeline-harness-1-1")).is_err());
        assert!(require_ours(&mount.join("beeline-harness-1-1")).is_ok());
    }
}
