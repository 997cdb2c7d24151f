//! Who has a cgroup. A static pod's copy tells another uid than its own, and whoever may create pods can write one that
//! tells the same: of two the older counts.

use beeline_model::fact::PodName;
use std::collections::HashMap;

/// Of static pods only: other pods' uids are the API server's, and nobody has another's.
#[derive(Default)]
pub(crate) struct Twins {
    holders: HashMap<Box<str>, (i64, PodName)>,
    uids: HashMap<PodName, Box<str>>,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    Ours,
    /// Another is older: we do not count.
    Younger(PodName),
    /// Another, which is younger, counts no more.
    Taken(PodName),
}

impl Twins {
    pub(crate) fn claim(&mut self, name: &PodName, uid: &str, created: i64) -> Turn {
        if self.uids.get(name).is_some_and(|before| **before != *uid) {
            self.release(name);
        }
        let before = match self.holders.get(uid) {
            Some((since, holder)) if holder != name && (*since, holder) <= (created, name) => {
                return Turn::Younger(holder.clone());
            }
            Some((_, holder)) if holder != name => Some(holder.clone()),
            _ => None,
        };
        before.iter().for_each(|holder| self.release(holder));
        self.holders.insert(uid.into(), (created, name.clone()));
        self.uids.insert(name.clone(), uid.into());
        before.map_or(Turn::Ours, Turn::Taken)
    }

    /// It is gone. Who claimed the same counts with its next change.
    pub(crate) fn release(&mut self, name: &PodName) {
        if let Some(uid) = self.uids.remove(name) {
            self.holders.remove(&uid);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_two_the_older_counts_in_either_order() {
        let name = |name: &str| PodName { cluster: "local".into(), namespace: "a".into(), name: name.into() };
        let (old, young) = (name("z"), name("b"));
        let mut twins = Twins::default();
        assert_eq!(twins.claim(&young, "u", 20), Turn::Ours);
        assert_eq!(twins.claim(&old, "u", 10), Turn::Taken(young.clone()));
        assert_eq!(twins.claim(&young, "u", 20), Turn::Younger(old.clone()));
        assert_eq!(twins.claim(&old, "u", 10), Turn::Ours, "again");
        assert_eq!(twins.claim(&name("c"), "u", 10), Turn::Taken(old.clone()), "of the same second, by name");
        assert_eq!(twins.claim(&name("c"), "v", 10), Turn::Ours, "its manifest changed");
        assert_eq!(twins.claim(&young, "u", 20), Turn::Ours);
        twins.release(&young);
        assert_eq!(twins.claim(&old, "u", 30), Turn::Ours);
    }
}
