//! Members in numbered slices of at most a hundred. Who has a place keeps it, so that a change of one member rewrites one
//! slice, and every reader gets that one anew and no other. Slices that became thin are filled up before another is made;
//! members are never moved to fill them, which would rewrite slices that nothing happened to.

use std::collections::{BTreeMap, BTreeSet};

/// What a slice holds at most, as Kubernetes' own controller has it: a change costs this much text at every reader.
pub const ROOM: usize = 100;

#[derive(Debug)]
pub struct Bin<G, M, V> {
    /// What all of its members have in common: family and ports.
    pub group: G,
    pub members: BTreeMap<M, V>,
}

#[derive(Debug)]
pub struct Pack<G, M, V> {
    bins: BTreeMap<u32, Bin<G, M, V>>,
    places: BTreeMap<M, u32>,
    changed: BTreeSet<u32>,
}

impl<G, M, V> Default for Pack<G, M, V> {
    fn default() -> Self {
        Pack { bins: BTreeMap::new(), places: BTreeMap::new(), changed: BTreeSet::new() }
    }
}

impl<G: Clone + Eq, M: Clone + Ord, V: PartialEq> Pack<G, M, V> {
    /// `earlier`: where an earlier run of ours left it.
    pub fn put(&mut self, member: M, group: &G, value: V, earlier: Option<u32>) {
        if let Some(at) = self.places.get(&member).copied() {
            if self.bins[&at].group == *group {
                return self.replace(at, member, value);
            }
            self.remove(&member);
        }
        let at = earlier.filter(|at| self.has_room(*at, group)).unwrap_or_else(|| self.find_room(group));
        let bin = self.bins.entry(at).or_insert_with(|| Bin { group: group.clone(), members: BTreeMap::new() });
        bin.members.insert(member.clone(), value);
        self.places.insert(member, at);
        self.changed.insert(at);
    }

    fn replace(&mut self, at: u32, member: M, value: V) {
        let Some(bin) = self.bins.get_mut(&at) else { return };
        if bin.members.get(&member) != Some(&value) {
            bin.members.insert(member, value);
            self.changed.insert(at);
        }
    }

    pub fn remove(&mut self, member: &M) {
        let Some(at) = self.places.remove(member) else { return };
        let Some(bin) = self.bins.get_mut(&at) else { return };
        bin.members.remove(member);
        if bin.members.is_empty() {
            self.bins.remove(&at);
        }
        self.changed.insert(at);
    }

    fn has_room(&self, at: u32, group: &G) -> bool {
        self.bins.get(&at).is_none_or(|bin| bin.group == *group && bin.members.len() < ROOM)
    }

    fn find_room(&self, group: &G) -> u32 {
        let thin = self.bins.keys().copied().find(|at| self.has_room(*at, group));
        thin.unwrap_or_else(|| (0..).find(|at| !self.bins.contains_key(at)).unwrap_or(u32::MAX))
    }

    pub fn numbers(&self) -> impl Iterator<Item = u32> {
        self.bins.keys().copied()
    }

    /// `None`: there is no such slice (any more).
    pub fn bin(&self, at: u32) -> Option<&Bin<G, M, V>> {
        self.bins.get(&at)
    }

    /// Numbers of the slices that are other than when last asked.
    pub fn take_changed(&mut self) -> BTreeSet<u32> {
        std::mem::take(&mut self.changed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_a_place_keeps_it() {
        let mut pack: Pack<&str, u32, u32> = Pack::default();
        (0..250).for_each(|member| pack.put(member, &"web", 0, None));
        assert_eq!((pack.take_changed().len(), pack.bin(0).unwrap().members.len()), (3, ROOM));
        pack.remove(&7);
        assert_eq!(pack.take_changed(), BTreeSet::from([0]));
        pack.put(120, &"web", 1, None);
        assert_eq!(pack.take_changed(), BTreeSet::from([1]));
        pack.put(120, &"web", 1, None);
        assert!(pack.take_changed().is_empty(), "nothing new");
        pack.put(900, &"web", 0, None);
        assert_eq!(pack.take_changed(), BTreeSet::from([0]), "the hole is filled");
        pack.put(901, &"other", 0, None);
        assert_eq!(pack.take_changed(), BTreeSet::from([3]), "another group has slices of its own");
    }

    #[test]
    fn an_earlier_place_counts_where_it_is_free() {
        let mut pack: Pack<&str, u32, u32> = Pack::default();
        pack.put(1, &"web", 0, Some(5));
        pack.put(2, &"other", 0, Some(5));
        assert_eq!(pack.take_changed(), BTreeSet::from([0, 5]));
        assert_eq!(pack.bin(5).unwrap().group, "web");
    }
}
