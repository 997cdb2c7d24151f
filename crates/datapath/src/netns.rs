//! Network namespaces of this host: their cookies, and work inside each of them.

use crate::{Context, Result};
use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The cookie by which programs know a namespace: that of a socket made in it.
pub fn own_cookie() -> Result<u64> {
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").or_else(|_| std::net::UdpSocket::bind("[::1]:0"));
    let socket = socket.context(|| "cannot make a socket to learn the network namespace's cookie".into())?;
    cookie_of(socket.as_fd().as_raw_fd())
}

fn cookie_of(fd: i32) -> Result<u64> {
    const SO_NETNS_COOKIE: i32 = 71;
    let (mut cookie, mut size) = (0u64, size_of::<u64>() as libc::socklen_t);
    // SAFETY: the kernel writes at most `size` bytes to `cookie`.
    let result = unsafe {
        libc::getsockopt(fd, libc::SOL_SOCKET, SO_NETNS_COOKIE, std::ptr::from_mut(&mut cookie).cast(), &mut size)
    };
    if result == 0 { Ok(cookie) } else { Err(std::io::Error::last_os_error()).context(|| "SO_NETNS_COOKIE".into()) }
}

/// Every namespace that a process stands in or that is mounted somewhere, by inode number.
pub fn all() -> BTreeMap<u64, PathBuf> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().bytes().all(|b| b.is_ascii_digit()) {
            note(&mut found, entry.path().join("ns/net"));
        }
    }
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    for line in mounts.lines().filter(|l| l.contains(" - nsfs ")) {
        if let Some(path) = line.split(' ').nth(4) {
            note(&mut found, PathBuf::from(path));
        }
    }
    found
}

fn note(found: &mut BTreeMap<u64, PathBuf>, path: PathBuf) {
    if let Ok(meta) = std::fs::metadata(&path) {
        found.entry(meta.ino()).or_insert(path);
    }
}

/// A socket's namespace by the socket itself: for one in which no process stands any more.
pub fn of_socket(socket_inode: u64) -> Option<File> {
    let wanted = format!("socket:[{socket_inode}]");
    for process in std::fs::read_dir("/proc").ok()?.flatten() {
        let Ok(pid) = process.file_name().to_string_lossy().parse::<i32>() else { continue };
        for fd in std::fs::read_dir(process.path().join("fd")).into_iter().flatten().flatten() {
            if std::fs::read_link(fd.path()).is_ok_and(|l| l.to_string_lossy() == wanted) {
                let number = fd.file_name().to_string_lossy().parse::<i32>().ok()?;
                return namespace_of_fd(pid, number);
            }
        }
    }
    None
}

fn namespace_of_fd(pid: i32, fd: i32) -> Option<File> {
    use std::os::fd::FromRawFd;
    const SIOCGSKNS: libc::c_ulong = 0x894C;
    let pid = rustix::process::Pid::from_raw(pid)?;
    let process = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).ok()?;
    let socket = rustix::process::pidfd_getfd(&process, fd, rustix::process::PidfdGetfdFlags::empty()).ok()?;
    // SAFETY: an ioctl without argument that returns a new descriptor, which we then own.
    let namespace = unsafe { libc::ioctl(socket.as_raw_fd(), SIOCGSKNS) };
    (namespace >= 0).then(|| unsafe { File::from_raw_fd(namespace) })
}

/// Runs in that namespace, in a thread of its own, so that ours stays where it is.
pub fn within<T: Send>(namespace: &File, work: impl FnOnce() -> T + Send) -> Result<T> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            rustix::thread::move_into_link_name_space(
                namespace.as_fd(),
                Some(rustix::thread::LinkNameSpaceType::Network),
            )
            .context(|| "cannot enter a network namespace".into())?;
            Ok(work())
        });
        thread.join().unwrap_or_else(|_| Err(crate::Error::Said("work in a network namespace panicked".into())))
    })
}

pub fn open(path: &Path) -> Result<File> {
    File::open(path).context(|| format!("cannot open the network namespace {}", path.display()))
}
