//! The agent's own connects to backends of redirects. They run at the same time in one thread: a backend that does not answer
//! delays no other. Their number is limited, so that clients that fake refused dials cannot use up the agent's file
//! descriptors.

use super::tracker::ConnectResult;
use beeline_datapath::suspension::BackendAddress;
use beeline_model::row::AGENT_SOCKET_PRIORITY;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use socket2::{Domain, Protocol, Socket, Type};
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

pub const MAX_PROBES: usize = 32;
pub const PROBE_TIMEOUT: Duration = Duration::from_millis(100);

struct Probe {
    backend: BackendAddress,
    /// The connect that is in progress, or the result of a connect that ended at once.
    connect: Result<Socket, ConnectResult>,
    deadline: Instant,
}

#[derive(Default)]
pub struct Prober {
    probes: Vec<Probe>,
}

impl Prober {
    /// The number of probes that can be started now.
    pub fn available(&self) -> usize {
        MAX_PROBES.saturating_sub(self.probes.len())
    }

    /// Starts a connect, as the kubelet's TCP probe does.
    pub fn start(&mut self, backend: BackendAddress, now: Instant) {
        self.probes.push(Probe { backend, connect: start_connect(backend), deadline: now + PROBE_TIMEOUT });
    }

    /// Waits until a probe ends, `other` is readable, or `timeout` has passed.
    pub fn wait(&self, other: BorrowedFd<'_>, timeout: Duration, now: Instant) {
        let timeout =
            self.probes.iter().map(|probe| probe.remaining(now)).min().map_or(timeout, |end| end.min(timeout));
        let sockets = self.probes.iter().filter_map(|probe| probe.connect.as_ref().ok());
        let mut waiting: Vec<PollFd<'_>> = sockets.map(|socket| PollFd::new(socket, PollFlags::OUT)).collect();
        waiting.push(PollFd::from_borrowed_fd(other, PollFlags::IN));
        // After an interruption the caller looks at the probes too early, and waits again.
        let _ = poll(&mut waiting, Timespec::try_from(timeout).ok().as_ref());
    }

    /// Removes the probes that have ended, and returns their results.
    pub fn finished(&mut self, now: Instant) -> Vec<(BackendAddress, ConnectResult)> {
        let mut finished = Vec::new();
        self.probes.retain(|probe| match probe.result(now) {
            Some(result) => {
                finished.push((probe.backend, result));
                false
            }
            None => true,
        });
        finished
    }
}

impl Probe {
    fn remaining(&self, now: Instant) -> Duration {
        if self.connect.is_err() { Duration::ZERO } else { self.deadline.saturating_duration_since(now) }
    }

    /// `None` while the connect is in progress. A connect that ended counts even if it is noticed after the deadline.
    fn result(&self, now: Instant) -> Option<ConnectResult> {
        let socket = match &self.connect {
            Ok(socket) => socket,
            Err(result) => return Some(*result),
        };
        let mut ended = [PollFd::new(socket, PollFlags::OUT)];
        match poll(&mut ended, Some(&Timespec::default())) {
            Ok(0) | Err(_) => (now >= self.deadline).then(|| no_answer(self.backend, "timeout")),
            Ok(_) => Some(match socket.take_error() {
                Ok(None) => ConnectResult::Connected,
                Ok(Some(error)) | Err(error) => read_error(self.backend, &error),
            }),
        }
    }
}

/// The priority keeps the hooks from resolving this dial.
fn start_connect(backend: BackendAddress) -> Result<Socket, ConnectResult> {
    let at = address_of(backend);
    let open = || {
        let socket = Socket::new(Domain::for_address(at), Type::STREAM.nonblocking(), Some(Protocol::TCP))?;
        socket.set_priority(AGENT_SOCKET_PRIORITY)?;
        Ok(socket)
    };
    let socket = open().map_err(|error| read_error(backend, &error))?;
    match socket.connect(&at.into()) {
        Ok(()) => Err(ConnectResult::Connected),
        Err(error) if error.raw_os_error() == Some(Errno::INPROGRESS.raw_os_error()) => Ok(socket),
        Err(error) => Err(read_error(backend, &error)),
    }
}

fn read_error(backend: BackendAddress, error: &std::io::Error) -> ConnectResult {
    match error.kind() {
        std::io::ErrorKind::ConnectionRefused => ConnectResult::Refused,
        _ => no_answer(backend, error),
    }
}

fn no_answer(backend: BackendAddress, error: impl std::fmt::Display) -> ConnectResult {
    tracing::debug!(backend = %address_of(backend), %error, "a connect to a redirect's backend gave no answer");
    ConnectResult::NoAnswer
}

fn address_of((address, port): BackendAddress) -> SocketAddr {
    SocketAddr::new(address.ip(), port)
}

#[cfg(test)]
mod tests {
    use super::*;
    use beeline_model::Address;
    use std::collections::BTreeMap;
    use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream};
    use std::os::fd::AsFd;

    fn backend(last: u8, port: u16) -> BackendAddress {
        (Address::from(IpAddr::from([127, 0, 0, last])), port)
    }

    /// A port of all loopback addresses that does not answer, because the queue of the listener is full.
    fn silent_port() -> (Socket, TcpStream, u16) {
        let listener = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        listener.bind(&SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)).into()).unwrap();
        listener.listen(0).unwrap();
        let port = listener.local_addr().unwrap().as_socket().unwrap().port();
        let queued = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
        (listener, queued, port)
    }

    /// Runs the probes until none is left. Returns the result of each backend, and when it was known.
    fn finish(mut prober: Prober, start: Instant) -> BTreeMap<BackendAddress, (ConnectResult, Duration)> {
        let (never_ready, _writer) = std::io::pipe().unwrap();
        let mut results = BTreeMap::new();
        while prober.available() < MAX_PROBES {
            prober.wait(never_ready.as_fd(), Duration::from_secs(1), Instant::now());
            let finished = prober.finished(Instant::now());
            results.extend(finished.into_iter().map(|(backend, result)| (backend, (result, start.elapsed()))));
        }
        results
    }

    #[test]
    fn silent_backends_do_not_delay_others() {
        let (_listener, _queued, silent) = silent_port();
        let accepting = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let closed = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
        let (mut prober, start) = (Prober::default(), Instant::now());
        for last in 2..=31 {
            prober.start(backend(last, silent), start);
        }
        let others = [backend(1, accepting.local_addr().unwrap().port()), backend(1, closed)];
        others.iter().for_each(|other| prober.start(*other, start));
        assert_eq!(prober.available(), 0, "30 silent backends and 2 others are the limit");
        let mut results = finish(prober, start);
        let [accepted, refused] = others.map(|other| results.remove(&other).expect("a result"));
        assert_eq!((accepted.0, refused.0), (ConnectResult::Connected, ConnectResult::Refused));
        assert!(accepted.1 < PROBE_TIMEOUT && refused.1 < PROBE_TIMEOUT, "{accepted:?} {refused:?}");
        assert_eq!(results.len(), 30);
        for (backend, (result, after)) in results {
            assert_eq!(result, ConnectResult::NoAnswer, "{backend:?}");
            assert!(after >= PROBE_TIMEOUT, "{backend:?} after {after:?}");
            assert!(after < 10 * PROBE_TIMEOUT, "{backend:?} after {after:?}");
        }
    }

    #[test]
    fn a_connect_that_fails_at_once_gives_no_answer() {
        let (mut prober, now) = (Prober::default(), Instant::now());
        // The kernel sends nothing to a broadcast address.
        prober.start((Address::from(IpAddr::V4(Ipv4Addr::BROADCAST)), 80), now);
        let results = finish(prober, now);
        assert_eq!(results.values().map(|(result, _)| *result).collect::<Vec<_>>(), [ConnectResult::NoAnswer]);
        assert!(results.values().all(|(_, after)| *after < PROBE_TIMEOUT), "{results:?}");
    }
}
