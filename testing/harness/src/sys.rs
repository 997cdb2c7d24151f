//! All `unsafe` code of this crate, one function per reason.

#![allow(unsafe_code)]

use std::{
    ffi::CStr,
    io,
    mem::{size_of_val, zeroed},
    net::IpAddr,
    os::{
        fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd},
        unix::process::CommandExt,
    },
    process::Command,
    sync::Arc,
    thread,
    time::Duration,
};

use io_uring::{
    IoUring, opcode, squeue,
    types::{Fd, Timespec},
};
use rustix::{
    mount::{MountPropagationFlags, mount_bind, mount_change},
    process::{Signal, set_parent_process_death_signal},
    thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe},
};
use socket2::SockAddr;

use crate::program::ProcessContext;

/// Lets any program that links this crate run as a harness child (`Client`), before its `main`. Test binaries have no
/// `main` of ours, and a separate executable would have to be built, found and kept in step.
#[used]
// SAFETY: the section holds pointers to functions that the C library calls at start; `enter_child` has that type.
#[unsafe(link_section = ".init_array")]
static AT_START: extern "C" fn() = enter_child;

extern "C" fn enter_child() {
    if std::env::var_os(crate::client::CHILD).is_some() {
        crate::child::main();
    }
}

/// Makes the child enter its cgroup and namespaces between fork and exec, so that none of its sockets is created
/// outside.
pub(crate) fn confine(command: &mut Command, context: Arc<ProcessContext>) {
    let enter = move || enter(&context).map_err(Into::into);
    // SAFETY: after fork in a threaded process only async-signal-safe calls are allowed. `enter` makes plain system
    // calls on descriptors and C strings that were prepared before the fork; it neither allocates nor locks.
    unsafe { command.pre_exec(enter) };
}

/// Clears the inherited signal mask, which would block SIGTERM in the agent.
fn unblock_signals() {
    // SAFETY: all zero is a valid, empty set, which the kernel reads.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &zeroed(), std::ptr::null_mut()) };
}

fn enter(context: &ProcessContext) -> rustix::io::Result<()> {
    unblock_signals();
    // When a test is killed, its programs end too.
    set_parent_process_death_signal(Some(Signal::KILL))?;
    if let Some(procs) = &context.procs {
        rustix::io::write(procs, b"0")?;
    }
    if let Some(file) = &context.resolv_conf {
        private_file(file, c"/etc/resolv.conf")?;
    }
    match &context.netns {
        Some(ns) => move_into_link_name_space(ns.as_fd(), Some(LinkNameSpaceType::Network)),
        None => Ok(()),
    }
}

/// Mounts `file` over `place` for this process only, as `ip netns exec` does with /etc/netns.
fn private_file(file: &CStr, place: &CStr) -> rustix::io::Result<()> {
    // SAFETY: unsafe only because of CLONE_FILES, which is not passed; the forked child has one thread.
    unsafe { unshare_unsafe(UnshareFlags::NEWNS) }?;
    mount_change(c"/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    mount_bind(file, place)
}

/// Sets TCP_FASTOPEN_CONNECT, which neither rustix nor socket2 offers.
pub(crate) fn fastopen_connect(socket: impl AsFd) -> io::Result<()> {
    let on: libc::c_int = 1;
    let (fd, len) = (socket.as_fd().as_raw_fd(), size_of_val(&on) as libc::socklen_t);
    // SAFETY: the kernel reads `len` bytes of `on`, which outlives the call.
    let code =
        unsafe { libc::setsockopt(fd, libc::IPPROTO_TCP, libc::TCP_FASTOPEN_CONNECT, (&raw const on).cast(), len) };
    if code == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Blocks these signals in this thread and every thread that it starts. Returns a function that waits for the first
/// one.
pub(crate) fn block_signals(signals: &[libc::c_int]) -> impl FnOnce() + Send + use<> {
    // SAFETY: all zero is a valid set; the calls read and write that set alone.
    let set = unsafe {
        let mut set: libc::sigset_t = zeroed();
        libc::sigemptyset(&raw mut set);
        for &signal in signals {
            libc::sigaddset(&raw mut set, signal);
        }
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
        set
    };
    move || {
        let mut signal = 0;
        // SAFETY: the closure owns the set, and the kernel writes one integer.
        unsafe { libc::sigwait(&raw const set, &raw mut signal) };
    }
}

/// Creates the smallest possible BPF map, which shows that bpf() exists and is permitted.
pub(crate) fn probe_bpf() -> io::Result<()> {
    // type BPF_MAP_TYPE_ARRAY, key 4, value 4, entries 1; the rest of the attribute is zero.
    let attr: [u32; 16] = [2, 4, 4, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    // SAFETY: BPF_MAP_CREATE (0) reads the attribute, which outlives the call, and returns a new descriptor.
    let fd = unsafe { libc::syscall(libc::SYS_bpf, 0, attr.as_ptr(), size_of_val(&attr)) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new and not used elsewhere.
    unsafe { libc::close(fd as RawFd) };
    Ok(())
}

const BPF_OBJ_GET: libc::c_int = 7;
const BPF_PROG_GET_FD_BY_ID: libc::c_int = 13;
const BPF_OBJ_GET_INFO_BY_FD: libc::c_int = 15;

/// Words of a buffer for `struct bpf_link_info` and `struct bpf_prog_info`. The kernel fills in the words that it knows.
type BpfDescription = [u64; 32];

/// The program of a pinned link.
pub(crate) fn bpf_program_of_link(path: &CStr) -> io::Result<OwnedFd> {
    let link = bpf_open(BPF_OBJ_GET, path.as_ptr() as u64)?;
    let mut info: BpfDescription = [0; 32];
    bpf_info(&link, &mut info)?;
    // The link's type and id, then the program's id.
    bpf_open(BPF_PROG_GET_FD_BY_ID, info[1] & u64::from(u32::MAX))
}

/// The instructions of a program after verification, and its machine code. Word 2 of the info has the sizes in bytes, that
/// of the machine code in the lower half; words 3 and 4 point to the buffers.
pub(crate) fn bpf_program_code(program: &OwnedFd) -> io::Result<(Vec<u64>, Vec<u8>)> {
    let mut info: BpfDescription = [0; 32];
    bpf_info(program, &mut info)?;
    let mut machine_code = vec![0u8; info[2] as u32 as usize];
    let mut instructions = vec![0u64; (info[2] >> 32) as usize / size_of::<u64>()];
    let mut request: BpfDescription = [0; 32];
    request[2] = machine_code.len() as u64 | (size_of_val(&instructions[..]) as u64) << 32;
    (request[3], request[4]) = (machine_code.as_mut_ptr() as u64, instructions.as_mut_ptr() as u64);
    bpf_info(program, &mut request)?;
    Ok((instructions, machine_code))
}

/// `what` is an id, or the address of a path.
fn bpf_open(command: libc::c_int, what: u64) -> io::Result<OwnedFd> {
    let mut attr = [0u64; 16];
    attr[0] = what;
    // SAFETY: the kernel reads the attribute and the path, which outlive the call.
    let fd = unsafe { libc::syscall(libc::SYS_bpf, command, attr.as_ptr(), size_of_val(&attr)) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new and not used elsewhere.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

/// The callers above fill `info` with zeros or with the sizes and addresses of buffers that outlive the call.
fn bpf_info(object: &OwnedFd, info: &mut BpfDescription) -> io::Result<()> {
    let mut attr = [0u64; 16];
    attr[0] = object.as_raw_fd() as u64 | (size_of_val(info) as u64) << 32;
    attr[1] = info.as_mut_ptr() as u64;
    // SAFETY: the kernel reads the attribute, and writes to `info` and to the buffers within the given sizes.
    let code = unsafe { libc::syscall(libc::SYS_bpf, BPF_OBJ_GET_INFO_BY_FD, attr.as_ptr(), size_of_val(&attr)) };
    if code < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

pub(crate) fn uring_connect(socket: impl AsFd, to: &SockAddr, timeout: Duration) -> io::Result<()> {
    let fd = Fd(socket.as_fd().as_raw_fd());
    uring(opcode::Connect::new(fd, to.as_ptr().cast(), to.len()).build(), timeout).map(drop)
}

/// `to` is None on a connected socket.
pub(crate) fn uring_sendmsg(
    socket: impl AsFd,
    to: Option<&SockAddr>,
    bytes: &[u8],
    timeout: Duration,
) -> io::Result<usize> {
    let mut part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    // SAFETY: all zero is a valid, empty msghdr.
    let mut message: libc::msghdr = unsafe { zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    if let Some(to) = to {
        message.msg_name = to.as_ptr().cast_mut().cast();
        message.msg_namelen = to.len();
    }
    uring(opcode::SendMsg::new(Fd(socket.as_fd().as_raw_fd()), &raw const message).build(), timeout)
}

pub(crate) fn uring_recvmsg(socket: impl AsFd, bytes: &mut [u8], timeout: Duration) -> io::Result<(usize, SockAddr)> {
    let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let fd = Fd(socket.as_fd().as_raw_fd());
    // SAFETY: the kernel writes the address into the storage and its length beside it, and `uring` waits for that.
    unsafe {
        SockAddr::try_init(|storage, len| {
            let mut message: libc::msghdr = zeroed();
            message.msg_iov = &raw mut part;
            message.msg_iovlen = 1;
            message.msg_name = storage.cast();
            message.msg_namelen = *len;
            let count = uring(opcode::RecvMsg::new(fd, &raw mut message).build(), timeout)?;
            *len = message.msg_namelen;
            Ok(count)
        })
    }
}

/// Runs one operation to its end and returns the result of the system call of the same name. io_uring ignores a
/// socket's own time limit, so a timeout is linked to the operation; after it the errno is ECANCELED.
///
/// Runs in a thread of its own, because closing a ring interrupts the next call of its thread (seen as EINTR of
/// recvfrom).
fn uring(entry: squeue::Entry, timeout: Duration) -> io::Result<usize> {
    let done = thread::scope(|scope| scope.spawn(|| complete(entry, timeout)).join());
    done.unwrap_or_else(|_| std::process::abort())
}

fn complete(entry: squeue::Entry, timeout: Duration) -> io::Result<usize> {
    let mut ring = IoUring::new(2)?;
    let limit = Timespec::from(timeout);
    let pair =
        [entry.user_data(1).flags(squeue::Flags::IO_LINK), opcode::LinkTimeout::new(&limit).build().user_data(2)];
    // SAFETY: the entries point to the caller's borrows and to `limit`, which live until both entries have completed.
    // This function does not return before that; it aborts instead.
    unsafe { ring.submission().push_multiple(&pair) }.expect("a new ring has room for two");
    let (mut left, mut code) = (pair.len(), 0);
    for _ in 0..100 {
        match ring.submit_and_wait(left) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            other => other?,
        };
        for done in ring.completion() {
            left -= 1;
            code = if done.user_data() == 1 { done.result() } else { code };
        }
        if left == 0 {
            return usize::try_from(code).map_err(|_| io::Error::from_raw_os_error(-code));
        }
    }
    std::process::abort() // Returning would free memory to which the kernel may still write.
}

/// sendmsg() with a control message that sets the source address of the datagram. rustix has no such message.
pub(crate) fn send_from(socket: &impl AsRawFd, source: IpAddr, to: &SockAddr, bytes: &[u8]) -> io::Result<usize> {
    match source {
        IpAddr::V4(source) => {
            let address = libc::in_addr { s_addr: u32::from(source).to_be() };
            // SAFETY: all zero is a valid value.
            let info = libc::in_pktinfo { ipi_spec_dst: address, ..unsafe { zeroed() } };
            send_with_control(socket, to, bytes, (libc::IPPROTO_IP, libc::IP_PKTINFO), &info)
        }
        IpAddr::V6(source) => {
            let info = libc::in6_pktinfo { ipi6_addr: libc::in6_addr { s6_addr: source.octets() }, ipi6_ifindex: 0 };
            send_with_control(socket, to, bytes, (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO), &info)
        }
    }
}

fn send_with_control<T: Copy>(
    socket: &impl AsRawFd,
    to: &SockAddr,
    bytes: &[u8],
    (level, kind): (i32, i32),
    value: &T,
) -> io::Result<usize> {
    let mut part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    // u64 elements, because a control message is aligned to 8 bytes.
    let mut control = [0u64; 16];
    // SAFETY: the buffer is larger than one message of either type, and all pointers outlive the call.
    unsafe {
        let mut message: libc::msghdr = zeroed();
        (message.msg_name, message.msg_namelen) = (to.as_ptr().cast_mut().cast(), to.len());
        (message.msg_iov, message.msg_iovlen) = (&mut part, 1);
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = libc::CMSG_SPACE(size_of_val(value) as u32) as _;
        let header = libc::CMSG_FIRSTHDR(&message);
        ((*header).cmsg_level, (*header).cmsg_type) = (level, kind);
        (*header).cmsg_len = libc::CMSG_LEN(size_of_val(value) as u32) as _;
        libc::CMSG_DATA(header).cast::<T>().write_unaligned(*value);
        let sent = libc::sendmsg(socket.as_raw_fd(), &message, libc::MSG_NOSIGNAL);
        usize::try_from(sent).map_err(|_| io::Error::last_os_error())
    }
}
