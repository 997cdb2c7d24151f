//! Dials from the pod, one after the other, until one meets what is waited for.

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

use super::server::{REQUEST, answerer};

/// A dial that has not got through by then is lost, and another is tried: some are never answered (a SYN that kube-proxy
/// rejects in nftables mode), and waiting for those would blur what is looked for.
const SHORT: Duration = Duration::from_millis(25);
/// For a dial that is to get through at once.
pub const LONG: Duration = Duration::from_secs(1);
const ANSWER: Duration = Duration::from_millis(500);
/// Between two dials: at least this, and as time goes by one part in so many of it, so that who waits for a minute does
/// not keep those busy that are waited for.
const PAUSE: (Duration, Duration) = (Duration::from_micros(200), Duration::from_millis(20));
const SHARE: u32 = 500;

/// When the first dial that met it began, and when it had its answer: the kernel had been told before the first.
#[derive(Debug, Clone, Copy)]
pub struct Effect {
    pub began: Instant,
    pub answered: Instant,
    /// From the dial before it to this one.
    pub interval: Duration,
}

/// Dials `target` until `wanted` answers; `ready` is called after the first dial that did not.
pub fn until(
    target: SocketAddrV4,
    wanted: impl Fn(Ipv4Addr) -> bool,
    patience: Duration,
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
        if waited > patience {
            bail!("{target} did not become what was waited for within {} s", patience.as_secs());
        }
        thread::sleep((waited / SHARE).clamp(PAUSE.0, PAUSE.1));
    }
}

/// Who answers there; none if the answer was cut short.
pub fn dial(target: SocketAddrV4, patience: Duration) -> rustix::io::Result<Option<Ipv4Addr>> {
    let socket = socket()?;
    sockopt::set_socket_timeout(&socket, Timeout::Send, Some(patience))?;
    sockopt::set_socket_timeout(&socket, Timeout::Recv, Some(ANSWER))?;
    rustix::net::connect(&socket, &target)?;
    rustix::net::send(&socket, REQUEST, SendFlags::NOSIGNAL)?;
    let (mut text, mut filled) = ([0; 512], 0);
    loop {
        let (read, _) = rustix::net::recv(&socket, &mut text[filled..], RecvFlags::empty())?;
        filled += read;
        if let Some(who) = answerer(&text[..filled]) {
            return Ok(Some(who));
        }
        if read == 0 {
            return Ok(None);
        }
    }
}

/// Closes by reset: no TIME_WAIT, or the ports would run out and every search for one get slower.
pub fn socket() -> rustix::io::Result<OwnedFd> {
    let socket = rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_linger(&socket, Some(Duration::ZERO))?;
    Ok(socket)
}
