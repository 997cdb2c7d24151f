//! Bench of a node with a real API server: Beeline and upstream's kube-proxy in both modes, in turn on the same
//! objects: cold start, changes and traffic.

mod change;
mod contender;
pub mod control_plane;
mod line;
mod measurement;
pub mod network;
pub mod objects;
mod output;
mod policy;
mod probe;
pub mod process;
pub mod server;
mod traffic;

use std::{
    collections::BTreeMap,
    fs,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use beeline_datapath::program::redirect_libbpf_log;
use kit::cache::Cache;

use crate::{report::BenchReport, stats::random_rounds};
use change::SampleBudget;
use contender::{Contender, ContenderFiles};
use control_plane::ControlPlane;
use measurement::{BenchRun, ContenderFigures, MeasurementConfig};
use network::{BenchNetwork, NODE_ADDRESS};
use objects::NODE;
use traffic::TrafficConfig;

/// Number of Services created during a measurement. Their slices exist beforehand.
const NEW_SERVICES: usize = 100;

/// Options of `beeline-bench cluster`.
#[derive(Debug, Clone, clap::Args)]
pub struct ClusterBenchOptions {
    /// Numbers of services with ten endpoints each, comma-separated
    #[arg(long, value_delimiter = ',', default_value = "1000,5000,10000")]
    sizes: Vec<u32>,
    /// Contenders to measure, comma-separated
    #[arg(long, value_delimiter = ',', value_enum, default_value = "beeline,nftables,iptables")]
    contenders: Vec<Contender>,
    /// Measurements of each contender at each size, in a random order per round
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Measure 100 services in one round with few samples, to try the bench
    #[arg(long, conflicts_with_all = ["sizes", "rounds"])]
    quick: bool,
}

impl ClusterBenchOptions {
    fn sizes(&self) -> Result<Vec<u32>> {
        let mut sizes = if self.quick { vec![100] } else { self.sizes.clone() };
        sizes.sort_unstable();
        sizes.dedup();
        let is_valid = sizes.iter().all(|size| (10..=100_000).contains(size)) && !sizes.is_empty();
        ensure!(is_valid, "--sizes {sizes:?}: expected numbers from 10 to 100000");
        Ok(sizes)
    }

    fn contenders(&self) -> Vec<Contender> {
        Contender::ALL.into_iter().filter(|contender| self.contenders.contains(contender)).collect()
    }

    fn rounds(&self) -> usize {
        if self.quick { 1 } else { self.rounds.max(1) }
    }

    fn config(&self) -> MeasurementConfig {
        let seconds = Duration::from_secs;
        if self.quick {
            let changes = SampleBudget { at_least: 2, at_most: 10, time: seconds(5) };
            let traffic = TrafficConfig { connects: 300, intervals: 6, interval: Duration::from_millis(100) };
            return MeasurementConfig { changes, traffic };
        }
        let changes = SampleBudget { at_least: 2, at_most: NEW_SERVICES, time: seconds(40) };
        let traffic = TrafficConfig { connects: 3_000, intervals: 60, interval: Duration::from_millis(100) };
        MeasurementConfig { changes, traffic }
    }
}

/// Results of all contenders for one number of services.
pub struct SizeResult {
    pub services: u32,
    pub figures: BTreeMap<Contender, ContenderFigures>,
    /// Results of Beeline's policies; kube-proxy has none.
    policies: Option<policy::PolicyFigures>,
}

pub fn run(directory: &Path, options: &ClusterBenchOptions) -> Result<()> {
    redirect_libbpf_log();
    let (sizes, cache) = (options.sizes()?, Cache::open()?);
    for program in [cache.program("kube-apiserver"), cache.program("kube-proxy"), cache.debian("usr/bin/etcd")] {
        ensure!(program.exists(), "{} is missing: run `kit build` first", program.display());
    }
    let mut report = BenchReport::new("cluster", directory)?;
    output::print_header(options.rounds());
    let all = measure(directory, options, &sizes, cache)?;
    for result in &all {
        output::table(&mut report, result);
    }
    let policies: Vec<_> = all.iter().filter_map(|result| result.policies.as_ref()).collect();
    policy::print(&mut report, &policies);
    output::plot(&report.file("svg"), &all)?;
    output::print_limits(&report);
    report.write()?;
    println!("\nWrote {} and {}.", report.file("json").display(), report.file("svg").display());
    Ok(())
}

fn measure(directory: &Path, options: &ClusterBenchOptions, sizes: &[u32], cache: Cache) -> Result<Vec<SizeResult>> {
    let logs = directory.join("cluster-log");
    fs::create_dir_all(&logs).with_context(|| format!("cannot create {}", logs.display()))?;
    let files = tempfile::tempdir()?;
    let mut run = prepare(cache, files.path(), &logs)?;
    let mut all = Vec::new();
    for services in sizes {
        fill(&mut run, *services)?;
        let figures = measure_all(&mut run, options)?;
        let policies = figures.contains_key(&Contender::Beeline).then(|| policy::measure(&mut run)).transpose()?;
        all.push(SizeResult { services: *services, figures, policies });
    }
    Ok(all)
}

fn prepare(cache: Cache, files: &Path, logs: &Path) -> Result<BenchRun> {
    let network = BenchNetwork::create()?;
    server::start(&network.pods)?;
    let control = ControlPlane::start(&network.control, &network.cgroup("control"), &cache, files, logs)?;
    control.create_node(NODE, NODE_ADDRESS)?;
    let contenders = ContenderFiles::new(cache, control.write_kubeconfig()?, files, logs)?;
    policy::define(&control)?;
    control.add_slices(objects::new_service(0)..objects::new_service(NEW_SERVICES as u32))?;
    Ok(BenchRun::new(network, control, contenders))
}

/// Adds services up to this number; existing ones stay.
fn fill(run: &mut BenchRun, services: u32) -> Result<()> {
    let start = Instant::now();
    run.control.add_services(run.services..services)?;
    run.services = services;
    print_progress(&format!("{services} services are in the API"), start);
    Ok(())
}

fn measure_all(run: &mut BenchRun, options: &ClusterBenchOptions) -> Result<BTreeMap<Contender, ContenderFigures>> {
    let contenders = options.contenders();
    let mut figures: BTreeMap<Contender, ContenderFigures> = BTreeMap::new();
    for which in random_rounds(contenders.len(), options.rounds(), u64::from(run.services)) {
        let (contender, start) = (contenders[which], Instant::now());
        let own = run.measure_contender(contender, options.config())?;
        let cold = own.cold.p50() / 1e9;
        figures.entry(contender).or_default().merge(&own);
        print_progress(
            &format!(
                "{} with {} services: cold start {cold:.2} s; the measurement took",
                contender.name(),
                run.services
            ),
            start,
        );
    }
    Ok(figures)
}

fn print_progress(what: &str, since: Instant) {
    eprintln!("bench: {what}: {:.1} s", since.elapsed().as_secs_f32());
}
