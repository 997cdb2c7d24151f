//! One turn of one contender: cold start, changes, traffic, and the end of it. Everything starts from a bare node.

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
    change::{self, Budget, Changes, Scene},
    contender::{Contender, Stable},
    control::Control,
    probe,
    process::Process,
    site::Site,
    traffic::{self, Amount, Traffic},
    world::{self, SPARE_PODS},
};
use crate::stats::Samples;

/// kube-proxy in nftables mode takes minutes for 10,000 services.
const COLD: Duration = Duration::from_secs(1_200);
/// What an agent does after the last service answers is still its start.
const SETTLE: Duration = Duration::from_secs(2);
const SAMPLE: Duration = Duration::from_millis(20);

/// How much is measured in a turn.
#[derive(Debug, Clone, Copy)]
pub struct Extent {
    pub changes: Budget,
    pub traffic: Amount,
}

/// What is measured of one contender at one number of services, over all of its turns.
#[derive(Debug, Default, Clone)]
pub struct Figures {
    /// Nanoseconds from its start until the last service answers.
    pub cold: Samples,
    /// Microseconds of processor time for that.
    pub cold_cpu: Samples,
    /// Bytes that the program held at most; and it with all that it started, as far as that was seen.
    pub memory: Samples,
    pub memory_all: Samples,
    pub endpoint: Changes,
    pub service: Changes,
    pub traffic: Traffic,
    /// Services that did not answer when the last one did, and how many were asked.
    pub late: u64,
    pub asked: u64,
}

impl Figures {
    pub fn merge(&mut self, other: &Figures) {
        self.cold.extend(&other.cold);
        self.cold_cpu.extend(&other.cold_cpu);
        self.memory.extend(&other.memory);
        self.memory_all.extend(&other.memory_all);
        self.endpoint.merge(&other.endpoint);
        self.service.merge(&other.service);
        self.traffic.merge(&other.traffic);
        self.late += other.late;
        self.asked += other.asked;
    }
}

/// What stays from turn to turn. Fields go in this order: programs before what they stand on.
pub struct Course {
    pub control: Control,
    pub stable: Stable,
    pub site: Site,
    pub services: u32,
    /// The next pod that nobody has seen.
    pub spare: u32,
}

impl Course {
    pub fn new(site: Site, control: Control, stable: Stable) -> Self {
        Self { control, stable, site, services: 0, spare: SPARE_PODS }
    }

    pub fn turn(&mut self, who: Contender, extent: Extent) -> Result<Figures> {
        self.site.renew_node()?;
        self.control.require_running()?;
        self.require_nobody()?;
        let result = self.measure(who, extent).with_context(|| format!("{} at {}", who.name(), self.services));
        self.stable.clean()?;
        result
    }

    /// Nobody is to answer before the contender has started.
    fn require_nobody(&self) -> Result<()> {
        let last = world::service_address(self.services - 1);
        let answer = in_pod(&self.site, || Ok(probe::dial(last, probe::LONG)))?;
        ensure!(answer.is_err(), "{last} answers although nobody resolves it: {answer:?}");
        Ok(())
    }

    fn measure(&mut self, who: Contender, extent: Extent) -> Result<Figures> {
        let start = Instant::now();
        let mut agent = self.stable.start(who, &self.site)?;
        let watch = Watch::start(&agent);
        let mut figures = self.cold(start, &mut agent)?;
        let mut scene = Scene {
            site: &self.site,
            control: &self.control,
            agent: &mut agent,
            budget: extent.changes,
            rest: who.rest(),
        };
        figures.endpoint = scene.replace_endpoints(&mut self.spare)?;
        figures.service = scene.add_services()?;
        figures.traffic = traffic::measure(&self.site, self.services, extent.traffic)?;
        figures.memory.push(agent.peak_memory()?);
        figures.memory_all.push(watch.end().max(agent.peak_memory()?));
        agent.end()?;
        change::remove_services(&self.control, figures.service.kernel.len())?;
        Ok(figures)
    }

    fn cold(&self, start: Instant, agent: &mut Process) -> Result<Figures> {
        let last = world::service_address(self.services - 1);
        let first = in_pod(&self.site, || probe::until(last, |_| true, COLD, || {}));
        let first = first.with_context(|| agent.last_words())?;
        let all: Vec<SocketAddrV4> = (0..self.services).map(world::service_address).collect();
        let late = in_pod(&self.site, || late(&all)).with_context(|| agent.last_words())?;
        agent.require_running()?;
        let end = late.iter().map(|(_, at)| *at).max().unwrap_or(first.answered);
        thread::sleep(SETTLE);
        let mut figures = Figures { late: late.len() as u64, asked: all.len() as u64, ..Figures::default() };
        figures.cold.push((end - start).as_nanos() as u64);
        figures.cold_cpu.push((agent.cpu()? * 1e6) as u64);
        Ok(figures)
    }
}

/// Those that do not answer at once, with the time at which they did.
fn late(services: &[SocketAddrV4]) -> Result<Vec<(SocketAddrV4, Instant)>> {
    let silent: Vec<_> =
        services.iter().filter(|at| !probe::dial(**at, probe::LONG).is_ok_and(|who| who.is_some())).collect();
    silent.into_iter().map(|at| Ok((*at, probe::until(*at, |_| true, COLD, || {})?.answered))).collect()
}

/// As the pod that dials.
fn in_pod<T: Send>(site: &Site, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    site.client.run(work)
}

/// Looks again and again at what the agent and its children hold.
struct Watch {
    thread: Option<JoinHandle<()>>,
    done: Arc<AtomicBool>,
    most: Arc<AtomicU64>,
}

impl Watch {
    fn start(agent: &Process) -> Self {
        let (done, most) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (sampler, finished, highest) = (agent.sampler(), done.clone(), most.clone());
        let look = move || {
            while !finished.load(Ordering::Relaxed) {
                highest.fetch_max(sampler(), Ordering::Relaxed);
                thread::sleep(SAMPLE);
            }
        };
        Self { thread: Some(thread::spawn(look)), done, most }
    }

    fn end(mut self) -> u64 {
        self.finish();
        self.most.load(Ordering::Relaxed)
    }

    fn finish(&mut self) {
        self.done.store(true, Ordering::Relaxed);
        self.thread.take().map(JoinHandle::join);
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.finish();
    }
}
