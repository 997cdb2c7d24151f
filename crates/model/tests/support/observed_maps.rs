//! Maps in memory that call a function after every write.

use beeline_model::op::{FaultyMaps, MapError, Maps, MemoryMaps, Op};
use beeline_model::row::{Rows, Sizes};

pub type Observe<'a> = Box<dyn FnMut(&Rows, &Op) + 'a>;

pub struct ObservedMaps<'a> {
    pub inner: &'a mut MemoryMaps,
    /// Called after every successful write.
    pub observe: Observe<'a>,
}

/// With odd seeds, one write in eight fails in the first nine rounds.
pub fn failing_with_odd_seeds<'a>(
    inner: &'a mut MemoryMaps,
    observe: Observe<'a>,
    seed: u64,
    round: u64,
) -> FaultyMaps<ObservedMaps<'a>> {
    let mut coin = fastrand::Rng::with_seed(seed + round);
    let fails = move |_| seed % 2 == 1 && round < 9 && coin.u8(..8) == 0;
    FaultyMaps::new(ObservedMaps { inner, observe }, fails)
}

impl Maps for ObservedMaps<'_> {
    fn write(&mut self, op: &Op) -> Result<(), MapError> {
        self.inner.write(op)?;
        (self.observe)(&self.inner.rows, op);
        Ok(())
    }

    fn dump(&self) -> Result<Rows, MapError> {
        self.inner.dump()
    }

    fn wait_grace_period(&mut self) -> Result<(), MapError> {
        self.inner.wait_grace_period()
    }

    fn sizes(&self) -> Sizes {
        self.inner.sizes()
    }
}
