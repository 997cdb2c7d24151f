//! Destroys a socket through netlink, for kernels before 6.5, where a BPF program cannot. The kernel finds the socket by
//! its local and remote address and compares the cookie. A small race remains: a socket that is connected elsewhere after
//! the kernel has found it is destroyed nevertheless.
//!
//! The message is written by hand because the netlink crates do not support SOCK_DESTROY.

use crate::abi;
use std::os::fd::BorrowedFd;

const SOCK_DESTROY: u16 = 21;
const IPPROTO_UDP: u8 = 17;
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;

/// struct nlmsghdr + struct inet_diag_req_v2.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Request {
    length: u32,
    kind: u16,
    flags: u16,
    sequence: u32,
    pid: u32,
    family: u8,
    protocol: u8,
    extensions: u8,
    pad: u8,
    states: u32,
    source_port: u16,
    destination_port: u16,
    source: [u32; 4],
    destination: [u32; 4],
    interface: u32,
    cookie: [u32; 2],
}

/// `netlink` is a socket of the family SOCK_DIAG in the namespace of the socket.
pub fn destroy(netlink: BorrowedFd<'_>, socket: &abi::socket_entry) -> bool {
    const NLM_F_REQUEST_ACK: u16 = 5;
    let v4 = socket.peer.chosen.word[..3] == [0, 0, 0xffffu32.to_be()];
    // The kernel finds an AF_INET6 socket with a mapped peer as IPv4.
    let words = |address: &abi::address| if v4 { [address.word[3], 0, 0, 0] } else { address.word };
    let request = Request {
        length: size_of::<Request>() as u32,
        kind: SOCK_DESTROY,
        flags: NLM_F_REQUEST_ACK,
        family: if v4 { AF_INET } else { AF_INET6 },
        protocol: IPPROTO_UDP,
        states: u32::MAX,
        source_port: socket.local_port,
        destination_port: socket.peer.chosen_port,
        source: words(&socket.local),
        destination: words(&socket.peer.chosen),
        interface: socket.device,
        cookie: [socket.cookie as u32, (socket.cookie >> 32) as u32],
        ..Default::default()
    };
    send_request(netlink, crate::mapped::bytes_of(&request)).is_some_and(|errno| errno == 0)
}

/// Returns the error number of the response; 0 means success.
fn send_request(netlink: BorrowedFd<'_>, message: &[u8]) -> Option<i32> {
    rustix::net::send(netlink, message, rustix::net::SendFlags::empty()).ok()?;
    let mut response = [0u8; 512];
    let (_, length) = rustix::net::recv(netlink, &mut response[..], rustix::net::RecvFlags::empty()).ok()?;
    // The response is a nlmsghdr (16 bytes), followed by the error number.
    response.get(16..20).filter(|_| length >= 20).map(|b| i32::from_ne_bytes([b[0], b[1], b[2], b[3]]))
}
