//! From a host outside the cluster to one service: how many connections it can hold at once, and how fast it can dial.
//! Through Beeline to the pods themselves, through Beeline to the pods' nodes at the nodePort, and to nodePorts without
//! Beeline, as kube-proxy answers them: with the source rewritten, and a second hop for every other connection.

mod application;
mod crew;
mod show;
mod site;
mod way;

use std::{collections::BTreeMap, fs, path::Path, time::Instant};

use anyhow::{Context, Result, ensure};
use beeline_datapath::program::quiet_libbpf;
use kit::cache::Cache;

use crate::{report::Report, stats::turns};
pub use application::{Role, serve};
use crew::{Amount, Figures};
use site::Site;
use way::Way;

#[derive(Debug, Clone, clap::Args)]
pub struct Wish {
    /// Connections to hold at once
    #[arg(long, default_value_t = 40_000)]
    held: usize,
    /// Turns of each way, in an order that changes from round to round
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Two thousand connections, one round, few dials: to see that it works
    #[arg(long, conflicts_with_all = ["held", "rounds"])]
    quick: bool,
}

impl Wish {
    fn amount(&self) -> Amount {
        match self.quick {
            true => Amount { held: 2_000, reset: 2_000, closed: 3_000 },
            false => Amount { held: self.held, reset: 40_000, closed: 60_000 },
        }
    }

    fn rounds(&self) -> usize {
        if self.quick { 1 } else { self.rounds.max(1) }
    }
}

pub fn run(directory: &Path, wish: &Wish) -> Result<()> {
    quiet_libbpf();
    let cache = Cache::open()?;
    for program in [cache.program("kube-apiserver"), cache.program("kube-proxy"), cache.debian("usr/bin/etcd")] {
        ensure!(program.exists(), "{} is missing: run `kit build` first", program.display());
    }
    crew::allow_files(wish.amount())?;
    let mut report = Report::new("outside", directory)?;
    show::preface(wish.rounds(), wish.amount());
    let figures = measure(directory, wish, &cache)?;
    show::table(&mut report, wish.amount(), &figures);
    show::plot(&report.file("svg"), &figures)?;
    report.write()?;
    println!("\nWrote {} and {}.", report.file("json").display(), report.file("svg").display());
    Ok(())
}

fn measure(directory: &Path, wish: &Wish, cache: &Cache) -> Result<BTreeMap<Way, Figures>> {
    let logs = directory.join("outside-log");
    fs::create_dir_all(&logs).with_context(|| format!("make {}", logs.display()))?;
    let files = tempfile::tempdir()?;
    let mut site = Site::lay(cache, files.path(), &logs)?;
    let mut all: BTreeMap<Way, Figures> = BTreeMap::new();
    for which in turns(Way::ALL.len(), wish.rounds(), 6) {
        let (way, start) = (Way::ALL[which], Instant::now());
        let figures = site.turn(way, wish.amount())?;
        let (held, of) = (figures.held, wish.amount().held);
        eprintln!("bench: {}: {held} of {of} held, {:.1} s", way.name(), start.elapsed().as_secs_f32());
        all.entry(way).or_default().merge(figures);
    }
    Ok(all)
}
