//! Candidates for the per-socket record: the time that each adds to a dial and to receiving a datagram.

mod variant;
mod worker;

use std::{mem::MaybeUninit, sync::Arc, thread, time::Duration};

use anyhow::{Context, Result};
use libbpf_rs::{
    Link, MapCore, MapFlags, OpenObject,
    skel::{OpenSkel, Skel, SkelBuilder},
};

use crate::{
    isolation::{self, BenchCgroup, BenchNamespace},
    mapping::memory,
    stats::{Samples, random_rounds},
};
use variant::RecordVariant;
pub use variant::{DIRECT, NONE, VARIANTS};
pub use worker::SocketProtocol;
use worker::{CallTimes, LoopbackServer, SERVICE, WorkRequest, Worker};

#[allow(clippy::all, dead_code, unused)]
mod skel {
    include!(concat!(env!("OUT_DIR"), "/record.skel.rs"));
}
use skel::{RecordSkel, RecordSkelBuilder};

pub const DIALS: usize = 20_000;
const DATAGRAMS: usize = 20_000;
const BLOCKS: usize = 60;
const BLOCK_DIALS: u32 = 1_000;
/// Number of records of other sockets, because an empty hash is faster than a filled one.
pub const LIVE: u32 = 20_000;

/// Results of one candidate, by protocol in the order of [`SocketProtocol::ALL`].
#[derive(Default, Clone)]
pub struct RecordFigures {
    pub connect: [Samples; 2],
    pub total: [Samples; 2],
    pub block: [Samples; 2],
    pub receive: Samples,
    /// Memory of the record's maps in bytes.
    pub memory: u64,
}

/// RecordFigures in the order of [`VARIANTS`].
pub fn measure() -> Result<Vec<RecordFigures>> {
    // In a thread of its own, so that the process keeps its network namespace and processors.
    thread::spawn(measure_here).join().expect("the measuring thread panicked")
}

fn measure_here() -> Result<Vec<RecordFigures>> {
    isolation::pin_to_cpu()?;
    let netns = Arc::new(BenchNamespace::create("beeline-bench")?);
    let cgroup = BenchCgroup::enter("beeline-bench")?;
    netns.enter()?;
    let server = Arc::new(LoopbackServer::bind()?);
    let mut storage = MaybeUninit::uninit();
    let mut skel = load(&mut storage, server.address.port())?;
    let mut links = Vec::new();
    let mut workers = Vec::new();
    for variant in &VARIANTS {
        let group = cgroup.thread_group(&variant.name.replace(' ', "-"))?;
        links.extend(attach(&mut skel, variant, group.fd())?);
        let dialled = if variant.service { SERVICE } else { server.address };
        workers.push(Worker::start(group, netns.clone(), server.clone(), dialled));
    }
    let globals = skel.maps.data_data.as_mut().context("record.bpf.c has no global variables")?;
    let figures = run_all(&workers, &mut globals.cells_per_cookie);
    workers.into_iter().try_for_each(Worker::stop)?;
    let mut figures = figures?;
    for (variant, figures) in VARIANTS.iter().zip(&mut figures) {
        let maps = skel.object().maps().filter(|map| variant.maps.iter().any(|name| map.name() == *name));
        figures.memory = maps.map(|map| memory(&map)).sum::<Result<u64>>()?;
    }
    Ok(figures)
}

fn load(storage: &mut MaybeUninit<OpenObject>, port: u16) -> Result<RecordSkel<'_>> {
    let mut open = RecordSkelBuilder::default().open(storage)?;
    open.maps.rodata_data.as_mut().context("record.bpf.c has no constants")?.server_port = port.to_be();
    let skel = open.load().context("the kernel refused record.bpf.c")?;
    populate(&skel)?;
    Ok(skel)
}

/// Fills in the records of [`LIVE`] other sockets.
fn populate(skel: &RecordSkel<'_>) -> Result<()> {
    let cookies = (0..u64::from(LIVE)).map(|number| (1 << 40) + number);
    let keys: Vec<u8> = cookies.flat_map(u64::to_ne_bytes).collect();
    let maps = &skel.maps;
    for map in [&maps.hash_map, &maps.lazy_map, &maps.lru_map, &maps.overflow_map] {
        write_all(map, &keys)?;
    }
    let mut cells: Vec<u32> = (0..maps.cell64_map.max_entries()).collect();
    fastrand::Rng::with_seed(1).shuffle(&mut cells);
    let keys: Vec<u8> = cells.into_iter().take(LIVE as usize).flat_map(u32::to_ne_bytes).collect();
    write_all(&maps.cell64_map, &keys)?;
    write_all(&maps.cell32_map, &keys)
}

/// Writes values that mark the cells as used.
fn write_all(map: &impl MapCore, keys: &[u8]) -> Result<()> {
    let values = vec![1; (LIVE * map.value_size()) as usize];
    Ok(map.update_batch(keys, &values, LIVE, MapFlags::ANY, MapFlags::ANY)?)
}

fn attach(skel: &mut RecordSkel<'_>, variant: &RecordVariant, cgroup: i32) -> Result<Vec<Link>> {
    let names = [variant.connect, variant.receive, variant.release];
    let programs =
        skel.object_mut().progs_mut().filter(|program| names.iter().flatten().any(|name| program.name() == *name));
    let links = programs.map(|program| program.attach_cgroup(cgroup)).collect::<Result<Vec<_>, _>>();
    links.with_context(|| format!("cannot attach the programs of {}", variant.name))
}

/// Requests work from the candidates' threads in turn. `cells_per_cookie` tells the BPF programs how many share
/// cookies.
struct Scheduler<'a> {
    workers: &'a [Worker],
    cells_per_cookie: &'a mut u32,
    figures: Vec<RecordFigures>,
}

impl Scheduler<'_> {
    fn dial(&mut self, index: usize, protocol: SocketProtocol) -> Result<()> {
        *self.cells_per_cookie = (1 << 16) / VARIANTS.iter().filter(|variant| variant.cookie).count() as u32;
        let warm_up = self.workers.len() * DIALS / 20;
        for (run, worker) in random_rounds(self.workers.len(), DIALS + DIALS / 20, 1).enumerate() {
            let times = self.request(worker, WorkRequest::Dial(protocol))?;
            if run >= warm_up {
                self.figures[worker].connect[index].push(times.call);
                self.figures[worker].total[index].push(times.total);
            }
        }
        Ok(())
    }

    fn block(&mut self, index: usize, protocol: SocketProtocol) -> Result<()> {
        *self.cells_per_cookie = 1 << 16;
        for worker in random_rounds(self.workers.len(), BLOCKS, 2) {
            let times = self.request(worker, WorkRequest::Block(protocol, BLOCK_DIALS))?;
            self.figures[worker].block[index].push(times.call);
            // Deferred work of this candidate must not be measured with the next one.
            thread::sleep(Duration::from_millis(15));
        }
        Ok(())
    }

    fn receive(&mut self) -> Result<()> {
        for worker in random_rounds(self.workers.len(), DATAGRAMS, 3) {
            let times = self.request(worker, WorkRequest::Receive)?;
            self.figures[worker].receive.push(times.call);
        }
        Ok(())
    }

    fn request(&self, worker: usize, request: WorkRequest) -> Result<CallTimes> {
        self.workers[worker].request(request).with_context(|| format!("{}: {request:?}", VARIANTS[worker].name))
    }
}

fn run_all(workers: &[Worker], cells_per_cookie: &mut u32) -> Result<Vec<RecordFigures>> {
    let figures = vec![RecordFigures::default(); workers.len()];
    let mut scheduler = Scheduler { workers, cells_per_cookie, figures };
    for (index, protocol) in SocketProtocol::ALL.into_iter().enumerate() {
        scheduler.dial(index, protocol)?;
        scheduler.block(index, protocol)?;
    }
    scheduler.receive()?;
    Ok(scheduler.figures)
}
