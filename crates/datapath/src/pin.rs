//! The pin directory: what outlives the agent, and the lock that keeps two agents from writing one table.
//!
//! ```text
//! DIR/meta              which tables are live: layout, generation, epoch
//! DIR/tables-G/...      the agent's tables, generation G
//! DIR/records-1/...     what the kernel writes (socket records, affinity, events), versioned apart
//! DIR/links/...         one link per hook
//! ```

use crate::mapped::{bytes_of, from_bytes};
use crate::{Context, Error, Result};
use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType};
use std::fs::File;
use std::path::{Path, PathBuf};

/// The layout of this row never changes.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Meta {
    /// Of the tables: keys and values.
    pub layout: u32,
    /// Names the folder.
    pub generation: u32,
    /// Ids in socket records and affinity belong to tables of one epoch.
    pub epoch: u32,
    pub pad: u32,
}

pub struct PinDir {
    path: PathBuf,
    /// Holding it open holds the lock.
    _lock: Option<File>,
}

fn held(path: &Path) -> Error {
    Error::Said(format!(
        "another agent holds {}: stop it first, or give this one its own --pin-dir, --cgroup, --socket and addresses for \
         health and metrics",
        path.display()
    ))
}

impl PinDir {
    /// For the agent: creates the directory and takes the lock.
    pub fn lock(path: &Path) -> Result<PinDir> {
        std::fs::create_dir_all(path).context(|| {
            format!("cannot create {}: mount a bpffs there first (mount -t bpf bpf /sys/fs/bpf)", path.display())
        })?;
        let lock = File::open(path).context(|| format!("cannot open {}", path.display()))?;
        match rustix::fs::flock(&lock, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(PinDir { path: path.to_owned(), _lock: Some(lock) }),
            Err(rustix::io::Errno::WOULDBLOCK) => Err(held(path)),
            Err(errno) => Err(errno).context(|| format!("cannot lock {}", path.display())),
        }
    }

    /// Whether an agent holds the directory now; makes nothing.
    pub fn check_free(path: &Path) -> Result<()> {
        let held_now = File::open(path).is_ok_and(|dir| {
            rustix::fs::flock(&dir, rustix::fs::FlockOperation::NonBlockingLockShared)
                == Err(rustix::io::Errno::WOULDBLOCK)
        });
        if held_now { Err(held(path)) } else { Ok(()) }
    }

    /// For readers.
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
        self.path.join("records-1")
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

    fn stored(&self) -> Option<Meta> {
        let map = MapHandle::from_pinned_path(self.meta_path()).ok()?;
        let value = map.lookup(&0u32.to_ne_bytes(), MapFlags::ANY).ok()??;
        from_bytes::<Meta>(&value)
    }

    pub fn meta(&self) -> Option<Meta> {
        self.stored().filter(|meta| meta.generation != 0)
    }

    /// The last one that records may hold.
    pub fn epoch(&self) -> u32 {
        self.stored().map_or(0, |meta| meta.epoch)
    }

    /// Before the first program that writes it is at a hook: whoever is killed in between leaves no epoch to be used twice.
    pub fn note_epoch(&self, epoch: u32) -> Result<()> {
        self.set_meta(Meta { epoch, ..self.stored().unwrap_or_default() })
    }

    /// What an agent makes here.
    pub fn entries(&self) -> Vec<PathBuf> {
        let ours = |name: &str| {
            matches!(name, "meta" | "links") || name.starts_with("tables-") || name.starts_with("records-")
        };
        let entries = std::fs::read_dir(&self.path).into_iter().flatten().flatten();
        entries.filter(|entry| ours(&entry.file_name().to_string_lossy())).map(|entry| entry.path()).collect()
    }

    /// The one store that makes tables the live ones for readers of the pins.
    pub fn set_meta(&self, meta: Meta) -> Result<()> {
        let path = self.meta_path();
        let map = match MapHandle::from_pinned_path(&path) {
            Ok(map) => map,
            Err(_) => {
                let opts = libbpf_rs::libbpf_sys::bpf_map_create_opts {
                    sz: size_of::<libbpf_rs::libbpf_sys::bpf_map_create_opts>() as _,
                    ..Default::default()
                };
                let size = size_of::<Meta>() as u32;
                let mut map = MapHandle::create(MapType::Array, Some("beeline_meta"), 4, size, 1, &opts)
                    .context(|| "cannot create the map meta".into())?;
                map.pin(&path).context(|| format!("cannot pin {}; is it a bpffs?", path.display()))?;
                map
            }
        };
        map.update(&0u32.to_ne_bytes(), bytes_of(&meta), MapFlags::ANY).context(|| "cannot write meta".into())
    }

    /// Tables of other generations are nobody's any more.
    pub fn remove_tables_except(&self, generation: u32) {
        let keep = self.tables(generation);
        for entry in std::fs::read_dir(&self.path).into_iter().flatten().flatten() {
            let old = entry.file_name().to_string_lossy().starts_with("tables-");
            if old && entry.path() != keep {
                let _ = std::fs::remove_dir_all(entry.path());
            }
        }
    }
}
