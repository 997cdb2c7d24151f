//! The state and what is done with it: facts in, the kernel brought to them. Synchronous; the owner's thread calls it.

use crate::change::Changes;
use crate::identity::Identities;
use crate::member::{Members, News};
use crate::probe::{self, Probes};
use crate::refused::{self, Refused};
use crate::settings::{Controller, Origin, Orphan, Settings};
use crate::stale::{self, Tie};
use crate::status::{Counts, KernelStatus, LastChange, Policies, Source, Status};
use anyhow::Context;
use beeline_cluster::Batch;
use beeline_datapath::control::Control;
use beeline_datapath::count::Count;
use beeline_datapath::program::{StartKind, shards};
use beeline_datapath::reap::{Connected, Reaper};
use beeline_datapath::{Kernel, Program};
use beeline_model::diff::{Outcome, reconcile};
use beeline_model::fact::{Fact, Refusal};
use beeline_model::name::LOCAL_CLUSTER;
use beeline_model::op::{MapError, Maps};
use beeline_model::planner::{Delta, Planner};
use beeline_model::policy::PolicyName;
use beeline_model::publish::{Publisher, Unknown};
use beeline_model::report::{Failing, Report, Tally};
use beeline_model::table::Tables;
use beeline_model::{Family, OwnerName, Protocol};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant, SystemTime};
use tokio::sync::mpsc::Sender;
use tokio::sync::watch;

/// A service whose write failed is tried again after this long, doubled each time up to the second.
const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(30));

struct Retry {
    at: Instant,
    wait: Duration,
    /// For want of room: until something goes, a try is in vain.
    full: bool,
}

/// Looks for stale sockets that could not all be destroyed.
const REAP_TRIES: u32 = 20;

/// After a change of UDP backends the sockets are looked at at once, and again after this long.
const SECOND_LOOK: Duration = Duration::from_millis(200);

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
    /// Pods that ask to be left alone may have come, gone, or got their cgroup.
    untouched_open: bool,
    members: Members,
    /// Not before: a walk over all pods' cgroups is a few milliseconds, and some pods wait long for theirs.
    next_walk: Instant,
    reaper: Option<Reaper>,
    source: Source,
    /// Every file has been read whole at least once. Before that nobody knows whose the rows are that the plan does not
    /// have: an earlier agent may have read them from a file that is broken now.
    source_whole: bool,
    source_refusals: Arc<[Refusal]>,
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
    /// Without a controller.
    publisher: Option<Publisher>,
    tally: Tally,
    /// By the last plan; who asks first after one works them out.
    policy_counts: Cell<Option<Policies>>,
    pub reports: Option<watch::Sender<Option<Report>>>,
}

impl State {
    /// `told`: gets what the plan refuses, to tell it on the objects.
    pub fn open(
        settings: Settings,
        probes: Arc<Probes>,
        identities: Arc<Identities>,
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
        let untouched: Vec<&Path> = settings.untouched.iter().map(AsRef::as_ref).collect();
        control.set_untouched(&untouched).context("--untouched-cgroup")?;
        let reaper = Reaper::new(program.maps(), &settings.sizes, shards(), program.knobs()?);
        if let Err(error) = &reaper {
            tracing::warn!("stale UDP sockets cannot be found on this kernel: {error}");
        }
        let (kind, name) = match &settings.origin {
            Origin::Folder { path, .. } => ("folder", path.display().to_string()),
            Origin::Server(server) => ("API server", server.access.to_string()),
        };
        let source = Source { kind, name, synced: false, error: None };
        let unknown = match &settings.origin {
            Origin::Folder { .. } => Unknown::Plain,
            Origin::Server(_) => Unknown::Waits,
        };
        let mut planner = Planner::new(settings.rules.clone());
        if settings.controller == Controller::None {
            planner.publish_ourselves();
        }
        Ok(State {
            publisher: (settings.controller == Controller::None).then(|| Publisher::new(unknown)),
            tally: Tally::default(),
            reports: None,
            planner,
            policy_counts: Cell::new(None),
            count: program.count()?,
            reaper: reaper.ok(),
            settings,
            program,
            tables,
            kernel,
            control,
            source,
            probes,
            identities,
            untouched_open: false,
            members: Members::default(),
            next_walk: Instant::now(),
            source_whole: false,
            source_refusals: Arc::default(),
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
            self_test: "not run".into(),
            dropped_events: Arc::default(),
            changes: Changes::default(),
        })
    }

    /// Takes a batch of facts in. Nothing is programmed before the source has listed everything once.
    pub fn apply(&mut self, batch: Batch) -> anyhow::Result<()> {
        let started = batch.heard.unwrap_or_else(Instant::now);
        let first = (batch.synced && !self.source.synced) || (batch.whole && !self.source_whole);
        if !Arc::ptr_eq(&self.source_refusals, &batch.refusals) {
            refused::say(&self.source_refusals, &batch.refusals);
            self.source_refusals = batch.refusals;
        }
        self.note_error(batch.error);
        self.source.name = batch.server.unwrap_or_else(|| std::mem::take(&mut self.source.name));
        self.source.synced |= batch.synced;
        self.source_whole |= batch.whole;
        for fact in batch.facts {
            self.changes.count(&fact);
            self.identify(&fact);
            self.members.apply(&fact, &self.planner);
            self.tally.apply(&fact);
            self.publisher.iter_mut().for_each(|publisher| publisher.apply(&fact));
            self.planner.apply(fact);
        }
        for fact in self.publisher.as_mut().map(Publisher::take).unwrap_or_default() {
            self.planner.apply(fact);
        }
        if !self.source.synced {
            return Ok(());
        }
        // Before anything is planned: after a restart the pods of a policy are not to leave its sets and come back.
        self.find_members();
        if first {
            self.sync_all(started)?;
            self.settle_levels();
            return Ok(());
        }
        self.sync(started)?;
        self.changes.reached(&batch.triggers);
        Ok(())
    }

    /// Who dials is asked of pods of this node only; without a controller those of the others come by, too.
    fn identify(&mut self, fact: &Fact) {
        let gone = match fact {
            Fact::Pod(pod) if pod.node.as_ref().is_some_and(|node| *node != self.settings.rules.node_name) => {
                Some(Fact::PodGone(pod.name.clone()))
            }
            _ => None,
        };
        self.untouched_open |= self.identities.apply(gone.as_ref().unwrap_or(fact));
    }

    /// What the controller is to know of this node; says nothing if nothing changed.
    pub fn report(&self) {
        let Some(reports) = self.reports.as_ref().filter(|_| self.source.synced) else { return };
        let refused = self.table_refusals.iter().filter(|(name, _)| name.policy_kind().is_some());
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

    /// Said when it begins, when it becomes another and when it ends, not with every try.
    fn note_error(&mut self, error: Option<String>) {
        match (&self.source.error, &error) {
            (before, Some(now)) if before.as_ref() != Some(now) => {
                tracing::warn!("the source cannot be read, what it said before holds: {now}");
            }
            (Some(_), None) => tracing::info!("the source can be read again"),
            _ => {}
        }
        self.source.error = error;
    }

    fn sync(&mut self, started: Instant) -> anyhow::Result<()> {
        if !self.planner.is_dirty() {
            return Ok(());
        }
        let delta = self.planner.take();
        self.program(delta, false, started)
    }

    /// The whole plan against what the kernel holds: the start, and the periodic check.
    fn sync_all(&mut self, started: Instant) -> anyhow::Result<()> {
        let delta = self.planner.take_all();
        let result = self.program(delta, self.source_whole, started);
        beeline_datapath::memory::trim();
        result
    }

    fn program(&mut self, delta: Delta, full: bool, started: Instant) -> anyhow::Result<()> {
        if self.source_whole {
            self.tables.unlisted.clear();
        } else {
            self.tables.unlisted.insert(LOCAL_CLUSTER.into());
        }
        let outcome = reconcile(&mut self.tables, &mut self.kernel, &delta, full);
        self.set_host_addresses();
        if self.may_go_live() {
            self.program.go_live()?;
        }
        if self.spared || outcome.retired.iter().any(|(name, ..)| name.protocol == Protocol::Udp) {
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
    /// services would be gone. The old programs serve from the old tables until all is read.
    fn may_go_live(&self) -> bool {
        self.program.start != StartKind::Rebuilt || self.source_whole
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

    /// Whoever asks by annotation is left alone as soon as it has a cgroup, which comes before its first process.
    fn leave_alone(&mut self) {
        let (pods, complete) = self.identities.untouched();
        let all: Vec<&Path> = self.settings.untouched.iter().chain(&pods).map(AsRef::as_ref).collect();
        match self.control.set_untouched(&all) {
            Ok(()) => self.untouched_open = !complete,
            Err(error) => tracing::debug!("pods that ask to be left alone: {error}; tried again"),
        }
    }

    /// Cgroups of the pods that policies select, as far as they have one by now. At once where somebody else is selected,
    /// else now and then while some are missing.
    fn find_members(&mut self) {
        let due = self.members.is_open() && Instant::now() >= self.next_walk;
        if !due && !self.members.is_stirred() {
            return;
        }
        self.next_walk = Instant::now() + WALK;
        for News { uid, cgroup } in self.members.look(&self.settings.cgroup, &self.planner) {
            let told = cgroup.map(|(id, path)| self.tell_level(&path).map(|()| id)).transpose();
            let id = told.unwrap_or_else(|error| self.note_outsider(&uid, &error.to_string()));
            if id.is_some() {
                self.members.succeed(&uid);
            }
            self.planner.set_cgroup(&uid, id);
        }
    }

    /// It would be sent to itself: no member, until another try goes well.
    fn note_outsider(&mut self, uid: &str, why: &str) -> Option<u64> {
        if self.members.fail(uid, why.to_owned()) {
            tracing::warn!("pod {uid} joins no LocalRedirectPolicy: {why}; it is tried again");
        }
        None
    }

    /// Levels at which no member stands any more make room for others. Rows that the plan does not know yet may be of pods
    /// that it does not know either.
    fn settle_levels(&self) {
        if !self.source_whole {
            return;
        }
        let levels = self.members.paths().map(beeline_datapath::cgroup::level).collect::<Result<Vec<_>, _>>();
        if let Err(error) = levels.and_then(|levels| self.control.set_member_levels(levels)) {
            tracing::debug!("levels of pods' cgroups: {error}; those told before hold");
        }
    }

    /// The kernel half must know where to look before somebody is there.
    fn tell_level(&self, path: &Path) -> beeline_datapath::Result<()> {
        self.control.add_member_levels([beeline_datapath::cgroup::level(path)?])
    }

    /// Once in a while: a sign of life, released ids, what failed before, sockets left behind.
    pub fn tick(&mut self) -> anyhow::Result<()> {
        self.control.beat();
        if self.untouched_open {
            self.leave_alone();
        }
        if self.source.synced {
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
        if !self.source.synced {
            return Ok(());
        }
        self.sync(now)?;
        self.plan_refusals.look(&self.planner);
        if self.leftover { self.program(Delta::default(), false, now) } else { Ok(()) }
    }

    /// Compares the kernel with the plan and mends what differs, as a start does.
    pub fn check(&mut self) -> anyhow::Result<()> {
        if !self.source.synced {
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
        if self.source.synced { self.sync(Instant::now()) } else { Ok(()) }
    }

    /// Destroys connected UDP sockets whose backend is gone. Costs nothing while none went.
    pub fn reap(&mut self) {
        self.stale_udp |= self.look_again.take_if(|at| *at <= Instant::now()).is_some();
        let ready = self.stale_udp && self.source.synced && self.program.is_live();
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

    /// An API server knows our node, or it is none; a folder may do without.
    pub fn is_node_eligible(&self) -> bool {
        let unknown = matches!(self.settings.origin, Origin::Folder { .. });
        self.planner.own_node().map_or(unknown, |node| node.eligible)
    }

    pub fn is_synced(&self) -> bool {
        self.source.synced
    }

    /// Something waits that another try may mend. A full table is no such thing: restarting us would not help.
    pub fn has_pending(&self) -> bool {
        let nodes = self.nodes_retry.iter().map(|(_, retry)| retry);
        self.retries.values().chain(nodes).any(|retry| !retry.full)
    }

    pub fn kernel_mut(&mut self) -> &mut Kernel {
        &mut self.kernel
    }

    pub fn refusals(&self) -> Vec<Refusal> {
        let mut all = self.source_refusals.to_vec();
        all.extend(self.plan_refusals.of(&self.planner));
        all.extend(self.table_refusals.values().cloned());
        all.extend(self.nodes_retry.iter().map(|(refusal, _)| refusal.clone()));
        all.extend(self.probes.refusals());
        all
    }

    /// Without a controller we choose the pods of policies ourselves, and know whom we left out. Of many the first.
    pub fn left_out(&self, policy: &PolicyName) -> impl Iterator<Item = Refusal> {
        let pods = self.publisher.iter().flat_map(|publisher| publisher.left_out(policy)).take(LEFT_OUT);
        pods.map(|(pod, why)| Refusal {
            subject: policy.to_string(),
            reason: why.reason,
            message: format!("pod {}/{}: {}", pod.namespace, pod.name, why.message),
        })
    }

    /// What could not be written of this policy or Service.
    pub fn table_refusal(&self, name: &OwnerName) -> Option<&Refusal> {
        self.table_refusals.get(name)
    }

    /// Services and policies whose last write failed.
    pub fn pending(&self) -> usize {
        self.retries.len()
    }

    pub fn has_source_error(&self) -> bool {
        self.source.error.is_some()
    }

    /// Every policy is planned for it, so no more than once a plan.
    fn policy_counts(&self) -> Policies {
        let counts = self.policy_counts.get().unwrap_or_else(|| Policies::count(&self.planner.policies()));
        self.policy_counts.set(Some(counts).filter(|_| self.source.synced));
        counts
    }

    pub fn status(&self) -> Status {
        let meta = self.program.meta();
        let rows = self.tables.rows();
        Status {
            version: env!("CARGO_PKG_VERSION"),
            pid: std::process::id(),
            node: self.settings.rules.node_name.to_string(),
            source: self.source.clone(),
            kernel: KernelStatus {
                cgroup: self.settings.cgroup.display().to_string(),
                pin_dir: self.settings.pin_dir.display().to_string(),
                layout: meta.layout,
                generation: meta.generation,
                start: format!("{:?}", self.program.start).to_lowercase(),
                live: self.program.is_live(),
                self_test: self.self_test.clone(),
                exact_udp_reaping: self.reaper.as_ref().is_some_and(Reaper::is_exact),
                sizes: self.settings.sizes,
            },
            counts: Counts {
                services: self.planner.services().count(),
                slices: self.planner.slice_count(),
                nodes: self.planner.nodes().count(),
                policies: self.policy_counts(),
                frontends: rows.frontends.keys().filter(|k| k.protocol.is_some()).count(),
                sets: rows.sets.len(),
                backends: rows.backends.len(),
                pending: self.pending(),
                udp_sockets_destroyed: self.destroyed,
                dials_no_port: self.count.stat("dials_no_port"),
            },
            last_change: self.last_change.clone(),
            refusals: self.refusals(),
            events: self.control.event_level().to_string(),
            node_addresses: rows.nodes.iter().filter(|(_, n)| n.own).map(|(a, _)| a.to_string()).collect(),
            nodes: self
                .planner
                .nodes()
                .map(|n| (n.name.to_string(), n.addresses.iter().map(|(_, a)| a.to_string()).collect()))
                .collect(),
            zone: self.planner.own_node().and_then(|n| n.zone.as_ref()).map(|z| z.to_string()),
        }
    }
}
