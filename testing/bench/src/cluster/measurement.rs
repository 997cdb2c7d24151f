//! One measurement of one contender on a new node: cold start, changes and traffic.

use std::{
    net::SocketAddrV4,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};

use super::{
    change::{self, ChangeBench, Changes, SampleBudget},
    contender::{Contender, ContenderFiles},
    control_plane::ControlPlane,
    network::BenchNetwork,
    objects::{self, SPARE_PODS},
    probe,
    process::BenchProcess,
    traffic::{self, Traffic, TrafficConfig},
};
use crate::stats::Samples;

/// kube-proxy in nftables mode takes minutes for 10,000 services.
const COLD_START_TIMEOUT: Duration = Duration::from_secs(1_200);
/// Work that an agent does shortly after the last service answers is counted as part of its start.
const AFTER_START: Duration = Duration::from_secs(2);
const SAMPLE_INTERVAL: Duration = Duration::from_millis(20);

/// Amount of changes and traffic in one measurement.
#[derive(Debug, Clone, Copy)]
pub struct MeasurementConfig {
    pub changes: SampleBudget,
    pub traffic: TrafficConfig,
}

/// Results of one contender at one number of services, over all rounds.
#[derive(Debug, Default, Clone)]
pub struct ContenderFigures {
    /// Nanoseconds from the start until the last service answers.
    pub cold: Samples,
    /// Processor time of the start in microseconds.
    pub cold_cpu: Samples,
    /// Peak memory in bytes of the program, and of the program with its children as far as sampled.
    pub memory: Samples,
    pub memory_all: Samples,
    pub endpoint: Changes,
    pub service: Changes,
    pub traffic: Traffic,
    /// Number of services that did not answer when the last one did, and of all that were dialled.
    pub late: u64,
    pub dialled: u64,
}

impl ContenderFigures {
    pub fn merge(&mut self, other: &ContenderFigures) {
        self.cold.extend(&other.cold);
        self.cold_cpu.extend(&other.cold_cpu);
        self.memory.extend(&other.memory);
        self.memory_all.extend(&other.memory_all);
        self.endpoint.merge(&other.endpoint);
        self.service.merge(&other.service);
        self.traffic.merge(&other.traffic);
        self.late += other.late;
        self.dialled += other.dialled;
    }
}

/// State that is kept between measurements. Fields are dropped in this order: programs before their network.
pub struct BenchRun {
    pub control: ControlPlane,
    pub contenders: ContenderFiles,
    pub network: BenchNetwork,
    pub services: u32,
    /// Number of the next unused pod.
    pub spare: u32,
}

impl BenchRun {
    pub fn new(network: BenchNetwork, control: ControlPlane, contenders: ContenderFiles) -> Self {
        Self { control, contenders, network, services: 0, spare: SPARE_PODS }
    }

    pub fn measure_contender(&mut self, contender: Contender, config: MeasurementConfig) -> Result<ContenderFigures> {
        self.network.recreate_node()?;
        self.control.require_running()?;
        self.require_unresolved()?;
        let result = self
            .measure(contender, config)
            .with_context(|| format!("{} with {} services", contender.name(), self.services));
        self.contenders.clean()?;
        result
    }

    /// Checks that services are not resolved before the contender has started.
    fn require_unresolved(&self) -> Result<()> {
        let last = objects::service_address(self.services - 1);
        let answer = in_pod(&self.network, || Ok(probe::dial(last, probe::LONG)))?;
        ensure!(answer.is_err(), "{last} answers although no contender runs: {answer:?}");
        Ok(())
    }

    fn measure(&mut self, contender: Contender, config: MeasurementConfig) -> Result<ContenderFigures> {
        let start = Instant::now();
        let mut agent = self.contenders.start(contender, &self.network)?;
        let sampler = MemorySampler::start(&agent);
        let mut figures = self.cold(start, &mut agent)?;
        let mut bench = ChangeBench {
            network: &self.network,
            control: &self.control,
            agent: &mut agent,
            budget: config.changes,
            pause: contender.pause(),
        };
        figures.endpoint = bench.replace_endpoints(&mut self.spare)?;
        figures.service = bench.add_services()?;
        figures.traffic = traffic::measure(&self.network, self.services, config.traffic)?;
        figures.memory.push(agent.peak_memory()?);
        figures.memory_all.push(sampler.stop().max(agent.peak_memory()?));
        agent.end()?;
        change::remove_services(&self.control, figures.service.kernel.len())?;
        Ok(figures)
    }

    fn cold(&self, start: Instant, agent: &mut BenchProcess) -> Result<ContenderFigures> {
        let last = objects::service_address(self.services - 1);
        let first = in_pod(&self.network, || probe::until(last, |_| true, COLD_START_TIMEOUT, || {}));
        let first = first.with_context(|| agent.log_tail())?;
        let all: Vec<SocketAddrV4> = (0..self.services).map(objects::service_address).collect();
        let late = in_pod(&self.network, || late(&all)).with_context(|| agent.log_tail())?;
        agent.require_running()?;
        let end = late.iter().map(|(_, at)| *at).max().unwrap_or(first.answered);
        thread::sleep(AFTER_START);
        let mut figures =
            ContenderFigures { late: late.len() as u64, dialled: all.len() as u64, ..ContenderFigures::default() };
        figures.cold.push((end - start).as_nanos() as u64);
        figures.cold_cpu.push((agent.cpu()? * 1e6) as u64);
        Ok(figures)
    }
}

/// Services that do not answer at once, with the time at which they answered.
fn late(services: &[SocketAddrV4]) -> Result<Vec<(SocketAddrV4, Instant)>> {
    let unanswered: Vec<_> = services
        .iter()
        .filter(|at| !probe::dial(**at, probe::LONG).is_ok_and(|contender| contender.is_some()))
        .collect();
    unanswered
        .into_iter()
        .map(|at| Ok((*at, probe::until(*at, |_| true, COLD_START_TIMEOUT, || {})?.answered)))
        .collect()
}

/// Runs `work` in the client pod.
fn in_pod<T: Send>(network: &BenchNetwork, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    network.client.run(work)
}

/// Samples the memory of the agent and its children.
struct MemorySampler {
    thread: Option<JoinHandle<()>>,
    done: Arc<AtomicBool>,
    most: Arc<AtomicU64>,
}

impl MemorySampler {
    fn start(agent: &BenchProcess) -> Self {
        let (done, most) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (sampler, finished, highest) = (agent.sampler(), done.clone(), most.clone());
        let sample = move || {
            while !finished.load(Ordering::Relaxed) {
                highest.fetch_max(sampler(), Ordering::Relaxed);
                thread::sleep(SAMPLE_INTERVAL);
            }
        };
        Self { thread: Some(thread::spawn(sample)), done, most }
    }

    fn stop(mut self) -> u64 {
        self.finish();
        self.most.load(Ordering::Relaxed)
    }

    fn finish(&mut self) {
        self.done.store(true, Ordering::Relaxed);
        self.thread.take().map(JoinHandle::join);
    }
}

impl Drop for MemorySampler {
    fn drop(&mut self) {
        self.finish();
    }
}
