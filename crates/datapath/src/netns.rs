//! Network namespaces of this host: finds them, reads their cookies, and runs code and opens files in them.

use crate::{Context, Result};
use rustix::net::netlink::SOCK_DIAG;
use rustix::net::{AddressFamily, SocketType};
use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The network namespace cookie of this process, as BPF programs see it. It is read from a new socket.
pub fn own_cookie() -> Result<u64> {
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").or_else(|_| std::net::UdpSocket::bind("[::1]:0"));
    let socket = socket.context(|| "cannot create a socket to read the cookie of the network namespace".into())?;
    cookie_of(socket.as_fd().as_raw_fd())
}

fn cookie_of(fd: i32) -> Result<u64> {
    const SO_NETNS_COOKIE: i32 = 71;
    let (mut cookie, mut size) = (0u64, size_of::<u64>() as libc::socklen_t);
    // SAFETY: the kernel writes at most `size` bytes to `cookie`.
    let result = unsafe {
        libc::getsockopt(fd, libc::SOL_SOCKET, SO_NETNS_COOKIE, std::ptr::from_mut(&mut cookie).cast(), &mut size)
    };
    if result == 0 {
        Ok(cookie)
    } else {
        Err(std::io::Error::last_os_error()).context(|| "cannot read SO_NETNS_COOKIE".into())
    }
}

/// Every network namespace that a process uses or that is mounted, by inode number.
pub fn all() -> BTreeMap<u64, PathBuf> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().bytes().all(|b| b.is_ascii_digit()) {
            insert(&mut found, entry.path().join("ns/net"));
        }
    }
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    for line in mounts.lines().filter(|l| l.contains(" - nsfs ")) {
        if let Some(path) = line.split(' ').nth(4) {
            insert(&mut found, PathBuf::from(path));
        }
    }
    found
}

fn insert(found: &mut BTreeMap<u64, PathBuf>, path: PathBuf) {
    if let Ok(meta) = std::fs::metadata(&path) {
        found.entry(meta.ino()).or_insert(path);
    }
}

/// The namespace of a socket, found through the socket itself: for a namespace that no process is in any more.
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
    const SIOCGSKNS: libc::c_ulong = 0x894C;
    let pid = rustix::process::Pid::from_raw(pid)?;
    let process = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).ok()?;
    let socket = rustix::process::pidfd_getfd(&process, fd, rustix::process::PidfdGetfdFlags::empty()).ok()?;
    // SAFETY: an ioctl without argument that returns a new descriptor, which this function then owns.
    let namespace = unsafe { libc::ioctl(socket.as_raw_fd(), SIOCGSKNS) };
    (namespace >= 0).then(|| unsafe { File::from_raw_fd(namespace) })
}

/// Runs `work` in a network namespace, on a new thread, so that the namespace of the calling thread does not change.
pub fn run_in<T: Send>(namespace: BorrowedFd<'_>, work: impl FnOnce() -> T + Send) -> Result<T> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| enter(namespace).map(|()| work()));
        thread
            .join()
            .unwrap_or_else(|_| Err(crate::Error::Message("code that ran in a network namespace panicked".into())))
    })
}

/// Moves the calling thread into a network namespace.
pub fn enter(namespace: BorrowedFd<'_>) -> Result<()> {
    rustix::thread::move_into_link_name_space(namespace, Some(rustix::thread::LinkNameSpaceType::Network))
        .context(|| "cannot enter a network namespace".into())
}

/// A file that works in the network namespace in which it was opened, also if another thread uses it.
#[derive(Clone, Copy)]
pub enum NamespaceFile<'a> {
    /// Runs a BPF program for each UDP socket. The descriptor is that of the program's link.
    UdpIterator(BorrowedFd<'a>),
    /// Netlink, for information on sockets and their destruction.
    SockDiag,
}

impl<'a> NamespaceFile<'a> {
    pub fn link(self) -> Option<BorrowedFd<'a>> {
        match self {
            NamespaceFile::UdpIterator(link) => Some(link),
            NamespaceFile::SockDiag => None,
        }
    }

    /// Opens the file in the namespace of the calling thread.
    pub fn open(self) -> Result<OwnedFd> {
        match self {
            NamespaceFile::UdpIterator(link) => create_iterator(link),
            NamespaceFile::SockDiag => rustix::net::socket(AddressFamily::NETLINK, SocketType::RAW, Some(SOCK_DIAG))
                .context(|| "cannot open a netlink socket".into()),
        }
    }
}

fn create_iterator(link: BorrowedFd<'_>) -> Result<OwnedFd> {
    // SAFETY: the call takes a descriptor and returns a new one, which this function then owns.
    let iterator = unsafe { libbpf_rs::libbpf_sys::bpf_iter_create(link.as_raw_fd()) };
    if iterator < 0 {
        let error = std::io::Error::from_raw_os_error(-iterator);
        return Err(error).context(|| "cannot start an iteration over sockets".into());
    }
    // SAFETY: as above.
    Ok(unsafe { OwnedFd::from_raw_fd(iterator) })
}

pub fn open(path: &Path) -> Result<File> {
    File::open(path).context(|| format!("cannot open the network namespace {}", path.display()))
}
