//! From parsed facts to the kernel: the whole state, and one endpoint.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use beeline_datapath::Kernel;
use beeline_model::{
    Protocol,
    diff::reconcile,
    op::{MapError, Maps, Op},
    row::{Rows, Sizes},
};

use super::{beeline::Beeline, world};
use crate::{
    ground::Cgroup,
    stats::{Samples, turns},
};

pub const SERVICES: u32 = 100_000;
/// The services whose endpoints change, by their number of endpoints.
pub const ENDPOINTS: [u32; 2] = [10, 1_000];
const FILLS: usize = 3;
const CHANGES: usize = 500;

pub struct Figures {
    /// Seconds, planner and diff and maps; the median of a few.
    pub total: f64,
    /// The very same writes into fresh maps, and nothing else.
    pub maps: f64,
    pub writes: usize,
    /// Milliseconds from fact to kernel, in the order of [`ENDPOINTS`].
    pub change: [Samples; 2],
    /// Writes of the last change of each.
    pub change_writes: [usize; 2],
    /// Bytes.
    pub map_memory: u64,
}

pub fn measure() -> Result<Figures> {
    let cgroup = Cgroup::enter("beeline-bench")?;
    let (mut totals, mut maps) = (Samples::default(), Samples::default());
    let ops = record(&cgroup)?;
    for _ in 0..FILLS {
        totals.push(fill(&cgroup)?.as_micros() as u64);
        maps.push(replay(&cgroup, &ops)?.as_micros() as u64);
    }
    let mut beeline = Beeline::open("programming", cgroup.path(), SERVICES)?;
    beeline.fill(world::facts(SERVICES, Protocol::Tcp))?;
    let (change, change_writes) = change(&mut beeline)?;
    let map_memory = beeline.map_memory()?;
    let (total, maps) = (totals.p50() / 1e6, maps.p50() / 1e6);
    Ok(Figures { total, maps, writes: ops.len(), change, change_writes, map_memory })
}

fn fill(cgroup: &Cgroup) -> Result<Duration> {
    let mut beeline = Beeline::open("programming", cgroup.path(), SERVICES)?;
    let facts = world::facts(SERVICES, Protocol::Tcp);
    let start = Instant::now();
    beeline.fill(facts)?;
    Ok(start.elapsed())
}

/// Writes of a fill, in their order.
fn record(cgroup: &Cgroup) -> Result<Vec<Op>> {
    let mut beeline = Beeline::open("programming", cgroup.path(), SERVICES)?;
    for fact in world::facts(SERVICES, Protocol::Tcp) {
        beeline.planner.apply(fact);
    }
    let delta = beeline.planner.take_all();
    let mut recorder = Recorder { kernel: &mut beeline.kernel, ops: Vec::new() };
    let outcome = reconcile(&mut beeline.tables, &mut recorder, &delta, true);
    ensure!(outcome.is_clean(), "not everything could be written: {:?}", outcome.refusals().first());
    Ok(recorder.ops)
}

fn replay(cgroup: &Cgroup, ops: &[Op]) -> Result<Duration> {
    let mut beeline = Beeline::open("programming", cgroup.path(), SERVICES)?;
    let start = Instant::now();
    let (_, error) = beeline.kernel.write_all(ops);
    let took = start.elapsed();
    ensure!(error.is_none(), "cannot write: {error:?}");
    Ok(took)
}

/// Changes of a small and of a large service, taking turns: one endpoint goes, another comes.
fn change(beeline: &mut Beeline) -> Result<([Samples; 2], [usize; 2])> {
    let first_pod = |which: usize| SERVICES * world::BACKENDS + which as u32 * 10_000;
    for (which, endpoints) in ENDPOINTS.into_iter().enumerate() {
        let facts = world::large_service(SERVICES + which as u32, first_pod(which), endpoints);
        facts.into_iter().try_for_each(|fact| beeline.change(fact).map(drop))?;
    }
    let (mut samples, mut writes) = ([Samples::default(), Samples::default()], [0; 2]);
    for (number, which) in turns(ENDPOINTS.len(), CHANGES, 6).enumerate() {
        let other = first_pod(which) + 2_000 + number as u32;
        let fact = world::changed_slice(SERVICES + which as u32, first_pod(which), ENDPOINTS[which], other);
        let start = Instant::now();
        writes[which] = beeline.change(fact)?.ops;
        samples[which].push(start.elapsed().as_nanos() as u64);
        // As the agent does now and then, outside of what is timed: released ids become free.
        if number % 100 == 0 {
            beeline.tables.recycle(&mut beeline.kernel)?;
        }
    }
    Ok((samples, writes))
}

/// Passes everything on and remembers what was written.
struct Recorder<'a> {
    kernel: &'a mut Kernel,
    ops: Vec<Op>,
}

impl Maps for Recorder<'_> {
    fn write(&mut self, op: &Op) -> Result<(), MapError> {
        self.ops.push(op.clone());
        self.kernel.write(op)
    }

    fn write_all(&mut self, ops: &[Op]) -> (usize, Option<MapError>) {
        self.ops.extend_from_slice(ops);
        self.kernel.write_all(ops)
    }

    fn dump(&self) -> Result<Rows, MapError> {
        self.kernel.dump()
    }

    fn grace(&mut self) -> Result<(), MapError> {
        self.kernel.grace()
    }

    fn sizes(&self) -> Sizes {
        self.kernel.sizes()
    }
}
