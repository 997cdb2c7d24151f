//! Loads the BPF programs, reuses or rebuilds pinned tables, and attaches the programs to the hooks.
//!
//! A start never clears tables that are in use. Tables of the same layout and size are reused. Otherwise new tables are
//! built beside the old ones, and the old programs serve from the old tables until the agent has filled the new tables and
//! calls `attach_hooks`. Replacing the program of one hook is atomic, replacing all of them is not. The hooks that only read
//! records come first (they read records of old and new tables), then the hooks that write records.

use crate::bucket::BucketLevels;
use crate::control::Control;
use crate::counter::CounterMaps;
use crate::event::EventReader;
use crate::kernel::KernelMaps;
use crate::object::{self, LoadConstants, MapSet, RECORDS, TABLES};
use crate::packet::{AttachOrder, DeviceTable, PacketConfig, PacketProgram, PodRangeTable};
use crate::pin::{PinDir, TableMeta};
use crate::pod_address::PodAddressMap;
use crate::recount::Recounter;
use crate::share::{self, ShareTable};
use crate::suspension::{RefusalWatcher, SuspensionMap};
use crate::test_resolver::TestResolver;
use crate::{Context, Error, Result, cgroup, netns, wire};
use beeline_model::op::{Maps, Op};
use beeline_model::row::{Rows, Sizes};
use beeline_model::rules::NoLocalEndpointAction;
use libbpf_rs::libbpf_sys;
use libbpf_rs::{Link, MapCore, MapFlags, MapHandle, Object};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// All hooks, in the order of attachment: those that create socket records last.
pub const HOOKS: [&str; 9] = [
    "sock_release",
    "recvmsg4",
    "recvmsg6",
    "getpeername4",
    "getpeername6",
    "connect4",
    "connect6",
    "sendmsg4",
    "sendmsg6",
];

/// Number of counter rows per owner. Each CPU uses one of them.
pub fn shards() -> u32 {
    let cpus = std::thread::available_parallelism().map_or(1, |n| n.get() as u32);
    cpus.next_power_of_two().min(8)
}

#[derive(Clone, Debug)]
pub struct Config {
    pub pin_dir: PathBuf,
    pub cgroup: PathBuf,
    pub sizes: Sizes,
    pub no_local_endpoint_action: NoLocalEndpointAction,
    /// Only for the test that shows that the check is needed: do not check to which cgroup a rule belongs.
    pub skip_rule_check: bool,
}

/// How this start uses the pinned tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartKind {
    /// There were no pinned tables.
    Fresh,
    /// The pinned tables are used.
    Adopted,
    /// Same layout, other sizes: all rows were copied with their ids.
    Resized,
    /// Another layout: the agent fills new tables, and the old programs serve until then.
    Rebuilt,
}

pub struct Program {
    object: Object,
    maps: MapSet,
    pins: PinDir,
    meta: TableMeta,
    config: Config,
    pub start: StartKind,
    attached: bool,
    links: Vec<Link>,
    /// The old affinity map if its size changed. Its rows are copied again after the switch to the new programs, because
    /// the old programs write it until then.
    old_affinity: Option<MapHandle>,
    /// The age of the last heartbeat of an earlier agent with tables of this layout, when this program was opened.
    pub earlier_heartbeat_age: Option<Duration>,
}

impl Program {
    pub fn open(config: Config) -> Result<Program> {
        let pins = PinDir::read_only(&config.pin_dir);
        let tables = pins.meta().filter(|meta| meta.layout == wire::LAYOUT);
        let tables = tables.and_then(|meta| MapSet::open_pinned(&pins.tables(meta.generation), &TABLES));
        // Attaching the programs writes a new heartbeat.
        let earlier_heartbeat_age = tables.and_then(|tables| Control::new(&tables).ok()?.heartbeat_age());
        let program = Program::open_tables(config)?;
        Ok(Program { earlier_heartbeat_age, ..program })
    }

    fn open_tables(config: Config) -> Result<Program> {
        if !cgroup::is_cgroup2(&config.cgroup) {
            let path = config.cgroup.display();
            return Err(Error::Message(format!(
                "--cgroup {path} is not a cgroup2 directory: `beeline doctor` shows the cgroup2 mount; create a directory below it"
            )));
        }
        let pins = PinDir::lock(&config.pin_dir)?;
        let old = pins.meta();
        let old_tables = old
            .filter(|m| m.layout == wire::LAYOUT)
            .and_then(|m| MapSet::open_pinned(&pins.tables(m.generation), &TABLES));
        let mut existing = MapSet::open_existing_pins(&pins.records(), &RECORDS);
        match (old, old_tables) {
            (Some(meta), Some(tables)) if tables.fits(&config.sizes, shards()) => {
                existing.extend(tables);
                Program::load(config, pins, existing, meta, StartKind::Adopted)
            }
            (Some(meta), Some(tables)) => Program::resize(config, pins, existing, meta, tables),
            (Some(meta), None) => {
                let (generation, epoch) = (meta.generation + 1, meta.epoch + 1);
                let next = TableMeta { layout: wire::LAYOUT, generation, epoch, pad: 0 };
                Program::load(config, pins, existing, next, StartKind::Rebuilt)
            }
            (None, _) => {
                let first = TableMeta { layout: wire::LAYOUT, generation: 1, epoch: pins.epoch() + 1, pad: 0 };
                Program::load(config, pins, existing, first, StartKind::Fresh)
            }
        }
    }

    fn load_constants(config: &Config, meta: &TableMeta) -> Result<LoadConstants> {
        Ok(LoadConstants {
            shards: shards(),
            epoch: meta.epoch,
            no_local_endpoint_drops: config.no_local_endpoint_action == NoLocalEndpointAction::Drop,
            host_netns: netns::own_cookie()?,
            skip_rule_check: config.skip_rule_check,
            affinity_reserve: share::affinity_reserve(&config.sizes),
            affinity_limit: share::affinity_limit(&config.sizes),
        })
    }

    fn load(config: Config, pins: PinDir, existing: MapSet, meta: TableMeta, start: StartKind) -> Result<Program> {
        let mut program = Program::build(config, pins, existing, meta, start)?;
        // Adopted tables are complete, so the hooks need not wait for the agent.
        if start == StartKind::Adopted {
            program.attach_hooks()?;
        }
        Ok(program)
    }

    /// Loads and pins, but does not attach.
    fn build(config: Config, pins: PinDir, mut existing: MapSet, meta: TableMeta, start: StartKind) -> Result<Program> {
        let old_affinity = existing.remove_if("affinity", |map| map.max_entries() != config.sizes.affinity);
        let mut open = object::open(object::RESOLVER, "beeline")?;
        object::prepare(&mut open, &config.sizes, shards(), &existing, Program::load_constants(&config, &meta)?)?;
        let object = object::load(open, "beeline")?;
        let mut maps = object::maps_of(&object)?;
        if let Some(old) = &old_affinity {
            copy_rows(old, &maps.handle("affinity")?);
        }
        ShareTable::new(&maps)?.create_others()?;
        maps.pin(&pins.tables(meta.generation), &TABLES)?;
        maps.pin(&pins.records(), &RECORDS)?;
        Ok(Program {
            object,
            maps,
            pins,
            meta,
            config,
            start,
            attached: false,
            links: Vec::new(),
            old_affinity,
            earlier_heartbeat_age: None,
        })
    }

    /// Copies the rows into new tables of other sizes with their ids, so that socket records and affinity stay valid.
    fn resize(config: Config, pins: PinDir, existing: MapSet, old: TableMeta, mut tables: MapSet) -> Result<Program> {
        let rows = KernelMaps::new(&tables)?.rows()?;
        let next = TableMeta { generation: old.generation + 1, ..old };
        if !fits(&rows, &config.sizes) {
            let next = TableMeta { epoch: old.epoch + 1, ..next };
            return Program::load(config, pins, existing, next, StartKind::Rebuilt);
        }
        let mut program = Program::build(config, pins, existing, next, StartKind::Resized)?;
        tables.extend(program.maps.duplicate(&RECORDS)?);
        copy_tables(&rows, &mut KernelMaps::new(&program.maps)?)?;
        CounterMaps::new(&program.maps)?.copy_from(&CounterMaps::new(&tables)?, &rows)?;
        Control::new(&program.maps)?.copy_from(&Control::new(&tables)?)?;
        PodAddressMap::new(&program.maps)?.copy_from(&PodAddressMap::new(&tables)?)?;
        BucketLevels::new(&program.maps)?.copy_from(&BucketLevels::new(&tables)?, &rows)?;
        program.attach_hooks()?;
        Ok(program)
    }

    /// Attaches the programs to the hooks, in place of those of an earlier agent.
    pub fn attach_hooks(&mut self) -> Result<()> {
        if self.attached {
            return Ok(());
        }
        Control::new(&self.maps)?.record_heartbeat();
        std::fs::create_dir_all(self.pins.links()).context(|| "cannot create the directory for pinned links".into())?;
        let cgroup = File::open(&self.config.cgroup)
            .context(|| format!("cannot open the cgroup {}", self.config.cgroup.display()))?;
        self.pins.store_epoch(self.meta.epoch)?;
        for hook in HOOKS {
            let link = self.attach(hook, &cgroup)?;
            self.links.push(link);
        }
        if let Some(old) = self.old_affinity.take() {
            copy_rows(&old, &self.maps.handle("affinity")?);
        }
        self.pins.set_meta(self.meta)?;
        self.pins.remove_tables_except(self.meta.generation);
        self.attached = true;
        Ok(())
    }

    /// Attaches the programs again to hooks from which they were detached externally. Returns the names of these hooks.
    pub fn reattach_lost(&mut self) -> Result<Vec<&'static str>> {
        if !self.attached {
            return Ok(Vec::new());
        }
        let id = cgroup::id(&self.config.cgroup)?;
        let is_attached = |link: &Link, path: &Path| attached_to(link) == Some(id) && path.exists();
        let lost: Vec<usize> =
            (0..HOOKS.len()).filter(|i| !is_attached(&self.links[*i], &self.pins.link(HOOKS[*i]))).collect();
        if lost.is_empty() {
            return Ok(Vec::new());
        }
        std::fs::create_dir_all(self.pins.links()).context(|| "cannot create the directory for pinned links".into())?;
        let cgroup = File::open(&self.config.cgroup)
            .context(|| format!("cannot open the cgroup {}", self.config.cgroup.display()))?;
        for i in &lost {
            self.links[*i] = self.attach(HOOKS[*i], &cgroup)?;
        }
        Ok(lost.into_iter().map(|i| HOOKS[i]).collect())
    }

    fn attach(&self, hook: &str, cgroup: &File) -> Result<Link> {
        let path = self.pins.link(hook);
        let program = self.object.progs_mut().find(|p| p.name() == hook);
        let program =
            program.ok_or_else(|| Error::Message(format!("there is no program {hook} in the BPF object resolver")))?;
        let id = cgroup::id(&self.config.cgroup)?;
        // The path is checked first because libbpf logs an error for a missing pin.
        let pinned =
            path.exists().then(|| Link::open(&path).ok()).flatten().filter(|link| attached_to(link) == Some(id));
        if let Some(mut link) = pinned {
            link.update_prog(&program).context(|| format!("cannot replace the program at the hook {hook}"))?;
            return Ok(link);
        }
        let mut link = program.attach_cgroup(cgroup.as_raw_fd()).context(|| {
            format!(
                "cannot attach {hook} to {}: `beeline doctor` lists the programs that are attached there",
                self.config.cgroup.display()
            )
        })?;
        // Removing the pin ends a link to another cgroup, or to one that is gone. The new program is attached already.
        let _ = std::fs::remove_file(&path);
        link.pin(&path).context(|| format!("cannot pin {}", path.display()))?;
        Ok(link)
    }

    pub fn is_attached(&self) -> bool {
        self.attached
    }

    pub fn meta(&self) -> TableMeta {
        self.meta
    }

    pub fn maps(&self) -> &MapSet {
        &self.maps
    }

    pub fn config(&self) -> &Config {
        &self.config
    }

    pub fn constants(&self) -> Result<LoadConstants> {
        Program::load_constants(&self.config, &self.meta)
    }

    pub fn kernel(&self) -> Result<KernelMaps> {
        let kernel = KernelMaps::new(&self.maps)?;
        let new_maps = matches!(self.start, StartKind::Fresh | StartKind::Rebuilt);
        Ok(if new_maps { kernel.assume_empty() } else { kernel.reset_exchange() })
    }

    pub fn control(&self) -> Result<Control> {
        Control::new(&self.maps)
    }

    pub fn shares(&self) -> Result<ShareTable> {
        ShareTable::new(&self.maps)
    }

    /// Removes expired affinity rows, and the shares of cgroups that are gone. `level` is the level of shares. Does
    /// nothing before the programs are attached: an earlier agent's programs still use rows of another epoch.
    pub fn collect_shares(&self, level: u32) -> Result<u32> {
        if !self.attached {
            return Ok(0);
        }
        let below = level.saturating_sub(cgroup::level(&self.config.cgroup).unwrap_or(0));
        self.shares()?.collect(&self.object, &self.config.cgroup, below)
    }

    /// Loads the packet program on these tables. It is not attached to any device yet.
    pub fn packet_program(&self, order: AttachOrder, priority: u32) -> Result<PacketProgram> {
        let config = PacketConfig { sizes: self.config.sizes, constants: self.constants()?, order, priority };
        PacketProgram::load(&self.maps, &self.pins, config)
    }

    pub fn pod_ranges(&self) -> Result<PodRangeTable> {
        PodRangeTable::new(&self.maps)
    }

    pub fn packet_devices(&self) -> Result<DeviceTable> {
        DeviceTable::new(&self.maps)
    }

    pub fn recounter(&self) -> Result<Recounter> {
        Recounter::new(&self.maps, &self.config.sizes, shards(), self.constants()?)
    }

    pub fn pod_addresses(&self) -> Result<PodAddressMap> {
        PodAddressMap::new(&self.maps)
    }

    /// Watches for dials that the backends of redirects refuse. Not attached yet.
    pub fn refusal_watcher(&self) -> Result<RefusalWatcher> {
        let Config { sizes, cgroup, .. } = &self.config;
        RefusalWatcher::new(&self.maps, sizes, shards(), self.constants()?, cgroup.clone())
    }

    pub fn suspensions(&self) -> Result<SuspensionMap> {
        SuspensionMap::new(&self.maps)
    }

    pub fn counters(&self) -> Result<CounterMaps> {
        CounterMaps::new(&self.maps)
    }

    /// `dropped` counts the events that are not read in time.
    pub fn event_reader(&self, dropped: std::sync::Arc<std::sync::atomic::AtomicU64>) -> Result<EventReader> {
        EventReader::new(&self.maps, dropped)
    }

    pub fn test_resolver(&self) -> Result<TestResolver> {
        TestResolver::new(&self.maps, &self.config.sizes, shards(), self.constants()?)
    }
}

fn attached_to(link: &Link) -> Option<u64> {
    match link.info().ok()?.info {
        libbpf_rs::query::LinkTypeInfo::Cgroup(info) => Some(info.cgroup_id),
        _ => None,
    }
}

/// Whether the rows fit into tables of these sizes.
fn fits(rows: &Rows, sizes: &Sizes) -> bool {
    let below = |highest: Option<u32>, end: u32| highest.is_none_or(|id| id < end);
    rows.frontends.len() <= sizes.frontends as usize
        && rows.slots.len() <= sizes.slots as usize
        && below(rows.sets.ids().next_back(), sizes.sets)
        && below(rows.backends.ids().next_back(), sizes.backends)
        && rows.selected.len() <= sizes.members as usize
        && below(rows.names.ids().next_back(), sizes.names)
}

/// Copies as many rows as fit. A row that exists already is newer and stays.
fn copy_rows(from: &MapHandle, to: &MapHandle) {
    for key in from.keys() {
        if let Ok(Some(value)) = from.lookup(&key, MapFlags::ANY) {
            let _ = to.update(&key, &value, MapFlags::NO_EXIST);
        }
    }
}

/// Writes all rows: the rows that others refer to first, the frontends last.
fn copy_tables(rows: &Rows, kernel: &mut KernelMaps) -> Result<()> {
    let mut ops: Vec<Op> = Vec::new();
    ops.extend(rows.names.iter().map(|(id, row)| Op::Name(id, Some(row.clone()))));
    ops.extend(rows.buckets.iter().map(|(policy, limit)| Op::Bucket(*policy, Some(*limit))));
    ops.extend(rows.selected.iter().map(|(policy, cgroup)| Op::Member(*policy, *cgroup, true)));
    ops.extend(rows.backends.iter().map(|(id, row)| Op::Backend(id, *row)));
    ops.push(Op::Slots(0, rows.slots.clone().into()));
    ops.extend(rows.sets.iter().map(|(id, row)| Op::Set(id, Box::new(*row))));
    ops.extend(rows.sources.iter().map(|(owner, net)| Op::Source(*owner, *net, true)));
    ops.extend(rows.ports.iter().map(|((protocol, port), bits)| Op::Port(*protocol, *port, *bits)));
    for (family, words) in [(beeline_model::Family::V4, rows.ranges_v4), (beeline_model::Family::V6, rows.ranges_v6)] {
        ops.extend(words.iter().enumerate().map(|(i, word)| Op::Range(family, i, *word)));
    }
    ops.extend(rows.nodes.iter().map(|(at, row)| Op::Node(*at, Some(*row))));
    ops.extend(rows.frontends.iter().map(|(key, row)| Op::Frontend(*key, Some(*row))));
    match kernel.write_all(&ops) {
        (_, None) => Ok(()),
        (_, Some(error)) => Err(Error::Message(format!("cannot copy the rows to the new tables: {error}"))),
    }
}

/// Links and maps that `cleanup` removed.
#[derive(Debug, Default, serde::Serialize)]
pub struct CleanupReport {
    pub links: Vec<String>,
    pub maps: usize,
}

/// Detaches every hook and removes every pin that an agent creates. Other files below the directory stay.
pub fn cleanup(pin_dir: &Path) -> Result<CleanupReport> {
    let mut removed = CleanupReport::default();
    if !pin_dir.exists() {
        return Ok(removed);
    }
    let pins = PinDir::lock(pin_dir)?;
    let ours = pins.entries();
    if ours.is_empty() && std::fs::read_dir(pin_dir).is_ok_and(|mut all| all.next().is_some()) {
        let path = pin_dir.display();
        return Err(Error::Message(format!(
            "there are no pins of an agent below {path}: use the --pin-dir of the agent"
        )));
    }
    for entry in std::fs::read_dir(pins.links()).into_iter().flatten().flatten() {
        if let Ok(link) = Link::open(entry.path()) {
            let _ = link.detach();
        }
        removed.links.push(entry.file_name().to_string_lossy().into_owned());
    }
    removed.links.sort();
    removed.maps = ours.iter().map(|path| count_files(path)).sum::<usize>() - removed.links.len();
    for path in ours {
        let result = if path.is_dir() { std::fs::remove_dir_all(&path) } else { std::fs::remove_file(&path) };
        result.context(|| format!("cannot remove {}", path.display()))?;
    }
    // The directory stays if it has other files.
    let _ = std::fs::remove_dir(pin_dir);
    Ok(removed)
}

fn count_files(path: &Path) -> usize {
    if !path.is_dir() {
        return 1;
    }
    std::fs::read_dir(path).into_iter().flatten().flatten().map(|entry| count_files(&entry.path())).sum()
}

/// Writes the messages of libbpf to the log instead of stderr.
pub fn redirect_libbpf_log() {
    fn print(level: libbpf_rs::PrintLevel, text: String) {
        match level {
            libbpf_rs::PrintLevel::Debug => {
                tracing::trace!(target: "libbpf", text = text.trim_end(), "message of libbpf")
            }
            _ => tracing::debug!(target: "libbpf", text = text.trim_end(), "message of libbpf"),
        }
    }
    libbpf_rs::set_print(Some((libbpf_rs::PrintLevel::Info, print)));
    // SAFETY: no other thread uses libbpf yet.
    let _ = unsafe { libbpf_sys::libbpf_set_strict_mode(libbpf_sys::LIBBPF_STRICT_ALL) };
}
