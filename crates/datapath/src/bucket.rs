//! Reads the levels of token buckets, which the BPF programs write.

use crate::mapped::from_bytes;
use crate::object::MapSet;
use crate::{Context, Result, abi, wire};
use beeline_model::bucket::BucketLevel;
use beeline_model::row::{PolicyId, Rows};
use libbpf_rs::{MapCore, MapFlags, MapHandle};

pub struct BucketLevels {
    map: MapHandle,
}

impl BucketLevels {
    pub fn new(maps: &MapSet) -> Result<BucketLevels> {
        Ok(BucketLevels { map: maps.handle("level")? })
    }

    fn row(&self, policy: PolicyId) -> Result<Option<Vec<u8>>> {
        // The flag takes the spin lock of the row, so that the read is consistent.
        self.map.lookup(&policy.to_ne_bytes(), MapFlags::LOCK).context(|| "cannot read the level table".into())
    }

    pub fn of(&self, policy: PolicyId) -> Result<BucketLevel> {
        let row = self.row(policy)?.and_then(|bytes| from_bytes::<abi::level>(&bytes));
        Ok(row.as_ref().map(wire::read_level).unwrap_or_default())
    }

    /// Copies the levels of other tables, for the policies in these rows. Tokens that the old programs take between this
    /// copy and the switch to the new programs, a few milliseconds later, are not counted against the limit.
    pub fn copy_from(&self, from: &BucketLevels, rows: &Rows) -> Result<()> {
        for policy in rows.buckets.keys() {
            if let Some(row) = from.row(*policy)? {
                let result = self.map.update(&policy.to_ne_bytes(), &row, MapFlags::ANY);
                result.context(|| "cannot copy the bucket levels to the new tables".into())?;
            }
        }
        Ok(())
    }
}
