//! A probe on a long-lived connected UDP socket: it sends at an interval and records when and with which error the
//! socket was closed by the kernel.

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

use crate::{errno::Errno, protocol::CallMethod, socket::Socket};

const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// CLOCK_MONOTONIC in nanoseconds, which is the same in every process of the machine. Compare `ProbeFailure::at` with
/// it.
pub fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ProbeConfig {
    /// Time between two sends, during which the probe waits for an answer.
    pub interval_ms: u32,
    /// The probe ends after this time.
    pub limit_ms: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbeReport {
    pub sent: u64,
    /// Number of answers by server ("pod-a 10.244.1.2:53").
    pub answers: BTreeMap<String, u64>,
    /// The first error. The probe sends nothing after it.
    pub failure: Option<ProbeFailure>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbeFailure {
    /// "send" or "receive".
    pub step: String,
    pub errno: Errno,
    /// Time of the failure on the clock of `monotonic_ns()`.
    pub at: u64,
}

pub(crate) struct RunningProbe {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<ProbeReport>,
}

impl ProbeConfig {
    pub(crate) fn start(self, socket: Arc<Socket>) -> RunningProbe {
        let stop = Arc::new(AtomicBool::new(false));
        let stop_flag = stop.clone();
        RunningProbe { stop, thread: thread::spawn(move || self.run(&socket, &stop_flag)) }
    }

    fn run(&self, socket: &Socket, stop: &AtomicBool) -> ProbeReport {
        let (end, mut report) = (Instant::now() + Duration::from_millis(self.limit_ms), ProbeReport::default());
        while Instant::now() < end && !stop.load(Ordering::Relaxed) {
            if let Err((step, errno)) = self.round(socket, &mut report) {
                report.failure = Some(ProbeFailure { step: step.into(), errno, at: monotonic_ns() });
                break;
            }
        }
        report
    }

    fn round(&self, socket: &Socket, report: &mut ProbeReport) -> Result<(), (&'static str, Errno)> {
        let next = Instant::now() + Duration::from_millis(self.interval_ms.into());
        socket.send(None, b"who\n", CallMethod::Call).map_err(|errno| ("send", errno))?;
        report.sent += 1;
        // The rest of the interval is spent in poll, so that an error is recorded when it happens and not at the next
        // send.
        for _ in 0..1000 {
            let left = next.saturating_duration_since(Instant::now()).as_millis() as u32;
            let (ready, error) = socket.poll(false, left).map_err(|errno| ("receive", errno))?;
            match (ready, error) {
                (_, Some(errno)) => return Err(("receive", errno)),
                (false, None) => break,
                (true, None) => receive_answer(socket, report).map_err(|errno| ("receive", errno))?,
            }
        }
        Ok(())
    }
}

fn receive_answer(socket: &Socket, report: &mut ProbeReport) -> Result<(), Errno> {
    let (_, bytes) = socket.receive(CallMethod::Call)?;
    *report.answers.entry(server_name(&bytes)).or_default() += 1;
    Ok(())
}

/// "pod-a 10.244.1.2:53", the part of an identity line that is the same for every dial.
pub(crate) fn server_name(answer: &[u8]) -> String {
    let line = String::from_utf8_lossy(answer);
    line.split(" peer=").next().unwrap_or_default().trim_end().to_owned()
}

impl RunningProbe {
    /// Waits up to `ms` for the first error, then stops the probe.
    pub fn stop(self, ms: u64) -> ProbeReport {
        let end = Instant::now() + Duration::from_millis(ms);
        while !self.thread.is_finished() && Instant::now() < end {
            sleep(POLL_INTERVAL);
        }
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap_or_default()
    }
}
