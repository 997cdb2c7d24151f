//! First process of a node: makes the node's own view of the files, and then only buries the dead.
//!
//! It is started in new mount, uts, ipc and pid namespaces, so what it mounts is gone with the node. The node sees the
//! machine's files, except that /run is its own and empty, that what it writes below /etc and /var goes to memory, and
//! that /proc, /sys and /sys/fs/bpf are its own.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use rustix::{
    mount::{
        MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_bind_recursive, mount_change, mount_move, unmount,
    },
    process::{WaitOptions, wait},
    system::sethostname,
};

use crate::{
    cache::Cache,
    plan::{DNS, Node},
    state,
};

/// Settings of the whole machine that a kubelet insists on: the node is shown them as they should be.
const MACHINE_SETTINGS: [(&str, &str); 3] =
    [("vm/overcommit_memory", "1"), ("kernel/panic", "10"), ("kernel/panic_on_oops", "1")];

/// Never returns unless it fails.
pub fn run(node: Node) -> Result<()> {
    // Still the machine's /proc, which knows us by the pid that the machine sees.
    let pid = fs::read_link("/proc/self").context("read /proc/self")?;
    mount_change("/", MountPropagationFlags::REC | MountPropagationFlags::PRIVATE).context("keep mounts private")?;
    files(&[PathBuf::from(state::ROOT), Cache::open()?.root().to_owned()])?;
    kernel_views()?;
    kubelet_files(node)?;
    machine_settings(node)?;
    names(node)?;
    // Volumes that the kubelet mounts are to be seen in the containers.
    mount_change("/", MountPropagationFlags::REC | MountPropagationFlags::SHARED).context("share mounts")?;
    state::write(&state::node(node, "first.pid"), pid.to_string_lossy().as_bytes())?;
    loop {
        reap();
    }
}

/// `kept` stays as it is, wherever it lies.
fn files(kept: &[PathBuf]) -> Result<()> {
    let aside = |index: usize| PathBuf::from(format!("/run/node/kept{index}"));
    // /run is covered last but is where things are put aside, so what lies below it is opened first.
    let handles: Vec<fs::File> = kept.iter().map(fs::File::open).collect::<Result<_, _>>()?;
    new("tmpfs", "/run", "mode=755")?;
    for (index, handle) in handles.iter().enumerate() {
        use std::os::fd::AsRawFd;
        fs::create_dir_all(aside(index))?;
        let source = format!("/proc/self/fd/{}", handle.as_raw_fd());
        mount_bind_recursive(&source, aside(index)).with_context(|| format!("keep {}", kept[index].display()))?;
    }
    drop(handles);
    for dir in ["etc", "var"] {
        let (upper, work) = (format!("/run/node/{dir}"), format!("/run/node/{dir}.work"));
        fs::create_dir_all(&upper)?;
        fs::create_dir_all(&work)?;
        new("overlay", &format!("/{dir}"), &format!("lowerdir=/{dir},upperdir={upper},workdir={work}"))?;
    }
    for (index, path) in kept.iter().enumerate() {
        fs::create_dir_all(path)?;
        mount_move(aside(index), path).with_context(|| format!("put {} back", path.display()))?;
    }
    std::env::set_current_dir("/").context("leave the directory that is covered now")
}

/// /sys shows the network devices of the namespace that it was mounted in; the cgroups in it are kept.
fn kernel_views() -> Result<()> {
    new("proc", "/proc", "")?;
    fs::create_dir_all("/run/node/cgroup")?;
    mount_move("/sys/fs/cgroup", "/run/node/cgroup").context("put the cgroups aside")?;
    unmount("/sys", UnmountFlags::DETACH).context("unmount /sys")?;
    new("sysfs", "/sys", "")?;
    mount_move("/run/node/cgroup", "/sys/fs/cgroup").context("put the cgroups back")?;
    new("bpf", "/sys/fs/bpf", "")
}

fn kubelet_files(node: Node) -> Result<()> {
    for (own, seen) in [("kubelet", "/var/lib/kubelet"), ("log", "/var/log/pods")] {
        bind(&state::node(node, own), Path::new(seen))?;
    }
    for dir in ["/var/lib/cni", "/run/containerd", "/run/netns"] {
        fs::create_dir_all(dir)?;
    }
    Ok(())
}

fn bind(own: &Path, seen: &Path) -> Result<()> {
    fs::create_dir_all(own)?;
    fs::create_dir_all(seen)?;
    mount_bind_recursive(own, seen).with_context(|| format!("mount {} at {}", own.display(), seen.display()))
}

fn machine_settings(node: Node) -> Result<()> {
    for (key, value) in MACHINE_SETTINGS {
        let own = state::node(node, &format!("setting/{}", key.replace('/', ".")));
        state::write(&own, format!("{value}\n"))?;
        let seen = Path::new("/proc/sys").join(key);
        mount_bind_recursive(&own, &seen).with_context(|| format!("cover {}", seen.display()))?;
    }
    Ok(())
}

fn names(node: Node) -> Result<()> {
    sethostname(node.name().as_bytes()).context("set the host name")?;
    let hosts = format!("127.0.0.1 localhost\n::1 localhost\n{} {node}\n", node.addresses()[0]);
    fs::write("/etc/hosts", hosts).context("write /etc/hosts")?;
    // It may be a link to a file below /run, which is empty now.
    let _ = fs::remove_file("/etc/resolv.conf");
    fs::write("/etc/resolv.conf", format!("nameserver {DNS}\n")).context("write /etc/resolv.conf")
}

fn new(kind: &str, at: &str, options: &str) -> Result<()> {
    let options = std::ffi::CString::new(options)?;
    mount(kind, at, kind, MountFlags::empty(), options.as_c_str()).with_context(|| format!("mount {kind} at {at}"))
}

fn reap() {
    if wait(WaitOptions::empty()).is_err() {
        std::thread::sleep(std::time::Duration::from_millis(200)); // No child at the moment.
    }
}
