//! The clusters' sources, as the state knows them: each with what it said last, whether it has said everything, and what is
//! wrong with it. One that is silent holds none of the others up.

use crate::hold::Heard;
use crate::ledger::{Key, Ledger};
use crate::refused;
use crate::settings::{Cluster, Origin};
use beeline_cluster::Batch;
use beeline_model::Name;
use beeline_model::diff::Whole;
use beeline_model::fact::{Fact, Refusal};
use beeline_model::name::LOCAL_CLUSTER;
use beeline_model::rules::StandPoint;
use beeline_model::stand::ClusterRules;
use ipnet::IpNet;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

pub struct Source {
    pub rules: ClusterRules,
    pub kind: &'static str,
    /// The server that is asked now, or the folder.
    pub name: String,
    pub error: Option<String>,
    /// Everything that it says has been heard at least once, now or in what is remembered of it.
    pub synced: bool,
    pub since: Option<SystemTime>,
    /// Nothing of it is unreadable. Before that nobody knows whose the rows are that the plan does not have: an earlier
    /// agent may have read them from a file that is broken now.
    pub whole: bool,
    /// Whoever speaks for it now has been heard as a whole. Before that its facts wait: half of a list means nothing.
    heard: bool,
    /// The last word on each thing: a cluster that is never heard as a whole may go on speaking for ever.
    waiting: BTreeMap<Key, Fact>,
    /// When what is served instead was remembered.
    pub remembered: Option<SystemTime>,
    pub refusals: Arc<[Refusal]>,
    /// What its ServiceCIDR objects say.
    pub ranges: BTreeMap<Name, Box<[IpNet]>>,
    /// Only where somebody else may come to speak for it.
    ledger: Option<Ledger>,
}

/// What is to be done about a batch.
pub struct Taken {
    pub facts: Vec<Fact>,
    /// It has been heard as a whole for the first time, or can be read as a whole for the first time.
    pub first: bool,
}

impl Source {
    fn new(cluster: &Cluster, stand: StandPoint) -> Source {
        let (kind, name) = cluster.origin.title();
        let changes = stand != StandPoint::Node || *cluster.rules.name != *LOCAL_CLUSTER;
        Source {
            rules: cluster.rules.clone(),
            kind,
            name,
            error: None,
            synced: false,
            since: None,
            whole: false,
            heard: false,
            waiting: BTreeMap::new(),
            remembered: None,
            refusals: Arc::default(),
            ranges: BTreeMap::new(),
            ledger: changes.then(|| Ledger::new(cluster.rules.name.clone())),
        }
    }

    pub fn facts(&self) -> Option<usize> {
        self.ledger.as_ref().map(Ledger::len)
    }

    fn take(&mut self, mut batch: Batch) -> Taken {
        if batch.second_hand && self.remembered.is_some() {
            // What is remembered was heard from the cluster itself, and knows what was deleted.
            (batch.synced, batch.whole) = (false, false);
        }
        let first = (batch.synced && !self.heard) || (batch.whole && !self.whole);
        if !Arc::ptr_eq(&self.refusals, &batch.refusals) {
            let cluster = Some(&*self.rules.name).filter(|name| *name != LOCAL_CLUSTER);
            refused::say(cluster, &self.refusals, &batch.refusals);
            self.refusals = batch.refusals;
        }
        self.note_error(batch.error);
        self.name = batch.server.unwrap_or_else(|| std::mem::take(&mut self.name));
        self.heard |= batch.synced;
        if batch.synced {
            self.remembered = None;
            self.sync();
        }
        self.whole |= batch.whole;
        let mut facts = self.ready(batch.facts);
        facts.iter().for_each(|fact| self.note(fact));
        if batch.whole {
            facts.extend(self.settle());
        }
        Taken { facts, first }
    }

    fn sync(&mut self) {
        if !std::mem::replace(&mut self.synced, true) || self.since.is_none() {
            self.since = Some(SystemTime::now());
        }
    }

    /// Whose an address is, is known as early as possible: others wait for it.
    fn ready(&mut self, facts: Vec<Fact>) -> Vec<Fact> {
        if self.heard {
            return std::mem::take(&mut self.waiting).into_values().chain(facts).collect();
        }
        let (ranges, rest): (Vec<Fact>, _) =
            facts.into_iter().partition(|fact| matches!(Key::of(fact).0, Key::Range(_)));
        rest.into_iter().for_each(|fact| self.wait(fact));
        ranges
    }

    /// Of what goes before anybody served it, nothing is left to be said.
    fn wait(&mut self, fact: Fact) {
        let (key, there) = Key::of(&fact);
        if there || self.ledger.as_ref().is_some_and(|ledger| ledger.holds(&key)) {
            self.waiting.insert(key, fact);
        } else {
            self.waiting.remove(&key);
        }
    }

    fn note(&mut self, fact: &Fact) {
        self.note_range(fact);
        self.ledger.iter_mut().for_each(|ledger| ledger.note(fact));
    }

    fn note_range(&mut self, fact: &Fact) {
        match fact {
            Fact::ServiceRange { name, ranges, .. } => drop(self.ranges.insert(name.clone(), ranges.clone())),
            Fact::ServiceRangeGone { name, .. } => drop(self.ranges.remove(name)),
            _ => {}
        }
    }

    fn settle(&mut self) -> Vec<Fact> {
        let gone = self.ledger.as_mut().map(Ledger::settle).unwrap_or_default();
        gone.iter().for_each(|fact| self.note_range(fact));
        gone
    }

    /// Said when it begins, when it becomes another and when it ends, not with every try.
    fn note_error(&mut self, error: Option<String>) {
        let cluster = &self.rules.name;
        match (&self.error, &error) {
            (before, Some(now)) if before.as_ref() != Some(now) => {
                tracing::warn!(%cluster, "the source cannot be read, what it said before holds: {now}");
            }
            (Some(_), None) => tracing::info!(%cluster, "the source can be read again"),
            _ => {}
        }
        self.error = error;
    }

    /// Somebody else speaks for this cluster from now on; what was said before holds until it has been heard.
    fn hand_over(&mut self) {
        (self.heard, self.waiting) = (false, BTreeMap::new());
        self.ledger.iter_mut().for_each(Ledger::hand_over);
    }
}

/// In the order of the configuration.
pub struct Sources {
    stand: StandPoint,
    all: Vec<Source>,
    /// When the first of them could be read as a whole.
    begun: Option<Instant>,
}

impl Sources {
    pub fn new(clusters: &[Cluster], stand: StandPoint) -> Sources {
        Sources { stand, all: clusters.iter().map(|cluster| Source::new(cluster, stand)).collect(), begun: None }
    }

    pub fn iter(&self) -> impl Iterator<Item = &Source> {
        self.all.iter()
    }

    fn get(&mut self, cluster: &str) -> Option<&mut Source> {
        self.all.iter_mut().find(|source| *source.rules.name == *cluster)
    }

    /// `None`: nobody asked for that cluster any more.
    pub fn take(&mut self, cluster: &Name, batch: Batch) -> Option<Taken> {
        let taken = self.get(cluster)?.take(batch);
        if self.all.iter().any(|source| source.whole) {
            self.begun.get_or_insert_with(Instant::now);
        }
        Some(taken)
    }

    /// What was remembered of a cluster serves until it is heard. Gives the facts to be taken in; `None`: too late, or
    /// nobody asked for it.
    pub fn remember(&mut self, cluster: &Name, facts: Vec<Fact>, at: SystemTime) -> Option<Vec<Fact>> {
        let source = self.get(cluster).filter(|source| !source.heard && source.ledger.is_some())?;
        let facts = source.ledger.as_mut().map(|ledger| ledger.recall(facts))?;
        facts.iter().for_each(|fact| source.note_range(fact));
        source.remembered = Some(at);
        source.sync();
        Some(facts)
    }

    /// The configuration is another. Gives what is gone with the clusters that are.
    pub fn set(&mut self, clusters: &[Cluster], restarted: &BTreeSet<Name>) -> Vec<Fact> {
        let mut before = std::mem::take(&mut self.all);
        for cluster in clusters {
            let at = before.iter().position(|source| source.rules.name == cluster.rules.name);
            let mut source = at.map_or_else(|| Source::new(cluster, self.stand), |at| before.swap_remove(at));
            source.rules = cluster.rules.clone();
            if restarted.contains(&cluster.rules.name) {
                (source.kind, source.name) = cluster.origin.title();
                source.hand_over();
            }
            self.all.push(source);
        }
        before.into_iter().filter_map(|source| source.ledger).flat_map(Ledger::close).collect()
    }

    pub fn heard(&self) -> Heard {
        match self.all.iter().filter(|source| source.synced).count() {
            0 => Heard::None,
            synced if synced == self.all.len() => Heard::All,
            _ => Heard::Some,
        }
    }

    /// Some cluster has been heard as a whole: what it says can be served.
    pub fn is_synced(&self) -> bool {
        self.all.iter().any(|source| source.synced)
    }

    /// What this host is asked for first can be served: on a Node its own cluster, which is the first, elsewhere any.
    pub fn are_ready(&self) -> bool {
        if self.stand == StandPoint::Outside {
            return self.is_synced();
        }
        self.all.first().is_some_and(|source| source.synced)
    }

    pub fn are_whole(&self) -> bool {
        self.all.iter().all(|source| source.whole)
    }

    /// All are known as a whole, or are remembered, or have been waited for this long since the first was.
    pub fn are_settled(&self, patience: Duration) -> bool {
        let settled = |source: &Source| source.whole || source.remembered.is_some();
        self.all.iter().all(settled) || self.begun.is_some_and(|begun| begun.elapsed() >= patience)
    }

    /// Whose rows may be swept. `programmed`: the clusters that the tables hold anything of, also such as nobody asks for
    /// any more.
    pub fn whole<'a>(&self, programmed: impl Iterator<Item = &'a str>) -> Whole {
        if self.are_whole() {
            return Whole::Everything;
        }
        let unknown = |name: &&str| self.all.iter().all(|source| *source.rules.name != **name);
        let mut whole: BTreeSet<Name> = programmed.filter(unknown).map(Name::from).collect();
        whole.extend(self.all.iter().filter(|source| source.whole).map(|source| source.rules.name.clone()));
        if whole.is_empty() { Whole::Nothing } else { Whole::Clusters(whole) }
    }

    /// Clusters whose policies may not all be known yet.
    pub fn unlisted(&self) -> BTreeSet<Name> {
        let open = self.all.iter().filter(|source| !source.whole);
        open.map(|source| source.rules.name.clone()).collect()
    }

    /// A folder may do without the Node object of its host.
    pub fn needs_node(&self) -> bool {
        self.stand == StandPoint::Node && self.all.first().is_some_and(|source| source.kind != Origin::FOLDER)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use beeline_cluster::Claim;
    use beeline_model::fact::Node;

    fn cluster(name: &str) -> Cluster {
        let origin = Origin::Folder { path: "/nowhere".into(), claim: Claim::default() };
        let zone = beeline_dns::Zone::new(name, "cluster.local").unwrap();
        Cluster { rules: ClusterRules::named(name), origin, zone }
    }

    fn node(cluster: &str, name: &str) -> Fact {
        Fact::Node(Node::named(cluster, name))
    }

    fn batch(facts: Vec<Fact>, synced: bool) -> Batch {
        Batch { facts, synced, whole: synced, ..Batch::default() }
    }

    fn two() -> Sources {
        Sources::new(&[cluster("blue"), cluster("green")], StandPoint::Outside)
    }

    fn only(names: &[&str]) -> Whole {
        Whole::Clusters(names.iter().map(|name| Name::from(*name)).collect())
    }

    #[test]
    fn a_silent_cluster_neither_holds_up_nor_empties_the_others() {
        let mut sources = two();
        let held = sources.take(&"blue".into(), batch(vec![node("blue", "a")], false)).unwrap();
        assert!(held.facts.is_empty() && !sources.is_synced(), "half a list means nothing");
        let all = sources.take(&"blue".into(), batch(vec![node("blue", "b")], true)).unwrap();
        assert_eq!((all.facts.len(), all.first, sources.is_synced()), (2, true, true));
        assert_eq!(sources.whole(["blue", "green"].into_iter()), only(&["blue"]), "green's rows stay");
        assert_eq!(sources.whole(["green", "red"].into_iter()), only(&["blue", "red"]), "nobody asks for red");
        let next = sources.take(&"blue".into(), batch(vec![node("blue", "c")], true)).unwrap();
        assert!(!next.first);
        assert!(sources.take(&"green".into(), batch(vec![], true)).unwrap().first);
        assert_eq!(sources.whole(["red"].into_iter()), Whole::Everything);
        assert!(sources.take(&"red".into(), batch(vec![], true)).is_none());
    }

    fn range(net: &str) -> Fact {
        Fact::ServiceRange { cluster: "blue".into(), name: "k".into(), ranges: [net.parse().unwrap()].into() }
    }

    fn gone(name: &str) -> Fact {
        Fact::NodeGone { cluster: "blue".into(), name: name.into() }
    }

    #[test]
    fn ranges_are_known_before_the_rest() {
        let mut sources = two();
        let range = range("10.43.0.0/16");
        let taken = sources.take(&"blue".into(), batch(vec![node("blue", "a"), range.clone()], false)).unwrap();
        assert_eq!(taken.facts, [range]);
        assert_eq!(sources.iter().next().unwrap().ranges.len(), 1);
    }

    /// It lists its ranges at once and the rest late: in between, what was remembered serves.
    #[test]
    fn a_range_that_was_said_before_the_rest_is_remembered_stays() {
        let mut sources = two();
        sources.take(&"blue".into(), batch(vec![range("10.43.0.0/16")], false));
        let remembered = vec![range("10.96.0.0/16"), node("blue", "a")];
        let facts = sources.remember(&"blue".into(), remembered, SystemTime::now());
        assert_eq!(facts, Some(vec![node("blue", "a")]), "the older word on the range does not count");
        let taken = sources.take(&"blue".into(), batch(vec![node("blue", "b")], true)).unwrap();
        assert_eq!(taken.facts, [node("blue", "b"), gone("a")]);
        let ranges = &sources.iter().next().unwrap().ranges;
        assert_eq!(ranges.values().flatten().map(ToString::to_string).collect::<Vec<_>>(), ["10.43.0.0/16"]);
    }

    /// Its Services may not be listed, say: the rest goes on and on.
    #[test]
    fn what_waits_for_a_cluster_that_is_never_heard_does_not_grow() {
        let mut sources = two();
        for round in 0..1000 {
            let pod = format!("pod-{round}");
            sources.take(&"blue".into(), batch(vec![node("blue", "a"), node("blue", &pod)], false));
            sources.take(&"blue".into(), batch(vec![gone(&pod)], false));
        }
        let held = sources.iter().next().unwrap().waiting.len();
        assert_eq!(held, 1, "the last word on what is there");
        let taken = sources.take(&"blue".into(), batch(vec![], true)).unwrap();
        assert_eq!(taken.facts, [node("blue", "a")]);
    }

    /// What serves of it goes as soon as the next speaker says so and is heard.
    #[test]
    fn what_goes_while_the_next_speaker_is_not_heard_yet_goes_then() {
        let mut sources = two();
        sources.remember(&"blue".into(), vec![node("blue", "a"), node("blue", "b")], SystemTime::now());
        sources.take(&"blue".into(), batch(vec![node("blue", "a"), gone("a")], false));
        let part = Batch { synced: true, ..Batch::default() };
        assert_eq!(
            sources.take(&"blue".into(), part).unwrap().facts,
            [gone("a")],
            "and b may be in what is unreadable"
        );
    }

    #[test]
    fn another_speaker_takes_nothing_away_before_it_has_been_heard() {
        let mut sources = two();
        sources.take(&"blue".into(), batch(vec![node("blue", "a"), node("blue", "b")], true));
        assert!(sources.set(&[cluster("green"), cluster("blue")], &["blue".into()].into()).is_empty());
        assert_eq!(sources.iter().map(|source| &*source.rules.name).collect::<Vec<_>>(), ["green", "blue"]);
        assert!(sources.is_synced(), "what it said before holds");
        let part = sources.take(&"blue".into(), batch(vec![node("blue", "b")], false)).unwrap();
        assert!(part.facts.is_empty());
        let taken = sources.take(&"blue".into(), batch(vec![], true)).unwrap();
        let gone = Fact::NodeGone { cluster: "blue".into(), name: "a".into() };
        assert_eq!((taken.facts, taken.first), (vec![node("blue", "b"), gone], true));
    }

    #[test]
    fn a_node_waits_for_its_own_cluster() {
        for (stand, far_is_enough) in
            [(StandPoint::Node, false), (StandPoint::Edge, false), (StandPoint::Outside, true)]
        {
            let mut sources = Sources::new(&[cluster("home"), cluster("far")], stand);
            sources.take(&"far".into(), batch(vec![], true));
            assert_eq!((sources.is_synced(), sources.are_ready()), (true, far_is_enough), "{stand:?}");
            sources.take(&"home".into(), batch(vec![], true));
            assert!(sources.are_ready());
        }
    }

    #[test]
    fn with_a_cluster_goes_what_it_said() {
        let mut sources = two();
        sources.take(&"blue".into(), batch(vec![node("blue", "a")], true));
        let gone = sources.set(&[cluster("green")], &BTreeSet::new());
        assert_eq!(gone, [Fact::NodeGone { cluster: "blue".into(), name: "a".into() }]);
    }

    #[test]
    fn what_is_remembered_serves_until_the_cluster_is_heard() {
        let mut sources = two();
        let facts = vec![node("blue", "a"), node("blue", "b")];
        assert_eq!(sources.remember(&"blue".into(), facts.clone(), SystemTime::now()), Some(facts));
        assert!(sources.is_synced() && !sources.are_settled(Duration::MAX));
        assert_eq!(sources.whole(["blue"].into_iter()), Whole::Nothing, "it may be old");
        let taken = sources.take(&"blue".into(), batch(vec![node("blue", "b")], true)).unwrap();
        let gone = Fact::NodeGone { cluster: "blue".into(), name: "a".into() };
        assert_eq!((taken.facts, taken.first), (vec![node("blue", "b"), gone], true));
        assert!(sources.iter().next().unwrap().remembered.is_none());
        assert_eq!(sources.remember(&"blue".into(), vec![], SystemTime::now()), None, "too late");
    }

    #[test]
    fn a_copy_that_may_be_old_is_not_preferred_to_what_is_remembered() {
        let copy = |facts| Batch { facts, synced: true, second_hand: true, ..Batch::default() };
        let mut sources = two();
        let (blue, green) = (Name::from("blue"), Name::from("green"));
        sources.remember(&blue, vec![node("blue", "a")], SystemTime::now());
        let held = sources.take(&blue, copy(vec![node("blue", "deleted")])).unwrap();
        assert!(held.facts.is_empty() && sources.iter().next().unwrap().remembered.is_some());
        let gone = |name: &str| Fact::NodeGone { cluster: "blue".into(), name: name.into() };
        let taken = sources.take(&blue, batch(vec![node("blue", "b"), gone("deleted")], true)).unwrap();
        assert_eq!(taken.facts, [node("blue", "deleted"), node("blue", "b"), gone("deleted"), gone("a")]);
        let taken = sources.take(&green, copy(vec![node("green", "a")])).unwrap();
        assert_eq!((taken.facts.len(), taken.first), (1, true), "it is better than nothing");
    }
}
