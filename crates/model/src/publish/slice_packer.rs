//! Packs members into numbered slices of at most 100. A member keeps its slice, so that a change of one member rewrites
//! one slice only. Free entries are filled before a new slice is created; members are never moved between slices,
//! because that would rewrite slices without a change.

use std::collections::{BTreeMap, BTreeSet};

/// Maximum number of endpoints per slice, as in Kubernetes' own EndpointSlice controller. Every reader receives the
/// whole slice after a change.
pub const MAX_ENDPOINTS_PER_SLICE: usize = 100;

#[derive(Debug)]
pub struct PackedSlice<G, M, V> {
    /// What all members have in common, for example family and ports.
    pub group: G,
    pub members: BTreeMap<M, V>,
}

#[derive(Debug)]
pub struct SlicePacker<G, M, V> {
    slices: BTreeMap<u32, PackedSlice<G, M, V>>,
    slice_of: BTreeMap<M, u32>,
    changed: BTreeSet<u32>,
}

impl<G, M, V> Default for SlicePacker<G, M, V> {
    fn default() -> Self {
        SlicePacker { slices: BTreeMap::new(), slice_of: BTreeMap::new(), changed: BTreeSet::new() }
    }
}

impl<G: Clone + Eq, M: Clone + Ord, V: PartialEq> SlicePacker<G, M, V> {
    /// `earlier` is the slice in which an earlier process had put the member.
    pub fn insert(&mut self, member: M, group: &G, value: V, earlier: Option<u32>) {
        if let Some(at) = self.slice_of.get(&member).copied() {
            if self.slices[&at].group == *group {
                return self.replace(at, member, value);
            }
            self.remove(&member);
        }
        let at = earlier.filter(|at| self.has_capacity(*at, group)).unwrap_or_else(|| self.find_slice(group));
        let slice =
            self.slices.entry(at).or_insert_with(|| PackedSlice { group: group.clone(), members: BTreeMap::new() });
        slice.members.insert(member.clone(), value);
        self.slice_of.insert(member, at);
        self.changed.insert(at);
    }

    fn replace(&mut self, at: u32, member: M, value: V) {
        let Some(slice) = self.slices.get_mut(&at) else { return };
        if slice.members.get(&member) != Some(&value) {
            slice.members.insert(member, value);
            self.changed.insert(at);
        }
    }

    pub fn remove(&mut self, member: &M) {
        let Some(at) = self.slice_of.remove(member) else { return };
        let Some(slice) = self.slices.get_mut(&at) else { return };
        slice.members.remove(member);
        if slice.members.is_empty() {
            self.slices.remove(&at);
        }
        self.changed.insert(at);
    }

    fn has_capacity(&self, at: u32, group: &G) -> bool {
        self.slices.get(&at).is_none_or(|slice| slice.group == *group && slice.members.len() < MAX_ENDPOINTS_PER_SLICE)
    }

    fn find_slice(&self, group: &G) -> u32 {
        let with_capacity = self.slices.keys().copied().find(|at| self.has_capacity(*at, group));
        with_capacity.unwrap_or_else(|| (0..).find(|at| !self.slices.contains_key(at)).unwrap_or(u32::MAX))
    }

    pub fn numbers(&self) -> impl Iterator<Item = u32> {
        self.slices.keys().copied()
    }

    pub fn contains(&self, member: &M) -> bool {
        self.slice_of.contains_key(member)
    }

    /// `None` if there is no such slice.
    pub fn get(&self, at: u32) -> Option<&PackedSlice<G, M, V>> {
        self.slices.get(&at)
    }

    /// The numbers of the slices that changed since the last call.
    pub fn take_changed(&mut self) -> BTreeSet<u32> {
        std::mem::take(&mut self.changed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_keep_their_slice() {
        let mut packer: SlicePacker<&str, u32, u32> = SlicePacker::default();
        (0..250).for_each(|member| packer.insert(member, &"web", 0, None));
        assert_eq!((packer.take_changed().len(), packer.get(0).unwrap().members.len()), (3, MAX_ENDPOINTS_PER_SLICE));
        packer.remove(&7);
        assert_eq!(packer.take_changed(), BTreeSet::from([0]));
        packer.insert(120, &"web", 1, None);
        assert_eq!(packer.take_changed(), BTreeSet::from([1]));
        packer.insert(120, &"web", 1, None);
        assert!(packer.take_changed().is_empty(), "nothing changed");
        packer.insert(900, &"web", 0, None);
        assert_eq!(packer.take_changed(), BTreeSet::from([0]), "the free entry is filled");
        packer.insert(901, &"other", 0, None);
        assert_eq!(packer.take_changed(), BTreeSet::from([3]), "another group has slices of its own");
    }

    #[test]
    fn an_earlier_slice_is_used_while_it_fits() {
        let mut packer: SlicePacker<&str, u32, u32> = SlicePacker::default();
        packer.insert(1, &"web", 0, Some(5));
        packer.insert(2, &"other", 0, Some(5));
        assert_eq!(packer.take_changed(), BTreeSet::from([0, 5]));
        assert_eq!(packer.get(5).unwrap().group, "web");
    }
}
