//! Load, attach, pin, adopt: from a configuration and whatever an earlier agent left to a live set of hooks.
//!
//! A start is never a wipe. Tables of the same layout and size are taken over as they are. Others are built beside the
//! live ones and the links are flipped when the agent says that the new tables are filled (`go_live`); until then the
//! old programs serve from the old tables. Flipping one hook is atomic, all eight are not: first those that only read
//! records (they understand old and new ones), then those that write them.

use crate::control::Control;
use crate::count::Count;
use crate::door::Door;
use crate::event::Events;
use crate::kernel::Kernel;
use crate::level::Levels;
use crate::object::{self, Knobs, MapSet, RECORDS, TABLES};
use crate::pin::{Meta, PinDir};
use crate::{Context, Error, Result, cgroup, netns, wire};
use beeline_model::op::{Maps, Op};
use beeline_model::row::{Rows, Sizes};
use beeline_model::rules::EmptyLocal;
use libbpf_rs::libbpf_sys;
use libbpf_rs::{Link, MapCore, MapFlags, MapHandle, Object};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

/// Readers of records first.
pub const HOOKS: [&str; 8] =
    ["recvmsg4", "recvmsg6", "getpeername4", "getpeername6", "connect4", "connect6", "sendmsg4", "sendmsg6"];

/// Counters are spread over this many rows a service, by CPU.
pub fn shards() -> u32 {
    let cpus = std::thread::available_parallelism().map_or(1, |n| n.get() as u32);
    cpus.next_power_of_two().min(8)
}

#[derive(Clone, Debug)]
pub struct Config {
    pub pin_dir: PathBuf,
    pub cgroup: PathBuf,
    pub sizes: Sizes,
    pub empty_local: EmptyLocal,
}

/// How this start relates to what was pinned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartKind {
    /// Nothing was there.
    Fresh,
    /// The same tables go on.
    Adopted,
    /// Same layout, other sizes: all rows were carried over with their ids.
    Resized,
    /// Another layout: filled anew, the old programs serve until then.
    Rebuilt,
}

pub struct Program {
    object: Object,
    maps: MapSet,
    pins: PinDir,
    meta: Meta,
    config: Config,
    pub start: StartKind,
    live: bool,
    links: Vec<Link>,
    /// Affinity as it was before it got another size; what dials wrote there until the flip comes after.
    outgrown: Option<MapHandle>,
}

impl Program {
    pub fn open(config: Config) -> Result<Program> {
        if !cgroup::is_cgroup2(&config.cgroup) {
            let path = config.cgroup.display();
            return Err(Error::Said(format!(
                "--cgroup {path} is not a cgroup2 directory: `beeline doctor` shows where cgroup2 is, and mkdir below that makes one"
            )));
        }
        let pins = PinDir::lock(&config.pin_dir)?;
        let old = pins.meta();
        let old_tables =
            old.filter(|m| m.layout == wire::LAYOUT).and_then(|m| MapSet::pinned(&pins.tables(m.generation), &TABLES));
        let mut existing = MapSet::pinned_some(&pins.records(), &RECORDS);
        match (old, old_tables) {
            (Some(meta), Some(tables)) if tables.fits(&config.sizes, shards()) => {
                existing.extend(tables);
                Program::load(config, pins, existing, meta, StartKind::Adopted)
            }
            (Some(meta), Some(tables)) => Program::resize(config, pins, existing, meta, tables),
            (Some(meta), None) => {
                let (generation, epoch) = (meta.generation + 1, meta.epoch + 1);
                let next = Meta { layout: wire::LAYOUT, generation, epoch, pad: 0 };
                Program::load(config, pins, existing, next, StartKind::Rebuilt)
            }
            (None, _) => {
                let first = Meta { layout: wire::LAYOUT, generation: 1, epoch: pins.epoch() + 1, pad: 0 };
                Program::load(config, pins, existing, first, StartKind::Fresh)
            }
        }
    }

    fn make_knobs(config: &Config, meta: &Meta) -> Result<Knobs> {
        Ok(Knobs {
            shards: shards(),
            epoch: meta.epoch,
            empty_local_drops: config.empty_local == EmptyLocal::Drop,
            host_netns: netns::own_cookie()?,
        })
    }

    fn load(config: Config, pins: PinDir, existing: MapSet, meta: Meta, start: StartKind) -> Result<Program> {
        let mut program = Program::build(config, pins, existing, meta, start)?;
        // Tables that are valid already need no waiting.
        if start == StartKind::Adopted {
            program.go_live()?;
        }
        Ok(program)
    }

    /// Loaded and pinned, not yet at the hooks.
    fn build(config: Config, pins: PinDir, mut existing: MapSet, meta: Meta, start: StartKind) -> Result<Program> {
        let outgrown = existing.take_if("affinity", |map| map.max_entries() != config.sizes.affinity);
        let mut open = object::open(object::RESOLVER, "beeline")?;
        object::prepare(&mut open, &config.sizes, shards(), &existing, Program::make_knobs(&config, &meta)?)?;
        let object = object::load(open, "beeline")?;
        let mut maps = object::maps_of(&object)?;
        if let Some(old) = &outgrown {
            copy_rows(old, &maps.handle("affinity")?);
        }
        maps.pin(&pins.tables(meta.generation), &TABLES)?;
        maps.pin(&pins.records(), &RECORDS)?;
        Ok(Program { object, maps, pins, meta, config, start, live: false, links: Vec::new(), outgrown })
    }

    /// Other sizes: the rows move into new tables with their ids, so records and affinity go on.
    fn resize(config: Config, pins: PinDir, existing: MapSet, old: Meta, mut tables: MapSet) -> Result<Program> {
        let rows = Kernel::new(&tables)?.rows()?;
        let next = Meta { generation: old.generation + 1, ..old };
        if !fits(&rows, &config.sizes) {
            let next = Meta { epoch: old.epoch + 1, ..next };
            return Program::load(config, pins, existing, next, StartKind::Rebuilt);
        }
        let mut program = Program::build(config, pins, existing, next, StartKind::Resized)?;
        tables.extend(program.maps.share(&RECORDS)?);
        carry(&rows, &mut Kernel::new(&program.maps)?)?;
        Count::new(&program.maps)?.carry(&Count::new(&tables)?, &rows)?;
        Control::new(&program.maps)?.carry(&Control::new(&tables)?)?;
        Levels::new(&program.maps)?.carry(&Levels::new(&tables)?, &rows)?;
        program.go_live()?;
        Ok(program)
    }

    /// Puts our programs at the hooks. Until now those of an earlier agent, if any, have served.
    pub fn go_live(&mut self) -> Result<()> {
        if self.live {
            return Ok(());
        }
        Control::new(&self.maps)?.beat();
        std::fs::create_dir_all(self.pins.links()).context(|| "cannot create the links folder".into())?;
        let cgroup = File::open(&self.config.cgroup)
            .context(|| format!("cannot open the cgroup {}", self.config.cgroup.display()))?;
        self.pins.note_epoch(self.meta.epoch)?;
        for hook in HOOKS {
            let link = self.attach(hook, &cgroup)?;
            self.links.push(link);
        }
        if let Some(old) = self.outgrown.take() {
            copy_rows(&old, &self.maps.handle("affinity")?);
        }
        self.pins.set_meta(self.meta)?;
        self.pins.remove_tables_except(self.meta.generation);
        self.live = true;
        Ok(())
    }

    /// Puts back what somebody else took from the hooks; says at which.
    pub fn mend(&mut self) -> Result<Vec<&'static str>> {
        if !self.live {
            return Ok(Vec::new());
        }
        let id = cgroup::id(&self.config.cgroup)?;
        let ours = |link: &Link, path: &Path| attached_to(link) == Some(id) && path.exists();
        let lost: Vec<usize> =
            (0..HOOKS.len()).filter(|i| !ours(&self.links[*i], &self.pins.link(HOOKS[*i]))).collect();
        if lost.is_empty() {
            return Ok(Vec::new());
        }
        std::fs::create_dir_all(self.pins.links()).context(|| "cannot create the links folder".into())?;
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
        let program = program.ok_or_else(|| Error::Said(format!("there is no program {hook}")))?;
        let id = cgroup::id(&self.config.cgroup)?;
        // Looked for first: libbpf complains aloud of what is not there.
        let pinned =
            path.exists().then(|| Link::open(&path).ok()).flatten().filter(|link| attached_to(link) == Some(id));
        if let Some(mut link) = pinned {
            link.update_prog(&program).context(|| format!("cannot put a new program at {hook}"))?;
            return Ok(link);
        }
        let mut link = program.attach_cgroup(cgroup.as_raw_fd()).context(|| {
            format!(
                "cannot attach {hook} to {}: `beeline doctor` tells what stands there",
                self.config.cgroup.display()
            )
        })?;
        // A link of another cgroup, or of one that is gone, ends with its pin; ours is attached already.
        let _ = std::fs::remove_file(&path);
        link.pin(&path).context(|| format!("cannot pin {}", path.display()))?;
        Ok(link)
    }

    pub fn is_live(&self) -> bool {
        self.live
    }

    pub fn meta(&self) -> Meta {
        self.meta
    }

    pub fn maps(&self) -> &MapSet {
        &self.maps
    }

    pub fn config(&self) -> &Config {
        &self.config
    }

    pub fn knobs(&self) -> Result<Knobs> {
        Program::make_knobs(&self.config, &self.meta)
    }

    pub fn kernel(&self) -> Result<Kernel> {
        let kernel = Kernel::new(&self.maps)?;
        let fresh = matches!(self.start, StartKind::Fresh | StartKind::Rebuilt);
        Ok(if fresh { kernel.fresh() } else { kernel.adopted() })
    }

    pub fn control(&self) -> Result<Control> {
        Control::new(&self.maps)
    }

    pub fn count(&self) -> Result<Count> {
        Count::new(&self.maps)
    }

    /// `dropped` counts the events that are not taken in time.
    pub fn events(&self, dropped: std::sync::Arc<std::sync::atomic::AtomicU64>) -> Result<Events> {
        Events::new(&self.maps, dropped)
    }

    pub fn door(&self) -> Result<Door> {
        Door::new(&self.maps, &self.config.sizes, shards(), self.knobs()?)
    }
}

fn attached_to(link: &Link) -> Option<u64> {
    match link.info().ok()?.info {
        libbpf_rs::query::LinkTypeInfo::Cgroup(info) => Some(info.cgroup_id),
        _ => None,
    }
}

fn fits(rows: &Rows, sizes: &Sizes) -> bool {
    let below = |highest: Option<u32>, end: u32| highest.is_none_or(|id| id < end);
    rows.frontends.len() <= sizes.frontends as usize
        && rows.slots.len() <= sizes.slots as usize
        && below(rows.sets.ids().next_back(), sizes.sets)
        && below(rows.backends.ids().next_back(), sizes.backends)
        && rows.selected.len() <= sizes.members as usize
        && below(rows.names.ids().next_back(), sizes.names)
}

/// As many as there is room for; one that is there already is younger.
fn copy_rows(from: &MapHandle, to: &MapHandle) {
    for key in from.keys() {
        if let Ok(Some(value)) = from.lookup(&key, MapFlags::ANY) {
            let _ = to.update(&key, &value, MapFlags::NO_EXIST);
        }
    }
}

/// What is pointed at first, the visible rows last, as ever.
fn carry(rows: &Rows, kernel: &mut Kernel) -> Result<()> {
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
        (_, Some(error)) => Err(Error::Said(format!("cannot carry the tables over: {error}"))),
    }
}

/// What `cleanup` removed.
#[derive(Debug, Default, serde::Serialize)]
pub struct Removed {
    pub links: Vec<String>,
    pub maps: usize,
}

/// Detaches every hook and removes every pin that an agent makes; anything else below the directory is somebody else's.
pub fn cleanup(pin_dir: &Path) -> Result<Removed> {
    let mut removed = Removed::default();
    if !pin_dir.exists() {
        return Ok(removed);
    }
    let pins = PinDir::lock(pin_dir)?;
    let ours = pins.entries();
    if ours.is_empty() && std::fs::read_dir(pin_dir).is_ok_and(|mut all| all.next().is_some()) {
        let path = pin_dir.display();
        return Err(Error::Said(format!(
            "nothing below {path} is an agent's: give the --pin-dir that it was started with"
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
    // Stays if somebody keeps other things there.
    let _ = std::fs::remove_dir(pin_dir);
    Ok(removed)
}

fn count_files(path: &Path) -> usize {
    if !path.is_dir() {
        return 1;
    }
    std::fs::read_dir(path).into_iter().flatten().flatten().map(|entry| count_files(&entry.path())).sum()
}

/// libbpf speaks to stderr by itself; it shall speak through our log.
pub fn quiet_libbpf() {
    fn print(level: libbpf_rs::PrintLevel, text: String) {
        match level {
            libbpf_rs::PrintLevel::Debug => tracing::trace!(target: "libbpf", "{}", text.trim_end()),
            _ => tracing::debug!(target: "libbpf", "{}", text.trim_end()),
        }
    }
    libbpf_rs::set_print(Some((libbpf_rs::PrintLevel::Info, print)));
    // SAFETY: no other thread uses libbpf yet.
    let _ = unsafe { libbpf_sys::libbpf_set_strict_mode(libbpf_sys::LIBBPF_STRICT_ALL) };
}
