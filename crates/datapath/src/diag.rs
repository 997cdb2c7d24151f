//! Destroying a socket by netlink, for kernels before 6.5 where a program cannot. The kernel finds it by both of its ends,
//! as a packet from its peer would, and compares the cookie; the small race: a socket that is connected elsewhere after the
//! kernel has found it is destroyed all the same.
//!
//! Written by hand: one fixed message; the netlink crates have no SOCK_DESTROY.

use crate::abi;
use rustix::net::netlink::SOCK_DIAG;
use rustix::net::{AddressFamily, SocketType};

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

pub fn destroy(victim: &abi::surveyed) -> bool {
    const NLM_F_REQUEST_ACK: u16 = 5;
    let v4 = victim.peer.chosen.word[..3] == [0, 0, 0xffffu32.to_be()];
    // An AF_INET6 socket with a mapped peer is found as IPv4.
    let ends = |address: &abi::address| if v4 { [address.word[3], 0, 0, 0] } else { address.word };
    let request = Request {
        length: size_of::<Request>() as u32,
        kind: SOCK_DESTROY,
        flags: NLM_F_REQUEST_ACK,
        family: if v4 { AF_INET } else { AF_INET6 },
        protocol: IPPROTO_UDP,
        states: u32::MAX,
        source_port: victim.local_port,
        destination_port: victim.peer.chosen_port,
        source: ends(&victim.local),
        destination: ends(&victim.peer.chosen),
        interface: victim.device,
        cookie: [victim.cookie as u32, (victim.cookie >> 32) as u32],
        ..Default::default()
    };
    ask(crate::mapped::bytes_of(&request)).is_some_and(|errno| errno == 0)
}

fn ask(message: &[u8]) -> Option<i32> {
    let socket = rustix::net::socket(AddressFamily::NETLINK, SocketType::RAW, Some(SOCK_DIAG)).ok()?;
    rustix::net::send(&socket, message, rustix::net::SendFlags::empty()).ok()?;
    let mut answer = [0u8; 512];
    let (_, length) = rustix::net::recv(&socket, &mut answer[..], rustix::net::RecvFlags::empty()).ok()?;
    // nlmsghdr (16 bytes), then the error number.
    answer.get(16..20).filter(|_| length >= 20).map(|b| i32::from_ne_bytes([b[0], b[1], b[2], b[3]]))
}
