//! One task looks up the kernel's routes, again after every change, and probes pods that only a default route leads to.

use super::probe::{PROBE_TIMEOUT, ProbeResult, probe};
use super::route::{RouteChange, RouteReader};
use super::route_match::RouteMatch;
use super::tracker::ReachTracker;
use super::{ProbeRate, ReachQuery, ReachTarget, ReachUpdate};
use anyhow::Context;
use beeline_model::Address;
use beeline_model::reach::{PodGroup, Reach};
use ipnet::IpNet;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// The shortest time between two lookups of changed routes. A lost route should be noticed at once, but routing daemons
/// change many routes at a time.
const CHANGE_INTERVAL: Duration = Duration::from_millis(100);
/// The shortest time between two lookups of all routes after an interface changed: they come and go with every container.
const INTERFACE_INTERVAL: Duration = Duration::from_secs(1);
/// A lookup of all routes that takes more lookups than this is repeated at `INTERFACE_INTERVAL` too, whatever changed.
const MANY_LOOKUPS: u64 = 256;

/// Routes are looked up this often without a notification, in case one was lost.
const LOOKUP_INTERVAL: Duration = Duration::from_secs(60);
/// New evidence for an unchanged result is published at most this often.
const EVIDENCE_INTERVAL: Duration = Duration::from_secs(5);
const MAX_CONCURRENT_PROBES: usize = 128;

/// The pause after a netlink failure.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// Runs until `publish` returns false, because the receiver is gone.
pub async fn run(
    rate: ProbeRate,
    mut query: watch::Receiver<ReachQuery>,
    publish: impl Fn(ReachUpdate) -> bool,
) -> anyhow::Result<()> {
    loop {
        let Err(error) = serve(rate, &mut query, &publish).await else { return Ok(()) };
        let error = format!("{error:#}");
        tracing::warn!(error, "cannot read routes; retrying");
        let message = format!("{error}; retrying, the last results stay in effect");
        if !publish(ReachUpdate { error: Some(message), ..ReachUpdate::default() }) {
            return Ok(());
        }
        tokio::time::sleep(RETRY_INTERVAL).await;
    }
}

async fn serve(
    rate: ProbeRate,
    query: &mut watch::Receiver<ReachQuery>,
    publish: &impl Fn(ReachUpdate) -> bool,
) -> anyhow::Result<()> {
    let mut prober: Option<Prober> = None;
    loop {
        let targets = query.borrow_and_update().clone();
        match (&mut prober, targets) {
            (Some(prober), targets) => prober.set_query(targets.unwrap_or_default()).await,
            (None, Some(targets)) => prober.insert(Prober::open(rate)?).set_query(targets).await,
            (None, None) => {}
        }
        if let Some(prober) = &mut prober
            && !prober.publish_if_due(publish)
        {
            return Ok(());
        }
        let work = async {
            match &mut prober {
                Some(prober) => prober.work(publish).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            changed = query.changed() => if changed.is_err() { return Ok(()) },
            worked = work => return worked,
        }
    }
}

struct Prober {
    tracker: ReachTracker,
    routes: RouteReader,
    routed: Vec<IpNet>,
    query: Arc<[ReachTarget]>,
    /// As published last.
    complete: bool,
    probes: JoinSet<(PodGroup, SocketAddr, ProbeResult)>,
    last_lookup: Instant,
    /// The latest time of the next lookup of all routes.
    next_lookup: Instant,
    /// The number of lookups that the last lookup of all routes took.
    lookups: u64,
    /// Destinations whose routes changed since the last lookup, and when to look them up.
    changed: BTreeSet<IpNet>,
    next_changed: Option<Instant>,
    /// Set when something differs from what was published: the latest time to publish it.
    publish_by: Option<Instant>,
}

impl Prober {
    fn open(rate: ProbeRate) -> anyhow::Result<Prober> {
        let (now, routes) = (Instant::now(), RouteReader::open().context("cannot open a netlink socket")?);
        let tracker = ReachTracker::new(rate, now);
        Ok(Prober {
            tracker,
            routes,
            routed: Vec::new(),
            query: Arc::default(),
            complete: false,
            probes: JoinSet::new(),
            last_lookup: now,
            next_lookup: now,
            lookups: 0,
            changed: BTreeSet::new(),
            next_changed: None,
            publish_by: Some(now),
        })
    }

    fn publish_within(&mut self, delay: Duration) {
        let by = Instant::now() + delay;
        self.publish_by = Some(self.publish_by.map_or(by, |earlier| earlier.min(by)));
    }

    async fn set_query(&mut self, query: Arc<[ReachTarget]>) {
        self.publish_within(Duration::ZERO);
        (self.complete, self.query) = (false, query);
        if self.tracker.set_targets(&self.query, Instant::now()) || self.next_lookup <= Instant::now() {
            self.look_up_routes().await;
        }
    }

    /// Looks up the route of every group, and the service addresses that the network itself routes. If this is dropped at an
    /// await, the next call does it again.
    async fn look_up_routes(&mut self) {
        let before = self.routes.lookups();
        self.look_up_groups(None).await;
        let routed = self.routes.specific().await;
        self.lookups = self.routes.lookups() - before;
        self.finish_lookup(routed);
        self.next_lookup = self.last_lookup + LOOKUP_INTERVAL;
    }

    /// The same, only for the destinations whose routes changed.
    async fn look_up_changed(&mut self) {
        let changed = self.changed.clone();
        self.look_up_groups(Some(&changed)).await;
        let routed = self.routes.update_specific(&changed).await;
        self.finish_lookup(routed);
    }

    fn finish_lookup(&mut self, routed: Vec<IpNet>) {
        if routed != self.routed {
            self.publish_within(Duration::ZERO);
        }
        (self.routed, self.last_lookup) = (routed, Instant::now());
        self.changed.clear();
        self.next_changed = None;
    }

    /// `changed`: only groups with an address in one of these networks. `None` means all.
    async fn look_up_groups(&mut self, changed: Option<&BTreeSet<IpNet>>) {
        let is_changed =
            |address: &Address| changed.is_none_or(|changed| changed.iter().any(|net| net.contains(&address.ip())));
        for (group, addresses) in self.tracker.addresses() {
            if !addresses.iter().any(is_changed) {
                continue;
            }
            let mut worst: Option<RouteMatch> = None;
            for address in addresses {
                let Some(route) = self.routes.look_up(address).await else { continue };
                worst = Some(worst.map_or(route, |worst| worst.worst(route)));
            }
            if let Some(route) = worst {
                let changed = self.tracker.set_route(&group, route, Instant::now());
                self.publish_within(if changed { Duration::ZERO } else { EVIDENCE_INTERVAL });
            }
        }
    }

    /// Decides when to look up what has changed.
    fn schedule_lookup(&mut self, change: RouteChange, now: Instant) {
        if change.any_route || !change.destinations.is_empty() {
            self.tracker.probe_all(now);
        }
        if change.any_route || change.interface {
            let is_cheap = change.any_route && self.lookups <= MANY_LOOKUPS;
            let interval = if is_cheap { CHANGE_INTERVAL } else { INTERFACE_INTERVAL };
            self.next_lookup = self.next_lookup.min(now.max(self.last_lookup + interval));
        }
        if !change.destinations.is_empty() {
            self.changed.extend(change.destinations);
            self.next_changed.get_or_insert(now.max(self.last_lookup + CHANGE_INTERVAL));
        }
    }

    /// Returns only when it cannot go on. May be dropped at any await.
    async fn work(&mut self, publish: &impl Fn(ReachUpdate) -> bool) -> anyhow::Result<()> {
        loop {
            self.start_probes();
            let now = Instant::now();
            if now >= self.next_lookup {
                self.look_up_routes().await;
            } else if self.next_changed.is_some_and(|at| now >= at) {
                self.look_up_changed().await;
            }
            if !self.publish_if_due(publish) {
                return Ok(());
            }
            let next = self.tracker.next_probe(now).filter(|_| self.probes.len() < MAX_CONCURRENT_PROBES);
            let wake =
                [next, self.publish_by, self.next_changed].into_iter().flatten().fold(self.next_lookup, Instant::min);
            tokio::select! {
                Some(done) = self.probes.join_next() => self.record_probe(done),
                changed = self.routes.changed() => {
                    let change = changed.context("the netlink socket for route changes was closed")?;
                    self.schedule_lookup(change, now);
                }
                () = tokio::time::sleep_until(wake.into()) => {}
            }
        }
    }

    fn start_probes(&mut self) {
        if self.probes.len() >= MAX_CONCURRENT_PROBES {
            return;
        }
        for (group, endpoint) in self.tracker.due_probes(Instant::now()) {
            self.probes.spawn(async move { (group, endpoint, probe(endpoint, PROBE_TIMEOUT).await) });
        }
    }

    fn record_probe(&mut self, done: Result<(PodGroup, SocketAddr, ProbeResult), tokio::task::JoinError>) {
        let Ok((group, endpoint, result)) = done else { return };
        if let ProbeResult::LocalError(error) = &result {
            tracing::debug!(%endpoint, error, "cannot send a probe");
        }
        let changed = self.tracker.record_probe(&group, endpoint, result, Instant::now());
        self.publish_within(if changed { Duration::ZERO } else { EVIDENCE_INTERVAL });
    }

    /// Publishes nothing if nothing changed. Returns false if the receiver is gone.
    fn publish_if_due(&mut self, publish: &impl Fn(ReachUpdate) -> bool) -> bool {
        let complete = self.tracker.is_complete();
        let due = self.publish_by.take_if(|by| *by <= Instant::now()).is_some();
        if !due && complete == self.complete {
            return true;
        }
        self.complete = complete;
        let reach = Reach { found: self.tracker.reachability(), routed: self.routed.clone(), ..Reach::default() };
        let (findings, query) = (self.tracker.findings(), self.query.clone());
        publish(ReachUpdate { reach, findings, query, complete, error: None })
    }
}
