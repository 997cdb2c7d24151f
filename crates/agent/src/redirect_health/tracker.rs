//! Decides which backends of redirects are suspended, from refused dials and the agent's own connects.

use super::SuspendedBackend;
use beeline_datapath::suspension::BackendAddress;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant, SystemTime};

const FIRST_RETRY: Duration = Duration::from_millis(100);
const MAX_RETRY: Duration = Duration::from_secs(5);
const FIRST_TRUST: Duration = Duration::from_secs(1);
const MAX_TRUST: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectResult {
    Connected,
    Refused,
    /// Timeout, or no route.
    NoAnswer,
}

/// What to write for a backend after a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeVerdict {
    /// The backend refuses. It is probed again after `retry`.
    Suspended { first: bool, retry: Duration },
    /// The refused dial was a false alarm, or cannot be confirmed.
    Healthy { trusted: Duration },
    /// A backend that refused accepts again.
    Restored,
    /// The backend was removed during the probe.
    Forgotten,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RedirectCounts {
    /// Suspensions that the agent confirmed.
    pub suspensions: u64,
    /// Refused dials that the agent did not confirm.
    pub false_alarms: u64,
}

#[derive(Debug)]
enum HealthState {
    /// Refused a dial, and the agent has not connected yet.
    Suspected,
    Suspended {
        since: SystemTime,
        refused_probes: u32,
    },
    Trusted {
        until: Instant,
    },
}

#[derive(Debug)]
struct TrackedBackend {
    state: HealthState,
    next_probe: Option<Instant>,
    is_probing: bool,
    /// Since the backend was last suspended.
    false_alarms: u32,
}

#[derive(Debug, Default)]
pub struct BackendTracker {
    backends: BTreeMap<BackendAddress, TrackedBackend>,
    pub counts: RedirectCounts,
}

fn doubled(first: Duration, times: u32, max: Duration) -> Duration {
    first.saturating_mul(1 << times.min(16)).min(max)
}

impl BackendTracker {
    pub fn is_empty(&self) -> bool {
        self.backends.is_empty()
    }

    pub fn suspended(&self) -> Vec<SuspendedBackend> {
        let suspended = |(backend, tracked): (&BackendAddress, &TrackedBackend)| match tracked.state {
            HealthState::Suspended { since, refused_probes } => {
                Some(SuspendedBackend { backend: SocketAddr::new(backend.0.ip(), backend.1), since, refused_probes })
            }
            _ => None,
        };
        self.backends.iter().filter_map(suspended).collect()
    }

    /// A dial was refused: the backend is probed at once, unless a probe runs or is due already.
    pub fn record_refusal(&mut self, backend: BackendAddress, now: Instant) {
        let state = HealthState::Suspected;
        let new = TrackedBackend { state, next_probe: None, is_probing: false, false_alarms: 0 };
        let tracked = self.backends.entry(backend).or_insert(new);
        if !tracked.is_probing {
            tracked.next_probe.get_or_insert(now);
        }
    }

    /// The backends to probe now, at most `limit` of them. Those that wait longest come first, so that none waits for ever.
    pub fn start_probes(&mut self, now: Instant, limit: usize) -> Vec<BackendAddress> {
        self.forget_trusted(now);
        let due = self.backends.iter_mut().filter(|(_, tracked)| tracked.next_probe.is_some_and(|at| at <= now));
        let mut due: Vec<(&BackendAddress, &mut TrackedBackend)> = due.collect();
        due.sort_by_key(|(_, tracked)| tracked.next_probe);
        let start = |(backend, tracked): (&BackendAddress, &mut TrackedBackend)| {
            (tracked.next_probe, tracked.is_probing) = (None, true);
            *backend
        };
        due.into_iter().take(limit).map(start).collect()
    }

    /// Forgets backends whose time of trust has passed twice without a refused dial.
    fn forget_trusted(&mut self, now: Instant) {
        self.backends.retain(|_, tracked| match tracked.state {
            HealthState::Trusted { until } => {
                let trust = doubled(FIRST_TRUST, tracked.false_alarms, MAX_TRUST);
                tracked.next_probe.is_some() || tracked.is_probing || now < until + trust
            }
            _ => true,
        });
    }

    /// When the next probe is due. Probes that run are not counted.
    pub fn next_probe(&self) -> Option<Instant> {
        self.backends.values().filter_map(|tracked| tracked.next_probe).min()
    }

    pub fn record_probe(&mut self, backend: BackendAddress, result: ConnectResult, now: Instant) -> ProbeVerdict {
        let Some(tracked) = self.backends.get_mut(&backend) else { return ProbeVerdict::Forgotten };
        tracked.is_probing = false;
        let refused_before = match tracked.state {
            HealthState::Suspended { refused_probes, .. } => refused_probes,
            HealthState::Suspected | HealthState::Trusted { .. } => 0,
        };
        match result {
            ConnectResult::Connected if refused_before > 0 => {
                self.backends.remove(&backend);
                ProbeVerdict::Restored
            }
            // A backend that refused and now does not answer at all is not healthy either.
            ConnectResult::NoAnswer | ConnectResult::Refused
                if refused_before > 0 || result == ConnectResult::Refused =>
            {
                let retry = doubled(FIRST_RETRY, refused_before, MAX_RETRY);
                let since = match tracked.state {
                    HealthState::Suspended { since, .. } => since,
                    _ => SystemTime::now(),
                };
                tracked.state = HealthState::Suspended { since, refused_probes: refused_before + 1 };
                tracked.next_probe = Some(now + retry);
                tracked.false_alarms = 0;
                self.counts.suspensions += u64::from(refused_before == 0);
                ProbeVerdict::Suspended { first: refused_before == 0, retry }
            }
            ConnectResult::Connected | ConnectResult::NoAnswer | ConnectResult::Refused => {
                let trusted = doubled(FIRST_TRUST, tracked.false_alarms, MAX_TRUST);
                tracked.false_alarms = tracked.false_alarms.saturating_add(1);
                tracked.state = HealthState::Trusted { until: now + trusted };
                tracked.next_probe = None;
                self.counts.false_alarms += 1;
                ProbeVerdict::Healthy { trusted }
            }
        }
    }

    /// Keeps the backends for which `is_used` holds, and returns the others.
    pub fn retain(&mut self, is_used: impl Fn(&BackendAddress) -> bool) -> Vec<BackendAddress> {
        let unused: Vec<BackendAddress> = self.backends.keys().filter(|backend| !is_used(backend)).copied().collect();
        for backend in &unused {
            self.backends.remove(backend);
        }
        unused
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use beeline_model::Address;
    use std::net::IpAddr;

    fn backend(last: u8) -> BackendAddress {
        (Address::from(IpAddr::from([10, 244, 1, last])), 8080)
    }

    #[test]
    fn a_backend_that_refuses_the_agent_too_is_probed_with_back_off_until_it_accepts() {
        let (mut tracker, start) = (BackendTracker::default(), Instant::now());
        tracker.record_refusal(backend(2), start);
        assert_eq!((tracker.start_probes(start, 9), tracker.suspended().len()), (vec![backend(2)], 0));
        let (mut now, mut retries) = (start, Vec::new());
        for _ in 0..9 {
            let verdict = tracker.record_probe(backend(2), ConnectResult::Refused, now);
            let ProbeVerdict::Suspended { first, retry } = verdict else { panic!("{verdict:?}") };
            assert_eq!((first, tracker.start_probes(now, 9)), (retries.is_empty(), vec![]));
            retries.push(retry.as_millis());
            // Further refused dials do not bring the next probe forward.
            tracker.record_refusal(backend(2), now);
            now += retry;
            assert_eq!(tracker.start_probes(now, 9), [backend(2)]);
        }
        assert_eq!(retries, [100, 200, 400, 800, 1600, 3200, 5000, 5000, 5000]);
        assert_eq!(tracker.suspended()[0].refused_probes, 9);
        let retry = MAX_RETRY;
        let no_answer = tracker.record_probe(backend(2), ConnectResult::NoAnswer, now);
        assert_eq!(no_answer, ProbeVerdict::Suspended { first: false, retry }, "still not healthy");
        assert_eq!(tracker.record_probe(backend(2), ConnectResult::Connected, now), ProbeVerdict::Restored);
        assert_eq!((tracker.is_empty(), tracker.counts.suspensions, tracker.counts.false_alarms), (true, 1, 0));
    }

    #[test]
    fn a_false_alarm_ends_the_suspension_and_trust_doubles_with_each() {
        let (mut tracker, mut now) = (BackendTracker::default(), Instant::now());
        let mut seconds = Vec::new();
        for result in [ConnectResult::Connected, ConnectResult::NoAnswer].into_iter().cycle().take(8) {
            tracker.record_refusal(backend(2), now);
            assert_eq!(tracker.start_probes(now, 9), [backend(2)]);
            let verdict = tracker.record_probe(backend(2), result, now);
            let ProbeVerdict::Healthy { trusted } = verdict else { panic!("{verdict:?}") };
            seconds.push(trusted.as_secs());
            now += trusted;
        }
        assert_eq!(seconds, [1, 2, 4, 8, 16, 32, 60, 60]);
        assert_eq!((tracker.suspended().len(), tracker.counts.false_alarms), (0, 8));
        // A real crash is still noticed, by the agent's own connect.
        tracker.record_refusal(backend(2), now);
        let verdict = tracker.record_probe(backend(2), ConnectResult::Refused, now);
        assert_eq!(verdict, ProbeVerdict::Suspended { first: true, retry: FIRST_RETRY });
        tracker.record_refusal(backend(3), now);
        tracker.record_probe(backend(3), ConnectResult::Connected, now);
        assert_eq!(tracker.start_probes(now + Duration::from_secs(3), 9), [backend(2)]);
        assert_eq!(tracker.retain(|_| false), [backend(2)], "the other backend was forgotten after its time of trust");
    }

    #[test]
    fn a_backend_is_probed_once_at_a_time_and_those_that_wait_longest_come_first() {
        let (mut tracker, start) = (BackendTracker::default(), Instant::now());
        let later = start + Duration::from_millis(1);
        [(3, start), (4, start), (2, later)]
            .into_iter()
            .for_each(|(last, at)| tracker.record_refusal(backend(last), at));
        assert_eq!(tracker.start_probes(later, 1), [backend(3)]);
        tracker.record_refusal(backend(3), later);
        assert_eq!(tracker.start_probes(later, 9), [backend(4), backend(2)], "backend 3 is being probed");
        assert_eq!((tracker.next_probe(), tracker.start_probes(later, 9)), (None, vec![]), "all are being probed");
        tracker.record_probe(backend(3), ConnectResult::Connected, later);
        tracker.record_refusal(backend(3), later);
        assert_eq!(tracker.start_probes(later, 9), [backend(3)], "a refused dial after the probe starts another");
    }

    #[test]
    fn a_backend_without_a_redirect_is_forgotten() {
        let (mut tracker, now) = (BackendTracker::default(), Instant::now());
        tracker.record_refusal(backend(2), now);
        tracker.record_refusal(backend(3), now);
        assert_eq!(tracker.retain(|one| *one == backend(3)), [backend(2)]);
        assert_eq!(tracker.record_probe(backend(2), ConnectResult::Refused, now), ProbeVerdict::Forgotten);
    }
}
