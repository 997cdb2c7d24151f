//! Init process of a node: sets up the node's mounts, and then reaps processes.
//!
//! It runs in new mount, uts, ipc and pid namespaces, so its mounts are removed with the node. The node sees the
//! machine's files, except that /run is empty, writes below /etc and /var go to memory, and /proc, /sys and /sys/fs/bpf
//! are its own.

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
    address_plan::{DNS, NodeId},
    cache::Cache,
    state,
};

/// Machine-wide sysctls that a kubelet requires. The node sees these values, but the machine's are not changed.
const SYSCTLS: [(&str, &str); 3] =
    [("vm/overcommit_memory", "1"), ("kernel/panic", "10"), ("kernel/panic_on_oops", "1")];

/// Returns only if it fails.
pub fn run(node: NodeId) -> Result<()> {
    // /proc is still the machine's, so this is the pid in the machine's pid namespace.
    let pid = fs::read_link("/proc/self").context("cannot read /proc/self")?;
    mount_change("/", MountPropagationFlags::REC | MountPropagationFlags::PRIVATE)
        .context("cannot make mounts private")?;
    mount_files(&[PathBuf::from(state::ROOT), Cache::open()?.root().to_owned()])?;
    mount_kernel_file_systems()?;
    mount_kubelet_files(node)?;
    cover_sysctls(node)?;
    set_names(node)?;
    // Volumes that the kubelet mounts must be visible in containers.
    mount_change("/", MountPropagationFlags::REC | MountPropagationFlags::SHARED).context("cannot share mounts")?;
    state::write(&state::node(node, "init.pid"), pid.to_string_lossy().as_bytes())?;
    loop {
        reap();
    }
}

/// Mounts an empty /run and writable overlays of /etc and /var. The directories in `kept` stay visible.
fn mount_files(kept: &[PathBuf]) -> Result<()> {
    let temporary = |index: usize| PathBuf::from(format!("/run/node/kept{index}"));
    // The kept directories are opened before /run is covered, because they may be below /run.
    let handles: Vec<fs::File> = kept.iter().map(fs::File::open).collect::<Result<_, _>>()?;
    mount_new("tmpfs", "/run", "mode=755")?;
    for (index, handle) in handles.iter().enumerate() {
        use std::os::fd::AsRawFd;
        fs::create_dir_all(temporary(index))?;
        let source = format!("/proc/self/fd/{}", handle.as_raw_fd());
        mount_bind_recursive(&source, temporary(index))
            .with_context(|| format!("cannot keep {}", kept[index].display()))?;
    }
    drop(handles);
    for dir in ["etc", "var"] {
        let (upper, work) = (format!("/run/node/{dir}"), format!("/run/node/{dir}.work"));
        fs::create_dir_all(&upper)?;
        fs::create_dir_all(&work)?;
        mount_new("overlay", &format!("/{dir}"), &format!("lowerdir=/{dir},upperdir={upper},workdir={work}"))?;
    }
    for (index, path) in kept.iter().enumerate() {
        fs::create_dir_all(path)?;
        mount_move(temporary(index), path).with_context(|| format!("cannot move {} back", path.display()))?;
    }
    std::env::set_current_dir("/").context("change to /")
}

/// Mounts /proc, /sys and /sys/fs/bpf. sysfs shows the network devices of the namespace in which it is mounted. The
/// cgroup mounts below /sys are kept.
fn mount_kernel_file_systems() -> Result<()> {
    mount_new("proc", "/proc", "")?;
    fs::create_dir_all("/run/node/cgroup")?;
    mount_move("/sys/fs/cgroup", "/run/node/cgroup").context("cannot move the cgroup mounts away")?;
    unmount("/sys", UnmountFlags::DETACH).context("cannot unmount /sys")?;
    mount_new("sysfs", "/sys", "")?;
    mount_move("/run/node/cgroup", "/sys/fs/cgroup").context("cannot move the cgroup mounts back")?;
    mount_new("bpf", "/sys/fs/bpf", "")
}

fn mount_kubelet_files(node: NodeId) -> Result<()> {
    for (source, target) in [("kubelet", "/var/lib/kubelet"), ("log", "/var/log/pods")] {
        bind(&state::node(node, source), Path::new(target))?;
    }
    for dir in ["/var/lib/cni", "/run/containerd", "/run/netns"] {
        fs::create_dir_all(dir)?;
    }
    Ok(())
}

fn bind(source: &Path, target: &Path) -> Result<()> {
    fs::create_dir_all(source)?;
    fs::create_dir_all(target)?;
    mount_bind_recursive(source, target)
        .with_context(|| format!("cannot mount {} at {}", source.display(), target.display()))
}

fn cover_sysctls(node: NodeId) -> Result<()> {
    for (key, value) in SYSCTLS {
        let source = state::node(node, &format!("setting/{}", key.replace('/', ".")));
        state::write(&source, format!("{value}\n"))?;
        let target = Path::new("/proc/sys").join(key);
        mount_bind_recursive(&source, &target).with_context(|| format!("cannot cover {}", target.display()))?;
    }
    Ok(())
}

fn set_names(node: NodeId) -> Result<()> {
    sethostname(node.name().as_bytes()).context("cannot set the host name")?;
    let hosts = format!("127.0.0.1 localhost\n::1 localhost\n{} {node}\n", node.addresses()[0]);
    fs::write("/etc/hosts", hosts).context("cannot write /etc/hosts")?;
    // /etc/resolv.conf may be a symbolic link to a file below /run, which is empty now.
    let _ = fs::remove_file("/etc/resolv.conf");
    fs::write("/etc/resolv.conf", format!("nameserver {DNS}\n")).context("cannot write /etc/resolv.conf")
}

fn mount_new(kind: &str, at: &str, options: &str) -> Result<()> {
    let options = std::ffi::CString::new(options)?;
    mount(kind, at, kind, MountFlags::empty(), options.as_c_str())
        .with_context(|| format!("cannot mount {kind} at {at}"))
}

fn reap() {
    if wait(WaitOptions::empty()).is_err() {
        std::thread::sleep(std::time::Duration::from_millis(200)); // There is no child to reap.
    }
}
