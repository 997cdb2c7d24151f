//! The per-socket record: what each place for it adds to a dial, and to reading it back per datagram.

mod variant;
mod worker;

use std::{mem::MaybeUninit, sync::Arc, thread, time::Duration};

use anyhow::{Context, Result};
use libbpf_rs::{
    Link, MapCore, MapFlags, OpenObject,
    skel::{OpenSkel, Skel, SkelBuilder},
};

use crate::{
    ground::{self, Cgroup, Netns},
    mapping::memory,
    stats::{Samples, turns},
};
use variant::Variant;
pub use variant::{DIRECT, NONE, VARIANTS};
pub use worker::Protocol;
use worker::{SERVICE, Server, Times, Turn, Worker};

#[allow(clippy::all, dead_code, unused)]
mod skel {
    include!(concat!(env!("OUT_DIR"), "/record.skel.rs"));
}
use skel::{RecordSkel, RecordSkelBuilder};

pub const DIALS: usize = 20_000;
const DATAGRAMS: usize = 20_000;
const BLOCKS: usize = 60;
const BLOCK_DIALS: u32 = 1_000;
/// Records of other sockets that live meanwhile: an empty hash is faster than a used one.
pub const LIVE: u32 = 20_000;

/// Times of one candidate; dials by protocol, in the order of [`Protocol::ALL`].
#[derive(Default, Clone)]
pub struct Figures {
    pub connect: [Samples; 2],
    pub whole: [Samples; 2],
    pub block: [Samples; 2],
    pub receive: Samples,
    /// Bytes of the maps that hold the records.
    pub memory: u64,
}

/// Figures in the order of [`VARIANTS`].
pub fn measure() -> Result<Vec<Figures>> {
    // A thread of its own: it leaves the network namespace and the processor of the process alone.
    thread::spawn(measure_here).join().expect("the conductor panicked")
}

fn measure_here() -> Result<Vec<Figures>> {
    ground::pin()?;
    let netns = Arc::new(Netns::create("beeline-bench")?);
    let cgroup = Cgroup::enter("beeline-bench")?;
    netns.enter()?;
    let server = Arc::new(Server::bind()?);
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
    let globals = skel.maps.data_data.as_mut().context("no data")?;
    let figures = conduct(&workers, &mut globals.cells_per_cookie);
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
    open.maps.rodata_data.as_mut().context("no rodata")?.server_port = port.to_be();
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

/// Any value will do that marks a cell as taken.
fn write_all(map: &impl MapCore, keys: &[u8]) -> Result<()> {
    let values = vec![1; (LIVE * map.value_size()) as usize];
    Ok(map.update_batch(keys, &values, LIVE, MapFlags::ANY, MapFlags::ANY)?)
}

fn attach(skel: &mut RecordSkel<'_>, variant: &Variant, cgroup: i32) -> Result<Vec<Link>> {
    let wanted = [variant.connect, variant.receive, variant.release];
    let programs =
        skel.object_mut().progs_mut().filter(|program| wanted.iter().flatten().any(|name| program.name() == *name));
    let links = programs.map(|program| program.attach_cgroup(cgroup)).collect::<Result<Vec<_>, _>>();
    links.with_context(|| format!("cannot attach the programs of {}", variant.name))
}

/// Who takes turns with whom, and the word by which the kernel half is told how many share the cookies.
struct Conductor<'a> {
    workers: &'a [Worker],
    cells_per_cookie: &'a mut u32,
    figures: Vec<Figures>,
}

impl Conductor<'_> {
    fn dial(&mut self, index: usize, protocol: Protocol) -> Result<()> {
        *self.cells_per_cookie = (1 << 16) / VARIANTS.iter().filter(|variant| variant.cookie).count() as u32;
        let warm_up = self.workers.len() * DIALS / 20;
        for (turn, who) in turns(self.workers.len(), DIALS + DIALS / 20, 1).enumerate() {
            let times = self.turn(who, Turn::Dial(protocol))?;
            if turn >= warm_up {
                self.figures[who].connect[index].push(times.call);
                self.figures[who].whole[index].push(times.whole);
            }
        }
        Ok(())
    }

    fn block(&mut self, index: usize, protocol: Protocol) -> Result<()> {
        *self.cells_per_cookie = 1 << 16;
        for who in turns(self.workers.len(), BLOCKS, 2) {
            let times = self.turn(who, Turn::Block(protocol, BLOCK_DIALS))?;
            self.figures[who].block[index].push(times.call);
            // What this one has put off must not be paid by the next.
            thread::sleep(Duration::from_millis(15));
        }
        Ok(())
    }

    fn receive(&mut self) -> Result<()> {
        for who in turns(self.workers.len(), DATAGRAMS, 3) {
            let times = self.turn(who, Turn::Receive)?;
            self.figures[who].receive.push(times.call);
        }
        Ok(())
    }

    fn turn(&self, who: usize, turn: Turn) -> Result<Times> {
        self.workers[who].turn(turn).with_context(|| format!("{}: {turn:?}", VARIANTS[who].name))
    }
}

fn conduct(workers: &[Worker], cells_per_cookie: &mut u32) -> Result<Vec<Figures>> {
    let figures = vec![Figures::default(); workers.len()];
    let mut conductor = Conductor { workers, cells_per_cookie, figures };
    for (index, protocol) in Protocol::ALL.into_iter().enumerate() {
        conductor.dial(index, protocol)?;
        conductor.block(index, protocol)?;
    }
    conductor.receive()?;
    Ok(conductor.figures)
}
