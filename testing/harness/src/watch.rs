//! A long-lived connected UDP socket: sends now and then and tells when, and with which error, it was cut off.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle, sleep},
    time::{Duration, Instant},
};

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use crate::{errno::Errno, op::By, socket::Socket};

const STEP: Duration = Duration::from_millis(2);

/// CLOCK_MONOTONIC in ns, the same in every process of the machine: compare `Failure::at` with it.
pub fn now() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Watch {
    /// Between two sends; an answer is awaited meanwhile.
    pub every_ms: u32,
    /// It ends by itself after this time.
    pub limit_ms: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Watched {
    pub sent: u64,
    /// Answers by server ("pod-a 10.244.1.2:53").
    pub answers: BTreeMap<String, u64>,
    /// The first error; nothing is sent after it.
    pub failure: Option<Failure>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// "send" or "receive".
    pub step: String,
    pub errno: Errno,
    /// As `now()` counts.
    pub at: u64,
}

pub(crate) struct Watching {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Watched>,
}

impl Watch {
    pub(crate) fn start(self, socket: Arc<Socket>) -> Watching {
        let stop = Arc::new(AtomicBool::new(false));
        let seen = stop.clone();
        Watching { stop, thread: thread::spawn(move || self.run(&socket, &seen)) }
    }

    fn run(&self, socket: &Socket, stop: &AtomicBool) -> Watched {
        let (end, mut watched) = (Instant::now() + Duration::from_millis(self.limit_ms), Watched::default());
        while Instant::now() < end && !stop.load(Ordering::Relaxed) {
            if let Err((step, errno)) = self.round(socket, &mut watched) {
                watched.failure = Some(Failure { step: step.into(), errno, at: now() });
                break;
            }
        }
        watched
    }

    fn round(&self, socket: &Socket, watched: &mut Watched) -> Result<(), (&'static str, Errno)> {
        let next = Instant::now() + Duration::from_millis(self.every_ms.into());
        socket.send(None, b"who\n", By::Call).map_err(|errno| ("send", errno))?;
        watched.sent += 1;
        // The whole pause is spent in poll, so that an error is seen when it happens and not at the next send.
        for _ in 0..1000 {
            let left = next.saturating_duration_since(Instant::now()).as_millis() as u32;
            let (ready, error) = socket.poll(false, left).map_err(|errno| ("receive", errno))?;
            match (ready, error) {
                (_, Some(errno)) => return Err(("receive", errno)),
                (false, None) => break,
                (true, None) => take(socket, watched).map_err(|errno| ("receive", errno))?,
            }
        }
        Ok(())
    }
}

fn take(socket: &Socket, watched: &mut Watched) -> Result<(), Errno> {
    let (_, bytes) = socket.receive(By::Call)?;
    *watched.answers.entry(server(&bytes)).or_default() += 1;
    Ok(())
}

/// "pod-a 10.244.1.2:53", the part of an identity line that does not change from dial to dial.
pub(crate) fn server(answer: &[u8]) -> String {
    let line = String::from_utf8_lossy(answer);
    line.split(" peer=").next().unwrap_or_default().trim_end().to_owned()
}

impl Watching {
    /// Waits up to `ms` for it to fail by itself, then ends it.
    pub fn end(self, ms: u64) -> Watched {
        let end = Instant::now() + Duration::from_millis(ms);
        while !self.thread.is_finished() && Instant::now() < end {
            sleep(STEP);
        }
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap_or_default()
    }
}
