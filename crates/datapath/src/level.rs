//! What buckets hold, as the kernel half keeps it.

use crate::mapped::from_bytes;
use crate::object::MapSet;
use crate::{Context, Result, abi, wire};
use beeline_model::bucket::Level;
use beeline_model::row::{PolicyId, Rows};
use libbpf_rs::{MapCore, MapFlags, MapHandle};

pub struct Levels {
    map: MapHandle,
}

impl Levels {
    pub fn new(maps: &MapSet) -> Result<Levels> {
        Ok(Levels { map: maps.handle("level")? })
    }

    fn row(&self, policy: PolicyId) -> Result<Option<Vec<u8>>> {
        // The flag takes each row's own lock: no dial is seen half way.
        self.map.lookup(&policy.to_ne_bytes(), MapFlags::LOCK).context(|| "cannot read the level table".into())
    }

    pub fn of(&self, policy: PolicyId) -> Result<Level> {
        let row = self.row(policy)?.and_then(|bytes| from_bytes::<abi::level>(&bytes));
        Ok(row.as_ref().map(wire::read_level).unwrap_or_default())
    }

    /// Takes over what other tables hold for the policies that were carried over. What the old programs hand out until
    /// the flip, a few milliseconds later, is handed out beyond the limit.
    pub fn carry(&self, from: &Levels, rows: &Rows) -> Result<()> {
        for policy in rows.buckets.keys() {
            if let Some(row) = from.row(*policy)? {
                let put = self.map.update(&policy.to_ne_bytes(), &row, MapFlags::ANY);
                put.context(|| "cannot carry the buckets over".into())?;
            }
        }
        Ok(())
    }
}
