//! The ground that a bench stands on: a cgroup and a network namespace of its own, both gone when it ends.

use std::{
    fs::{self, File},
    os::fd::{AsFd, AsRawFd, RawFd},
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use beeline_datapath::program::cleanup;
use rustix::thread::{CpuSet, LinkNameSpaceType};

/// A cgroup2 directory below the root of the hierarchy. This process lives in it until it is dropped, so that its threads
/// can be spread over [`Cgroup::thread_group`]s: a socket belongs to the cgroup of the thread that creates it.
pub struct Cgroup {
    path: PathBuf,
    home: PathBuf,
}

impl Cgroup {
    pub fn enter(name: &str) -> Result<Self> {
        let root = hierarchy()?;
        let home = root.join(own_path()?.trim_start_matches('/'));
        left_by_the_dead(&root, name)?.iter().for_each(|path| remove(path));
        let path = root.join(format!("{name}-{}", std::process::id()));
        fs::create_dir(&path).with_context(|| format!("cannot create {}: is this root?", path.display()))?;
        let cgroup = Self { path, home };
        move_process(&cgroup.path)?;
        Ok(cgroup)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A child for single threads, with its own programs.
    pub fn thread_group(&self, name: &str) -> Result<ThreadGroup> {
        let path = self.path.join(name);
        fs::create_dir(&path)?;
        fs::write(path.join("cgroup.type"), "threaded").with_context(|| path.display().to_string())?;
        Ok(ThreadGroup { directory: File::open(&path)?, path })
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let _ = move_process(&self.home);
        remove(&self.path);
    }
}

/// Removes a cgroup and its children.
fn remove(path: &Path) {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    entries.filter(|entry| entry.path().is_dir()).for_each(|entry| remove(&entry.path()));
    // A thread that has just ended may still be counted.
    if !(0..100).any(|_| fs::remove_dir(path).is_ok() || pause()) {
        eprintln!("could not remove {}", path.display());
    }
}

fn pause() -> bool {
    thread::sleep(Duration::from_millis(10));
    false
}

/// What runs that were killed could not remove: entries `<name>-<pid>` whose process is gone.
pub fn left_by_the_dead(directory: &Path, name: &str) -> Result<Vec<PathBuf>> {
    let mut left = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let file = entry.file_name().to_string_lossy().into_owned();
        let pid = file.strip_prefix(name).and_then(|rest| rest.strip_prefix('-')?.parse::<u32>().ok());
        if pid.is_some_and(|pid| !Path::new("/proc").join(pid.to_string()).exists()) {
            left.push(entry.path());
        }
    }
    Ok(left)
}

/// A folder for the pins of this process; what processes that were killed have left goes.
pub fn pins(name: &str) -> Result<PathBuf> {
    let (all, name) = (Path::new("/sys/fs/bpf"), format!("beeline-bench-{name}"));
    for left in left_by_the_dead(all, &name)? {
        cleanup(&left)?;
    }
    Ok(all.join(format!("{name}-{}", std::process::id())))
}

/// Where one or more threads live; programs are attached to its descriptor.
pub struct ThreadGroup {
    path: PathBuf,
    directory: File,
}

impl ThreadGroup {
    pub fn enter(&self) -> Result<()> {
        let id = rustix::thread::gettid().as_raw_nonzero();
        let file = self.path.join("cgroup.threads");
        fs::write(&file, id.to_string()).with_context(|| file.display().to_string())
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn fd(&self) -> RawFd {
        self.directory.as_raw_fd()
    }
}

fn move_process(cgroup: &Path) -> Result<()> {
    let file = cgroup.join("cgroup.procs");
    fs::write(&file, std::process::id().to_string()).with_context(|| file.display().to_string())
}

fn hierarchy() -> Result<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mounts")?;
    let mount = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>()).find(|field| field[2] == "cgroup2");
    Ok(mount.context("no cgroup2 is mounted: mount -t cgroup2 none /sys/fs/cgroup/unified")?[1].into())
}

fn own_path() -> Result<String> {
    let cgroups = fs::read_to_string("/proc/self/cgroup")?;
    let own = cgroups.lines().find_map(|line| line.strip_prefix("0::"));
    Ok(own.context("/proc/self/cgroup names no cgroup2")?.to_owned())
}

/// Where ip(8) keeps names of network namespaces.
const NAMESPACES: &str = "/run/netns";

/// A network namespace with its loopback up.
pub struct Netns {
    name: String,
}

impl Netns {
    pub fn create(prefix: &str) -> Result<Self> {
        let name = format!("{prefix}-{}", std::process::id());
        for path in left_by_the_dead(Path::new(NAMESPACES), prefix).unwrap_or_default() {
            ip(&["netns", "delete", &path.file_name().unwrap_or_default().to_string_lossy()])?;
        }
        ip(&["netns", "add", &name])?;
        let netns = Self { name };
        ip(&["-n", &netns.name, "link", "set", "lo", "up"])?;
        Ok(netns)
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// ip(8) inside.
    pub fn ip(&self, arguments: &str) -> Result<()> {
        let arguments: Vec<&str> = ["-n", &self.name].into_iter().chain(arguments.split(' ')).collect();
        ip(&arguments)
    }

    /// By which others enter it.
    pub fn file(&self) -> PathBuf {
        Path::new(NAMESPACES).join(&self.name)
    }

    /// Moves the calling thread.
    pub fn enter(&self) -> Result<()> {
        enter(&File::open(self.file())?)
    }

    /// Runs `work` inside, in a thread of its own.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        let inside = || self.enter().and_then(|()| work());
        thread::scope(|scope| scope.spawn(inside).join()).unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

/// Moves the calling thread into this network namespace.
pub fn enter(namespace: &File) -> Result<()> {
    Ok(rustix::thread::move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?)
}

impl Drop for Netns {
    fn drop(&mut self) {
        if let Err(error) = ip(&["netns", "delete", &self.name]) {
            eprintln!("{error:#}");
        }
    }
}

fn ip(arguments: &[&str]) -> Result<()> {
    let output = Command::new("ip").args(arguments).output().context("ip: is iproute2 installed?")?;
    if !output.status.success() {
        bail!("ip {}: {}", arguments.join(" "), String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

/// Lets the calling thread, and all that it starts later, go before what else runs on its processor (SCHED_FIFO; a
/// nice value counts only among the processes of one session).
pub fn go_first() -> Result<()> {
    let thread = rustix::thread::gettid().as_raw_nonzero().to_string();
    let output =
        Command::new("chrt").args(["-f", "-p", "1", &thread]).output().context("chrt: is util-linux installed?")?;
    ensure!(output.status.success(), "chrt: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(())
}

/// Keeps the calling thread, and all that it starts later, on the last processor that it may use.
pub fn pin() -> Result<()> {
    let allowed = rustix::thread::sched_getaffinity(None)?;
    let last = (0..CpuSet::MAX_CPU).rev().find(|cpu| allowed.is_set(*cpu));
    ensure!(last.is_some(), "this thread may run nowhere");
    let mut only = CpuSet::new();
    last.into_iter().for_each(|cpu| only.set(cpu));
    Ok(rustix::thread::sched_setaffinity(None, &only)?)
}
