//! Bench of a host outside the cluster that dials one service: number of concurrent connections and dials per second.
//! It compares Beeline with direct pods, Beeline with nodePorts, and nodePorts without Beeline, where kube-proxy
//! rewrites the source and forwards every other connection to another node.

mod application;
mod network;
mod output;
mod path;
mod processes;

use std::{collections::BTreeMap, fs, path::Path, time::Instant};

use anyhow::{Context, Result, ensure};
use beeline_datapath::program::redirect_libbpf_log;
use kit::cache::Cache;

use crate::{report::BenchReport, stats::random_rounds};
pub use application::{ApplicationArgs, serve};
use network::OutsideNetwork;
use path::DialPath;
use processes::{LoadSize, OutsideFigures};

#[derive(Debug, Clone, clap::Args)]
pub struct OutsideBenchOptions {
    /// Number of connections to hold at the same time
    #[arg(long, default_value_t = 40_000)]
    held: usize,
    /// Measurements of each path, in a random order per round
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Measure 2000 connections in one round with few dials, to try the bench
    #[arg(long, conflicts_with_all = ["held", "rounds"])]
    quick: bool,
}

impl OutsideBenchOptions {
    fn load(&self) -> LoadSize {
        match self.quick {
            true => LoadSize { held: 2_000, reset: 2_000, closed: 3_000 },
            false => LoadSize { held: self.held, reset: 40_000, closed: 60_000 },
        }
    }

    fn rounds(&self) -> usize {
        if self.quick { 1 } else { self.rounds.max(1) }
    }
}

pub fn run(directory: &Path, options: &OutsideBenchOptions) -> Result<()> {
    redirect_libbpf_log();
    let cache = Cache::open()?;
    for program in [cache.program("kube-apiserver"), cache.program("kube-proxy"), cache.debian("usr/bin/etcd")] {
        ensure!(program.exists(), "{} is missing: run `kit build` first", program.display());
    }
    processes::allow_files(options.load())?;
    let mut report = BenchReport::new("outside", directory)?;
    output::print_header(options.rounds(), options.load());
    let figures = measure(directory, options, &cache)?;
    output::table(&mut report, options.load(), &figures);
    output::plot(&report.file("svg"), &figures)?;
    report.write()?;
    println!("\nWrote {} and {}.", report.file("json").display(), report.file("svg").display());
    Ok(())
}

fn measure(
    directory: &Path,
    options: &OutsideBenchOptions,
    cache: &Cache,
) -> Result<BTreeMap<DialPath, OutsideFigures>> {
    let logs = directory.join("outside-log");
    fs::create_dir_all(&logs).with_context(|| format!("cannot create {}", logs.display()))?;
    let files = tempfile::tempdir()?;
    let mut network = OutsideNetwork::create(cache, files.path(), &logs)?;
    let mut all: BTreeMap<DialPath, OutsideFigures> = BTreeMap::new();
    for which in random_rounds(DialPath::ALL.len(), options.rounds(), 6) {
        let (path, start) = (DialPath::ALL[which], Instant::now());
        let figures = network.measure(path, options.load())?;
        let (held, of) = (figures.held, options.load().held);
        eprintln!("bench: {}: {held} of {of} held, {:.1} s", path.name(), start.elapsed().as_secs_f32());
        all.entry(path).or_default().merge(figures);
    }
    Ok(all)
}
