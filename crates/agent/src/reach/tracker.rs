//! Tracks how each group of pods is reached, by which evidence, and which endpoint to probe next. It does no
//! input or output: the time is a parameter, and `reach.rs` reads routes and sends probes.
//!
//! - A route more specific than the default route: direct, without probes.
//! - No route, or one that blocks: through the node.
//! - Only a default route: unknown at first, whatever the earlier result was. One ready endpoint is probed. Any answer,
//!   also a reset, proves the direct path. Three probes in a row without an answer, to different endpoints if there are
//!   several, mean through the node; fewer change nothing.

use super::probe::ProbeResult;
use super::route_match::RouteMatch;
use super::{ProbeRate, ReachFinding, ReachTarget};
use beeline_cluster::RateLimiter;
use beeline_model::Address;
use beeline_model::reach::{PodGroup, Reachability};
use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// The number of failed probes in a row that changes a result to "through the node".
const MAX_MISSES: u32 = 3;
/// The result of a group that the plan does not need any more is kept this long, because endpoints that are not ready for
/// a moment come back.
const RETENTION: Duration = Duration::from_secs(600);

impl ProbeRate {
    /// The time until the next probe after one without an answer. It is shorter than the interval, so that a lost path is
    /// found in seconds.
    fn retry_interval(self) -> Duration {
        (self.interval / 10).clamp(Duration::from_millis(200), Duration::from_secs(3))
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Evidence {
    None,
    Route(RouteMatch),
    Answered { endpoint: SocketAddr, reset: bool },
    NoAnswer { endpoint: SocketAddr, error: String },
}

impl fmt::Display for Evidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Evidence::None => f.write_str("only a default route, no answer yet"),
            Evidence::Route(RouteMatch::Specific(net)) => write!(f, "route to {net}"),
            Evidence::Route(RouteMatch::Default) => f.write_str("only a default route, no ready endpoint to probe"),
            Evidence::Route(RouteMatch::Blocked(reason)) => write!(f, "{reason}"),
            Evidence::Answered { endpoint, reset: false } => write!(f, "{endpoint} answered"),
            Evidence::Answered { endpoint, reset: true } => write!(f, "{endpoint} answered with a reset"),
            Evidence::NoAnswer { endpoint, error } => {
                write!(f, "{MAX_MISSES} probes without an answer, the last to {endpoint}: {error}")
            }
        }
    }
}

struct GroupState {
    ready: Vec<(Address, u16)>,
    route: Option<RouteMatch>,
    reachability: Reachability,
    since: Instant,
    evidence: Evidence,
    misses: u32,
    /// The index of the endpoint to probe next.
    next_endpoint: usize,
    next_probe: Instant,
    probing: bool,
    /// Since when the plan does not need the group any more.
    unused_since: Option<Instant>,
}

impl GroupState {
    fn new(now: Instant) -> GroupState {
        GroupState {
            ready: Vec::new(),
            route: None,
            reachability: Reachability::Unknown,
            since: now,
            evidence: Evidence::None,
            misses: 0,
            next_endpoint: 0,
            next_probe: now,
            probing: false,
            unused_since: None,
        }
    }

    fn is_due(&self, now: Instant) -> bool {
        let needs_probe = self.route == Some(RouteMatch::Default) && self.unused_since.is_none();
        needs_probe && !self.ready.is_empty() && !self.probing && self.next_probe <= now
    }

    /// Returns whether the result changed.
    fn set(&mut self, reachability: Reachability, evidence: Evidence, now: Instant) -> bool {
        self.evidence = evidence;
        let changed = self.reachability != reachability;
        if changed {
            (self.reachability, self.since) = (reachability, now);
        }
        changed
    }
}

pub struct ReachTracker {
    rate: ProbeRate,
    groups: BTreeMap<PodGroup, GroupState>,
    limiter: RateLimiter,
}

impl ReachTracker {
    pub fn new(rate: ProbeRate, now: Instant) -> ReachTracker {
        let per_second = rate.per_second as f64;
        ReachTracker { rate, groups: BTreeMap::new(), limiter: RateLimiter::new(per_second, per_second, now) }
    }

    /// Sets the groups that the plan needs. Returns whether routes have to be looked up.
    pub fn set_targets(&mut self, targets: &[ReachTarget], now: Instant) -> bool {
        for state in self.groups.values_mut() {
            state.unused_since.get_or_insert(now);
        }
        let mut lookup_needed = false;
        for (group, ready) in targets {
            let state = self.groups.entry(group.clone()).or_insert_with(|| GroupState::new(now));
            // Routes of an unused group were not looked up, and other addresses may have another route.
            let was_unused = state.unused_since.is_some_and(|since| since < now);
            lookup_needed |= state.route.is_none() || was_unused || state.ready != *ready;
            state.unused_since = None;
            state.ready.clone_from(ready);
        }
        self.groups.retain(|_, state| state.unused_since.is_none_or(|since| now < since + RETENTION));
        lookup_needed
    }

    /// The addresses whose routes decide for each group.
    pub fn addresses(&self) -> Vec<(PodGroup, Vec<Address>)> {
        let of = |(group, state): (&PodGroup, &GroupState)| {
            let ready = state.ready.iter().map(|(address, _)| *address);
            let first = group.prefix.hosts().next().map(Address::from);
            let addresses = if state.ready.is_empty() { first.into_iter().collect() } else { ready.collect() };
            (group.clone(), addresses)
        };
        self.groups.iter().filter(|(_, state)| state.unused_since.is_none()).map(of).collect()
    }

    /// Sets the result of the route lookup. Returns whether the reachability changed.
    pub fn set_route(&mut self, group: &PodGroup, route: RouteMatch, now: Instant) -> bool {
        let Some(state) = self.groups.get_mut(group) else { return false };
        let before = state.route.replace(route);
        if before == Some(route) {
            return false;
        }
        state.misses = 0;
        match route {
            RouteMatch::Specific(_) => state.set(Reachability::Direct, Evidence::Route(route), now),
            RouteMatch::Blocked(_) => state.set(Reachability::Node, Evidence::Route(route), now),
            // The evidence for the earlier result is gone. Pods are reached through the node until a probe is answered.
            RouteMatch::Default => {
                state.next_probe = now;
                let evidence = if state.ready.is_empty() { Evidence::Route(route) } else { Evidence::None };
                state.set(Reachability::Unknown, evidence, now)
            }
        }
    }

    /// Some route changed: all groups that rely on probes are probed again at once.
    pub fn probe_all(&mut self, now: Instant) {
        self.groups.values_mut().for_each(|state| state.next_probe = state.next_probe.min(now));
    }

    /// The endpoints to probe now within the rate limit, those that waited longest first.
    pub fn due_probes(&mut self, now: Instant) -> Vec<(PodGroup, SocketAddr)> {
        let mut due: Vec<(&PodGroup, &mut GroupState)> =
            self.groups.iter_mut().filter(|(_, state)| state.is_due(now)).collect();
        due.sort_by_key(|(_, state)| state.next_probe);
        let start = |(group, state): (&PodGroup, &mut GroupState)| {
            let (address, port) = state.ready[state.next_endpoint % state.ready.len()];
            state.probing = true;
            (group.clone(), SocketAddr::new(address.ip(), port))
        };
        due.into_iter().take_while(|_| self.limiter.try_take(now)).map(start).collect()
    }

    /// When to call `due_probes` again.
    pub fn next_probe(&self, now: Instant) -> Option<Instant> {
        let waits = |state: &&GroupState| state.is_due(state.next_probe.max(now));
        let first = self.groups.values().filter(waits).map(|state| state.next_probe).min()?;
        Some(first.max(now + self.limiter.until_token(now)))
    }

    /// Records the result of a probe. Returns whether the reachability changed.
    pub fn record_probe(&mut self, group: &PodGroup, endpoint: SocketAddr, result: ProbeResult, now: Instant) -> bool {
        let (interval, retry) = (self.rate.interval, self.rate.retry_interval());
        let Some(state) = self.groups.get_mut(group) else { return false };
        state.probing = false;
        if state.route != Some(RouteMatch::Default) {
            return false;
        }
        match result {
            ProbeResult::Connected | ProbeResult::Reset => {
                (state.misses, state.next_probe) = (0, now + interval);
                let evidence = Evidence::Answered { endpoint, reset: result == ProbeResult::Reset };
                state.set(Reachability::Direct, evidence, now)
            }
            ProbeResult::NoAnswer(error) => {
                state.misses += 1;
                // Only this endpoint may be down, so the next probe goes to another one.
                state.next_endpoint = state.next_endpoint.wrapping_add(1);
                let lost = state.misses >= MAX_MISSES;
                state.next_probe = now + if lost { interval } else { retry };
                lost && state.set(Reachability::Node, Evidence::NoAnswer { endpoint, error }, now)
            }
            ProbeResult::LocalError(_) => {
                state.next_probe = now + retry;
                false
            }
        }
    }

    /// Whether every group has a route lookup and, where a probe can decide, at least one probe result.
    pub fn is_complete(&self) -> bool {
        let open = |state: &GroupState| match state.route {
            None => true,
            Some(RouteMatch::Default) => {
                !state.ready.is_empty() && state.reachability == Reachability::Unknown && state.misses == 0
            }
            Some(_) => false,
        };
        !self.groups.values().filter(|state| state.unused_since.is_none()).any(open)
    }

    pub fn reachability(&self) -> BTreeMap<PodGroup, Reachability> {
        self.groups.iter().map(|(group, state)| (group.clone(), state.reachability)).collect()
    }

    pub fn findings(&self) -> Vec<ReachFinding> {
        let used = self.groups.iter().filter(|(_, state)| state.unused_since.is_none());
        let finding = |(group, state): (&PodGroup, &GroupState)| ReachFinding {
            group: group.clone(),
            found: state.reachability,
            since: state.since,
            evidence: match (&state.evidence, state.misses) {
                (evidence @ Evidence::Answered { .. }, 1..) => {
                    format!("{evidence}; {} probes without an answer since then", state.misses)
                }
                (Evidence::None, 1..) => {
                    format!("only a default route, {} probes without an answer so far", state.misses)
                }
                (evidence, _) => evidence.to_string(),
            },
        };
        used.map(finding).collect()
    }
}

#[cfg(test)]
#[path = "tracker_tests.rs"]
mod tests;
