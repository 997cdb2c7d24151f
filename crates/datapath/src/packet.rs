//! The packet path: loads bpf/packet.bpf.c on the tables of the socket programs and attaches it to the ingress of devices.
//!
//! A kernel with tcx (Linux 6.6) gets a pinned link per device, so that the program outlives the agent and other programs
//! at the same device are untouched. An older kernel gets a filter of a clsact qdisc, which outlives the agent too.

mod clsact;
mod source;

pub use source::{DeviceTable, PacketDevice, PodRangeTable};

use crate::object::{self, LoadConstants, MapSet};
use crate::pin::PinDir;
use crate::{Context, Error, Result};
use beeline_model::row::Sizes;
use libbpf_rs::query::LinkTypeInfo;
use libbpf_rs::{AsRawLibbpf, Link, Object, ProgramAttachType, ProgramInput, ProgramMut, libbpf_sys};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;

/// The mark of packets that nftables must reject.
pub const REJECT_MARK: u32 = crate::abi::packet_mark::MARK_REJECT.0;

const PROGRAM: &str = "packet_ingress";
/// The names of pinned links begin with this text; the interface index follows.
pub const PIN_PREFIX: &str = "packet-";

/// How the program is attached to devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum AttachKind {
    Tcx,
    Clsact,
}

/// Where the program runs among the programs of others at the same device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AttachOrder {
    /// Before all programs that are attached now.
    #[default]
    First,
    /// After all programs that are attached now.
    Last,
}

enum Attachment {
    Link(Link),
    Filter,
}

pub struct PacketProgram {
    object: Object,
    links: PathBuf,
    kind: AttachKind,
    order: AttachOrder,
    /// The priority of the clsact filter.
    priority: u32,
    attached: BTreeMap<u32, Attachment>,
}

/// What `PacketProgram::load` needs of the socket programs.
pub struct PacketConfig {
    pub sizes: Sizes,
    pub constants: LoadConstants,
    pub order: AttachOrder,
    pub priority: u32,
}

impl PacketProgram {
    pub fn load(maps: &MapSet, pins: &PinDir, config: PacketConfig) -> Result<PacketProgram> {
        let mut open = object::open(object::PACKET, "packet")?;
        object::prepare(&mut open, &config.sizes, config.constants.shards, maps, config.constants)?;
        let kind = if clsact::is_required() { AttachKind::Clsact } else { AttachKind::Tcx };
        // A kernel without tcx does not know this attach type.
        for mut program in open.progs_mut().filter(|_| kind == AttachKind::Tcx) {
            program.set_attach_type(ProgramAttachType::TcxIngress);
        }
        let object = object::load(open, "packet")?;
        std::fs::create_dir_all(pins.links()).context(|| "cannot create the directory for pinned links".into())?;
        let PacketConfig { order, priority, .. } = config;
        Ok(PacketProgram { object, links: pins.links(), kind, order, priority, attached: BTreeMap::new() })
    }

    pub fn kind(&self) -> AttachKind {
        self.kind
    }

    /// The interface indexes that the program is attached to.
    pub fn attached(&self) -> impl Iterator<Item = u32> {
        self.attached.keys().copied()
    }

    /// Attaches the program to exactly these devices. Returns the devices that it was attached to now, and an error for
    /// each device that failed.
    pub fn attach_only(&mut self, wanted: &[u32]) -> (Vec<u32>, Vec<(u32, Error)>) {
        let stale: Vec<u32> = self.attached().chain(self.pinned()).filter(|index| !wanted.contains(index)).collect();
        stale.into_iter().for_each(|index| self.detach(index));
        let (mut new, mut failed) = (Vec::new(), Vec::new());
        for index in wanted.iter().copied().filter(|index| !self.is_attached(*index)).collect::<Vec<_>>() {
            match self.attach(index) {
                Ok(attachment) => {
                    self.attached.insert(index, attachment);
                    new.push(index);
                }
                Err(error) => failed.push((index, error)),
            }
        }
        (new, failed)
    }

    /// Whether the program is still attached. Another program may have removed it.
    fn is_attached(&self, index: u32) -> bool {
        match self.attached.get(&index) {
            Some(Attachment::Link(link)) => device_of(link) == Some(index) && self.pin(index).exists(),
            Some(Attachment::Filter) => clsact::is_attached(index, self.priority),
            None => false,
        }
    }

    fn pin(&self, index: u32) -> PathBuf {
        self.links.join(format!("{PIN_PREFIX}{index}"))
    }

    /// The devices with a pinned link, which an earlier agent may have left.
    fn pinned(&self) -> Vec<u32> {
        pinned_devices(&self.links)
    }

    fn program(&self) -> Result<ProgramMut<'_>> {
        let found = self.object.progs_mut().find(|program| program.name() == PROGRAM);
        found.ok_or_else(|| Error::Message(format!("there is no program {PROGRAM} in the BPF object packet")))
    }

    fn attach(&self, index: u32) -> Result<Attachment> {
        let program = self.program()?;
        if self.kind == AttachKind::Clsact {
            clsact::attach(&program, index, self.priority)?;
            return Ok(Attachment::Filter);
        }
        let path = self.pin(index);
        // The path is checked first because libbpf logs an error for a missing pin.
        let pinned = path.exists().then(|| Link::open(&path).ok()).flatten();
        if let Some(mut link) = pinned.filter(|link| device_of(link) == Some(index)) {
            link.update_prog(&program).context(|| format!("cannot replace the program at device {index}"))?;
            return Ok(Attachment::Link(link));
        }
        let mut link = attach_tcx(&program, index, self.order)?;
        // The pin of a device that is gone. Its index may be in use again.
        let _ = std::fs::remove_file(&path);
        link.pin(&path).context(|| format!("cannot pin {}", path.display()))?;
        Ok(Attachment::Link(link))
    }

    fn detach(&mut self, index: u32) {
        let _ = std::fs::remove_file(self.pin(index));
        if let Some(Attachment::Filter) = self.attached.remove(&index) {
            clsact::detach(index, self.priority);
        }
    }
}

/// Whether the conntrack functions are in modules, or not loaded yet. The kernel gives out the BTF of modules only with
/// CAP_SYS_ADMIN.
pub fn needs_module_btf() -> bool {
    let symbols = std::fs::read_to_string("/proc/kallsyms").unwrap_or_default();
    let is_built_in = symbols.lines().any(|line| line.ends_with(" bpf_skb_ct_alloc"));
    Path::new("/sys/kernel/btf/nf_conntrack").exists() || !is_built_in
}

/// Removes the filters at these devices. Links are removed with their pins.
///
/// Returns whether there was one.
pub fn detach_filters(devices: impl Iterator<Item = u32>, priority: u32) -> bool {
    clsact::is_required() && devices.filter(|index| clsact::detach(*index, priority)).count() > 0
}

fn pinned_devices(links: &Path) -> Vec<u32> {
    let entries = std::fs::read_dir(links).into_iter().flatten().flatten();
    let index = |entry: std::fs::DirEntry| entry.file_name().to_str()?.strip_prefix(PIN_PREFIX)?.parse().ok();
    entries.filter_map(index).collect()
}

/// The interface index of a tcx link; `None` if its device is gone.
fn device_of(link: &Link) -> Option<u32> {
    match link.info().ok()?.info {
        LinkTypeInfo::Tcx(info) => Some(info.ifindex).filter(|index| *index != 0),
        _ => None,
    }
}

/// libbpf-rs has no function for tcx.
fn attach_tcx(program: &ProgramMut<'_>, index: u32, order: AttachOrder) -> Result<Link> {
    let opts = libbpf_sys::bpf_tcx_opts {
        sz: size_of::<libbpf_sys::bpf_tcx_opts>() as _,
        flags: match order {
            AttachOrder::First => libbpf_sys::BPF_F_BEFORE,
            AttachOrder::Last => libbpf_sys::BPF_F_AFTER,
        },
        ..Default::default()
    };
    // SAFETY: the program is loaded and outlives the call, and `opts` has its own size in `sz`.
    let link = unsafe {
        libbpf_sys::bpf_program__attach_tcx(program.as_libbpf_object().as_ptr(), index as i32, &raw const opts)
    };
    let what = || format!("cannot attach the packet program to device {index} by tcx");
    let link = NonNull::new(link).ok_or_else(std::io::Error::last_os_error).context(what)?;
    // SAFETY: libbpf returned a new link, which is used nowhere else.
    Ok(unsafe { Link::from_ptr(link) })
}

/// What the program did with a frame in a test run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TestRun {
    /// The frame was dropped.
    pub dropped: bool,
    /// The mark of the frame afterwards.
    pub mark: u32,
}

impl PacketProgram {
    /// Runs the program on an Ethernet frame, in the network namespace of this thread. For tests: nothing is sent, but
    /// conntrack entries are created.
    pub fn test_run(&self, frame: &[u8]) -> Result<TestRun> {
        /// The size of `struct __sk_buff`, and the offset of `mark` in it.
        const CONTEXT: (usize, usize) = (192, 8);
        let mut context = [0; CONTEXT.0];
        let input = ProgramInput { data_in: Some(frame), context_out: Some(&mut context), ..Default::default() };
        let output = self.program()?.test_run(input).context(|| "cannot run the packet program".into())?;
        // TC_ACT_SHOT. The other possible value continues with the next program.
        let dropped = output.return_value == 2;
        let mark = u32::from_ne_bytes(std::array::from_fn(|i| context[CONTEXT.1 + i]));
        Ok(TestRun { dropped, mark })
    }
}
