//! Time from parsed objects to kernel maps, for the whole state and for one endpoint.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use beeline_datapath::KernelMaps;
use beeline_model::{
    Protocol,
    diff::reconcile,
    op::{MapError, Maps, Op},
    row::{Rows, Sizes},
};

use super::{beeline::Beeline, objects};
use crate::{
    isolation::BenchCgroup,
    stats::{Samples, random_rounds},
};

pub const SERVICES: u32 = 100_000;
/// Numbers of endpoints of the Services that change.
pub const ENDPOINTS: [u32; 2] = [10, 1_000];
const FILLS: usize = 3;
const CHANGES: usize = 500;

pub struct ProgrammingFigures {
    /// Seconds for planner, diff and maps; the median of some runs.
    pub total: f64,
    /// Seconds for the same writes into new maps, without planner and diff.
    pub maps: f64,
    pub writes: usize,
    /// Nanoseconds from change to kernel, in the order of [`ENDPOINTS`].
    pub change: [Samples; 2],
    /// Number of writes of the last change of each.
    pub change_writes: [usize; 2],
    /// Memory of the maps in bytes.
    pub map_memory: u64,
}

pub fn measure() -> Result<ProgrammingFigures> {
    let cgroup = BenchCgroup::enter("beeline-bench")?;
    let (mut totals, mut maps) = (Samples::default(), Samples::default());
    let ops = record(&cgroup)?;
    for _ in 0..FILLS {
        totals.push(fill(&cgroup)?.as_micros() as u64);
        maps.push(replay(&cgroup, &ops)?.as_micros() as u64);
    }
    let mut beeline = Beeline::open("programming", cgroup.path(), SERVICES)?;
    beeline.fill(objects::changes(SERVICES, Protocol::Tcp))?;
    let (change, change_writes) = change(&mut beeline)?;
    let map_memory = beeline.map_memory()?;
    let (total, maps) = (totals.p50() / 1e6, maps.p50() / 1e6);
    Ok(ProgrammingFigures { total, maps, writes: ops.len(), change, change_writes, map_memory })
}

fn fill(cgroup: &BenchCgroup) -> Result<Duration> {
    let mut beeline = Beeline::open("programming", cgroup.path(), SERVICES)?;
    let changes = objects::changes(SERVICES, Protocol::Tcp);
    let start = Instant::now();
    beeline.fill(changes)?;
    Ok(start.elapsed())
}

/// The writes of a fill, in order.
fn record(cgroup: &BenchCgroup) -> Result<Vec<Op>> {
    let mut beeline = Beeline::open("programming", cgroup.path(), SERVICES)?;
    for change in objects::changes(SERVICES, Protocol::Tcp) {
        beeline.planner.apply(change);
    }
    let delta = beeline.planner.take_full_delta();
    let mut recorder = Recorder { kernel: &mut beeline.kernel, ops: Vec::new() };
    let outcome = reconcile(&mut beeline.tables, &mut recorder, &delta, true);
    ensure!(outcome.is_clean(), "not all rows could be written: {:?}", outcome.refusals().first());
    Ok(recorder.ops)
}

fn replay(cgroup: &BenchCgroup, ops: &[Op]) -> Result<Duration> {
    let mut beeline = Beeline::open("programming", cgroup.path(), SERVICES)?;
    let start = Instant::now();
    let (_, error) = beeline.kernel.write_all(ops);
    let took = start.elapsed();
    ensure!(error.is_none(), "cannot write: {error:?}");
    Ok(took)
}

/// Replaces one endpoint of a small and of a large Service, in turn.
fn change(beeline: &mut Beeline) -> Result<([Samples; 2], [usize; 2])> {
    let first_pod = |which: usize| SERVICES * objects::BACKENDS + which as u32 * 10_000;
    for (which, endpoints) in ENDPOINTS.into_iter().enumerate() {
        let changes = objects::large_service(SERVICES + which as u32, first_pod(which), endpoints);
        changes.into_iter().try_for_each(|change| beeline.change(change).map(drop))?;
    }
    let (mut samples, mut writes) = ([Samples::default(), Samples::default()], [0; 2]);
    for (number, which) in random_rounds(ENDPOINTS.len(), CHANGES, 6).enumerate() {
        let other = first_pod(which) + 2_000 + number as u32;
        let change = objects::changed_slice(SERVICES + which as u32, first_pod(which), ENDPOINTS[which], other);
        let start = Instant::now();
        writes[which] = beeline.change(change)?.ops;
        samples[which].push(start.elapsed().as_nanos() as u64);
        // Outside of the measured time, released ids become free, as the agent does periodically.
        if number % 100 == 0 {
            beeline.tables.recycle(&mut beeline.kernel)?;
        }
    }
    Ok((samples, writes))
}

/// Forwards all writes to the kernel and records them.
struct Recorder<'a> {
    kernel: &'a mut KernelMaps,
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

    fn wait_grace_period(&mut self) -> Result<(), MapError> {
        self.kernel.wait_grace_period()
    }

    fn sizes(&self) -> Sizes {
        self.kernel.sizes()
    }
}
