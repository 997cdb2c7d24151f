//! The state and what is done with it: facts in, the kernel brought to them. Synchronous; the owner's thread calls it.

mod cgroup;
mod said;

use crate::change::Changes;
use crate::hold::Hold;
use crate::identity::{Asked, Identities};
use crate::known::Known;
use crate::member::Members;
use crate::meter::Meters;
use crate::names::{self, Listener};
use crate::probe::{self, Probes};
use crate::reach::{self, Finding};
use crate::refused::{self, Refused};
use crate::settings::{Controller, Listing, Origin, Orphan, Settings};
use crate::snapshot::Archive;
use crate::source::Sources;
use crate::stale::{self, Tie};
use crate::status::{LastChange, Policies};
use crate::token::Tokens;
use crate::view::Rooms;
use anyhow::Context;
use beeline_cluster::Batch;
use beeline_datapath::control::{CgroupRule, Control};
use beeline_datapath::count::Count;
use beeline_datapath::program::{StartKind, shards};
use beeline_datapath::reap::{Connected, Reaper};
use beeline_datapath::{Kernel, Program};
use beeline_model::diff::{Outcome, Whole, reconcile};
use beeline_model::fact::{Fact, Refusal};
use beeline_model::op::{MapError, Maps};
use beeline_model::planner::{Delta, Planner};
use beeline_model::publish::{Publisher, Unknown};
use beeline_model::report::{Failing, Report, Tally};
use beeline_model::rules::StandPoint;
use beeline_model::table::Tables;
use beeline_model::{Family, Name, OwnerName, Protocol};
use beeline_dns::Names;
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant, SystemTime};
use tokio::sync::mpsc::Sender;
use tokio::sync::watch;

/// A service whose write failed is tried again after this long, doubled each time up to the second.
const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(30));

/// The self-test waits for live hooks.
pub const NOT_RUN: &str = "not run";

struct Retry {
    at: Instant,
    wait: Duration,
    /// For want of room: until something goes, a try is in vain.
    full: bool,
}

/// Looks for stale sockets that could not all be destroyed.
const REAP_TRIES: u32 = 20;

/// After a start or a change of UDP backends the sockets are looked at at once, and again after this long.
const SECOND_LOOK: Duration = Duration::from_millis(200);

/// After another layout, so long one cluster waits for the others.
const PATIENCE: Duration = Duration::from_secs(20);

/// After a change, which pods' ways are to be found out is worked out no sooner than this: changes come in flocks.
const ASK: Duration = Duration::from_millis(500);

/// Pods that a policy selects and that have no cgroup yet are looked for this often.
const WALK: Duration = Duration::from_millis(500);

/// So many pods that a policy leaves out are named.
const LEFT_OUT: usize = 20;

pub struct State {
    pub settings: Settings,
    pub program: Program,
    pub planner: Planner,
    pub tables: Tables,
    kernel: Kernel,
    pub control: Control,
    pub count: Count,
    probes: Arc<Probes>,
    identities: Arc<Identities>,
    /// Whoever answers names hears what we hear.
    names: Option<Listener>,
    /// Pods that ask for something may have come, gone, or got their cgroup.
    asks_open: bool,
    /// By what their pods ask for.
    pod_rules: Vec<(PathBuf, Asked)>,
    views: Vec<(PathBuf, Name)>,
    rooms: Rooms,
    /// As they are in the kernel.
    rules_told: Option<Vec<(u64, CgroupRule)>>,
    /// They are all there is.
    rules_whole: bool,
    next_rules: Instant,
    members: Members,
    /// Not before: a walk over all pods' cgroups is a few milliseconds, and some pods wait long for theirs.
    next_walk: Instant,
    reaper: Option<Reaper>,
    sources: Sources,
    hold: Hold,
    known: Arc<Known>,
    /// The last listing could not be used.
    misread: Option<Refusal>,
    plan_refusals: Refused,
    table_refusals: BTreeMap<OwnerName, Refusal>,
    retries: BTreeMap<OwnerName, Retry>,
    nodes_retry: Option<(Refusal, Retry)>,
    last_change: Option<LastChange>,
    pub destroyed: u64,
    /// Backends of UDP services went since the last look at the sockets.
    stale_udp: bool,
    /// A connect that was under way during the first look is a connected socket by then.
    look_again: Option<Instant>,
    /// Sockets remain at backends that are in no set, but serve what they have: every change may be their end.
    spared: bool,
    reap_tries: u32,
    /// Rows that should be gone and are not yet.
    leftover: bool,
    pub self_test: String,
    /// Events that came out of the ring and were not delivered.
    pub dropped_events: Arc<AtomicU64>,
    pub changes: Changes,
    pub tokens: Tokens,
    /// Without a controller.
    publisher: Option<Publisher>,
    tally: Tally,
    /// By the last plan; who asks first after one works them out.
    policy_counts: Cell<Option<Policies>>,
    pub reports: Option<watch::Sender<Option<Report>>>,
    /// Groups of pods whose way is to be found out. `None`: of no cluster we are outside.
    pub asked: watch::Sender<Option<Arc<[reach::Asked]>>>,
    /// They may be others now; not before.
    ask_again: Option<Instant>,
    pub findings: Vec<Finding>,
    /// Why the ways cannot be found out.
    blind: Option<Refusal>,
    pub archive: Option<Arc<Archive>>,
    pub meters: Arc<Meters>,
}

impl State {
    /// `told`: gets what the plan refuses, to tell it on the objects.
    pub fn open(
        settings: Settings,
        probes: Arc<Probes>,
        identities: Arc<Identities>,
        known: Arc<Known>,
        told: Sender<Refusal>,
    ) -> anyhow::Result<State> {
        let program = Program::open(beeline_datapath::Config {
            pin_dir: settings.pin_dir.clone(),
            cgroup: settings.cgroup.clone(),
            sizes: settings.sizes,
            empty_local: settings.rules.empty_local,
        })?;
        let mut kernel = program.kernel()?;
        // An earlier agent may have released ids a moment before it died: let every dial that holds one end.
        kernel.grace()?;
        let mut tables = Tables::restore(kernel.dump()?, settings.sizes);
        tables.skip_grace = settings.skip_grace;
        let control = program.control()?;
        control.set_event_level(settings.events);
        control.set_orphan(match settings.orphan {
            Orphan::Keep => None,
            Orphan::Passthrough(after) => Some(after),
        });
        let untouched = CgroupRule { untouched: true, view: 0 };
        let rules: Vec<_> = settings.untouched.iter().map(|path| (path.as_path(), untouched)).collect();
        // What an earlier agent was asked for by pods holds until they are known again.
        control.add_rules(&rules).context("--untouched-cgroup")?;
        let reaper = Reaper::new(program.maps(), &settings.sizes, shards(), program.knobs()?);
        if let Err(error) = &reaper {
            tracing::warn!("stale UDP sockets cannot be found on this kernel: {error}");
        }
        let listing = settings.listing.clone();
        let folders = listing.clusters.iter().all(|cluster| matches!(cluster.origin, Origin::Folder { .. }));
        let unknown = if folders { Unknown::Plain } else { Unknown::Waits };
        let (sources, rooms) =
            (Sources::new(&listing.clusters, settings.rules.stand_point), Rooms::adopt(&settings.cgroup));
        let mut planner = Planner::new(settings.rules.clone());
        planner.set_views(views_of(&listing));
        planner.adopt(tables.holders().filter(|_| listing.clusters.len() > 1));
        if settings.controller == Controller::None {
            planner.publish_ourselves();
        }
        Ok(State {
            publisher: (settings.controller == Controller::None).then(|| Publisher::new(unknown)),
            tally: Tally::default(),
            reports: None,
            asked: watch::channel(None).0,
            ask_again: None,
            findings: Vec::new(),
            blind: None,
            archive: None,
            meters: Arc::default(),
            planner,
            policy_counts: Cell::new(None),
            count: program.count()?,
            reaper: reaper.ok(),
            settings,
            program,
            tables,
            kernel,
            control,
            sources,
            hold: Hold::new(Instant::now()),
            known,
            misread: None,
            probes,
            identities,
            names: None,
            asks_open: false,
            pod_rules: Vec::new(),
            views: listing.views,
            rooms,
            rules_told: None,
            rules_whole: false,
            next_rules: Instant::now(),
            members: Members::default(),
            next_walk: Instant::now(),
            plan_refusals: Refused::new(told),
            table_refusals: BTreeMap::new(),
            retries: BTreeMap::new(),
            nodes_retry: None,
            last_change: None,
            destroyed: 0,
            stale_udp: true,
            look_again: None,
            spared: false,
            reap_tries: 0,
            leftover: false,
            self_test: NOT_RUN.into(),
            dropped_events: Arc::default(),
            changes: Changes::default(),
            tokens: Tokens::default(),
        })
    }

    /// Takes a batch of a cluster's facts in. Nothing of it is programmed before the cluster has listed everything once.
    pub fn apply(&mut self, cluster: &Name, mut batch: Batch) -> anyhow::Result<()> {
        let started = batch.heard.unwrap_or_else(Instant::now);
        let triggers = std::mem::take(&mut batch.triggers);
        let Some(taken) = self.sources.take(cluster, batch) else { return Ok(()) };
        self.take_in(taken.facts);
        if taken.first {
            self.planner.note_synced(cluster);
        }
        if self.waits(started)? || !self.sources.is_synced() {
            return Ok(());
        }
        // Before anything is planned: after a restart the pods of a policy are not to leave its sets and come back.
        self.find_members();
        if taken.first {
            self.sync_all(started)?;
            self.settle_levels();
            return Ok(());
        }
        self.sync(started)?;
        self.changes.reached(&triggers);
        Ok(())
    }

    fn take_in(&mut self, facts: Vec<Fact>) {
        self.ask_again.get_or_insert_with(|| Instant::now() + ASK);
        self.names.iter_mut().for_each(|names| names.hear(&facts));
        for fact in facts {
            self.changes.count(&fact);
            self.identify(&fact);
            self.members.apply(&fact, &self.planner);
            if self.planner.order().is_home(fact.cluster()) {
                self.tally.apply(&fact);
            }
            self.publisher.iter_mut().for_each(|publisher| publisher.apply(&fact));
            self.planner.apply(fact);
        }
        for fact in self.publisher.as_mut().map(Publisher::take).unwrap_or_default() {
            self.planner.apply(fact);
        }
    }

    /// What was remembered of a cluster serves until it is heard.
    pub fn remember(&mut self, cluster: &Name, facts: Vec<Fact>, at: SystemTime) -> anyhow::Result<()> {
        let Some(facts) = self.sources.remember(cluster, facts, at) else { return Ok(()) };
        self.take_in(facts);
        if self.waits(Instant::now())? {
            return Ok(());
        }
        self.find_members();
        self.sync_all(Instant::now())
    }

    /// Whether it is too early to write what is known. When the wait is over all of it is written here, once.
    fn waits(&mut self, started: Instant) -> anyhow::Result<bool> {
        if self.hold.is_over() {
            return Ok(false);
        }
        let now = Instant::now();
        if self.hold.is_heard(self.sources.heard(), now) {
            match self.ask_ways() {
                Some(question) => self.hold.see(question, now),
                None => self.hold = Hold::Over,
            }
        }
        self.hold.give_up(now);
        if self.hold.is_over() {
            self.release(started)?;
        }
        Ok(true)
    }

    /// The wait is over: all that is known is written.
    fn release(&mut self, started: Instant) -> anyhow::Result<()> {
        self.find_members();
        self.sync_all(started)?;
        self.settle_levels();
        Ok(())
    }

    /// Clusters may have come, gone, or become others; `restarted`: somebody else speaks for these.
    pub fn list(&mut self, listing: Listing, restarted: &BTreeSet<Name>) -> anyhow::Result<()> {
        self.misread.take().iter().for_each(refused::gone);
        let gone = self.sources.set(&listing.clusters, restarted);
        self.take_in(gone);
        let known = |name: &Name| listing.clusters.iter().any(|cluster| cluster.rules.name == *name);
        let lost: Vec<Name> =
            self.planner.rules().clusters.iter().map(|rules| rules.name.clone()).filter(|name| !known(name)).collect();
        for name in &lost {
            self.planner.forget(name);
        }
        self.planner.set_clusters(listing.clusters.iter().map(|cluster| cluster.rules.clone()).collect());
        self.planner.set_views(views_of(&listing));
        self.ask_again.get_or_insert_with(Instant::now);
        self.names().iter().for_each(|names| names.set_zones(names::zones(&listing.clusters)));
        (self.settings.listing, self.views) = (listing.clone(), listing.views);
        let names: Vec<&str> = self.sources.iter().map(|source| &*source.rules.name).collect();
        tracing::info!("the configuration has changed; clusters are {}", names.join(", "));
        let now = Instant::now();
        if !self.waits(now)? && self.sources.is_synced() {
            return self.sync_all(now);
        }
        // With a cluster go its rows, whatever is known of the others; of these nothing is written before its time.
        match lost.is_empty() {
            true => Ok(()),
            false => self.program(Delta::default(), Whole::Clusters(lost.into_iter().collect()), now),
        }
    }

    /// The listing cannot be used: the one before holds.
    pub fn note_misread(&mut self, refusal: Refusal) {
        if self.misread.as_ref() != Some(&refusal) {
            tracing::warn!(subject = refusal.subject, reason = refusal.reason, "{}", refusal.message);
        }
        self.misread = Some(refusal);
    }

    /// How pods are reached is known, or known better.
    pub fn set_reach(&mut self, news: reach::News) -> anyhow::Result<()> {
        self.blind =
            news.error.clone().map(|message| Refusal { subject: "routes".into(), reason: "routesUnknown", message });
        if self.blind.is_some() {
            return Ok(());
        }
        let waited = !self.hold.is_over();
        self.hold.hear_of(&news);
        self.findings = news.findings;
        self.planner.set_reach(news.reach);
        match (waited, self.hold.is_over()) {
            (true, true) => self.release(Instant::now()),
            (false, true) if self.sources.is_synced() => self.sync(Instant::now()),
            _ => Ok(()),
        }
    }

    /// Which ways the plan needs to know, as asked for; says nothing if nothing changed. `None`: none at all.
    fn ask_ways(&mut self) -> Option<Arc<[reach::Asked]>> {
        let away = self.planner.order().outlooks().iter().any(|outlook| outlook.stand != StandPoint::Node);
        let groups = away.then(|| self.planner.groups());
        self.asked.send_if_modified(|told| {
            let differs = told.as_deref() != groups.as_deref();
            if differs {
                *told = groups.map(Arc::from);
            }
            differs
        });
        self.asked.borrow().clone()
    }

    /// Who dials is asked of pods of this node only; without a controller those of the others come by, too.
    fn identify(&mut self, fact: &Fact) {
        let gone = match fact {
            Fact::Pod(pod) if pod.node.as_ref().is_some_and(|node| *node != self.settings.rules.node_name) => {
                Some(Fact::PodGone(pod.name.clone()))
            }
            _ => None,
        };
        self.asks_open |= self.identities.apply(gone.as_ref().unwrap_or(fact));
    }

    /// What the controller is to know of this node; says nothing if nothing changed.
    pub fn report(&self) {
        let Some(reports) = self.reports.as_ref().filter(|_| self.sources.is_synced()) else { return };
        let home = |name: &OwnerName| self.planner.order().is_home(name.cluster());
        let refused = self.table_refusals.iter().filter(|(name, _)| name.policy_kind().is_some() && home(name));
        let failing = refused.map(|(name, refusal)| Failing {
            policy: name.policy().map_or_else(|| name.to_string(), |policy| policy.to_string()),
            reason: refusal.reason.into(),
        });
        let now = Some(self.tally.report(failing.collect()));
        reports.send_if_modified(|told| {
            let differs = *told != now;
            told.clone_from(&now);
            differs
        });
    }

    fn sync(&mut self, started: Instant) -> anyhow::Result<()> {
        if !self.planner.is_dirty() {
            return Ok(());
        }
        let delta = self.planner.take();
        self.program(delta, Whole::Nothing, started)
    }

    /// The whole plan against what the kernel holds: the start, and the periodic check.
    fn sync_all(&mut self, started: Instant) -> anyhow::Result<()> {
        let delta = self.planner.take_all();
        let whole = self.sources.whole(self.tables.port_names().map(|(name, _)| name.service.cluster()));
        let result = self.program(delta, whole, started);
        beeline_datapath::memory::trim();
        result
    }

    fn program(&mut self, delta: Delta, whole: Whole, started: Instant) -> anyhow::Result<()> {
        let full = whole != Whole::Nothing;
        self.tables.unlisted = self.sources.unlisted();
        let outcome = reconcile(&mut self.tables, &mut self.kernel, &delta, whole);
        self.set_host_addresses();
        let was_live = self.program.is_live();
        if self.may_go_live() {
            self.program.go_live()?;
        }
        if self.spared || !was_live || outcome.retired.iter().any(|(name, ..)| name.protocol == Protocol::Udp) {
            self.stale_udp = true;
            self.look_again = Some(Instant::now() + SECOND_LOOK);
        }
        delta.services.iter().for_each(|(name, _)| self.probes.set(name, probe::wanted(&self.planner, name)));
        self.probes.tell();
        self.note_outcome(&delta, &outcome);
        self.plan_refusals.planned();
        self.policy_counts.set(None);
        self.leftover = outcome.leftover > 0;
        let took = started.elapsed();
        self.changes.programmed(took, full);
        if outcome.ops > 0 {
            self.last_change = Some(LastChange {
                at: crate::health::timestamp(SystemTime::now()),
                services: delta.services.len(),
                writes: outcome.ops,
                micros: took.as_micros() as u64,
            });
            tracing::debug!(services = delta.services.len(), writes = outcome.ops, ?took, "programmed");
        }
        Ok(())
    }

    /// After another layout, the new tables hold what the source says and nothing of before: with a broken file some
    /// services would be gone. The old programs serve from the old tables until all is read, but one cluster that is
    /// down does not keep the others from their changes for ever.
    fn may_go_live(&self) -> bool {
        let alone = self.sources.iter().count() == 1;
        self.program.start != StartKind::Rebuilt
            || self.sources.are_settled(if alone { Duration::MAX } else { PATIENCE })
    }

    /// What failed stays dirty, with back-off; what succeeded is no longer refused.
    fn note_outcome(&mut self, delta: &Delta, outcome: &Outcome) {
        for (name, _) in &delta.services {
            if !outcome.failed.contains_key(name) {
                self.table_refusals.remove(name).iter().for_each(refused::gone);
                self.retries.remove(name);
            }
        }
        // Rows become free after the new ones were written, and what waits for room may be of another round.
        // What a service that does not fit leaves behind again is no room.
        let fits = |name: &OwnerName| !outcome.failed.contains_key(name) && !self.retries.contains_key(name);
        let room = outcome.retired.iter().any(|(name, ..)| fits(&name.service))
            || delta.services.iter().any(|(_, plan)| plan.is_none());
        if room {
            let soon = Instant::now() + RETRY.0;
            self.retries.values_mut().filter(|retry| retry.full).for_each(|retry| retry.at = retry.at.min(soon));
        }
        for ((name, error), refusal) in outcome.failed.iter().zip(outcome.refusals()) {
            if self.table_refusals.get(name) != Some(&refusal) {
                tracing::warn!(subject = refusal.subject, reason = refusal.reason, "{}", refusal.message);
            }
            let full = matches!(error, MapError::Full(_));
            let wait = self.retries.get(name).map_or(RETRY.0, |retry| (retry.wait * 2).min(RETRY.1));
            let wait = if full && !room { RETRY.1 } else { wait };
            self.retries.insert(name.clone(), Retry { at: Instant::now() + wait, wait, full });
            self.table_refusals.insert(name.clone(), refusal);
        }
        if delta.nodes.is_some() {
            self.note_nodes(outcome.nodes_failed.as_ref());
        }
    }

    fn note_nodes(&mut self, failed: Option<&MapError>) {
        let Some(error) = failed else {
            self.nodes_retry = None;
            return;
        };
        let message = match error {
            MapError::Full(_) => "the node table is full: addresses beyond it are not known as nodes'; \
                                  have fewer Nodes watched (--nodes)"
                .to_owned(),
            MapError::Failed(why) => format!("{why}: what was programmed before keeps serving; it is tried again"),
        };
        let refusal = Refusal { subject: "Nodes".into(), reason: "writeFailed", message };
        let before = self.nodes_retry.take();
        if before.as_ref().is_none_or(|(old, _)| *old != refusal) {
            tracing::warn!(subject = refusal.subject, reason = refusal.reason, "{}", refusal.message);
        }
        let wait = before.map_or(RETRY.0, |(_, retry)| (retry.wait * 2).min(RETRY.1));
        let full = matches!(error, MapError::Full(_));
        self.nodes_retry = Some((refusal, Retry { at: Instant::now() + wait, wait, full }));
    }

    fn set_host_addresses(&self) {
        let rules = self.planner.rules();
        let address = |family| {
            let first = || rules.own_addresses.iter().copied().find(|a| a.family() == family);
            self.planner.own_node().and_then(|n| n.primary(family)).or_else(first)
        };
        self.control.set_host_addresses(address(Family::V4), address(Family::V6));
    }

    /// Once in a while: a sign of life, released ids, what failed before, sockets left behind.
    pub fn tick(&mut self) -> anyhow::Result<()> {
        self.control.beat();
        if self.ask_again.take_if(|at| *at <= Instant::now()).is_some() {
            self.ask_ways();
        }
        if self.asks_open || Instant::now() >= self.next_rules {
            self.next_rules = Instant::now() + WALK;
            self.settle_rules();
        }
        if self.sources.is_synced() {
            self.find_members();
        }
        self.tables.recycle(&mut self.kernel)?;
        let now = Instant::now();
        let due: Vec<OwnerName> =
            self.retries.iter().filter(|(_, retry)| retry.at <= now).map(|(n, _)| n.clone()).collect();
        due.iter().for_each(|name| self.planner.mark_dirty(name));
        if self.nodes_retry.as_ref().is_some_and(|(_, retry)| retry.at <= now) {
            self.planner.mark_nodes_dirty();
        }
        if self.waits(now)? || !self.sources.is_synced() {
            return Ok(());
        }
        self.sync(now)?;
        self.plan_refusals.look(&self.planner);
        // The wait for the others may be over.
        let waits = !self.program.is_live() && self.may_go_live();
        if self.leftover || waits { self.program(Delta::default(), Whole::Nothing, now) } else { Ok(()) }
    }

    /// Compares the kernel with the plan and mends what differs, as a start does.
    pub fn check(&mut self) -> anyhow::Result<()> {
        if !self.is_synced() {
            return Ok(());
        }
        self.members.doubt();
        self.find_members();
        self.sync(Instant::now())?;
        self.settle_levels();
        let mended = self.program.mend()?;
        if !mended.is_empty() {
            tracing::warn!("somebody had detached us from {}: attached again", mended.join(", "));
        }
        self.kernel.grace()?;
        let rows = self.kernel.dump()?;
        if !self.tables.matches(&rows) {
            tracing::warn!("the kernel's tables differ from what was written: mending them");
            self.tables = Tables::restore(rows, self.settings.sizes);
            self.tables.skip_grace = self.settings.skip_grace;
            return self.sync_all(Instant::now());
        }
        // The dump is as large as the tables.
        drop(rows);
        beeline_datapath::memory::trim();
        Ok(())
    }

    pub fn set_own_addresses(&mut self, addresses: Vec<beeline_model::Address>) -> anyhow::Result<()> {
        self.planner.set_own_addresses(addresses);
        self.tell_own();
        if self.is_synced() { self.sync(Instant::now()) } else { Ok(()) }
    }

    pub fn names(&self) -> Option<&Names> {
        self.names.as_ref().map(Listener::names)
    }

    fn tell_own(&self) {
        let (rules, Some(names)) = (self.planner.rules(), self.names()) else { return };
        names.set_own(rules.node_name.clone(), rules.own_addresses.iter().copied());
        names.set_virtual(&rules.virtual_ranges);
    }

    pub fn answer_names(&mut self, names: Arc<Names>) {
        self.names = Some(Listener::new(names));
        self.tell_own();
    }

    /// After what was heard has been programmed: a name is answered when what it leads to can be dialled.
    pub fn tell_names(&mut self) {
        if !self.hold.is_over() {
            return;
        }
        let Some(names) = &mut self.names else { return };
        let known = self.sources.iter().filter(|source| source.synced);
        names.tell(self.planner.order(), self.planner.reach(), known.map(|source| &source.rules.name));
    }

    /// Destroys connected UDP sockets whose backend is gone. Costs nothing while none went.
    pub fn reap(&mut self) {
        self.stale_udp |= self.look_again.take_if(|at| *at <= Instant::now()).is_some();
        let ready = self.stale_udp && self.is_synced() && self.program.is_live();
        let Some(reaper) = self.reaper.as_ref().filter(|_| ready) else { return };
        let found = reaper.survey().and_then(|mut all| {
            let tie = |socket: &Connected| Tie::of(socket, self.program.meta().epoch);
            all.retain(|socket| !stale::is_in_use(&self.tables, &tie(socket)));
            let spare = |socket: &Connected| stale::still_serves(&self.tables, &self.planner, &tie(socket));
            let (spared, victims): (Vec<Connected>, _) = all.into_iter().partition(spare);
            let destroyed = if victims.is_empty() { 0 } else { reaper.destroy(&victims)? };
            Ok((!spared.is_empty(), victims.len(), destroyed))
        });
        match found {
            Ok((spared, victims, destroyed)) => {
                self.spared = spared;
                self.destroyed += destroyed as u64;
                // One that was not met may have been closed meanwhile, or stand where we cannot go: look again, not forever.
                self.reap_tries = if destroyed < victims { self.reap_tries + 1 } else { 0 };
                self.stale_udp = (1..REAP_TRIES).contains(&self.reap_tries);
            }
            Err(error) => {
                self.reap_tries += 1;
                self.stale_udp = self.reap_tries < REAP_TRIES;
                tracing::warn!("stale UDP sockets: {error}");
            }
        }
        if !self.stale_udp {
            self.reap_tries = 0;
        }
    }

    /// An API server knows our node, or it is none; a folder may do without, and a host outside has none.
    pub fn is_node_eligible(&self) -> bool {
        self.planner.own_node().map_or(!self.sources.needs_node(), |node| node.eligible)
    }

    /// Something is known, and written.
    pub fn is_synced(&self) -> bool {
        self.sources.is_synced() && self.hold.is_over()
    }

    /// Pods may start here.
    pub fn is_ready(&self) -> bool {
        self.sources.are_ready() && self.hold.is_over()
    }

    /// Something waits that another try may mend. A full table is no such thing: restarting us would not help.
    pub fn has_pending(&self) -> bool {
        let nodes = self.nodes_retry.iter().map(|(_, retry)| retry);
        self.retries.values().chain(nodes).any(|retry| !retry.full)
    }

    pub fn kernel_mut(&mut self) -> &mut Kernel {
        &mut self.kernel
    }
}

/// The names under which clusters can be seen first.
fn views_of(listing: &Listing) -> BTreeSet<Name> {
    listing.clusters.iter().filter_map(|cluster| cluster.rules.view.clone()).collect()
}
