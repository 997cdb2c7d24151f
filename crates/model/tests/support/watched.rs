//! A map that shows its rows to somebody after every write.

use beeline_model::op::{MapError, Maps, Memory, Op};
use beeline_model::row::{Rows, Sizes};

pub type Seen<'a> = Box<dyn FnMut(&Rows, &Op) + 'a>;

pub struct Watched<'a> {
    pub inner: &'a mut Memory,
    pub seen: Seen<'a>,
}

impl Maps for Watched<'_> {
    fn write(&mut self, op: &Op) -> Result<(), MapError> {
        self.inner.write(op)?;
        (self.seen)(&self.inner.rows, op);
        Ok(())
    }

    fn dump(&self) -> Result<Rows, MapError> {
        self.inner.dump()
    }

    fn grace(&mut self) -> Result<(), MapError> {
        self.inner.grace()
    }

    fn sizes(&self) -> Sizes {
        self.inner.sizes()
    }
}
