//! Dials as fast as the machine can, every one on a new socket, every answer checked for who gave it.

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

use crate::{errno::Errno, watch::server};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StormKind {
    /// A server that speaks first (`Service::banner`). Closed with a reset, so that no port stays in TIME_WAIT.
    Tcp,
    UdpConnected,
    UdpUnconnected,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Storm {
    pub kind: StormKind,
    /// Dialled in turn.
    pub targets: Vec<SocketAddr>,
    pub threads: usize,
    /// It ends by itself after this time, or after this number of dials.
    pub limit_ms: u64,
    pub dials: u64,
    /// An answer that takes longer is a failed dial.
    pub patience_ms: u64,
}

impl Storm {
    /// One thread, one minute at most, as many dials as fit.
    pub fn new(kind: StormKind, targets: impl IntoIterator<Item = SocketAddr>) -> Self {
        let targets = targets.into_iter().collect();
        Storm { kind, targets, threads: 1, limit_ms: 60_000, dials: u64::MAX, patience_ms: 2000 }
    }
}

/// By target: who answered how often ("pod-a 10.244.1.2:8080"), and which step failed how often ("connect EPERM").
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Tally {
    pub dials: u64,
    pub elapsed_ns: u64,
    /// The longest dial, answer included.
    pub slowest_ns: u64,
    pub answers: BTreeMap<SocketAddr, BTreeMap<String, u64>>,
    pub failures: BTreeMap<SocketAddr, BTreeMap<String, u64>>,
}

impl Tally {
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

pub(crate) struct Storming {
    stop: Arc<AtomicBool>,
    start: Instant,
    threads: Vec<JoinHandle<Count>>,
    targets: Vec<SocketAddr>,
}

impl Storm {
    pub(crate) fn start(self) -> Storming {
        let (stop, left) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(self.dials)));
        let (start, targets) = (Instant::now(), self.targets.clone());
        let thread = |number| {
            let (storm, stop, left) = (self.clone(), stop.clone(), left.clone());
            thread::spawn(move || storm.run(number, &stop, &left))
        };
        let threads = (0..self.threads.max(1)).map(thread).collect();
        Storming { stop, start, threads, targets }
    }

    fn run(&self, first: usize, stop: &AtomicBool, left: &AtomicU64) -> Count {
        let targets: Vec<SockAddr> = self.targets.iter().map(|&to| to.into()).collect();
        let (mut count, end) = (Count::new(targets.len()), Instant::now() + Duration::from_millis(self.limit_ms));
        let more = || left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok();
        let mut start = Instant::now();
        for turn in (0..targets.len()).cycle().skip(first % targets.len().max(1)) {
            if start >= end || stop.load(Ordering::Relaxed) || !more() {
                break;
            }
            let result = self.dial(&targets[turn], &mut count.buffer);
            let now = Instant::now();
            count.add(turn, result, now - start);
            start = now;
        }
        count.end = start;
        count
    }

    /// The length of the answer, or the step that failed.
    fn dial(&self, to: &SockAddr, buffer: &mut [u8]) -> Result<usize, (&'static str, Errno)> {
        let at = |step| move |error: io::Error| (step, Errno::from(error));
        let socket = self.socket(to).map_err(at("socket"))?;
        match self.kind {
            StormKind::Tcp => socket.connect(to).map_err(at("connect"))?,
            StormKind::UdpConnected => {
                socket.connect(to).map_err(at("connect"))?;
                socket.send(b"who\n").map_err(at("send")).map(drop)?;
            }
            StormKind::UdpUnconnected => socket.send_to(b"who\n", to).map_err(at("send")).map(drop)?,
        }
        io::Read::read(&mut &socket, buffer).map_err(at("receive"))
    }

    fn socket(&self, to: &SockAddr) -> io::Result<Socket> {
        let patience = Some(Duration::from_millis(self.patience_ms));
        let domain = if to.is_ipv4() { Domain::IPV4 } else { Domain::IPV6 };
        let socket = match self.kind {
            StormKind::Tcp => Socket::new(domain, Type::STREAM, Some(Protocol::TCP))?,
            _ => Socket::new(domain, Type::DGRAM, Some(Protocol::UDP))?,
        };
        socket.set_read_timeout(patience)?;
        if self.kind == StormKind::Tcp {
            socket.set_write_timeout(patience)?;
            socket.set_linger(Some(Duration::ZERO))?;
        }
        Ok(socket)
    }
}

/// One thread's tally, by index of the target. Answers are counted by their bytes up to " peer=".
struct Count {
    buffer: Vec<u8>,
    answers: Vec<HashMap<Vec<u8>, u64>>,
    failures: Vec<HashMap<(&'static str, Errno), u64>>,
    slowest: Duration,
    end: Instant,
}

impl Count {
    fn new(targets: usize) -> Self {
        let (answers, failures) = (vec![HashMap::new(); targets], vec![HashMap::new(); targets]);
        Count { buffer: vec![0; 512], answers, failures, slowest: Duration::ZERO, end: Instant::now() }
    }

    fn add(&mut self, target: usize, result: Result<usize, (&'static str, Errno)>, took: Duration) {
        self.slowest = self.slowest.max(took);
        // An answer without a byte is a connection that was closed on us: nobody said who they are.
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

impl Storming {
    /// `now`, or when its own limit is reached.
    pub fn end(self, now: bool) -> Tally {
        self.stop.store(now, Ordering::Relaxed);
        let mut tally = Tally::default();
        for count in self.threads.into_iter().filter_map(|thread| thread.join().ok()) {
            tally.elapsed_ns = tally.elapsed_ns.max((count.end - self.start).as_nanos() as u64);
            tally.add(&self.targets, count);
        }
        tally.dials = tally.answered() + tally.failed();
        tally
    }
}

impl Tally {
    fn add(&mut self, targets: &[SocketAddr], count: Count) {
        self.slowest_ns = self.slowest_ns.max(count.slowest.as_nanos() as u64);
        for ((target, answers), failures) in targets.iter().zip(count.answers).zip(count.failures) {
            for (answer, times) in answers {
                *self.answers.entry(*target).or_default().entry(server(&answer)).or_default() += times;
            }
            for ((step, errno), times) in failures {
                let what =
                    if errno == Errno(0) { "closed without an answer".into() } else { format!("{step} {errno}") };
                *self.failures.entry(*target).or_default().entry(what).or_default() += times;
            }
        }
    }
}
