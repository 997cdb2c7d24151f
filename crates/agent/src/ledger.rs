//! What a cluster's source has said, by name. When another source begins to speak for the same cluster (its configuration
//! changed, or what was remembered of it is replaced by what it says now), the new one does not know what the old one said:
//! only once it has said everything is it sure what is gone.

use beeline_model::fact::{Fact, PodName, SliceName};
use beeline_model::policy::PolicyName;
use beeline_model::{Name, OwnerName};
use std::collections::HashSet;

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Key {
    Service(OwnerName),
    Slice(SliceName),
    Node(Name),
    Pod(PodName),
    Namespace(Name),
    Policy(PolicyName),
    PolicySlice(SliceName),
    Range(Name),
}

impl Key {
    /// And whether it is there.
    pub fn of(fact: &Fact) -> (Key, bool) {
        match fact {
            Fact::Service(service) => (Key::Service(service.name.clone()), true),
            Fact::NamedService(named) => (Key::Service(named.name.clone()), true),
            Fact::ServiceGone(name) => (Key::Service(name.clone()), false),
            Fact::Slice(slice) | Fact::NamedSlice(slice) => (Key::Slice(slice.name.clone()), true),
            Fact::SliceGone(name) => (Key::Slice(name.clone()), false),
            Fact::Node(node) => (Key::Node(node.name.clone()), true),
            Fact::NodeGone { name, .. } => (Key::Node(name.clone()), false),
            Fact::Pod(pod) => (Key::Pod(pod.name.clone()), true),
            Fact::PodGone(name) => (Key::Pod(name.clone()), false),
            Fact::Namespace(namespace) => (Key::Namespace(namespace.name.clone()), true),
            Fact::NamespaceGone { name, .. } => (Key::Namespace(name.clone()), false),
            Fact::Policy(policy) => (Key::Policy(policy.name.clone()), true),
            Fact::PolicyGone(name) => (Key::Policy(name.clone()), false),
            Fact::PolicySlice(slice) => (Key::PolicySlice(slice.name.clone()), true),
            Fact::PolicySliceGone(name) => (Key::PolicySlice(name.clone()), false),
            Fact::ServiceRange { name, .. } => (Key::Range(name.clone()), true),
            Fact::ServiceRangeGone { name, .. } => (Key::Range(name.clone()), false),
        }
    }

    fn gone(self, cluster: &Name) -> Fact {
        let cluster = cluster.clone();
        match self {
            Key::Service(name) => Fact::ServiceGone(name),
            Key::Slice(name) => Fact::SliceGone(name),
            Key::Node(name) => Fact::NodeGone { cluster, name },
            Key::Pod(name) => Fact::PodGone(name),
            Key::Namespace(name) => Fact::NamespaceGone { cluster, name },
            Key::Policy(name) => Fact::PolicyGone(name),
            Key::PolicySlice(name) => Fact::PolicySliceGone(name),
            Key::Range(name) => Fact::ServiceRangeGone { cluster, name },
        }
    }
}

#[derive(Debug)]
pub struct Ledger {
    cluster: Name,
    known: HashSet<Key>,
    /// By an earlier speaker, and not yet by the one who speaks now.
    unsaid: HashSet<Key>,
}

impl Ledger {
    pub fn new(cluster: Name) -> Ledger {
        Ledger { cluster, known: HashSet::new(), unsaid: HashSet::new() }
    }

    pub fn note(&mut self, fact: &Fact) {
        let (key, there) = Key::of(fact);
        self.unsaid.remove(&key);
        if there {
            self.known.insert(key)
        } else {
            self.known.remove(&key)
        };
    }

    /// Whether anybody has said it.
    pub fn holds(&self, key: &Key) -> bool {
        self.known.contains(key) || self.unsaid.contains(key)
    }

    /// What was remembered on disk, as of an earlier speaker. Gives what nobody has said since: it is the older word.
    pub fn recall(&mut self, mut facts: Vec<Fact>) -> Vec<Fact> {
        facts.retain(|fact| {
            let (key, _) = Key::of(fact);
            !self.known.contains(&key) && self.unsaid.insert(key)
        });
        facts
    }

    /// Somebody else speaks from now on.
    pub fn hand_over(&mut self) {
        self.unsaid.extend(std::mem::take(&mut self.known));
    }

    /// Whoever speaks now has said everything: what it did not name is gone.
    pub fn settle(&mut self) -> Vec<Fact> {
        let cluster = self.cluster.clone();
        std::mem::take(&mut self.unsaid).into_iter().map(|key| key.gone(&cluster)).collect()
    }

    /// The cluster itself is gone.
    pub fn close(mut self) -> Vec<Fact> {
        self.hand_over();
        self.settle()
    }

    pub fn len(&self) -> usize {
        self.known.len() + self.unsaid.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use beeline_model::fact::Node;

    fn node(name: &str) -> Fact {
        Fact::Node(Node::named("blue", name))
    }

    fn gone(facts: Vec<Fact>) -> Vec<String> {
        let name = |fact: Fact| match fact {
            Fact::NodeGone { cluster, name } if *cluster == *"blue" => name.to_string(),
            other => panic!("{other:?}"),
        };
        let mut names: Vec<String> = facts.into_iter().map(name).collect();
        names.sort();
        names
    }

    #[test]
    fn what_the_next_speaker_does_not_say_is_gone_when_it_has_said_everything() {
        let mut ledger = Ledger::new("blue".into());
        ["a", "b", "c"].iter().for_each(|name| ledger.note(&node(name)));
        ledger.note(&Fact::NodeGone { cluster: "blue".into(), name: "c".into() });
        assert_eq!(gone(ledger.settle()), [""; 0], "one speaker takes back what it said by itself");
        ledger.hand_over();
        ledger.note(&node("b"));
        ledger.note(&node("d"));
        assert_eq!((ledger.len(), gone(ledger.settle())), (3, vec!["a".to_owned()]));
        assert_eq!(gone(ledger.settle()), [""; 0]);
        assert_eq!(gone(ledger.close()), ["b", "d"]);
    }

    #[test]
    fn a_speaker_that_is_replaced_before_it_has_said_everything_takes_nothing_away() {
        let mut ledger = Ledger::new("blue".into());
        ledger.note(&node("a"));
        ledger.hand_over();
        ledger.note(&node("b"));
        ledger.hand_over();
        ledger.note(&node("a"));
        assert_eq!(gone(ledger.settle()), ["b"]);
    }
}
