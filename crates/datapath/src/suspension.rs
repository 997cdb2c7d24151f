//! Suspended backends of LocalRedirectPolicies (bpf/suspension.h): the program that notices refused dials, the reader of its
//! reports, and the rows of the map `suspended`.

use crate::mapped::{bytes_of, from_bytes};
use crate::object::{self, LoadConstants, MapSet};
use crate::{Context, Error, Result, abi, control, wire};
use beeline_model::Address;
use beeline_model::row::Sizes;
use libbpf_rs::{Link, MapCore, MapFlags, MapHandle, Object, RingBuffer, RingBufferBuilder};
use std::collections::BTreeSet;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Duration;

/// Capacity of the queue between two polls. The kernel reports a backend at most every 100 ms.
const CAPACITY: usize = 1024;

/// Address and port of a backend.
pub type BackendAddress = (Address, u16);

/// The program that notices refused dials. It runs only while it is attached, and ends with this value.
pub struct RefusalWatcher {
    object: Object,
    cgroup: PathBuf,
    link: Option<Link>,
}

impl RefusalWatcher {
    pub fn new(
        maps: &MapSet,
        sizes: &Sizes,
        shards: u32,
        constants: LoadConstants,
        cgroup: PathBuf,
    ) -> Result<RefusalWatcher> {
        let mut open = object::open(object::REFUSAL, "refusal")?;
        object::prepare(&mut open, sizes, shards, maps, constants)?;
        Ok(RefusalWatcher { object: object::load(open, "refusal")?, cgroup, link: None })
    }

    /// Attaches or detaches the program. The link is not pinned: without an agent nobody ends a suspension early.
    pub fn set_attached(&mut self, attached: bool) -> Result<()> {
        if !attached {
            self.link = None;
        } else if self.link.is_none() {
            let cgroup =
                File::open(&self.cgroup).context(|| format!("cannot open the cgroup {}", self.cgroup.display()))?;
            let program = self.object.progs_mut().find(|program| program.name() == "watch_redirects");
            let program = program.ok_or_else(|| Error::Message("there is no program watch_redirects".into()))?;
            let link = program.attach_cgroup(cgroup.as_raw_fd());
            self.link = Some(link.context(|| format!("cannot attach watch_redirects to {}", self.cgroup.display()))?);
        }
        Ok(())
    }

    pub fn is_attached(&self) -> bool {
        self.link.is_some()
    }

    pub fn reader(&self) -> Result<RefusalReader> {
        RefusalReader::new(object::maps_of(&self.object)?.handle("refusals")?)
    }
}

/// Reads the backends that refused a dial.
pub struct RefusalReader {
    ring: RingBuffer<'static>,
    receiver: Receiver<BackendAddress>,
}

impl RefusalReader {
    fn new(map: MapHandle) -> Result<RefusalReader> {
        // Leaked once per process: the ring borrows the map until the process ends.
        let map: &'static MapHandle = Box::leak(Box::new(map));
        let (sender, receiver) = sync_channel(CAPACITY);
        let mut builder = RingBufferBuilder::new();
        let on_refusal = move |bytes: &[u8]| {
            if let Some(refusal) = from_bytes::<abi::refusal>(bytes) {
                // If the queue is full, the next refused dial is reported again.
                let _ = sender.try_send(read_key(&refusal.backend));
            }
            0
        };
        builder.add(map, on_refusal).context(|| "cannot open the ring buffer of refused dials".into())?;
        let ring = builder.build().context(|| "cannot open the ring buffer of refused dials".into())?;
        Ok(RefusalReader { ring, receiver })
    }

    /// Waits at most `timeout` and returns the backends that refused a dial.
    pub fn poll(&self, timeout: Duration) -> BTreeSet<BackendAddress> {
        let _ = self.ring.poll(timeout);
        self.receiver.try_iter().collect()
    }
}

/// Readable while refused dials are reported.
impl AsFd for RefusalReader {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor belongs to the ring, which lives as long as the borrow.
        unsafe { BorrowedFd::borrow_raw(self.ring.epoll_fd()) }
    }
}

/// The map `suspended`.
pub struct SuspensionMap {
    map: MapHandle,
}

impl SuspensionMap {
    pub fn new(maps: &MapSet) -> Result<SuspensionMap> {
        Ok(SuspensionMap { map: maps.handle("suspended")? })
    }

    /// Redirects skip the backend for this time.
    pub fn suspend(&self, backend: BackendAddress, time: Duration) -> Result<()> {
        self.write(backend, abi::suspension { until: after(time), ..Default::default() })
    }

    /// Redirects use the backend again. For this time a refused dial alone does not suspend it.
    pub fn trust(&self, backend: BackendAddress, time: Duration) -> Result<()> {
        self.write(backend, abi::suspension { trusted_until: after(time), ..Default::default() })
    }

    /// A refused dial that comes just after this write is not reported: a client that fakes refused dials would otherwise
    /// cause a connect of the agent with each of them.
    fn write(&self, backend: BackendAddress, row: abi::suspension) -> Result<()> {
        let row = abi::suspension { reported: control::monotonic(), ..row };
        let written = self.map.update(bytes_of(&write_key(backend)), bytes_of(&row), MapFlags::ANY);
        written.context(|| "cannot write the map suspended".into())
    }

    pub fn remove(&self, backend: BackendAddress) {
        // The row may have been removed already.
        let _ = self.map.delete(bytes_of(&write_key(backend)));
    }

    /// The backends that redirects skip now.
    pub fn suspended(&self) -> BTreeSet<BackendAddress> {
        let now = control::monotonic();
        let is_suspended = |key: &Vec<u8>| {
            let row = self.map.lookup(key, MapFlags::ANY).ok().flatten();
            row.and_then(|row| from_bytes::<abi::suspension>(&row)).is_some_and(|row| row.until > now)
        };
        let keys = self.map.keys().filter(is_suspended);
        keys.filter_map(|key| from_bytes::<abi::suspension_key>(&key)).map(|key| read_key(&key)).collect()
    }
}

fn after(time: Duration) -> u64 {
    control::monotonic() + time.as_nanos() as u64
}

fn read_key(key: &abi::suspension_key) -> BackendAddress {
    (wire::read_address(&key.address), u16::from_be(key.port))
}

fn write_key((address, port): BackendAddress) -> abi::suspension_key {
    abi::suspension_key { address: wire::address(address), port: port.to_be(), pad: 0 }
}
