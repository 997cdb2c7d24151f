//! A cgroup and network namespaces of the bench's own, which are removed when it ends.

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

/// A cgroup2 directory below the root of the hierarchy. This process is in it until the value is dropped, so that
/// threads can join a [`BenchCgroup::thread_group`]: a socket belongs to the cgroup of the thread that creates it.
pub struct BenchCgroup {
    path: PathBuf,
    previous: PathBuf,
}

impl BenchCgroup {
    pub fn enter(name: &str) -> Result<Self> {
        let root = hierarchy()?;
        let previous = root.join(own_path()?.trim_start_matches('/'));
        stale_entries(&root, name)?.iter().for_each(|path| remove(path));
        let path = root.join(format!("{name}-{}", std::process::id()));
        fs::create_dir(&path).with_context(|| format!("cannot create {}: is this root?", path.display()))?;
        let cgroup = Self { path, previous };
        move_process(&cgroup.path)?;
        Ok(cgroup)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Creates a threaded child cgroup, to which programs can be attached.
    pub fn thread_group(&self, name: &str) -> Result<ThreadGroup> {
        let path = self.path.join(name);
        fs::create_dir(&path)?;
        fs::write(path.join("cgroup.type"), "threaded").with_context(|| path.display().to_string())?;
        Ok(ThreadGroup { directory: File::open(&path)?, path })
    }
}

impl Drop for BenchCgroup {
    fn drop(&mut self) {
        let _ = move_process(&self.previous);
        remove(&self.path);
    }
}

/// Removes a cgroup and its children.
fn remove(path: &Path) {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    entries.filter(|entry| entry.path().is_dir()).for_each(|entry| remove(&entry.path()));
    // The kernel may still count a thread that has just ended.
    if !(0..100).any(|_| fs::remove_dir(path).is_ok() || pause()) {
        eprintln!("bench: cannot remove {}", path.display());
    }
}

fn pause() -> bool {
    thread::sleep(Duration::from_millis(10));
    false
}

/// Entries `<name>-<pid>` of a directory whose process no longer exists.
pub fn stale_entries(directory: &Path, name: &str) -> Result<Vec<PathBuf>> {
    let mut stale = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let file = entry.file_name().to_string_lossy().into_owned();
        let pid = file.strip_prefix(name).and_then(|rest| rest.strip_prefix('-')?.parse::<u32>().ok());
        if pid.is_some_and(|pid| !Path::new("/proc").join(pid.to_string()).exists()) {
            stale.push(entry.path());
        }
    }
    Ok(stale)
}

/// Pin directory of this process. Directories of killed processes are removed.
pub fn pin_dir(name: &str) -> Result<PathBuf> {
    let (all, name) = (Path::new("/sys/fs/bpf"), format!("beeline-bench-{name}"));
    for stale in stale_entries(all, &name)? {
        cleanup(&stale)?;
    }
    Ok(all.join(format!("{name}-{}", std::process::id())))
}

/// A threaded cgroup. Programs are attached to its descriptor.
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
    Ok(own.context("/proc/self/cgroup has no cgroup2 entry")?.to_owned())
}

/// Directory in which ip(8) keeps named network namespaces.
const NAMESPACES: &str = "/run/netns";

/// A network namespace whose loopback device is up. It is removed on drop.
pub struct BenchNamespace {
    name: String,
}

impl BenchNamespace {
    pub fn create(prefix: &str) -> Result<Self> {
        let name = format!("{prefix}-{}", std::process::id());
        for path in stale_entries(Path::new(NAMESPACES), prefix).unwrap_or_default() {
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

    /// Runs ip(8) inside the namespace.
    pub fn ip(&self, arguments: &str) -> Result<()> {
        let arguments: Vec<&str> = ["-n", &self.name].into_iter().chain(arguments.split(' ')).collect();
        ip(&arguments)
    }

    /// File by which other processes enter the namespace.
    pub fn file(&self) -> PathBuf {
        Path::new(NAMESPACES).join(&self.name)
    }

    /// Moves the calling thread into the namespace.
    pub fn enter(&self) -> Result<()> {
        enter(&File::open(self.file())?)
    }

    /// Runs `work` inside the namespace, in a thread of its own.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        let inside = || self.enter().and_then(|()| work());
        thread::scope(|scope| scope.spawn(inside).join()).unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

/// Moves the calling thread into this network namespace.
pub fn enter(namespace: &File) -> Result<()> {
    Ok(rustix::thread::move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?)
}

impl Drop for BenchNamespace {
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

/// Gives the calling thread, and threads that it starts later, real-time priority (SCHED_FIFO). A nice value would have
/// an effect only among the processes of one session.
pub fn set_realtime_priority() -> Result<()> {
    let thread = rustix::thread::gettid().as_raw_nonzero().to_string();
    let output =
        Command::new("chrt").args(["-f", "-p", "1", &thread]).output().context("chrt: is util-linux installed?")?;
    ensure!(output.status.success(), "chrt: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(())
}

/// Pins the calling thread, and threads that it starts later, to the last processor that it may use.
pub fn pin_to_cpu() -> Result<()> {
    let allowed = rustix::thread::sched_getaffinity(None)?;
    let last = (0..CpuSet::MAX_CPU).rev().find(|cpu| allowed.is_set(*cpu));
    ensure!(last.is_some(), "this thread is allowed on no processor");
    let mut only = CpuSet::new();
    last.into_iter().for_each(|cpu| only.set(cpu));
    Ok(rustix::thread::sched_setaffinity(None, &only)?)
}
