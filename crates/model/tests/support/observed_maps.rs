//! Maps in memory that call a function after every write, and may fail writes.

use beeline_model::op::{MapError, Maps, MemoryMaps, Op};
use beeline_model::row::{Rows, Sizes};

pub type Observe<'a> = Box<dyn FnMut(&Rows, &Op) + 'a>;

pub struct ObservedMaps<'a> {
    pub inner: &'a mut MemoryMaps,
    /// Called after every successful write.
    pub observe: Observe<'a>,
    /// Called before every write. Returning true fails the write.
    pub fails: Box<dyn FnMut() -> bool + 'a>,
}

impl Maps for ObservedMaps<'_> {
    fn write(&mut self, op: &Op) -> Result<(), MapError> {
        if (self.fails)() {
            return Err(MapError::Failed("made to fail by the test".into()));
        }
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
