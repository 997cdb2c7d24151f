//! Announces to the BPF programs that rows of a hash map are being replaced.
//!
//! The kernel does not replace a hash row atomically: it inserts the new element and then removes the old one, so a
//! concurrent lookup can miss both. A lookup that finds nothing is repeated if the word `exchange` is odd or has changed.
//! Only one thread, the agent's main loop, writes these maps.

use crate::mapped::MappedArray;
use crate::object::MapSet;
use crate::{Result, abi};
use std::mem::offset_of;
use std::sync::atomic::{Ordering, fence};

const EXCHANGE: usize = offset_of!(abi::filter, exchange);

pub struct ExchangeCounter {
    filter: MappedArray<abi::filter>,
}

impl ExchangeCounter {
    pub fn new(maps: &MapSet) -> Result<ExchangeCounter> {
        Ok(ExchangeCounter { filter: maps.mapped("filter")? })
    }

    /// Replaces hash rows by running `write`. An agent that was killed during `write` left the word odd; the next call
    /// corrects that.
    pub fn announce<T>(&self, write: impl FnOnce() -> T) -> T {
        let odd = self.filter.load::<u64>(0, EXCHANGE) | 1;
        self.filter.store(0, EXCHANGE, odd);
        // The odd value must be visible before the rows change. A release store only orders earlier stores before it.
        fence(Ordering::SeqCst);
        let result = write();
        self.filter.store(0, EXCHANGE, odd + 1);
        result
    }
}
