//! The embedded objects and their maps: open, size, share and load.

use crate::mapped::MappedArray;
use crate::{Context, Error, Result};
use beeline_model::row::{AGENT_SOCKET_PRIORITY, Sizes};
use libbpf_rs::btf::Btf;
use libbpf_rs::btf::types::{DataSec, Var, VarSecInfo};
use libbpf_rs::{AsRawLibbpf, MapCore, MapHandle, Object, ObjectBuilder, OpenObject};
use std::collections::BTreeMap;
use std::ops::Range;
use std::os::fd::AsFd;
use std::path::Path;

pub const RESOLVER: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/resolver.bpf.o"));
pub const TEST_RESOLVER: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/test_resolver.bpf.o"));
pub const SOCKETS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/sockets.bpf.o"));
pub const REFUSAL: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/refusal.bpf.o"));
pub const PACKET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/packet.bpf.o"));

/// Constants of the programs that are set before load and cannot change afterwards.
#[derive(Clone, Copy, Debug, Default)]
pub struct LoadConstants {
    pub shards: u32,
    pub epoch: u32,
    pub no_local_endpoint_drops: bool,
    pub host_netns: u64,
    pub affinity_reserve: u32,
    pub affinity_limit: u32,
    /// Only for the test that shows that the check is needed.
    pub skip_rule_check: bool,
}

impl LoadConstants {
    /// The values by the name of the variable in C.
    fn values(&self) -> [(&'static str, Vec<u8>); 8] {
        [
            ("shards", self.shards.to_ne_bytes().into()),
            ("epoch", self.epoch.to_ne_bytes().into()),
            ("no_local_endpoint_drops", vec![u8::from(self.no_local_endpoint_drops)]),
            ("host_netns", self.host_netns.to_ne_bytes().into()),
            ("skip_rule_check", vec![u8::from(self.skip_rule_check)]),
            ("affinity_reserve", self.affinity_reserve.to_ne_bytes().into()),
            ("affinity_limit", self.affinity_limit.to_ne_bytes().into()),
            ("agent_priority", AGENT_SOCKET_PRIORITY.to_ne_bytes().into()),
        ]
    }

    /// `variables`: the place of each variable in this object. The compiler orders them differently in each object.
    fn write(&self, rodata: &mut [u8], variables: &BTreeMap<String, Range<usize>>) -> Result<()> {
        for (name, value) in self.values() {
            let place = variables.get(name).filter(|place| place.len() == value.len() && place.end <= rodata.len());
            let place =
                place.ok_or_else(|| Error::Message(format!("the BPF object has no constant {name} of this size")))?;
            rodata[place.clone()].copy_from_slice(&value);
        }
        Ok(())
    }
}

/// The places of the constants of an object, from its BTF.
fn constant_places(object: &OpenObject) -> Result<BTreeMap<String, Range<usize>>> {
    // SAFETY: the object is open and outlives the BTF, which does not leave this function.
    let btf = Btf::from_bpf_object(unsafe { object.as_libbpf_object().as_ref() });
    let btf = btf.context(|| "cannot read the BTF of a BPF object".into())?;
    let missing = || Error::Message("a BPF object has no constants".into());
    let btf = btf.ok_or_else(missing)?;
    let section = btf.type_by_name::<DataSec<'_>>(".rodata").ok_or_else(missing)?;
    let place = |variable: VarSecInfo| {
        let name = btf.type_by_id::<Var<'_>>(variable.ty)?.name()?.to_string_lossy().into_owned();
        let start = variable.offset as usize;
        Some((name, start..start + variable.size))
    };
    Ok(section.iter().filter_map(place).collect())
}

/// Tables that the agent writes. They are rebuilt when their layout or size changes.
pub const TABLES: [&str; 19] = [
    "filter",
    "frontend",
    "set",
    "slot",
    "backend",
    "backend_index",
    "node",
    "source",
    "bucket",
    "level",
    "member",
    "pod",
    "pod_range",
    "device",
    "names",
    "counters",
    "picks",
    "cgroup",
    "control",
];
/// Maps that the kernel writes. They survive a rebuild of the tables.
pub const RECORDS: [&str; 9] =
    ["affinity", "share", "share_total", "stats", "tcp_record", "udp_record", "udp_overflow", "suspended", "events"];

/// Maps by name.
#[derive(Default)]
pub struct MapSet(BTreeMap<String, MapHandle>);

impl MapSet {
    pub fn handle(&self, name: &str) -> Result<MapHandle> {
        let map = self
            .0
            .get(name)
            .ok_or_else(|| Error::Message(format!("there is no map {name} in the BPF object or among the pins")))?;
        MapHandle::try_from(map).context(|| format!("cannot duplicate the descriptor of the map {name}"))
    }

    pub fn max_entries(&self, name: &str) -> Result<u32> {
        Ok(self.handle(name)?.max_entries())
    }

    pub fn mapped<T: Copy>(&self, name: &str) -> Result<MappedArray<T>> {
        let map = self.handle(name)?;
        if map.value_size() as usize != size_of::<T>() {
            let (have, want) = (map.value_size(), size_of::<T>());
            return Err(Error::Message(format!("map {name} has rows of {have} bytes, expected {want}")));
        }
        MappedArray::new(map.as_fd(), map.max_entries())
    }

    /// Opens all of these maps from a directory of pins; `None` if one is missing.
    pub fn open_pinned(dir: &Path, names: &[&str]) -> Option<MapSet> {
        let open = |name: &&str| Some((name.to_string(), MapHandle::from_pinned_path(dir.join(name)).ok()?));
        names.iter().map(open).collect::<Option<BTreeMap<_, _>>>().map(MapSet)
    }

    /// Opens those of these maps that are pinned. The pins of an older agent lack maps that a newer agent added; the
    /// others are still used.
    pub fn open_existing_pins(dir: &Path, names: &[&str]) -> MapSet {
        let open = |name: &&str| Some((name.to_string(), MapHandle::from_pinned_path(dir.join(name)).ok()?));
        MapSet(names.iter().filter_map(open).collect())
    }

    /// Pins these maps. A pin of the same map stays. Any other pin is replaced atomically, so that an agent that is killed
    /// here leaves no gap.
    pub fn pin(&mut self, dir: &Path, names: &[&str]) -> Result<()> {
        std::fs::create_dir_all(dir).context(|| format!("cannot create {}", dir.display()))?;
        for (name, map) in self.0.iter_mut().filter(|(name, _)| names.contains(&name.as_str())) {
            let (path, aside) = (dir.join(name), dir.join(format!("{name}-new")));
            let _ = std::fs::remove_file(&aside);
            let pinned = MapHandle::from_pinned_path(&path).ok();
            if pinned.is_some_and(|pinned| id_of(&pinned).is_some_and(|id| id_of(map) == Some(id))) {
                continue;
            }
            map.pin(&aside)
                .context(|| format!("cannot pin {}: {} must be on a bpffs", path.display(), dir.display()))?;
            std::fs::rename(&aside, &path).context(|| format!("cannot pin {}", path.display()))?;
        }
        Ok(())
    }

    /// Removes a map that is unfit from the set, and returns it.
    pub fn remove_if(&mut self, name: &str, unfit: impl Fn(&MapHandle) -> bool) -> Option<MapHandle> {
        if self.0.get(name).is_some_and(unfit) { self.0.remove(name) } else { None }
    }

    pub fn duplicate(&self, names: &[&str]) -> Result<MapSet> {
        let handles = names.iter().map(|name| Ok((name.to_string(), self.handle(name)?)));
        Ok(MapSet(handles.collect::<Result<_>>()?))
    }

    pub fn extend(&mut self, other: MapSet) {
        self.0.extend(other.0);
    }

    /// Whether pinned tables have the sizes that this agent would create.
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

/// Number of rows of each table with a configurable size.
fn wanted_sizes(sizes: &Sizes, shards: u32) -> [(&'static str, u32); 13] {
    [
        ("frontend", sizes.frontends),
        ("set", sizes.sets),
        ("slot", sizes.slots),
        ("backend", sizes.backends),
        // Rows of removed backends may stay for a while.
        ("backend_index", sizes.backends * 2),
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

/// Sets the size of each map of the object, or reuses the existing map, and sets the constants.
pub fn prepare(
    object: &mut OpenObject,
    sizes: &Sizes,
    shards: u32,
    existing: &MapSet,
    constants: LoadConstants,
) -> Result<()> {
    let wanted = wanted_sizes(sizes, shards);
    let places = constant_places(object)?;
    for mut map in object.maps_mut() {
        let name = map.name().to_string_lossy().into_owned();
        if let Some(have) = existing.0.get(&name) {
            map.reuse_fd(have.as_fd()).context(|| format!("cannot reuse the existing map {name}"))?;
        } else if let Some((_, size)) = wanted.iter().find(|(n, _)| *n == name) {
            map.set_max_entries(*size).context(|| format!("cannot set the size of the map {name} to {size}"))?;
        } else if name == "affinity" {
            map.set_max_entries(sizes.affinity)
                .context(|| format!("cannot set the size of the map affinity to {}", sizes.affinity))?;
        } else if name.ends_with(".rodata") {
            let mut all = map.initial_value().map(<[u8]>::to_vec).unwrap_or_default();
            constants.write(&mut all, &places)?;
            map.set_initial_value(&all).context(|| "cannot set the constants of the BPF programs".into())?;
        }
    }
    Ok(())
}

pub fn load(object: OpenObject, name: &str) -> Result<Object> {
    object.load().context(|| format!("the kernel rejected the BPF programs of {name}: run `beeline doctor`"))
}

pub fn maps_of(object: &Object) -> Result<MapSet> {
    let mut maps = BTreeMap::new();
    for map in object.maps() {
        let name = map.name().to_string_lossy().into_owned();
        let handle =
            MapHandle::try_from(&map).context(|| format!("cannot duplicate the descriptor of the map {name}"))?;
        maps.insert(name, handle);
    }
    Ok(MapSet(maps))
}
