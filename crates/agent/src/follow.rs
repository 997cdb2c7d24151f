//! The sources at work: a task for each cluster of the configuration, begun, exchanged and ended as that changes. One that
//! cannot even begin (a kubeconfig that is not there) tries again; the others do not notice.

use crate::health::Health;
use crate::known::Known;
use crate::meter::Meters;
use crate::owner::Message;
use crate::reload::Watched;
use crate::settings::{Cluster, Listing, Origin, Reload};
use crate::snapshot::Archive;
use crate::token::{self, Tokens};
use anyhow::{Context, anyhow};
use beeline_cluster::{Batch, Echo, Folder, Passport, Reports};
use beeline_model::Name;
use beeline_model::fact::Refusal;
use futures::FutureExt;
use std::collections::{BTreeMap, BTreeSet};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::{Duration, SystemTime};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// A source that could not begin, or that ended, begins again after this long.
const AGAIN: Duration = Duration::from_secs(5);
/// Whether a source's task has come to grief is looked at this often.
const CHECK: Duration = Duration::from_secs(1);

/// For a source that has not said everything within this time at the start, what is remembered of it stands in.
const RECALL: Duration = Duration::from_secs(3);

/// The way from the sources to the owner.
#[derive(Clone)]
pub struct Way {
    pub owner: Sender<Message>,
    pub health: Arc<Health>,
    pub known: Arc<Known>,
    pub tokens: Tokens,
    /// Of a token's life, when the next one is asked for.
    pub renew_after: f64,
    pub archive: Option<Arc<Archive>>,
    pub meters: Arc<Meters>,
    /// For the one source whose objects are told what became of them: the cluster that this Node is in. Whoever speaks for
    /// it next hears it, too.
    pub echo: Echo,
    /// To the same one.
    pub reports: Option<Reports>,
}

impl Way {
    /// Every batch of every cluster comes by here. An error: the agent is stopping.
    fn pass(&self, cluster: &Name, batch: Batch) -> anyhow::Result<()> {
        self.archive.iter().for_each(|archive| archive.take(cluster, &batch));
        // From here on somebody waits: an owner that hangs is found by it.
        self.health.queued();
        self.tell(Message::Facts(cluster.clone(), batch))
    }

    fn tell(&self, message: Message) -> anyhow::Result<()> {
        self.owner.send(message).map_err(|_| anyhow!("the agent is stopping"))
    }

    /// A folder is on disk already.
    fn archive_of(&self, cluster: &Cluster) -> Option<&Arc<Archive>> {
        self.archive.as_ref().filter(|_| !matches!(cluster.origin, Origin::Folder { .. }))
    }

    /// Nobody is told where nobody is to be.
    fn echo(&self, is_told: bool) -> Echo {
        if is_told { self.echo.clone() } else { Echo::default() }
    }
}

struct Running {
    origin: Origin,
    /// Of one: it ends with whoever holds it, and can be waited for.
    task: JoinSet<()>,
}

/// Until the agent ends.
pub async fn keep(listing: Listing, reload: Option<Reload>, way: Way) -> anyhow::Result<()> {
    let mut running = BTreeMap::new();
    // Never dropped halfway: a change that has been seen and not yet told would be lost.
    let mut changed = std::pin::pin!(next(reload.map(Watched::new)));
    end_others(&mut running, &listing, &way).await;
    begin_new(&mut running, &listing, &way);
    let mut check = tokio::time::interval(CHECK);
    loop {
        tokio::select! {
            (file, listing) = &mut changed => {
                adapt(&mut running, listing, &way).await?;
                changed.set(next(file));
            }
            _ = check.tick() => running.values_mut().try_for_each(alive)?,
        }
    }
}

async fn next(file: Option<Watched>) -> (Option<Watched>, anyhow::Result<Listing>) {
    let Some(mut file) = file else { return std::future::pending().await };
    let listing = file.next().await;
    (Some(file), listing)
}

fn alive(running: &mut Running) -> anyhow::Result<()> {
    match running.task.try_join_next() {
        Some(ended) => Err(ended.err().map_or_else(|| anyhow!("a source ended"), |panic| anyhow!("a source: {panic}"))),
        None => Ok(()),
    }
}

/// A listing that cannot be used changes nothing.
async fn adapt(
    running: &mut BTreeMap<Name, Running>,
    changed: anyhow::Result<Listing>,
    way: &Way,
) -> anyhow::Result<()> {
    let listing = match changed {
        Ok(listing) => listing,
        Err(error) => {
            let message = format!("{error:#}; what it said before holds");
            let refusal = Refusal { subject: "configuration".into(), reason: "badConfiguration", message };
            return way.tell(Message::Misread(refusal));
        }
    };
    let restarted = end_others(running, &listing, way).await;
    // A new speaker that is heard before the owner knows of it would be taken for the old one, or for nobody.
    way.tell(Message::Listing(listing.clone(), restarted))?;
    begin_new(running, &listing, way);
    Ok(())
}

/// Ends what is no longer wanted; gives those that are to begin anew under the same name. What a source said before its
/// end has reached the owner when this returns, so nothing old comes after the new listing.
async fn end_others(running: &mut BTreeMap<Name, Running>, listing: &Listing, way: &Way) -> BTreeSet<Name> {
    let names: BTreeSet<Name> = listing.clusters.iter().map(|cluster| cluster.rules.name.clone()).collect();
    way.archive.iter().for_each(|archive| archive.configure(&names));
    way.known.configure(names.into_iter());
    let wanted: BTreeMap<&Name, &Origin> =
        listing.clusters.iter().map(|cluster| (&cluster.rules.name, &cluster.origin)).collect();
    let stays = |name: &Name, one: &Running| wanted.get(name).is_some_and(|origin| origin.is_same(&one.origin));
    let over: Vec<Name> =
        running.iter().filter(|(name, one)| !stays(name, one)).map(|(name, _)| name.clone()).collect();
    let mut restarted = BTreeSet::new();
    for name in over {
        if let Some(mut one) = running.remove(&name) {
            one.task.shutdown().await;
        }
        restarted.extend(wanted.contains_key(&name).then_some(name));
    }
    restarted
}

fn begin_new(running: &mut BTreeMap<Name, Running>, listing: &Listing, way: &Way) {
    for cluster in &listing.clusters {
        running.entry(cluster.rules.name.clone()).or_insert_with(|| begin(cluster, way));
    }
}

fn begin(cluster: &Cluster, way: &Way) -> Running {
    let mut task = JoinSet::new();
    task.spawn(outlive(cluster.clone(), way.clone()));
    Running { origin: cluster.origin.clone(), task }
}

/// A panic is a bug of ours, and one cluster's trouble: what one of them says must not take the others with it. In place,
/// not as a task of its own: who ends this one has ended all of it.
async fn outlive(cluster: Cluster, way: Way) {
    let one = || live(cluster.clone(), way.clone());
    restarted(one, AGAIN, |why| {
        let error = format!("its source panicked, and begins again: {why}: this is a bug, please report it");
        way.pass(&cluster.rules.name, Batch { error: Some(error), ..Batch::default() }).is_ok()
    })
    .await;
}

/// Until it ends by itself, or nobody wants to hear of its panics.
async fn restarted<F: Future<Output = ()>>(one: impl Fn() -> F, pause: Duration, heard: impl Fn(&str) -> bool) {
    while let Err(panic) = AssertUnwindSafe(one()).catch_unwind().await {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        if !heard(text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without a word")) {
            return;
        }
        tokio::time::sleep(pause).await;
    }
}

/// Follows the cluster, and keeps the token alive that it takes.
async fn live(cluster: Cluster, way: Way) {
    let kept = way.tokens.clone().keep(cluster.rules.name.clone(), cluster.origin.clone(), way.renew_after);
    tokio::select! {
        () = speak(cluster, way) => {}
        never = kept => match never {},
    }
}

/// For as long as somebody listens.
async fn speak(cluster: Cluster, way: Way) {
    tokio::select! {
        () = try_always(&cluster, &way) => {}
        () = stand_in(&cluster, &way) => {}
    }
}

async fn try_always(cluster: &Cluster, way: &Way) {
    let name = &cluster.rules.name;
    loop {
        let why = match follow(cluster, way).await {
            Ok(()) => "the source of the objects ended".to_owned(),
            Err(error) => format!("{error:#}"),
        };
        if way.pass(name, Batch { error: Some(why), ..Batch::default() }).is_err() {
            return;
        }
        tokio::time::sleep(AGAIN).await;
    }
}

/// What is remembered stands in for a source that is not heard as a whole in time, whatever keeps it: a large cluster at a
/// thin line speaks for minutes. Ends when nobody listens.
async fn stand_in(cluster: &Cluster, way: &Way) {
    let name = &cluster.rules.name;
    if let Some(archive) = way.archive_of(cluster) {
        tokio::time::sleep(RECALL).await;
        if !archive.is_heard(name) && recall(cluster, way, archive).await.is_err() {
            return;
        }
    }
    std::future::pending().await
}

async fn recall(cluster: &Cluster, way: &Way, archive: &Archive) -> anyhow::Result<()> {
    let name = &cluster.rules.name;
    let Some(recalled) = archive.recall(name, token::uid(&cluster.origin)).await else { return Ok(()) };
    tracing::warn!(
        cluster = %name,
        facts = recalled.facts.len(),
        age = recalled.age.as_secs(),
        "it is not heard: what {} remembers of it serves until it is",
        recalled.path.display()
    );
    let at = SystemTime::now().checked_sub(recalled.age).unwrap_or(SystemTime::UNIX_EPOCH);
    way.tell(Message::Remembered(name.clone(), recalled.facts, at))
}

async fn follow(cluster: &Cluster, way: &Way) -> anyhow::Result<()> {
    let name = &cluster.rules.name;
    let (tx, mut rx) = mpsc::channel::<Batch>(16);
    if let Some(archive) = way.archive_of(cluster) {
        archive.begin(name);
    }
    let forward = async {
        let mut archive = way.archive_of(cluster);
        while let Some(batch) = rx.recv().await {
            // What is remembered goes before a copy that may be older.
            if let Some(archive) = archive.take_if(|_| batch.synced)
                && batch.second_hand
            {
                recall(cluster, way, archive).await?;
            }
            way.pass(name, batch)?;
        }
        anyhow::Ok(())
    };
    match cluster.origin.clone() {
        Origin::Folder { path, claim } => {
            let ((), forwarded) = tokio::join!(Folder::new(path, name, claim).watch(tx), forward);
            forwarded
        }
        Origin::Server(mut server) => {
            // A Node's one cluster is whichever it is in.
            server.passport = server.ranges.then(|| passport(&way.known, name));
            server.reports = way.reports.clone().filter(|_| server.notices);
            let echo = way.echo(server.notices);
            let (watched, forwarded) = tokio::join!(server.watch(tx, echo), forward);
            watched.context("its credentials")?;
            forwarded
        }
        Origin::Edge(mut edge) => {
            (edge.passport, edge.traffic) = (Some(passport(&way.known, name)), way.meters.of(name));
            let (watched, forwarded) = tokio::join!(edge.watch(tx), forward);
            watched?;
            forwarded
        }
    }
}

fn passport(known: &Arc<Known>, cluster: &Name) -> Passport {
    let (known, cluster) = (known.clone(), cluster.clone());
    Passport::new(move |uid| known.meet(&cluster, uid))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::Keeping;
    use beeline_cluster::{Claim, Edge, Rhythm};
    use beeline_model::fact::{Fact, Node};
    use beeline_model::stand::ClusterRules;
    use std::path::Path;
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc::{Receiver, channel};

    fn way(dir: &Path) -> (Way, Receiver<Message>) {
        let (owner, inbox) = channel();
        let known = Arc::new(Known::new(dir));
        known.configure(["far".into()].into_iter());
        known.meet(&"far".into(), "u1").unwrap();
        let keeping = Keeping { dir: dir.join("snapshot"), max_age: None };
        let way = Way {
            owner,
            health: Arc::new(Health::new(Duration::from_secs(30))),
            archive: Some(Arc::new(Archive::new(keeping, known.clone()))),
            known,
            tokens: Tokens::default(),
            renew_after: 0.5,
            meters: Arc::default(),
            echo: Echo::default(),
            reports: None,
        };
        (way, inbox)
    }

    fn cluster(origin: Origin) -> Cluster {
        let zone = beeline_dns::Zone::new("far", "cluster.local").unwrap();
        Cluster { rules: ClusterRules::named("far"), origin, zone }
    }

    fn edge() -> Origin {
        Origin::Edge(Box::new(Edge {
            server: Edge::parse("http://127.0.0.1:1").unwrap(),
            cluster: "far".into(),
            node: "e1".into(),
            claim: Claim::default(),
            rhythm: Rhythm::default(),
            traffic: Arc::default(),
            passport: None,
        }))
    }

    fn node(name: &str) -> Fact {
        Fact::Node(Node::named("far", name))
    }

    #[tokio::test]
    async fn nobody_begins_before_the_owner_knows_of_it() {
        let dir = tempfile::tempdir().unwrap();
        let (way, inbox) = way(dir.path());
        drop(inbox);
        let folder = Origin::Folder { path: dir.path().to_owned(), claim: Claim::default() };
        let listing = Listing { clusters: vec![cluster(folder)], views: Vec::new() };
        let mut running = BTreeMap::new();
        assert!(adapt(&mut running, Ok(listing), &way).await.is_err(), "the owner has gone");
        assert!(running.is_empty());
    }

    /// A few megabytes a minute: it speaks all the time, and has said everything at last.
    #[tokio::test]
    async fn a_cluster_that_speaks_slowly_is_stood_in_for() {
        let dir = tempfile::tempdir().unwrap();
        let (before, _inbox) = way(dir.path());
        let (far, archive) = (cluster(edge()), before.archive.clone().unwrap());
        archive.begin(&far.rules.name);
        let whole = Batch { facts: vec![node("a")], synced: true, whole: true, ..Batch::default() };
        archive.take(&far.rules.name, &whole);
        archive.flush();
        let (way, inbox) = way(dir.path());
        way.archive.iter().for_each(|archive| archive.begin(&far.rules.name));
        let speak = async {
            for page in 0..100 {
                way.pass(&far.rules.name, Batch { facts: vec![node(&format!("n{page}"))], ..Batch::default() })
                    .unwrap();
                let remembered = inbox.try_iter().find_map(|message| match message {
                    Message::Remembered(_, facts, _) => Some(facts),
                    _ => None,
                });
                if remembered.is_some() {
                    return remembered;
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            None
        };
        let remembered = tokio::select! { facts = speak => facts, () = stand_in(&far, &way) => None };
        assert_eq!(remembered, Some(vec![node("a")]));
    }

    #[tokio::test]
    async fn whoever_speaks_next_hears_the_echo_too() {
        let dir = tempfile::tempdir().unwrap();
        let (way, _inbox) = way(dir.path());
        let (programmed, is_programmed) = tokio::sync::watch::channel(false);
        let (told, refused) = mpsc::channel(1);
        let way = Way { echo: Echo::new(is_programmed, refused), ..way };
        drop(way.echo(true));
        let next = way.echo(true);
        programmed.send(true).unwrap();
        told.try_send(Refusal { subject: "x".into(), reason: "y", message: String::new() }).unwrap();
        assert!(*next.programmed.borrow());
        assert_eq!(next.refused.lock().await.recv().await.unwrap().subject, "x");
        assert!(!*way.echo(false).programmed.borrow(), "a cluster that this Node is not in");
    }

    #[tokio::test]
    async fn a_panic_begins_again_until_nobody_listens() {
        let (begun, told) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
        let one = || async {
            let times = begun.fetch_add(1, Ordering::Relaxed);
            assert!(times > 1, "the {times}th time");
        };
        let hear = |why: &str| {
            told.lock().is_ok_and(|mut told: std::sync::MutexGuard<'_, Vec<String>>| {
                told.push(why.to_owned());
                true
            })
        };
        restarted(one, Duration::ZERO, hear).await;
        assert_eq!(begun.load(Ordering::Relaxed), 3, "it ended by itself");
        assert_eq!(told.into_inner().unwrap(), ["the 0th time", "the 1th time"]);
        let one = || async { panic!("always") };
        restarted(one, Duration::ZERO, |why| why != "always").await;
    }
}
