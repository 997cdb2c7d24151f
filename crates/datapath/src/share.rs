//! Shares: what each pod uses of the memory that the BPF programs allocate for all pods (bpf/share.h). The programs count;
//! this module reads the counts and removes what no dial can use any more.

use crate::mapped::{MappedArray, bytes_of, from_bytes};
use crate::object::MapSet;
use crate::{Context, Error, Result, abi};
use beeline_model::row::Sizes;
use libbpf_rs::{MapCore, MapFlags, MapHandle, Object, ProgramInput};
use serde::Serialize;
use std::collections::HashSet;
use std::os::unix::fs::DirEntryExt;
use std::path::Path;

/// The share of all cgroups for which the map `share` has no row.
const OTHERS: u64 = abi::share_id::SHARE_OTHERS.0 as u64;

/// The number of affinity rows that each share may use in any case. 256 shares may use all of them.
pub fn affinity_reserve(sizes: &Sizes) -> u32 {
    (affinity_limit(sizes) / 256).max(1)
}

/// The number of affinity rows that all shares together may use above their reserves.
pub fn affinity_limit(sizes: &Sizes) -> u32 {
    sizes.affinity / 2
}

/// What all shares use together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ShareUsage {
    pub record_bytes: u64,
    pub affinity_rows: u64,
    pub shares: usize,
}

pub struct ShareTable {
    shares: MapHandle,
    total: MappedArray<abi::share>,
}

impl ShareTable {
    pub fn new(maps: &MapSet) -> Result<ShareTable> {
        Ok(ShareTable { shares: maps.handle("share")?, total: maps.mapped("share_total")? })
    }

    /// Creates the row of the share for which the table has no room, while the table has room for it.
    pub fn create_others(&self) -> Result<()> {
        let missing = self.shares.lookup(&OTHERS.to_ne_bytes(), MapFlags::ANY).is_ok_and(|row| row.is_none());
        if !missing {
            return Ok(());
        }
        let row = bytes_of(&abi::share::default()).to_vec();
        self.shares.update(&OTHERS.to_ne_bytes(), &row, MapFlags::ANY).context(|| "cannot write the map share".into())
    }

    fn rows(&self) -> impl Iterator<Item = (u64, abi::share)> {
        self.shares.keys().filter_map(|key| {
            let row = self.shares.lookup(&key, MapFlags::ANY).ok()??;
            Some((from_bytes(&key)?, from_bytes(&row)?))
        })
    }

    pub fn usage(&self) -> ShareUsage {
        let mut usage = ShareUsage::default();
        for (id, row) in self.rows() {
            usage.record_bytes += row.record_bytes.max(0) as u64;
            usage.affinity_rows += row.affinity_rows.max(0) as u64;
            usage.shares += usize::from(id != OTHERS);
        }
        usage
    }

    /// The bytes of socket records that count against the limit of all shares.
    pub fn record_bytes_above_reserves(&self) -> u64 {
        self.total.read(0).record_bytes.max(0) as u64
    }

    /// Removes expired affinity rows, and the shares of cgroups that are gone. `root` is the agent's cgroup, `level` the
    /// number of levels below it at which shares are. Returns the number of affinity rows that were removed.
    pub fn collect(&self, object: &Object, root: &Path, level: u32) -> Result<u32> {
        // Read before the cgroups: a share that is created meanwhile must not be taken for a removed one.
        let shares: Vec<(u64, abi::share)> = self.rows().filter(|(id, _)| *id != OTHERS).collect();
        let mut existing = HashSet::new();
        collect_ids(root, level, &mut existing);
        // A socket may outlive the cgroup in which it was created.
        let is_removed = |(id, row): &(u64, abi::share)| !existing.contains(id) && row.record_bytes == 0;
        for (id, _) in shares.into_iter().filter(is_removed) {
            let _ = self.shares.delete(&id.to_ne_bytes());
        }
        expire(object)
    }
}

/// Runs the BPF program `expire_affinity`, which also removes the affinity rows of removed shares.
fn expire(object: &Object) -> Result<u32> {
    let program = object.progs_mut().find(|p| p.name() == "expire_affinity");
    let program =
        program.ok_or_else(|| Error::Message("there is no program expire_affinity in the BPF object".into()))?;
    let output = program.test_run(ProgramInput::default());
    Ok(output.context(|| "cannot run the BPF program expire_affinity".into())?.return_value)
}

/// The ids of a cgroup and of those below it, down to `levels`.
fn collect_ids(dir: &Path, levels: u32, ids: &mut HashSet<u64>) {
    ids.extend(crate::cgroup::id(dir));
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            continue;
        }
        ids.insert(entry.ino());
        if levels > 1 {
            collect_ids(&entry.path(), levels - 1, ids);
        }
    }
}
