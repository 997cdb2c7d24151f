//! From a write to the API to its effect, one write at a time: an endpoint that is replaced, a Service that is new.

use std::{
    net::{Ipv4Addr, SocketAddrV4},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use serde_json::json;

use super::{
    control::{Control, Written},
    probe::{self, Effect},
    process::Process,
    site::Site,
    world::{self, CHANGING, SERVICE_PATH, SLICE_PATH},
};
use crate::stats::Samples;

/// kube-proxy in nftables mode takes half a minute for one at 10,000 services.
const PATIENCE: Duration = Duration::from_secs(600);

/// How many: as many as fit into this time, within these bounds.
#[derive(Debug, Clone, Copy)]
pub struct Budget {
    pub at_least: usize,
    pub at_most: usize,
    pub time: Duration,
}

impl Budget {
    fn allows(self, done: usize, since: Instant) -> bool {
        done < self.at_least || (done < self.at_most && since.elapsed() < self.time)
    }
}

#[derive(Debug, Default, Clone)]
pub struct Changes {
    /// From the API server's answer to the beginning of the first dial that met it; 0 where that was before the answer.
    pub kernel: Samples,
    /// From the same to that dial's answer.
    pub dialled: Samples,
    /// From sending the write to that dial's answer.
    pub sent: Samples,
    /// Met before the API server had answered the writer.
    pub early: usize,
    /// Between the dials that looked for it.
    pub interval: Samples,
    /// Seconds of the agent's processor time, rests included.
    pub cpu: f64,
}

impl Changes {
    fn note(&mut self, written: Written, effect: Effect) {
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

/// What takes part in a change.
pub struct Scene<'a> {
    pub site: &'a Site,
    pub control: &'a Control,
    pub agent: &'a mut Process,
    pub budget: Budget,
    pub rest: Duration,
}

impl Scene<'_> {
    /// One endpoint of ten is replaced by a pod that was never seen before; `spare` counts them.
    pub fn replace_endpoints(&mut self, spare: &mut u32) -> Result<Changes> {
        self.repeat(|scene, _| {
            let pod = *spare;
            *spare += 1;
            let patch = json!({"endpoints": world::changing_endpoints(pod)});
            let path = format!("{SLICE_PATH}/{}", world::name(CHANGING));
            let expected = *world::pod_address(pod).ip();
            scene.watch(
                world::service_address(CHANGING),
                move |who| who == expected,
                || scene.control.write("PATCH", &path, &patch),
            )
        })
    }

    /// Its slice was there before: the Service is all that lacks.
    pub fn add_services(&mut self) -> Result<Changes> {
        self.repeat(|scene, number| {
            let service = world::new_service(number);
            let object = world::service(service);
            scene.watch(
                world::service_address(service),
                |_| true,
                || scene.control.write("POST", SERVICE_PATH, &object),
            )
        })
    }

    fn repeat(&mut self, mut one: impl FnMut(&Self, u32) -> Result<(Written, Effect)>) -> Result<Changes> {
        let (mut changes, start, before) = (Changes::default(), Instant::now(), self.agent.cpu()?);
        let mut done = 0;
        while self.budget.allows(done, start) {
            let (written, effect) = one(self, done as u32).with_context(|| self.agent.last_words())?;
            changes.note(written, effect);
            done += 1;
            thread::sleep(self.rest);
            self.agent.require_running()?;
        }
        changes.cpu = self.agent.cpu()? - before;
        Ok(changes)
    }

    /// Writes once the pod has dialled in vain, and waits until a dial of it meets the effect.
    fn watch(
        &self,
        target: SocketAddrV4,
        wanted: impl Fn(Ipv4Addr) -> bool + Send,
        write: impl FnOnce() -> Result<Written>,
    ) -> Result<(Written, Effect)> {
        let (tell, told) = mpsc::channel();
        thread::scope(|scope| {
            let dialling = scope.spawn(|| {
                self.site.client.enter()?;
                probe::until(target, wanted, PATIENCE, || {
                    let _ = tell.send(());
                })
            });
            told.recv().context("the dialler met the change before it was written")?;
            let written = write()?;
            let effect = dialling.join().expect("the dialler does not panic")?;
            Ok((written, effect))
        })
    }
}

/// What was added goes again, when nobody follows any more.
pub fn remove_services(control: &Control, number: usize) -> Result<()> {
    let path = |number| format!("{SERVICE_PATH}/{}", world::name(world::new_service(number)));
    control.write_all("DELETE", (0..number as u32).map(|number| (path(number), json!({}))))
}
