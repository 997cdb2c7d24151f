//! Health of the backends of LocalRedirectPolicies. The kernel suspends a backend that refuses a redirected dial, and reports
//! it. A thread then connects to the backend itself: if that succeeds, it ends the suspension at once; if the backend refuses,
//! it extends the suspension and tries again with back-off until a connect succeeds. The connects run at the same time.
//!
//! A client may fake refused dials in its own network namespace. So a backend that was found healthy is trusted for a while:
//! the kernel reports refused dials, but only this thread suspends the backend. The time doubles with each false alarm.

mod prober;
mod tracker;
pub mod watch;

use beeline_datapath::suspension::{BackendAddress, RefusalReader, SuspensionMap};
use prober::Prober;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};
pub use tracker::RedirectCounts;
use tracker::{BackendTracker, ProbeVerdict};

/// How long to wait for a report before checking whether the agent stops.
const POLL_TIMEOUT: Duration = Duration::from_millis(200);
/// A suspension lasts this much longer than the time to the next probe, so that it does not end before the probe.
const MARGIN: Duration = Duration::from_secs(1);

/// A backend that redirects skip.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SuspendedBackend {
    pub backend: SocketAddr,
    pub since: SystemTime,
    /// The number of connects of the agent that the backend refused.
    pub refused_probes: u32,
}

/// What the thread shares with the main loop.
#[derive(Clone, Default)]
pub struct RedirectHealth(Arc<Mutex<BackendTracker>>);

impl RedirectHealth {
    fn tracker(&self) -> MutexGuard<'_, BackendTracker> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The backends whose suspension the agent has confirmed.
    pub fn suspended(&self) -> Vec<SuspendedBackend> {
        self.tracker().suspended()
    }

    pub fn counts(&self) -> RedirectCounts {
        self.tracker().counts
    }

    pub fn is_idle(&self) -> bool {
        self.tracker().is_empty()
    }

    /// Forgets the backends that no redirect has any more, because the status of their pods changed.
    pub fn retain(&self, backends: &BTreeSet<BackendAddress>, map: &SuspensionMap) {
        for backend in self.tracker().retain(|backend| backends.contains(backend)) {
            map.remove(backend);
        }
    }
}

/// Blocks until `stopping` is set.
pub fn run(
    reader: &RefusalReader,
    map: &SuspensionMap,
    health: &RedirectHealth,
    stopping: &AtomicBool,
) -> anyhow::Result<()> {
    let mut prober = Prober::default();
    while !stopping.load(Ordering::Relaxed) {
        // The lock is not held while the thread waits: the main loop needs it for each request.
        let next = health.tracker().next_probe();
        let now = Instant::now();
        prober.wait(reader.as_fd(), time_to_next(next.filter(|_| prober.available() > 0), now), now);
        run_probes(&mut prober, reader.poll(Duration::ZERO), map, health);
    }
    Ok(())
}

fn time_to_next(next: Option<Instant>, now: Instant) -> Duration {
    next.map_or(POLL_TIMEOUT, |at| at.saturating_duration_since(now).min(POLL_TIMEOUT))
}

/// Records refused dials and the probes that have ended, and starts the probes that are due.
fn run_probes(prober: &mut Prober, refused: BTreeSet<BackendAddress>, map: &SuspensionMap, health: &RedirectHealth) {
    let now = Instant::now();
    for (backend, result) in prober.finished(now) {
        let verdict = health.tracker().record_probe(backend, result, now);
        apply(map, backend, verdict);
    }
    let mut tracker = health.tracker();
    refused.into_iter().for_each(|backend| tracker.record_refusal(backend, now));
    tracker.start_probes(now, prober.available()).into_iter().for_each(|backend| prober.start(backend, now));
}

fn apply(map: &SuspensionMap, (address, port): BackendAddress, verdict: ProbeVerdict) {
    let backend = SocketAddr::new(address.ip(), port);
    let written = match verdict {
        ProbeVerdict::Suspended { first, retry } => {
            if first {
                tracing::warn!(%backend, "a redirect's backend refuses connections; its dials use the next level");
            }
            map.suspend((address, port), retry + MARGIN)
        }
        ProbeVerdict::Healthy { trusted } => {
            tracing::info!(%backend, "a client's dial to a redirect's backend was refused, but the backend answers");
            map.trust((address, port), trusted)
        }
        ProbeVerdict::Restored => {
            tracing::info!(%backend, "a redirect's backend accepts connections again");
            map.remove((address, port));
            Ok(())
        }
        ProbeVerdict::Forgotten => Ok(()),
    };
    if let Err(error) = written {
        tracing::warn!(%backend, %error, "cannot record the health of a redirect's backend");
    }
}
