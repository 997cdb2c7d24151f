//! Health of the backends of LocalRedirectPolicies. The kernel suspends a backend that refuses a redirected dial, and reports
//! it. A thread then connects to the backend itself: if that succeeds, it ends the suspension at once; if the backend refuses,
//! it extends the suspension and tries again with back-off until a connect succeeds.
//!
//! A client may fake refused dials in its own network namespace. So a backend that was found healthy is trusted for a while:
//! the kernel reports refused dials, but only this thread suspends the backend. The time doubles with each false alarm.

mod tracker;
pub mod watch;

use beeline_datapath::suspension::{BackendAddress, RefusalReader, SuspensionMap};
use beeline_model::row::AGENT_SOCKET_PRIORITY;
use socket2::{Domain, Protocol, Socket, Type};
use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};
pub use tracker::RedirectCounts;
use tracker::{BackendTracker, ConnectResult, ProbeVerdict};

/// How long to wait for a report before checking whether the agent stops.
const POLL_TIMEOUT: Duration = Duration::from_millis(200);
const PROBE_TIMEOUT: Duration = Duration::from_millis(100);
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
    while !stopping.load(Ordering::Relaxed) {
        let next = health.tracker().next_probe();
        let wait = next.map_or(POLL_TIMEOUT, |at| at.saturating_duration_since(Instant::now()).min(POLL_TIMEOUT));
        let refused = reader.poll(wait);
        let due = {
            let (mut tracker, now) = (health.tracker(), Instant::now());
            refused.into_iter().for_each(|backend| tracker.record_refusal(backend, now));
            tracker.due(now)
        };
        for backend in due {
            // The lock is not held during the connect: the main loop needs it for each request.
            let result = probe(backend);
            let verdict = health.tracker().record_probe(backend, result, Instant::now());
            apply(map, backend, verdict);
        }
    }
    Ok(())
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

/// Connects to the backend, as the kubelet's TCP probe does. The priority keeps the hooks from resolving this dial.
fn probe((address, port): BackendAddress) -> ConnectResult {
    let at = SocketAddr::new(address.ip(), port);
    let connect = || {
        let socket = Socket::new(Domain::for_address(at), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_priority(AGENT_SOCKET_PRIORITY)?;
        socket.connect_timeout(&at.into(), PROBE_TIMEOUT)
    };
    match connect() {
        Ok(()) => ConnectResult::Connected,
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => ConnectResult::Refused,
        Err(error) => {
            tracing::debug!(backend = %at, %error, "a connect to a redirect's backend gave no answer");
            ConnectResult::NoAnswer
        }
    }
}
