//! Allocators for the ids of rows and for ranges of the slot array.

use crate::id_map::IdMap;
use std::collections::{BTreeMap, VecDeque};

/// The ids of one kind.
#[derive(Debug)]
pub(super) struct IdAllocator {
    pub next: u32,
    end: u32,
    pub free: VecDeque<u32>,
}

impl IdAllocator {
    /// All ids below the highest used id that are not in use are free.
    pub fn restore<T>(first: u32, end: u32, used: &IdMap<T>) -> IdAllocator {
        let next = used.ids().next_back().map_or(first, |last| (last + 1).max(first));
        IdAllocator { next, end, free: (first..next).filter(|id| !used.contains(*id)).collect() }
    }

    pub fn allocate(&mut self) -> Option<u32> {
        if let Some(id) = self.free.pop_front() {
            return Some(id);
        }
        let fresh = (self.next < self.end).then_some(self.next)?;
        self.next += 1;
        Some(fresh)
    }
}

/// The free ranges of the slot array: base and length.
#[derive(Debug)]
pub(super) struct SlotAllocator(pub BTreeMap<u32, u32>);

impl SlotAllocator {
    pub fn allocate(&mut self, length: u32) -> Option<u32> {
        let (base, have) = self.0.iter().find(|(_, have)| **have >= length).map(|(b, h)| (*b, *h))?;
        self.0.remove(&base);
        if have > length {
            self.0.insert(base + length, have - length);
        }
        Some(base)
    }

    pub fn free(&mut self, base: u32, length: u32) {
        let (mut base, mut length) = (base, length);
        if let Some((before, have)) = self.0.range(..base).next_back().map(|(b, h)| (*b, *h))
            && before + have == base
        {
            self.0.remove(&before);
            (base, length) = (before, length + have);
        }
        if let Some(after) = self.0.remove(&(base + length)) {
            length += after;
        }
        self.0.insert(base, length);
    }

    pub fn reserve(&mut self, base: u32, length: u32) {
        let Some((start, have)) = self.0.range(..=base).next_back().map(|(b, h)| (*b, *h)) else { return };
        if start + have < base + length {
            return;
        }
        self.0.remove(&start);
        if start < base {
            self.0.insert(start, base - start);
        }
        if base + length < start + have {
            self.0.insert(base + length, start + have - base - length);
        }
    }
}
