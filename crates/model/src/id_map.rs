//! A map from ids to rows. Ids are allocated densely, the lowest free id first, and never exceed the size of their BPF
//! map. A vector indexed by id is therefore smaller than a hash table, and never rehashes.

use std::ops::Index;

#[derive(Debug, Clone)]
pub struct IdMap<T> {
    slots: Vec<Option<T>>,
    len: usize,
}

impl<T> Default for IdMap<T> {
    fn default() -> IdMap<T> {
        IdMap { slots: Vec::new(), len: 0 }
    }
}

impl<T> IdMap<T> {
    pub fn get(&self, id: u32) -> Option<&T> {
        self.slots.get(id as usize)?.as_ref()
    }

    pub fn get_mut(&mut self, id: u32) -> Option<&mut T> {
        self.slots.get_mut(id as usize)?.as_mut()
    }

    pub fn contains(&self, id: u32) -> bool {
        self.get(id).is_some()
    }

    pub fn insert(&mut self, id: u32, row: T) -> Option<T> {
        let old = self.slot(id).replace(row);
        self.len += usize::from(old.is_none());
        old
    }

    pub fn remove(&mut self, id: u32) -> Option<T> {
        let old = self.slots.get_mut(id as usize)?.take();
        self.len -= usize::from(old.is_some());
        old
    }

    /// Returns the row, after inserting a default value if there is none.
    pub fn or_default(&mut self, id: u32) -> &mut T
    where
        T: Default,
    {
        self.len += usize::from(!self.contains(id));
        self.slot(id).get_or_insert_default()
    }

    fn slot(&mut self, id: u32) -> &mut Option<T> {
        let index = id as usize;
        if index >= self.slots.len() {
            self.slots.resize_with(index + 1, || None);
        }
        &mut self.slots[index]
    }

    pub fn retain(&mut self, mut keep: impl FnMut(u32, &T) -> bool) {
        for (id, slot) in self.slots.iter_mut().enumerate() {
            if slot.as_ref().is_some_and(|row| !keep(id as u32, row)) {
                *slot = None;
                self.len -= 1;
            }
        }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// In ascending order of ids.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (u32, &T)> {
        self.slots.iter().enumerate().filter_map(|(id, row)| Some((id as u32, row.as_ref()?)))
    }

    pub fn ids(&self) -> impl DoubleEndedIterator<Item = u32> {
        self.iter().map(|(id, _)| id)
    }

    pub fn values(&self) -> impl Iterator<Item = &T> {
        self.slots.iter().flatten()
    }
}

impl IdMap<u32> {
    /// Adds `step` to the count of an id. An id whose count becomes 0 is removed.
    pub fn count(&mut self, id: u32, step: i32) {
        let count = self.get(id).copied().unwrap_or(0).saturating_add_signed(step);
        match count {
            0 => drop(self.remove(id)),
            _ => drop(self.insert(id, count)),
        }
    }
}

impl<T> Index<u32> for IdMap<T> {
    type Output = T;

    fn index(&self, id: u32) -> &T {
        self.get(id).expect("no row has this id")
    }
}

/// Compares the rows only. Unused capacity is ignored.
impl<T: PartialEq> PartialEq for IdMap<T> {
    fn eq(&self, other: &IdMap<T>) -> bool {
        self.len == other.len && self.iter().eq(other.iter())
    }
}

impl<T: Eq> Eq for IdMap<T> {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unused_capacity_does_not_affect_equality_and_zero_counts_are_removed() {
        let (mut a, mut b) = (IdMap::default(), IdMap::default());
        a.insert(3, 'x');
        b.insert(3, 'x');
        b.insert(90, 'y');
        assert_ne!(a, b);
        assert_eq!((b.remove(90), b.remove(91), b.len()), (Some('y'), None, 1));
        assert_eq!(a, b);
        let mut counts = IdMap::default();
        counts.count(7, 1);
        counts.count(7, 1);
        counts.count(7, -1);
        assert_eq!(counts.get(7), Some(&1));
        counts.count(7, -1);
        assert!(counts.is_empty() && !counts.contains(7));
    }
}
