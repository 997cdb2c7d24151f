//! Runs one task per configured cluster that reads its source, and starts, replaces and stops these tasks when the
//! configuration changes. A source that fails is retried; the other clusters are not affected.

use crate::cluster_id::ClusterIdStore;
use crate::health::Health;
use crate::main_loop::Message;
use crate::settings::{ClusterList, ClusterSettings, ReloadableFile, SourceSettings};
use crate::settings_watcher::SettingsWatcher;
use crate::snapshot::SnapshotStore;
use crate::token::{TokenRenewals, credential_uid};
#[cfg(feature = "outside")]
use crate::traffic::TrafficCounters;
use anyhow::{Context, anyhow};
use beeline_cluster::{ChangeBatch, ClusterIdCheck, Feedback, FolderSource, ReportSettings};
use beeline_model::Name;
use beeline_model::refusal::{Refusal, RefusalReason, RefusalSubject};
use futures::FutureExt;
use std::collections::{BTreeMap, BTreeSet};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::time::{Duration, SystemTime};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// The pause before a source that failed is started again.
const RESTART_DELAY: Duration = Duration::from_secs(5);
/// How often the tasks are checked for a panic.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// The snapshot of a cluster is loaded if its source has not delivered a list within this time after the start.
const SNAPSHOT_DELAY: Duration = Duration::from_secs(3);

/// The state that the tasks of all sources share.
#[derive(Clone)]
pub struct SourceContext {
    pub main_loop: Sender<Message>,
    pub health: Arc<Health>,
    pub cluster_ids: Arc<ClusterIdStore>,
    pub tokens: TokenRenewals,
    /// The fraction of a token's lifetime after which it is renewed. `None` means the default.
    pub token_renew_fraction: Option<f64>,
    pub snapshots: Option<Arc<SnapshotStore>>,
    #[cfg(feature = "outside")]
    pub traffic: Arc<TrafficCounters>,
    /// For the cluster that this Node belongs to: events and readiness that its source writes back. A replaced source
    /// gets the same feedback.
    pub feedback: Feedback,
    /// For the cluster that this Node belongs to.
    pub reports: Option<ReportSettings>,
}

impl SourceContext {
    /// Passes a batch on. An error means that the agent is stopping.
    fn forward(&self, cluster: &Name, batch: ChangeBatch) -> anyhow::Result<()> {
        self.snapshots.iter().for_each(|snapshots| snapshots.apply(cluster, &batch));
        self.health.record_queued();
        self.send(Message::Batch(cluster.clone(), batch))
    }

    fn send(&self, message: Message) -> anyhow::Result<()> {
        self.main_loop.send(message).map_err(|_| anyhow!("the agent is stopping"))
    }

    /// `None` for a folder, which is on disk already.
    fn snapshots_of(&self, cluster: &ClusterSettings) -> Option<&Arc<SnapshotStore>> {
        self.snapshots.as_ref().filter(|_| !matches!(cluster.source, SourceSettings::Folder { .. }))
    }

    fn feedback(&self, enabled: bool) -> Feedback {
        if enabled { self.feedback.clone() } else { Feedback::default() }
    }
}

struct RunningSource {
    settings: SourceSettings,
    /// Contains one task, which is aborted when the set is dropped.
    task: JoinSet<()>,
}

/// Runs until the agent stops.
pub async fn supervise(list: ClusterList, file: Option<ReloadableFile>, context: SourceContext) -> anyhow::Result<()> {
    let mut running = BTreeMap::new();
    // Pinned outside of the loop: dropping the future could lose a change that was already detected.
    let mut changed = std::pin::pin!(next_list(file.map(SettingsWatcher::new)));
    stop_changed(&mut running, &list, &context).await;
    start_missing(&mut running, &list, &context);
    let mut check = tokio::time::interval(CHECK_INTERVAL);
    loop {
        tokio::select! {
            (watcher, list) = &mut changed => {
                reconfigure(&mut running, list, &context).await?;
                changed.set(next_list(watcher));
            }
            _ = check.tick() => running.values_mut().try_for_each(check_running)?,
        }
    }
}

async fn next_list(watcher: Option<SettingsWatcher>) -> (Option<SettingsWatcher>, anyhow::Result<ClusterList>) {
    let Some(mut watcher) = watcher else { return std::future::pending().await };
    let list = watcher.next().await;
    (Some(watcher), list)
}

fn check_running(source: &mut RunningSource) -> anyhow::Result<()> {
    match source.task.try_join_next() {
        Some(Ok(())) => Err(anyhow!("the task of a source ended unexpectedly")),
        Some(Err(error)) => Err(anyhow!("the task of a source failed: {error}")),
        None => Ok(()),
    }
}

/// Applies a new cluster list. One that cannot be used changes nothing.
async fn reconfigure(
    running: &mut BTreeMap<Name, RunningSource>,
    list: anyhow::Result<ClusterList>,
    context: &SourceContext,
) -> anyhow::Result<()> {
    let list = match list {
        Ok(list) => list,
        Err(error) => {
            let message = format!("{error:#}; the last configuration stays in effect");
            let refusal = Refusal::new(RefusalSubject::Configuration, RefusalReason::BadConfiguration, message);
            return context.send(Message::ConfigurationRefused(refusal));
        }
    };
    let restarted = stop_changed(running, &list, context).await;
    // Sent before the new sources start: the main loop has to know that the next batch is from a new source.
    context.send(Message::Reconfigured(list.clone(), restarted))?;
    start_missing(running, &list, context);
    Ok(())
}

/// Stops the sources that are not configured any more or have other settings now. Returns those that have to start again
/// under the same name. The last batch of a stopped source was sent when this returns.
async fn stop_changed(
    running: &mut BTreeMap<Name, RunningSource>,
    list: &ClusterList,
    context: &SourceContext,
) -> BTreeSet<Name> {
    let names: BTreeSet<Name> = list.clusters.iter().map(|cluster| cluster.rules.name.clone()).collect();
    context.snapshots.iter().for_each(|snapshots| snapshots.set_configured(&names));
    // In the order of the configuration, which decides between two names of one cluster.
    context.cluster_ids.set_configured(list.clusters.iter().map(|cluster| cluster.rules.name.clone()));
    let wanted: BTreeMap<&Name, &SourceSettings> =
        list.clusters.iter().map(|cluster| (&cluster.rules.name, &cluster.source)).collect();
    let is_unchanged =
        |name: &Name, source: &RunningSource| wanted.get(name).is_some_and(|wanted| wanted.is_same(&source.settings));
    let changed: Vec<Name> =
        running.iter().filter(|(name, source)| !is_unchanged(name, source)).map(|(name, _)| name.clone()).collect();
    let mut restarted = BTreeSet::new();
    for name in changed {
        if let Some(mut source) = running.remove(&name) {
            source.task.shutdown().await;
        }
        restarted.extend(wanted.contains_key(&name).then_some(name));
    }
    restarted
}

fn start_missing(running: &mut BTreeMap<Name, RunningSource>, list: &ClusterList, context: &SourceContext) {
    for cluster in &list.clusters {
        running.entry(cluster.rules.name.clone()).or_insert_with(|| start(cluster, context));
    }
}

fn start(cluster: &ClusterSettings, context: &SourceContext) -> RunningSource {
    let mut task = JoinSet::new();
    task.spawn(run_with_restart(cluster.clone(), context.clone()));
    RunningSource { settings: cluster.source.clone(), task }
}

/// Runs the source and restarts it after a panic: a bug that one cluster's objects trigger must not stop the others. The
/// panic is caught in this task, so that aborting the task stops everything.
async fn run_with_restart(cluster: ClusterSettings, context: SourceContext) {
    let started = AtomicBool::new(false);
    let run = || run_source(&cluster, &context, &started);
    restart_after_panic(run, RESTART_DELAY, |panic| {
        let error = format!("the source panicked and is restarted: {panic}; this is a bug, please report it");
        context.forward(&cluster.rules.name, ChangeBatch { error: Some(error), ..ChangeBatch::default() }).is_ok()
    })
    .await;
}

/// Runs until `run` returns without a panic, or `report` returns false.
async fn restart_after_panic<F: Future<Output = ()>>(
    run: impl Fn() -> F,
    delay: Duration,
    report: impl Fn(&str) -> bool,
) {
    while let Err(panic) = AssertUnwindSafe(run()).catch_unwind().await {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        if !report(text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message")) {
            return;
        }
        tokio::time::sleep(delay).await;
    }
}

/// Reads the cluster, loads its snapshot if it does not answer, and renews its token.
/// `started` is set when the source has been read before.
async fn run_source(cluster: &ClusterSettings, context: &SourceContext, started: &AtomicBool) {
    let (name, source) = (cluster.rules.name.clone(), cluster.source.clone());
    let renewal = context.tokens.clone().renew(name, source, context.token_renew_fraction);
    tokio::select! {
        () = read_with_retry(cluster, context, started) => {}
        () = load_snapshot_after_delay(cluster, context) => {}
        never = renewal => match never {},
    }
}

/// Returns when the agent stops.
async fn read_with_retry(cluster: &ClusterSettings, context: &SourceContext, started: &AtomicBool) {
    let name = &cluster.rules.name;
    loop {
        let restarted = started.swap(true, Ordering::Relaxed);
        // The new source remembers nothing of the earlier one. Without this message, objects that are deleted between the
        // two would stay forever.
        if restarted && context.send(Message::SourceRestarted(name.clone())).is_err() {
            return;
        }
        let error = match read(cluster, context).await {
            Ok(()) => "the source ended".to_owned(),
            Err(error) => format!("{error:#}"),
        };
        if context.forward(name, ChangeBatch { error: Some(error), ..ChangeBatch::default() }).is_err() {
            return;
        }
        tokio::time::sleep(RESTART_DELAY).await;
    }
}

/// Loads the snapshot if no list is finished in time, whatever the cause: a large cluster on a slow link may take minutes.
/// Returns when the agent stops.
async fn load_snapshot_after_delay(cluster: &ClusterSettings, context: &SourceContext) {
    if let Some(snapshots) = context.snapshots_of(cluster) {
        tokio::time::sleep(SNAPSHOT_DELAY).await;
        let listed = snapshots.is_listed(&cluster.rules.name);
        if !listed && load_snapshot(cluster, context, snapshots).await.is_err() {
            return;
        }
    }
    std::future::pending().await
}

async fn load_snapshot(
    cluster: &ClusterSettings,
    context: &SourceContext,
    snapshots: &SnapshotStore,
) -> anyhow::Result<()> {
    let name = &cluster.rules.name;
    let Some(snapshot) = snapshots.load(name, credential_uid(&cluster.source)).await else { return Ok(()) };
    tracing::warn!(
        cluster = %name,
        objects = snapshot.objects.len(),
        age_seconds = snapshot.age.as_secs(),
        file = %snapshot.path.display(),
        "the cluster does not answer; its snapshot is served until it does"
    );
    let taken_at = SystemTime::now().checked_sub(snapshot.age).unwrap_or(SystemTime::UNIX_EPOCH);
    context.send(Message::Snapshot(name.clone(), snapshot.objects, taken_at))
}

async fn read(cluster: &ClusterSettings, context: &SourceContext) -> anyhow::Result<()> {
    let name = &cluster.rules.name;
    let (tx, mut rx) = mpsc::channel::<ChangeBatch>(16);
    if let Some(snapshots) = context.snapshots_of(cluster) {
        snapshots.start_source(name);
    }
    let forward = async {
        let mut snapshots = context.snapshots_of(cluster);
        while let Some(batch) = rx.recv().await {
            // A snapshot takes precedence over the first list of an edge cache, which may be older.
            if let Some(snapshots) = snapshots.take_if(|_| batch.synced)
                && batch.from_cache
            {
                load_snapshot(cluster, context, snapshots).await?;
            }
            context.forward(name, batch)?;
        }
        anyhow::Ok(())
    };
    match cluster.source.clone() {
        SourceSettings::Folder { path, service_filter } => {
            let ((), forwarded) = tokio::join!(FolderSource::new(path, name, service_filter).watch(tx), forward);
            forwarded
        }
        SourceSettings::Server(mut server) => {
            server.cluster_id_check = server.verify_cluster.then(|| cluster_id_check(&context.cluster_ids, name));
            server.reports = context.reports.clone().filter(|_| server.post_events);
            let feedback = context.feedback(server.post_events);
            let (watched, forwarded) = tokio::join!(server.watch(tx, feedback), forward);
            watched.context("invalid credentials")?;
            forwarded
        }
        #[cfg(feature = "outside")]
        SourceSettings::Edge(mut edge) => {
            edge.cluster_id_check = Some(cluster_id_check(&context.cluster_ids, name));
            edge.traffic = context.traffic.counter(name);
            let (watched, forwarded) = tokio::join!(edge.watch(tx), forward);
            watched?;
            forwarded
        }
    }
}

fn cluster_id_check(cluster_ids: &Arc<ClusterIdStore>, cluster: &Name) -> ClusterIdCheck {
    let (cluster_ids, cluster) = (cluster_ids.clone(), cluster.clone());
    ClusterIdCheck::new(move |uid| cluster_ids.verify(&cluster, uid))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::SnapshotSettings;
    use beeline_cluster::{EdgeCacheSource, EdgeIntervals, ServiceFilter};
    use beeline_model::change::Change;
    use beeline_model::cluster::ClusterRules;
    use beeline_model::object::{Node, Object};
    use std::path::Path;
    use std::sync::Mutex;
    use std::sync::atomic::AtomicUsize;
    use std::sync::mpsc::{Receiver, channel};

    fn context(dir: &Path) -> (SourceContext, Receiver<Message>) {
        let (main_loop, inbox) = channel();
        let cluster_ids = Arc::new(ClusterIdStore::new(dir));
        cluster_ids.set_configured(["far".into()].into_iter());
        cluster_ids.verify(&"far".into(), "u1").unwrap();
        let settings = SnapshotSettings { dir: dir.join("snapshot"), max_age: None };
        let context = SourceContext {
            main_loop,
            health: Arc::new(Health::new(Duration::from_secs(30))),
            snapshots: Some(Arc::new(SnapshotStore::new(settings, cluster_ids.clone()))),
            cluster_ids,
            tokens: TokenRenewals::default(),
            token_renew_fraction: None,
            traffic: Arc::default(),
            feedback: Feedback::default(),
            reports: None,
        };
        (context, inbox)
    }

    fn cluster(source: SourceSettings) -> ClusterSettings {
        let zone = beeline_dns::Zone::new("far", "cluster.local").unwrap();
        ClusterSettings { rules: ClusterRules::named("far"), source, zone }
    }

    fn edge() -> SourceSettings {
        SourceSettings::Edge(Box::new(EdgeCacheSource {
            server: EdgeCacheSource::parse_url("http://127.0.0.1:1").unwrap(),
            cluster: "far".into(),
            node: "e1".into(),
            service_filter: ServiceFilter::default(),
            intervals: EdgeIntervals::default(),
            traffic: Arc::default(),
            cluster_id_check: None,
        }))
    }

    fn node(name: &str) -> Object {
        Object::Node(Node::named("far", name))
    }

    #[tokio::test]
    async fn no_source_starts_before_the_main_loop_knows_the_configuration() {
        let dir = tempfile::tempdir().unwrap();
        let (context, inbox) = context(dir.path());
        drop(inbox);
        let folder = SourceSettings::Folder { path: dir.path().to_owned(), service_filter: ServiceFilter::default() };
        let list = ClusterList { clusters: vec![cluster(folder)], view_cgroups: Vec::new() };
        let mut running = BTreeMap::new();
        assert!(reconfigure(&mut running, Ok(list), &context).await.is_err(), "the main loop has ended");
        assert!(running.is_empty());
    }

    /// As with a large cluster on a slow link: batches arrive all the time, but the list does not finish.
    #[tokio::test]
    async fn the_snapshot_of_a_slow_cluster_is_loaded_while_its_list_is_unfinished() {
        let dir = tempfile::tempdir().unwrap();
        let (before, _inbox) = context(dir.path());
        let (far, snapshots) = (cluster(edge()), before.snapshots.clone().unwrap());
        snapshots.start_source(&far.rules.name);
        let changes = vec![Change::Upsert(node("a"))];
        let complete = ChangeBatch { changes, synced: true, complete: true, ..ChangeBatch::default() };
        snapshots.apply(&far.rules.name, &complete);
        snapshots.flush();
        let (context, inbox) = context(dir.path());
        context.snapshots.iter().for_each(|snapshots| snapshots.start_source(&far.rules.name));
        let send_pages = async {
            for page in 0..100 {
                let changes = vec![Change::Upsert(node(&format!("n{page}")))];
                context.forward(&far.rules.name, ChangeBatch { changes, ..ChangeBatch::default() }).unwrap();
                let loaded = inbox.try_iter().find_map(|message| match message {
                    Message::Snapshot(_, objects, _) => Some(objects),
                    _ => None,
                });
                if loaded.is_some() {
                    return loaded;
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            None
        };
        let loaded = tokio::select! {
            objects = send_pages => objects,
            () = load_snapshot_after_delay(&far, &context) => None,
        };
        assert_eq!(loaded, Some(vec![node("a")]));
    }

    #[tokio::test]
    async fn a_replaced_source_gets_the_same_feedback() {
        let dir = tempfile::tempdir().unwrap();
        let (context, _inbox) = context(dir.path());
        let (programmed, is_programmed) = tokio::sync::watch::channel(false);
        let (refusals, refused) = mpsc::channel(1);
        let context = SourceContext { feedback: Feedback::new(is_programmed, refused), ..context };
        drop(context.feedback(true));
        let next = context.feedback(true);
        programmed.send(true).unwrap();
        let refusal = Refusal::new(RefusalSubject::Configuration, RefusalReason::BadConfiguration, "");
        refusals.try_send(refusal.clone()).unwrap();
        assert!(*next.programmed.borrow());
        assert_eq!(next.refused.lock().await.recv().await.unwrap(), refusal);
        assert!(!*context.feedback(false).programmed.borrow(), "a cluster that this Node does not belong to");
    }

    /// A folder that cannot be watched any more, for example.
    #[tokio::test]
    async fn a_restart_is_announced_before_a_source_lists_everything_again() {
        let dir = tempfile::tempdir().unwrap();
        let (context, inbox) = context(dir.path());
        let (far, started) = (cluster(edge()), AtomicBool::new(false));
        for restarted in [false, true] {
            let read = read_with_retry(&far, &context, &started);
            tokio::time::timeout(Duration::from_millis(50), read).await.expect_err("the source does not answer");
            let is_restart = |message: &Message| matches!(message, Message::SourceRestarted(name) if **name == *"far");
            assert_eq!(inbox.try_iter().any(|message| is_restart(&message)), restarted);
        }
    }

    #[tokio::test]
    async fn a_panicked_source_is_restarted_until_it_ends_or_the_agent_stops() {
        let (starts, reported) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
        let run = || async {
            let start = starts.fetch_add(1, Ordering::Relaxed);
            assert!(start > 1, "start {start}");
        };
        let report = |panic: &str| {
            reported.lock().is_ok_and(|mut reported: std::sync::MutexGuard<'_, Vec<String>>| {
                reported.push(panic.to_owned());
                true
            })
        };
        restart_after_panic(run, Duration::ZERO, report).await;
        assert_eq!(starts.load(Ordering::Relaxed), 3, "the third run ended without a panic");
        assert_eq!(reported.into_inner().unwrap(), ["start 0", "start 1"]);
        let run = || async { panic!("always") };
        restart_after_panic(run, Duration::ZERO, |panic| panic != "always").await;
    }
}
