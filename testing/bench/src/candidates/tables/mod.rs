//! Candidates for the map layout: cost of a resolve by number of services, and cost to fill, change and store the maps.

mod fill;
mod layout;

use std::mem::MaybeUninit;

use anyhow::{Context, Result, ensure};
use libbpf_rs::{
    OpenObject, ProgramInput, ProgramMut,
    skel::{OpenSkel, Skel, SkelBuilder},
};

use crate::{
    mapping::memory,
    stats::{Samples, random_rounds},
};

#[allow(clippy::all, dead_code, unused)]
mod skel {
    include!(concat!(env!("OUT_DIR"), "/tables.skel.rs"));
}
use skel::{TablesSkel, TablesSkelBuilder};

pub const SIZES: [u32; 4] = [10, 1_000, 10_000, 100_000];
/// Number of timed fills of new maps.
const FILLS: usize = 3;
const ROUNDS: usize = 12;
const ITERATIONS: u32 = 40_000;
const CHANGES: u32 = 500;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CandidateTable {
    Frontend,
    LazyFrontend,
    Bucket,
    Set,
    Slot,
    Backend,
    PlainService,
    PlainBackend,
}

impl CandidateTable {
    const ALL: [Self; 8] = [
        Self::Frontend,
        Self::LazyFrontend,
        Self::Bucket,
        Self::Set,
        Self::Slot,
        Self::Backend,
        Self::PlainService,
        Self::PlainBackend,
    ];
}

/// How one endpoint is replaced.
#[derive(Debug, Clone, Copy)]
enum Change {
    Mapped { slots: bool },
    Plain,
}

pub struct TableCandidate {
    pub name: &'static str,
    pub about: &'static str,
    program: &'static str,
    tables: &'static [CandidateTable],
    change: Change,
}

/// Index of the candidate with which the others are compared.
pub const TWO_HASHES: usize = 4;

/// Program with an empty loop, whose time is subtracted from all others.
const EMPTY_LOOP: &str = "loop_none";

pub const CANDIDATES: [TableCandidate; 5] = [
    TableCandidate {
        name: "inline",
        about: "frontend hash, set array with inline ids, backend array",
        program: "loop_inline",
        tables: &[CandidateTable::Frontend, CandidateTable::Set, CandidateTable::Backend],
        change: Change::Mapped { slots: false },
    },
    TableCandidate {
        name: "slot",
        about: "the same, ids in a slot array of their own",
        program: "loop_slot",
        tables: &[CandidateTable::Frontend, CandidateTable::Set, CandidateTable::Slot, CandidateTable::Backend],
        change: Change::Mapped { slots: true },
    },
    TableCandidate {
        name: "lazy",
        about: "as inline, frontend hash with BPF_F_NO_PREALLOC",
        program: "loop_lazy",
        tables: &[CandidateTable::LazyFrontend, CandidateTable::Set, CandidateTable::Backend],
        change: Change::Mapped { slots: false },
    },
    TableCandidate {
        name: "bucket",
        about: "as inline, frontends in a custom hash: mapped array, two rows per cache line",
        program: "loop_bucket",
        tables: &[CandidateTable::Bucket, CandidateTable::Set, CandidateTable::Backend],
        change: Change::Mapped { slots: false },
    },
    TableCandidate {
        name: "two hashes",
        about: "service hash to {id, count}, backend hash by {id, index}",
        program: "loop_plain",
        tables: &[CandidateTable::PlainService, CandidateTable::PlainBackend],
        change: Change::Plain,
    },
];

/// Results of one candidate at one size.
#[derive(Default, Clone)]
pub struct TableFigures {
    /// Nanoseconds per resolve.
    pub resolve: f64,
    /// Nanoseconds to write all tables.
    pub fill: f64,
    /// Nanoseconds to change one endpoint.
    pub change: Samples,
    /// Memory of all maps in bytes.
    pub memory: u64,
}

/// TableFigures in the order of [`CANDIDATES`].
pub fn measure(services: u32) -> Result<Vec<TableFigures>> {
    let mut figures = vec![TableFigures::default(); CANDIDATES.len()];
    let mut fills = vec![Samples::default(); CANDIDATES.len()];
    for fill in 1..=FILLS {
        let mut storage = MaybeUninit::uninit();
        let mut skel = load(&mut storage, services)?;
        fill_all(&skel, services, &mut fills)?;
        if fill == FILLS {
            change_all(&skel, services, &mut figures)?;
            resolve_all(&mut skel, services, &mut figures)?;
        }
    }
    for (figures, fill) in figures.iter_mut().zip(&fills) {
        figures.fill = fill.p50();
    }
    Ok(figures)
}

fn load(storage: &mut MaybeUninit<OpenObject>, services: u32) -> Result<TablesSkel<'_>> {
    let mut open = TablesSkelBuilder::default().open(storage)?;
    let (maps, backends, buckets) = (&mut open.maps, services * layout::BACKENDS, layout::buckets(services));
    for map in [&mut maps.frontend, &mut maps.lazy_frontend, &mut maps.set, &mut maps.plain_service] {
        map.set_max_entries(services)?;
    }
    for map in [&mut maps.slot, &mut maps.backend, &mut maps.plain_backend] {
        map.set_max_entries(backends)?;
    }
    maps.bucket.set_max_entries(buckets)?;
    maps.rodata_data.as_mut().context("tables.bpf.c has no constants")?.bucket_mask = buckets - 1;
    open.load().context("the kernel refused tables.bpf.c")
}

/// Fills each map once. The time of a candidate is the sum over its maps.
fn fill_all(skel: &TablesSkel<'_>, services: u32, fills: &mut [Samples]) -> Result<()> {
    let times = CandidateTable::ALL.map(|table| (table, fill::fill(skel, table, services)));
    let mut spent = Vec::new();
    for (table, time) in times {
        spent.push((table, time.with_context(|| format!("{table:?} with {services} services"))?));
    }
    for (candidate, fill) in CANDIDATES.iter().zip(fills) {
        let own = spent.iter().filter(|(table, _)| candidate.tables.contains(table));
        fill.push(own.map(|(_, time)| time.as_nanos() as u64).sum());
    }
    Ok(())
}

fn change_all(skel: &TablesSkel<'_>, services: u32, figures: &mut [TableFigures]) -> Result<()> {
    for candidate in random_rounds(CANDIDATES.len(), ROUNDS, 1) {
        let time = match CANDIDATES[candidate].change {
            Change::Mapped { slots } => fill::change_mapped(skel, services, CHANGES, slots)?,
            Change::Plain => fill::change_plain(skel, services, CHANGES)?,
        };
        figures[candidate].change.push(time);
    }
    for (candidate, figures) in CANDIDATES.iter().zip(figures) {
        let tables = candidate.tables.iter().map(|table| memory(fill::map(skel, *table)));
        figures.memory = tables.sum::<Result<u64>>()?;
    }
    Ok(())
}

fn resolve_all(skel: &mut TablesSkel<'_>, services: u32, figures: &mut [TableFigures]) -> Result<()> {
    let names: Vec<_> = CANDIDATES.iter().map(|candidate| candidate.program).chain([EMPTY_LOOP]).collect();
    let mut samples = vec![Samples::default(); names.len()];
    for (run, candidate) in random_rounds(names.len(), ROUNDS, 2).enumerate() {
        let program = skel.object_mut().progs_mut().find(|program| program.name() == names[candidate]);
        let mut program = program.with_context(|| format!("no program {}", names[candidate]))?;
        // The first run warms the caches, which contain the maps of the previous candidate.
        run_loop(&mut program, services, run as u64)?;
        samples[candidate].push(run_loop(&mut program, services, run as u64 + 1_000)?);
    }
    let empty = samples[CANDIDATES.len()].p50();
    for (figures, samples) in figures.iter_mut().zip(&samples) {
        figures.resolve = (samples.p50() - empty) / f64::from(ITERATIONS);
    }
    Ok(())
}

/// Runs the loop once and returns its duration in nanoseconds. `struct loop_args` contains the arguments and the result.
fn run_loop(program: &mut ProgramMut<'_>, services: u32, seed: u64) -> Result<u64> {
    let mut args = [0; 32];
    args[0..4].copy_from_slice(&services.to_ne_bytes());
    args[4..8].copy_from_slice(&ITERATIONS.to_ne_bytes());
    args[8..16].copy_from_slice(&seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_ne_bytes());
    program.test_run(ProgramInput { context_in: Some(&mut args), ..Default::default() })?;
    let word = |at: usize| u64::from_ne_bytes(args[at..at + 8].try_into().expect("8 bytes"));
    ensure!(word(24) == 0, "{:?}: {} of {ITERATIONS} resolves found nothing", program.name(), word(24));
    Ok(word(16))
}
