//! A whole node against a real API server: Beeline and upstream's kube-proxy in both of its modes, each in turn on the
//! same objects, from a bare node to a cold start, changes and traffic.

mod change;
mod contender;
pub mod control;
mod line;
mod policy;
mod probe;
pub mod process;
pub mod server;
mod show;
pub mod site;
mod traffic;
mod turn;
pub mod world;

use std::{
    collections::BTreeMap,
    fs,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use beeline_datapath::program::quiet_libbpf;
use kit::cache::Cache;

use crate::{report::Report, stats::turns};
use change::Budget;
use contender::{Contender, Stable};
use control::Control;
use site::{NODE_ADDRESS, Site};
use traffic::Amount;
use turn::{Course, Extent, Figures};
use world::NODE;

/// The Services that are made while it is measured cannot be more than the slices that wait for them.
const NEW_SERVICES: usize = 100;

/// What is to be measured, and how thoroughly.
#[derive(Debug, Clone, clap::Args)]
pub struct Wish {
    /// Numbers of services, of ten endpoints each
    #[arg(long, value_delimiter = ',', default_value = "1000,5000,10000")]
    sizes: Vec<u32>,
    /// Who takes part
    #[arg(long, value_delimiter = ',', value_enum, default_value = "beeline,nftables,iptables")]
    contenders: Vec<Contender>,
    /// Turns of each contender at each size, in an order that changes from round to round
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// A hundred services, one round, few samples: to see that it works
    #[arg(long, conflicts_with_all = ["sizes", "rounds"])]
    quick: bool,
}

impl Wish {
    fn sizes(&self) -> Result<Vec<u32>> {
        let mut sizes = if self.quick { vec![100] } else { self.sizes.clone() };
        sizes.sort_unstable();
        sizes.dedup();
        let right = sizes.iter().all(|size| (10..=100_000).contains(size)) && !sizes.is_empty();
        ensure!(right, "--sizes {sizes:?}: one number or more, from 10 to 100000");
        Ok(sizes)
    }

    fn contenders(&self) -> Vec<Contender> {
        Contender::ALL.into_iter().filter(|who| self.contenders.contains(who)).collect()
    }

    fn rounds(&self) -> usize {
        if self.quick { 1 } else { self.rounds.max(1) }
    }

    fn extent(&self) -> Extent {
        let seconds = Duration::from_secs;
        if self.quick {
            let changes = Budget { at_least: 2, at_most: 10, time: seconds(5) };
            let traffic = Amount { connects: 300, stretches: 6, stretch: Duration::from_millis(100) };
            return Extent { changes, traffic };
        }
        let changes = Budget { at_least: 2, at_most: NEW_SERVICES, time: seconds(40) };
        let traffic = Amount { connects: 3_000, stretches: 60, stretch: Duration::from_millis(100) };
        Extent { changes, traffic }
    }
}

/// What was measured at one number of services, in the order of the contenders.
pub struct Sized {
    pub services: u32,
    pub figures: BTreeMap<Contender, Figures>,
    /// Of Beeline: nobody else has any.
    policies: Option<policy::Figures>,
}

pub fn run(directory: &Path, wish: &Wish) -> Result<()> {
    quiet_libbpf();
    let (sizes, cache) = (wish.sizes()?, Cache::open()?);
    for program in [cache.program("kube-apiserver"), cache.program("kube-proxy"), cache.debian("usr/bin/etcd")] {
        ensure!(program.exists(), "{} is missing: run `kit build` first", program.display());
    }
    let mut report = Report::new("cluster", directory)?;
    show::preface(wish.rounds());
    let all = measure(directory, wish, &sizes, cache)?;
    for sized in &all {
        show::table(&mut report, sized);
    }
    let policies: Vec<_> = all.iter().filter_map(|sized| sized.policies.as_ref()).collect();
    policy::show(&mut report, &policies);
    show::plot(&report.file("svg"), &all)?;
    show::verdict(&report);
    report.write()?;
    println!("\nWrote {} and {}.", report.file("json").display(), report.file("svg").display());
    Ok(())
}

fn measure(directory: &Path, wish: &Wish, sizes: &[u32], cache: Cache) -> Result<Vec<Sized>> {
    let logs = directory.join("cluster-log");
    fs::create_dir_all(&logs).with_context(|| format!("make {}", logs.display()))?;
    let files = tempfile::tempdir()?;
    let mut course = prepare(cache, files.path(), &logs)?;
    let mut all = Vec::new();
    for services in sizes {
        fill(&mut course, *services)?;
        let figures = compete(&mut course, wish)?;
        let policies = figures.contains_key(&Contender::Beeline).then(|| policy::measure(&mut course)).transpose()?;
        all.push(Sized { services: *services, figures, policies });
    }
    Ok(all)
}

fn prepare(cache: Cache, files: &Path, logs: &Path) -> Result<Course> {
    let site = Site::lay()?;
    server::start(&site.pods)?;
    let control = Control::start(&site.control, &site.cgroup("control"), &cache, files, logs)?;
    control.create_node(NODE, NODE_ADDRESS)?;
    let stable = Stable::new(cache, control.write_kubeconfig()?, files, logs)?;
    policy::define(&control)?;
    control.add_slices(world::new_service(0)..world::new_service(NEW_SERVICES as u32))?;
    Ok(Course::new(site, control, stable))
}

/// What is there stays: a larger cluster is a smaller one that grew.
fn fill(course: &mut Course, services: u32) -> Result<()> {
    let start = Instant::now();
    course.control.add_services(course.services..services)?;
    course.services = services;
    progress(&format!("{services} services are in the API"), start);
    Ok(())
}

fn compete(course: &mut Course, wish: &Wish) -> Result<BTreeMap<Contender, Figures>> {
    let contenders = wish.contenders();
    let mut figures: BTreeMap<Contender, Figures> = BTreeMap::new();
    for which in turns(contenders.len(), wish.rounds(), u64::from(course.services)) {
        let (who, start) = (contenders[which], Instant::now());
        let own = course.turn(who, wish.extent())?;
        let cold = own.cold.p50() / 1e9;
        figures.entry(who).or_default().merge(&own);
        progress(&format!("{} at {}: cold start {cold:.2} s; the turn", who.name(), course.services), start);
    }
    Ok(figures)
}

fn progress(what: &str, since: Instant) {
    eprintln!("bench: {what}: {:.1} s", since.elapsed().as_secs_f32());
}
