//! The embedded objects and their maps: open, size, share and load.

use crate::mapped::Mapped;
use crate::{Context, Error, Result};
use beeline_model::row::Sizes;
use libbpf_rs::{MapCore, MapHandle, Object, ObjectBuilder, OpenObject};
use std::collections::BTreeMap;
use std::mem::offset_of;
use std::os::fd::AsFd;
use std::path::Path;

pub const RESOLVER: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/resolver.bpf.o"));
pub const DOOR: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/door.bpf.o"));
pub const SOCKETS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/sockets.bpf.o"));

mod resolver_skeleton {
    #![allow(unused_imports, dead_code, clippy::all)]
    include!(concat!(env!("OUT_DIR"), "/resolver.skel.rs"));
}

/// Where the knobs stand, from BTF.
type Rodata = resolver_skeleton::types::rodata;

/// Knobs that are fixed at load.
#[derive(Clone, Copy, Debug)]
pub struct Knobs {
    pub shards: u32,
    pub epoch: u32,
    pub empty_local_drops: bool,
    pub host_netns: u64,
}

impl Knobs {
    fn write(&self, rodata: &mut [u8]) {
        let mut put = |at: usize, value: &[u8]| rodata[at..at + value.len()].copy_from_slice(value);
        put(offset_of!(Rodata, shards), &self.shards.to_ne_bytes());
        put(offset_of!(Rodata, epoch), &self.epoch.to_ne_bytes());
        put(offset_of!(Rodata, empty_local_drops), &[u8::from(self.empty_local_drops)]);
        put(offset_of!(Rodata, host_netns), &self.host_netns.to_ne_bytes());
    }
}

/// The agent's tables, rebuilt when their layout or size changes, and what the kernel itself writes, which outlives that.
pub const TABLES: [&str; 15] = [
    "filter", "frontend", "set", "slot", "backend", "node", "source", "bucket", "level", "member", "names", "counters",
    "picks", "cgroup", "control",
];
pub const RECORDS: [&str; 6] = ["affinity", "stats", "tcp_record", "udp_record", "overflow", "events"];

/// Maps by name.
#[derive(Default)]
pub struct MapSet(BTreeMap<String, MapHandle>);

impl MapSet {
    pub fn handle(&self, name: &str) -> Result<MapHandle> {
        let map = self.0.get(name).ok_or_else(|| Error::Said(format!("there is no map {name}")))?;
        MapHandle::try_from(map).context(|| format!("cannot share the map {name}"))
    }

    pub fn max_entries(&self, name: &str) -> Result<u32> {
        Ok(self.handle(name)?.max_entries())
    }

    pub fn mapped<T: Copy>(&self, name: &str) -> Result<Mapped<T>> {
        let map = self.handle(name)?;
        if map.value_size() as usize != size_of::<T>() {
            let (have, want) = (map.value_size(), size_of::<T>());
            return Err(Error::Said(format!("map {name}: rows of {have} bytes where {want} are expected")));
        }
        Mapped::new(map.as_fd(), map.max_entries())
    }

    /// All of these from a folder of pins; `None` if any is missing.
    pub fn pinned(dir: &Path, names: &[&str]) -> Option<MapSet> {
        let open = |name: &&str| Some((name.to_string(), MapHandle::from_pinned_path(dir.join(name)).ok()?));
        names.iter().map(open).collect::<Option<BTreeMap<_, _>>>().map(MapSet)
    }

    /// Those of them that are there: one that a newer agent added is missing below the pins of an older one, and that
    /// is no reason to lose the others.
    pub fn pinned_some(dir: &Path, names: &[&str]) -> MapSet {
        let open = |name: &&str| Some((name.to_string(), MapHandle::from_pinned_path(dir.join(name)).ok()?));
        MapSet(names.iter().filter_map(open).collect())
    }

    /// A pin that is right is left alone, any other is replaced in one step: whoever is killed here leaves no gap.
    pub fn pin(&mut self, dir: &Path, names: &[&str]) -> Result<()> {
        std::fs::create_dir_all(dir).context(|| format!("cannot create {}", dir.display()))?;
        for (name, map) in self.0.iter_mut().filter(|(name, _)| names.contains(&name.as_str())) {
            let (path, aside) = (dir.join(name), dir.join(format!("{name}-new")));
            let _ = std::fs::remove_file(&aside);
            let there = MapHandle::from_pinned_path(&path).ok();
            if there.is_some_and(|there| id_of(&there).is_some_and(|id| id_of(map) == Some(id))) {
                continue;
            }
            map.pin(&aside).context(|| format!("cannot pin {}; is {} a bpffs?", path.display(), dir.display()))?;
            std::fs::rename(&aside, &path).context(|| format!("cannot pin {}", path.display()))?;
        }
        Ok(())
    }

    /// Leaves out a map that cannot go on as it is.
    pub fn take_if(&mut self, name: &str, unfit: impl Fn(&MapHandle) -> bool) -> Option<MapHandle> {
        if self.0.get(name).is_some_and(unfit) { self.0.remove(name) } else { None }
    }

    pub fn share(&self, names: &[&str]) -> Result<MapSet> {
        let handles = names.iter().map(|name| Ok((name.to_string(), self.handle(name)?)));
        Ok(MapSet(handles.collect::<Result<_>>()?))
    }

    pub fn extend(&mut self, other: MapSet) {
        self.0.extend(other.0);
    }

    /// Whether tables found under a pin could serve in place of those that we would create.
    pub fn fits(&self, sizes: &Sizes, shards: u32) -> bool {
        let wanted = wanted_sizes(sizes, shards);
        TABLES.iter().all(|name| {
            let Some(map) = self.0.get(*name) else { return false };
            wanted.iter().all(|(n, size)| n != name || map.max_entries() == *size)
        })
    }
}

fn id_of(map: &MapHandle) -> Option<u32> {
    map.info().ok().map(|info| info.info.id)
}

/// Rows of each table whose size is a choice.
fn wanted_sizes(sizes: &Sizes, shards: u32) -> [(&'static str, u32); 12] {
    [
        ("frontend", sizes.frontends),
        ("set", sizes.sets),
        ("slot", sizes.slots),
        ("backend", sizes.backends),
        ("node", sizes.nodes),
        ("source", sizes.sources),
        ("bucket", sizes.names),
        ("level", sizes.names),
        ("member", sizes.members),
        ("names", sizes.names),
        ("counters", sizes.names * shards),
        ("picks", sizes.backends),
    ]
}

pub fn open(bytes: &[u8], name: &str) -> Result<OpenObject> {
    ObjectBuilder::default()
        .name(name)
        .and_then(|builder| builder.open_memory(bytes))
        .context(|| format!("cannot open the embedded object {name}"))
}

/// Gives each map of the object the size wanted, or the map that there already is.
pub fn prepare(object: &mut OpenObject, sizes: &Sizes, shards: u32, existing: &MapSet, knobs: Knobs) -> Result<()> {
    let wanted = wanted_sizes(sizes, shards);
    for mut map in object.maps_mut() {
        let name = map.name().to_string_lossy().into_owned();
        if let Some(have) = existing.0.get(&name) {
            map.reuse_fd(have.as_fd()).context(|| format!("cannot use the map {name} that is there"))?;
        } else if let Some((_, size)) = wanted.iter().find(|(n, _)| *n == name) {
            map.set_max_entries(*size).context(|| format!("map {name}: size {size}"))?;
        } else if name == "affinity" {
            map.set_max_entries(sizes.affinity).context(|| "map affinity: its size".into())?;
        } else if name.ends_with(".rodata") {
            let mut all = map.initial_value().map(<[u8]>::to_vec).unwrap_or_default();
            knobs.write(&mut all);
            map.set_initial_value(&all).context(|| "cannot set the knobs".into())?;
        }
    }
    Ok(())
}

pub fn load(object: OpenObject, name: &str) -> Result<Object> {
    object.load().context(|| format!("the kernel did not take the programs of {name}: run `beeline doctor`"))
}

pub fn maps_of(object: &Object) -> Result<MapSet> {
    let mut maps = BTreeMap::new();
    for map in object.maps() {
        let name = map.name().to_string_lossy().into_owned();
        let handle = MapHandle::try_from(&map).context(|| format!("cannot hold the map {name}"))?;
        maps.insert(name, handle);
    }
    Ok(MapSet(maps))
}
