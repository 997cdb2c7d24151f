//! Opens files that belong to another network namespace, without CAP_SYS_ADMIN in the agent.
//!
//! setns() needs CAP_SYS_ADMIN, which allows far more than that. The agent therefore starts this binary a second time before
//! it does anything else, and then gives the capability up in its own process, which talks to API servers, DNS clients and
//! applications. The helper keeps it, reads nothing but file descriptors, and can do one thing: enter a network namespace and
//! open a file there. It ends when the agent ends.
//!
//! A request is one byte with the descriptors of the namespace and, for an iterator, of its link. The response is an error
//! number, and the opened file if that is 0.

use crate::netns::{self, NamespaceFile};
use crate::{Context, Error, Result};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair, sockopt,
};
use rustix::thread::CapabilitySet;
use std::io::{Error as IoError, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// The first argument of the binary that makes it the helper.
pub const ARGUMENT: &str = "__namespace-helper";

/// Entering a namespace and creating a file there takes microseconds.
const TIMEOUT: Duration = Duration::from_secs(5);

/// NET_ADMIN is needed by the netlink socket that destroys sockets before Linux 6.5.
const KEPT: CapabilitySet = CapabilitySet::SYS_ADMIN.union(CapabilitySet::NET_ADMIN);

/// How this process opens files of other network namespaces.
pub enum NamespaceOpener {
    /// It enters the namespace itself. Fails without CAP_SYS_ADMIN.
    Direct,
    Helper(OwnedFd),
}

impl NamespaceOpener {
    pub fn open(&self, namespace: BorrowedFd<'_>, file: NamespaceFile<'_>) -> Result<OwnedFd> {
        match self {
            NamespaceOpener::Direct => netns::run_in(namespace, || file.open())?,
            NamespaceOpener::Helper(socket) => request(socket.as_fd(), namespace, file),
        }
    }
}

/// Starts the helper and gives up CAP_SYS_ADMIN, for this process and all that it starts. Must be called while the process
/// has one thread, because a thread has its own capabilities. Without CAP_SYS_ADMIN there is no helper.
pub fn start() -> Result<(NamespaceOpener, Option<Child>)> {
    if !capabilities()?.permitted.contains(CapabilitySet::SYS_ADMIN) {
        return Ok((NamespaceOpener::Direct, None));
    }
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
        .context(|| "cannot create the socket of the namespace helper".into())?;
    sockopt::set_socket_timeout(&ours, sockopt::Timeout::Recv, Some(TIMEOUT))
        .context(|| "cannot set the timeout of the namespace helper".into())?;
    let binary = std::env::current_exe().context(|| "cannot find the agent's binary".into())?;
    let helper = Command::new(binary).arg(ARGUMENT).stdin(Stdio::from(theirs)).stdout(Stdio::null()).spawn();
    let helper = helper.context(|| "cannot start the namespace helper".into())?;
    drop_sys_admin()?;
    Ok((NamespaceOpener::Helper(ours), Some(helper)))
}

fn capabilities() -> Result<rustix::thread::CapabilitySets> {
    rustix::thread::capabilities(None).context(|| "cannot read the capabilities of this process".into())
}

/// With no_new_privs a program that this process starts gets no capability that the process does not have, even as root.
fn drop_sys_admin() -> Result<()> {
    let mut sets = capabilities()?;
    for set in [&mut sets.effective, &mut sets.permitted, &mut sets.inheritable] {
        set.remove(CapabilitySet::SYS_ADMIN);
    }
    rustix::thread::set_no_new_privs(true)
        .and_then(|()| rustix::thread::set_capabilities(None, sets))
        .context(|| "cannot give up CAP_SYS_ADMIN".into())
}

fn request(socket: BorrowedFd<'_>, namespace: BorrowedFd<'_>, file: NamespaceFile<'_>) -> Result<OwnedFd> {
    let result = exchange(socket, namespace, file);
    if let Err(Error::Io { .. }) = &result {
        // A late response would be taken for that of the next request. Without its socket the helper ends, and so does the
        // agent.
        let _ = rustix::net::shutdown(socket, rustix::net::Shutdown::Both);
    }
    let (errno, opened) = result?;
    match opened.into_iter().next() {
        Some(opened) => Ok(opened),
        None => Err(IoError::from_raw_os_error(errno)).context(|| "cannot enter a network namespace".into()),
    }
}

fn exchange(socket: BorrowedFd<'_>, namespace: BorrowedFd<'_>, file: NamespaceFile<'_>) -> Result<(i32, Vec<OwnedFd>)> {
    let both = file.link().map(|link| [namespace, link]);
    send(socket, &[0], both.as_ref().map_or(&[namespace], |both| &both[..]))?;
    let (message, opened) = receive(socket)?;
    let errno = <[u8; 4]>::try_from(message.as_slice()).map(i32::from_ne_bytes);
    Ok((errno.map_err(|_| IoError::from(std::io::ErrorKind::UnexpectedEof)).context(ended)?, opened))
}

fn ended() -> String {
    "the namespace helper has ended".into()
}

/// Runs the helper. Its socket is the standard input.
pub fn serve() -> Result<()> {
    // systemd and terminals send these to all processes. The agent may need the helper until it ends.
    for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
        // SAFETY: ignoring a signal runs no code.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
    limit_capabilities()?;
    let input = std::io::stdin();
    loop {
        let (message, files) = receive(input.as_fd())?;
        if message.is_empty() {
            return Ok(());
        }
        match open(&files) {
            Ok(opened) => send(input.as_fd(), &0i32.to_ne_bytes(), &[opened.as_fd()])?,
            Err(errno) => send(input.as_fd(), &errno.to_ne_bytes(), &[])?,
        }
    }
}

fn limit_capabilities() -> Result<()> {
    let kept = capabilities()?.permitted & KEPT;
    let sets = rustix::thread::CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() };
    rustix::thread::set_no_new_privs(true)
        .and_then(|()| rustix::thread::set_capabilities(None, sets))
        .context(|| "cannot give up the capabilities that the namespace helper does not need".into())
}

/// Returns an error number. The kernel checks that the descriptors are a network namespace and the link of an iterator.
fn open(files: &[OwnedFd]) -> std::result::Result<OwnedFd, i32> {
    let (namespace, file) = match files {
        [namespace] => (namespace, NamespaceFile::SockDiag),
        [namespace, link] => (namespace, NamespaceFile::UdpIterator(link.as_fd())),
        _ => return Err(libc::EINVAL),
    };
    let opened = netns::enter(namespace.as_fd()).and_then(|()| file.open());
    opened.map_err(|error| match error {
        Error::Io { source, .. } => source.raw_os_error().unwrap_or(libc::EIO),
        Error::Bpf { .. } | Error::Message(_) => libc::EIO,
    })
}

fn send(socket: BorrowedFd<'_>, message: &[u8], files: &[BorrowedFd<'_>]) -> Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !files.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(files));
    }
    let sent = sendmsg(socket, &[IoSlice::new(message)], &mut control, SendFlags::NOSIGNAL);
    sent.map(|_| ()).context(ended)
}

/// An empty message means that the other end is closed.
fn receive(socket: BorrowedFd<'_>) -> Result<(Vec<u8>, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut message = [0; 4];
    let received = recvmsg(socket, &mut [IoSliceMut::new(&mut message)], &mut control, RecvFlags::CMSG_CLOEXEC)
        .context(|| "cannot read from the socket of the namespace helper".into())?;
    let mut files = Vec::new();
    for content in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = content {
            files.extend(rights);
        }
    }
    Ok((message[..received.bytes].to_vec(), files))
}
