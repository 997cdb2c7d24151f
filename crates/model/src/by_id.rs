//! Rows by their id. Ids are handed out densely, the lowest free one first, and never exceed the size of their kernel
//! map: a place in a vector is smaller than an entry of a hash table, and needs no hash and no rehashing as it grows.

use std::ops::Index;

#[derive(Debug, Clone)]
pub struct ById<T> {
    places: Vec<Option<T>>,
    len: usize,
}

impl<T> Default for ById<T> {
    fn default() -> ById<T> {
        ById { places: Vec::new(), len: 0 }
    }
}

impl<T> ById<T> {
    pub fn get(&self, id: u32) -> Option<&T> {
        self.places.get(id as usize)?.as_ref()
    }

    pub fn get_mut(&mut self, id: u32) -> Option<&mut T> {
        self.places.get_mut(id as usize)?.as_mut()
    }

    pub fn contains(&self, id: u32) -> bool {
        self.get(id).is_some()
    }

    pub fn insert(&mut self, id: u32, row: T) -> Option<T> {
        let old = self.place(id).replace(row);
        self.len += usize::from(old.is_none());
        old
    }

    pub fn remove(&mut self, id: u32) -> Option<T> {
        let old = self.places.get_mut(id as usize)?.take();
        self.len -= usize::from(old.is_some());
        old
    }

    /// The row, made if there is none.
    pub fn or_default(&mut self, id: u32) -> &mut T
    where
        T: Default,
    {
        self.len += usize::from(!self.contains(id));
        self.place(id).get_or_insert_default()
    }

    fn place(&mut self, id: u32) -> &mut Option<T> {
        let index = id as usize;
        if index >= self.places.len() {
            self.places.resize_with(index + 1, || None);
        }
        &mut self.places[index]
    }

    pub fn retain(&mut self, mut keep: impl FnMut(u32, &T) -> bool) {
        for (id, place) in self.places.iter_mut().enumerate() {
            if place.as_ref().is_some_and(|row| !keep(id as u32, row)) {
                *place = None;
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

    /// In the order of the ids.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (u32, &T)> {
        self.places.iter().enumerate().filter_map(|(id, row)| Some((id as u32, row.as_ref()?)))
    }

    pub fn ids(&self) -> impl DoubleEndedIterator<Item = u32> {
        self.iter().map(|(id, _)| id)
    }

    pub fn values(&self) -> impl Iterator<Item = &T> {
        self.places.iter().flatten()
    }
}

impl ById<u32> {
    /// One more or one less; what comes to nothing is gone.
    pub fn count(&mut self, id: u32, step: i32) {
        let count = self.get(id).copied().unwrap_or(0).saturating_add_signed(step);
        match count {
            0 => drop(self.remove(id)),
            _ => drop(self.insert(id, count)),
        }
    }
}

impl<T> Index<u32> for ById<T> {
    type Output = T;

    fn index(&self, id: u32) -> &T {
        self.get(id).expect("an id that has a row")
    }
}

/// By what they hold: room at the end is no difference.
impl<T: PartialEq> PartialEq for ById<T> {
    fn eq(&self, other: &ById<T>) -> bool {
        self.len == other.len && self.iter().eq(other.iter())
    }
}

impl<T: Eq> Eq for ById<T> {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_no_difference_and_counts_go() {
        let (mut a, mut b) = (ById::default(), ById::default());
        a.insert(3, 'x');
        b.insert(3, 'x');
        b.insert(90, 'y');
        assert_ne!(a, b);
        assert_eq!((b.remove(90), b.remove(91), b.len()), (Some('y'), None, 1));
        assert_eq!(a, b);
        let mut counts = ById::default();
        counts.count(7, 1);
        counts.count(7, 1);
        counts.count(7, -1);
        assert_eq!(counts.get(7), Some(&1));
        counts.count(7, -1);
        assert!(counts.is_empty() && !counts.contains(7));
    }
}
