//! Dials from the client pod in a loop until a change is in effect.

use std::{
    net::{Ipv4Addr, SocketAddrV4},
    os::fd::OwnedFd,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, bail};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType,
    sockopt::{self, Timeout},
};

use super::server::{REQUEST, parse_answer};

/// Time limit of a dial in the loop. Some dials are never answered (a SYN that kube-proxy rejects in nftables mode),
/// and waiting for them would make the measurement less precise.
const SHORT: Duration = Duration::from_millis(25);
/// Time limit of a dial that is expected to succeed.
pub const LONG: Duration = Duration::from_secs(1);
const ANSWER: Duration = Duration::from_millis(500);
/// Shortest and longest pause between two dials. The pause is `1 / SHARE` of the time waited so far, so that a long
/// wait does not load the contender.
const PAUSE: (Duration, Duration) = (Duration::from_micros(200), Duration::from_millis(20));
const SHARE: u32 = 500;

/// Start and answer of the first dial that used the change.
#[derive(Debug, Clone, Copy)]
pub struct Effect {
    pub began: Instant,
    pub answered: Instant,
    /// Time since the start of the previous dial.
    pub interval: Duration,
}

/// Dials `target` until a wanted pod answers. `ready` is called after each dial before that.
pub fn until(
    target: SocketAddrV4,
    wanted: impl Fn(Ipv4Addr) -> bool,
    timeout: Duration,
    mut ready: impl FnMut(),
) -> Result<Effect> {
    let start = Instant::now();
    let mut before = start;
    loop {
        let began = Instant::now();
        if dial(target, SHORT).is_ok_and(|who| who.is_some_and(&wanted)) {
            return Ok(Effect { began, answered: Instant::now(), interval: began - before });
        }
        ready();
        before = began;
        let waited = start.elapsed();
        if waited > timeout {
            bail!("{target} did not reach the wanted pod within {} s", timeout.as_secs());
        }
        thread::sleep((waited / SHARE).clamp(PAUSE.0, PAUSE.1));
    }
}

/// Address of the pod that answers; None if the answer was incomplete.
pub fn dial(target: SocketAddrV4, timeout: Duration) -> rustix::io::Result<Option<Ipv4Addr>> {
    let socket = socket()?;
    sockopt::set_socket_timeout(&socket, Timeout::Send, Some(timeout))?;
    sockopt::set_socket_timeout(&socket, Timeout::Recv, Some(ANSWER))?;
    rustix::net::connect(&socket, &target)?;
    rustix::net::send(&socket, REQUEST, SendFlags::NOSIGNAL)?;
    let (mut text, mut filled) = ([0; 512], 0);
    loop {
        let (read, _) = rustix::net::recv(&socket, &mut text[filled..], RecvFlags::empty())?;
        filled += read;
        if let Some(who) = parse_answer(&text[..filled]) {
            return Ok(Some(who));
        }
        if read == 0 {
            return Ok(None);
        }
    }
}

/// A socket that closes with a reset. Ports in TIME_WAIT would make the search for a free port slower.
pub fn socket() -> rustix::io::Result<OwnedFd> {
    let socket = rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_linger(&socket, Some(Duration::ZERO))?;
    Ok(socket)
}
