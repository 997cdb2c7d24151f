//! Load generator: dials as fast as the machine can, each time on a new socket, and counts which server answered.

use std::{
    collections::{BTreeMap, HashMap},
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use crate::{errno::Errno, probe::server_name};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LoadKind {
    /// Needs a server that sends first (`EchoService::banner`). Connections are closed with a reset, so that no port
    /// stays in TIME_WAIT.
    Tcp,
    UdpConnected,
    UdpUnconnected,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LoadConfig {
    pub kind: LoadKind,
    /// Dialled round-robin.
    pub targets: Vec<SocketAddr>,
    pub threads: usize,
    /// The load ends after this time or after `dials` dials, whichever comes first.
    pub limit_ms: u64,
    pub dials: u64,
    /// A dial without an answer within this time counts as failed.
    pub timeout_ms: u64,
}

impl LoadConfig {
    /// One thread, at most one minute, no limit on the number of dials.
    pub fn new(kind: LoadKind, targets: impl IntoIterator<Item = SocketAddr>) -> Self {
        let targets = targets.into_iter().collect();
        LoadConfig { kind, targets, threads: 1, limit_ms: 60_000, dials: u64::MAX, timeout_ms: 2000 }
    }
}

/// Number of answers by target and server ("pod-a 10.244.1.2:8080"), and of failures by target and step ("connect
/// EPERM").
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct LoadReport {
    pub dials: u64,
    pub elapsed_ns: u64,
    /// Duration of the slowest dial, including its answer.
    pub slowest_ns: u64,
    pub answers: BTreeMap<SocketAddr, BTreeMap<String, u64>>,
    pub failures: BTreeMap<SocketAddr, BTreeMap<String, u64>>,
}

impl LoadReport {
    pub fn answered(&self) -> u64 {
        self.answers.values().flat_map(BTreeMap::values).sum()
    }

    pub fn failed(&self) -> u64 {
        self.failures.values().flat_map(BTreeMap::values).sum()
    }

    pub fn per_second(&self) -> f64 {
        self.dials as f64 * 1e9 / self.elapsed_ns.max(1) as f64
    }
}

pub(crate) struct RunningLoad {
    stop: Arc<AtomicBool>,
    start: Instant,
    threads: Vec<JoinHandle<ThreadCounts>>,
    targets: Vec<SocketAddr>,
}

impl LoadConfig {
    pub(crate) fn start(self) -> RunningLoad {
        let (stop, left) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(self.dials)));
        let (start, targets) = (Instant::now(), self.targets.clone());
        let thread = |number| {
            let (config, stop, left) = (self.clone(), stop.clone(), left.clone());
            thread::spawn(move || config.run(number, &stop, &left))
        };
        let threads = (0..self.threads.max(1)).map(thread).collect();
        RunningLoad { stop, start, threads, targets }
    }

    fn run(&self, first: usize, stop: &AtomicBool, left: &AtomicU64) -> ThreadCounts {
        let targets: Vec<SockAddr> = self.targets.iter().map(|&to| to.into()).collect();
        let (mut counts, end) =
            (ThreadCounts::new(targets.len()), Instant::now() + Duration::from_millis(self.limit_ms));
        let more = || left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok();
        let mut start = Instant::now();
        for turn in (0..targets.len()).cycle().skip(first % targets.len().max(1)) {
            if start >= end || stop.load(Ordering::Relaxed) || !more() {
                break;
            }
            let result = self.dial(&targets[turn], &mut counts.buffer);
            let now = Instant::now();
            counts.add(turn, result, now - start);
            start = now;
        }
        counts.end = start;
        counts
    }

    /// Returns the length of the answer, or the step that failed and its errno.
    fn dial(&self, to: &SockAddr, buffer: &mut [u8]) -> Result<usize, (&'static str, Errno)> {
        let at = |step| move |error: io::Error| (step, Errno::from(error));
        let socket = self.socket(to).map_err(at("socket"))?;
        match self.kind {
            LoadKind::Tcp => socket.connect(to).map_err(at("connect"))?,
            LoadKind::UdpConnected => {
                socket.connect(to).map_err(at("connect"))?;
                socket.send(b"who\n").map_err(at("send")).map(drop)?;
            }
            LoadKind::UdpUnconnected => socket.send_to(b"who\n", to).map_err(at("send")).map(drop)?,
        }
        io::Read::read(&mut &socket, buffer).map_err(at("receive"))
    }

    fn socket(&self, to: &SockAddr) -> io::Result<Socket> {
        let timeout = Some(Duration::from_millis(self.timeout_ms));
        let domain = if to.is_ipv4() { Domain::IPV4 } else { Domain::IPV6 };
        let socket = match self.kind {
            LoadKind::Tcp => Socket::new(domain, Type::STREAM, Some(Protocol::TCP))?,
            _ => Socket::new(domain, Type::DGRAM, Some(Protocol::UDP))?,
        };
        socket.set_read_timeout(timeout)?;
        if self.kind == LoadKind::Tcp {
            socket.set_write_timeout(timeout)?;
            socket.set_linger(Some(Duration::ZERO))?;
        }
        Ok(socket)
    }
}

/// Counts of one thread, by index of the target. Answers are grouped by their bytes up to " peer=".
struct ThreadCounts {
    buffer: Vec<u8>,
    answers: Vec<HashMap<Vec<u8>, u64>>,
    failures: Vec<HashMap<(&'static str, Errno), u64>>,
    slowest: Duration,
    end: Instant,
}

impl ThreadCounts {
    fn new(targets: usize) -> Self {
        let (answers, failures) = (vec![HashMap::new(); targets], vec![HashMap::new(); targets]);
        ThreadCounts { buffer: vec![0; 512], answers, failures, slowest: Duration::ZERO, end: Instant::now() }
    }

    fn add(&mut self, target: usize, result: Result<usize, (&'static str, Errno)>, took: Duration) {
        self.slowest = self.slowest.max(took);
        // An empty answer means that the peer closed the connection without sending its name.
        let result = result.and_then(|length| if length == 0 { Err(("receive", Errno(0))) } else { Ok(length) });
        match result {
            Err(failure) => *self.failures[target].entry(failure).or_default() += 1,
            Ok(length) => {
                let answer = &self.buffer[..length];
                let key = &answer[..answer.windows(6).position(|part| part == b" peer=").unwrap_or(length)];
                match self.answers[target].get_mut(key) {
                    Some(count) => *count += 1,
                    None => drop(self.answers[target].insert(key.to_vec(), 1)),
                }
            }
        }
    }
}

impl RunningLoad {
    /// Stops immediately if `now`, else waits until the load has reached its own limit.
    pub fn stop(self, now: bool) -> LoadReport {
        self.stop.store(now, Ordering::Relaxed);
        let mut report = LoadReport::default();
        for counts in self.threads.into_iter().filter_map(|thread| thread.join().ok()) {
            report.elapsed_ns = report.elapsed_ns.max((counts.end - self.start).as_nanos() as u64);
            report.add(&self.targets, counts);
        }
        report.dials = report.answered() + report.failed();
        report
    }
}

impl LoadReport {
    fn add(&mut self, targets: &[SocketAddr], counts: ThreadCounts) {
        self.slowest_ns = self.slowest_ns.max(counts.slowest.as_nanos() as u64);
        for ((target, answers), failures) in targets.iter().zip(counts.answers).zip(counts.failures) {
            for (answer, times) in answers {
                *self.answers.entry(*target).or_default().entry(server_name(&answer)).or_default() += times;
            }
            for ((step, errno), times) in failures {
                let what =
                    if errno == Errno(0) { "closed without an answer".into() } else { format!("{step} {errno}") };
                *self.failures.entry(*target).or_default().entry(what).or_default() += times;
            }
        }
    }
}
