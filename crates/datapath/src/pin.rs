//! The pin directory: maps and links that outlive the agent, and a lock that keeps two agents from writing one table.
//!
//! ```text
//! DIR/meta              the tables in use: layout, generation, epoch
//! DIR/tables-G/...      the agent's tables, generation G
//! DIR/records-3/...     maps that the kernel writes (socket records, affinity, events), versioned separately
//! DIR/links/...         one link per hook
//! ```

use crate::mapped::{bytes_of, from_bytes};
use crate::{Context, Error, Result};
use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType};
use std::fs::File;
use std::path::{Path, PathBuf};

/// Describes the tables in use. The layout of this struct never changes.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableMeta {
    /// Layout version of the tables (`LAYOUT` in abi.h).
    pub layout: u32,
    /// Number in the name of the tables' directory.
    pub generation: u32,
    /// Ids in socket records and affinity rows are valid only for tables of the same epoch.
    pub epoch: u32,
    pub pad: u32,
}

pub struct PinDir {
    path: PathBuf,
    /// The lock is held while this file is open.
    _lock: Option<File>,
}

fn locked_error(path: &Path) -> Error {
    Error::Message(format!(
        "another agent holds the lock of {}: stop it first, or set another --pin-dir, --cgroup, --socket and other \
         addresses for health and metrics for this agent",
        path.display()
    ))
}

impl PinDir {
    /// Creates the directory and locks it, for the agent.
    pub fn lock(path: &Path) -> Result<PinDir> {
        std::fs::create_dir_all(path).context(|| {
            format!("cannot create {}: mount a bpffs first (mount -t bpf bpf /sys/fs/bpf)", path.display())
        })?;
        let lock = File::open(path).context(|| format!("cannot open {}", path.display()))?;
        match rustix::fs::flock(&lock, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(PinDir { path: path.to_owned(), _lock: Some(lock) }),
            Err(rustix::io::Errno::WOULDBLOCK) => Err(locked_error(path)),
            Err(errno) => Err(errno).context(|| format!("cannot lock {}", path.display())),
        }
    }

    /// Fails if an agent holds the lock now. Creates nothing.
    pub fn check_free(path: &Path) -> Result<()> {
        let is_locked = File::open(path).is_ok_and(|dir| {
            rustix::fs::flock(&dir, rustix::fs::FlockOperation::NonBlockingLockShared)
                == Err(rustix::io::Errno::WOULDBLOCK)
        });
        if is_locked { Err(locked_error(path)) } else { Ok(()) }
    }

    /// Opens the directory without the lock, for readers.
    pub fn read_only(path: &Path) -> PinDir {
        PinDir { path: path.to_owned(), _lock: None }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn tables(&self, generation: u32) -> PathBuf {
        self.path.join(format!("tables-{generation}"))
    }

    pub fn records(&self) -> PathBuf {
        self.path.join("records-3")
    }

    pub fn link(&self, hook: &str) -> PathBuf {
        self.path.join("links").join(hook)
    }

    pub fn links(&self) -> PathBuf {
        self.path.join("links")
    }

    fn meta_path(&self) -> PathBuf {
        self.path.join("meta")
    }

    fn stored(&self) -> Option<TableMeta> {
        let map = MapHandle::from_pinned_path(self.meta_path()).ok()?;
        let value = map.lookup(&0u32.to_ne_bytes(), MapFlags::ANY).ok()??;
        from_bytes::<TableMeta>(&value)
    }

    pub fn meta(&self) -> Option<TableMeta> {
        self.stored().filter(|meta| meta.generation != 0)
    }

    /// The last epoch that socket records may contain.
    pub fn epoch(&self) -> u32 {
        self.stored().map_or(0, |meta| meta.epoch)
    }

    /// Stores the epoch. Called before a program that writes it into records is attached, so that an epoch is never used
    /// twice, even if the agent is killed in between.
    pub fn store_epoch(&self, epoch: u32) -> Result<()> {
        self.set_meta(TableMeta { epoch, ..self.stored().unwrap_or_default() })
    }

    /// The files and directories that an agent creates here.
    pub fn entries(&self) -> Vec<PathBuf> {
        let is_ours = |name: &str| {
            matches!(name, "meta" | "links") || name.starts_with("tables-") || name.starts_with("records-")
        };
        let entries = std::fs::read_dir(&self.path).into_iter().flatten().flatten();
        entries.filter(|entry| is_ours(&entry.file_name().to_string_lossy())).map(|entry| entry.path()).collect()
    }

    /// Makes tables the ones in use for readers of the pins, with one store.
    pub fn set_meta(&self, meta: TableMeta) -> Result<()> {
        let path = self.meta_path();
        let map = match MapHandle::from_pinned_path(&path) {
            Ok(map) => map,
            Err(_) => {
                let opts = libbpf_rs::libbpf_sys::bpf_map_create_opts {
                    sz: size_of::<libbpf_rs::libbpf_sys::bpf_map_create_opts>() as _,
                    ..Default::default()
                };
                let size = size_of::<TableMeta>() as u32;
                let mut map = MapHandle::create(MapType::Array, Some("beeline_meta"), 4, size, 1, &opts)
                    .context(|| "cannot create the map meta".into())?;
                map.pin(&path)
                    .context(|| format!("cannot pin {}: the directory must be on a bpffs", path.display()))?;
                map
            }
        };
        map.update(&0u32.to_ne_bytes(), bytes_of(&meta), MapFlags::ANY).context(|| "cannot write the map meta".into())
    }

    /// Removes the tables of all other generations, and records of another version.
    pub fn remove_tables_except(&self, generation: u32) {
        let current = [self.tables(generation), self.records()];
        for entry in std::fs::read_dir(&self.path).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            let is_versioned = name.starts_with("tables-") || name.starts_with("records-");
            if is_versioned && !current.contains(&entry.path()) {
                let _ = std::fs::remove_dir_all(entry.path());
            }
        }
    }
}
