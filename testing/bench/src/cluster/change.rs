//! Time from a write to the API server to its effect, one write at a time: a replaced endpoint, a new Service.

use std::{
    net::{Ipv4Addr, SocketAddrV4},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use serde_json::json;

use super::{
    control_plane::{ControlPlane, WriteTimes},
    network::BenchNetwork,
    objects::{self, CHANGING, SERVICE_PATH, SLICE_PATH},
    probe::{self, Effect},
    process::BenchProcess,
};
use crate::stats::Samples;

/// kube-proxy in nftables mode takes half a minute for one change with 10,000 services.
const TIMEOUT: Duration = Duration::from_secs(600);

/// Number of samples: as many as fit into `time`, between `at_least` and `at_most`.
#[derive(Debug, Clone, Copy)]
pub struct SampleBudget {
    pub at_least: usize,
    pub at_most: usize,
    pub time: Duration,
}

impl SampleBudget {
    fn allows(self, done: usize, since: Instant) -> bool {
        done < self.at_least || (done < self.at_most && since.elapsed() < self.time)
    }
}

#[derive(Debug, Default, Clone)]
pub struct Changes {
    /// From the API server's response to the start of the first dial that used the change; 0 if the dial started
    /// earlier.
    pub kernel: Samples,
    /// From the API server's response to that dial's answer.
    pub dialled: Samples,
    /// From sending the write to that dial's answer.
    pub sent: Samples,
    /// Number of changes that were in effect before the API server responded.
    pub early: usize,
    /// Intervals between the dials.
    pub interval: Samples,
    /// Seconds of the agent's processor time, including pauses.
    pub cpu: f64,
}

impl Changes {
    fn record(&mut self, written: WriteTimes, effect: Effect) {
        let nanoseconds = |duration: Duration| duration.as_nanos() as u64;
        self.kernel.push(nanoseconds(effect.began.saturating_duration_since(written.answered)));
        self.dialled.push(nanoseconds(effect.answered.saturating_duration_since(written.answered)));
        self.sent.push(nanoseconds(effect.answered.saturating_duration_since(written.sent)));
        self.interval.push(nanoseconds(effect.interval));
        self.early += usize::from(effect.began < written.answered);
    }

    pub fn merge(&mut self, other: &Changes) {
        self.kernel.extend(&other.kernel);
        self.dialled.extend(&other.dialled);
        self.sent.extend(&other.sent);
        self.interval.extend(&other.interval);
        self.early += other.early;
        self.cpu += other.cpu;
    }
}

/// Measures changes of one contender.
pub struct ChangeBench<'a> {
    pub network: &'a BenchNetwork,
    pub control: &'a ControlPlane,
    pub agent: &'a mut BenchProcess,
    pub budget: SampleBudget,
    pub pause: Duration,
}

impl ChangeBench<'_> {
    /// Replaces one of ten endpoints by a new pod. `spare` is the number of the next pod.
    pub fn replace_endpoints(&mut self, spare: &mut u32) -> Result<Changes> {
        self.repeat(|bench, _| {
            let pod = *spare;
            *spare += 1;
            let patch = json!({"endpoints": objects::changing_endpoints(pod)});
            let path = format!("{SLICE_PATH}/{}", objects::name(CHANGING));
            let expected = *objects::pod_address(pod).ip();
            bench.time_change(
                objects::service_address(CHANGING),
                move |who| who == expected,
                || bench.control.write("PATCH", &path, &patch),
            )
        })
    }

    /// Creates Services whose slices already exist.
    pub fn add_services(&mut self) -> Result<Changes> {
        self.repeat(|bench, number| {
            let service = objects::new_service(number);
            let object = objects::service(service);
            bench.time_change(
                objects::service_address(service),
                |_| true,
                || bench.control.write("POST", SERVICE_PATH, &object),
            )
        })
    }

    fn repeat(&mut self, mut one: impl FnMut(&Self, u32) -> Result<(WriteTimes, Effect)>) -> Result<Changes> {
        let (mut changes, start, before) = (Changes::default(), Instant::now(), self.agent.cpu()?);
        let mut done = 0;
        while self.budget.allows(done, start) {
            let (written, effect) = one(self, done as u32).with_context(|| self.agent.log_tail())?;
            changes.record(written, effect);
            done += 1;
            thread::sleep(self.pause);
            self.agent.require_running()?;
        }
        changes.cpu = self.agent.cpu()? - before;
        Ok(changes)
    }

    /// Writes after a first unsuccessful dial, and waits until a dial uses the change.
    fn time_change(
        &self,
        target: SocketAddrV4,
        wanted: impl Fn(Ipv4Addr) -> bool + Send,
        write: impl FnOnce() -> Result<WriteTimes>,
    ) -> Result<(WriteTimes, Effect)> {
        let (notify, notified) = mpsc::channel();
        thread::scope(|scope| {
            let dialler = scope.spawn(|| {
                self.network.client.enter()?;
                probe::until(target, wanted, TIMEOUT, || {
                    let _ = notify.send(());
                })
            });
            notified.recv().context("a dial used the change before it was written")?;
            let written = write()?;
            let effect = dialler.join().expect("the dialling thread does not panic")?;
            Ok((written, effect))
        })
    }
}

/// Deletes the added Services after the contender has stopped.
pub fn remove_services(control: &ControlPlane, number: usize) -> Result<()> {
    let path = |number| format!("{SERVICE_PATH}/{}", objects::name(objects::new_service(number)));
    control.write_all("DELETE", (0..number as u32).map(|number| (path(number), json!({}))))
}
