//! ChurnCounts rules and services until it is stopped. A client in a pod whose rule changes waits for the effect of each
//! change, so that the counted changes are those of the kernel's tables.

use std::{
    net::Ipv4Addr,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use beeline_harness::{Cgroup, Client, DialKind, DialRequest, ManifestDir, TestNetwork};

use super::objects::{self, Backends, PORT, PodRule, WEB};

const PODS: usize = 16;
const FIRST_POD: usize = 100;
const SHORT_LIVED: usize = 8;
const TIMEOUT: Duration = Duration::from_secs(60);

/// The state of the changes, shared with the thread that dials.
#[derive(Default)]
pub struct ChurnCounts {
    pub stop: AtomicBool,
    turns: AtomicUsize,
}

impl ChurnCounts {
    /// Rules of cgroups that were added, replaced or removed.
    pub fn rules(&self) -> usize {
        self.turns.load(Ordering::Relaxed) * PODS
    }

    /// Services that were created, deleted or got other endpoints.
    pub fn services(&self) -> usize {
        self.turns.load(Ordering::Relaxed) * 3
    }
}

/// The cgroup of a pod, named as the kubelet names it, and a client in it.
pub fn client_in_pod(network: &TestNetwork, number: usize) -> Result<(Client, Cgroup)> {
    let cgroup = cgroup(network, number)?;
    // In the network namespace of the host, from which the server outside is reached.
    Ok((Client::start(Some(&network.node().namespace), Some(&cgroup))?, cgroup))
}

fn cgroup(network: &TestNetwork, number: usize) -> Result<Cgroup> {
    network.cgroup().child(&format!("kubepods/pod{}", objects::uid(number)))
}

/// Dials until the server answers that belongs to the rule.
pub fn wait_for_answer(client: &Client, rule: PodRule) -> Result<()> {
    let end = Instant::now() + TIMEOUT;
    loop {
        let outcome = client.dial(&DialRequest::new(DialKind::UdpSendTo, (WEB, PORT).into()))?;
        if outcome.name() == rule.answer() {
            return Ok(());
        }
        ensure!(Instant::now() < end, "a pod with {rule:?} gets no answer of {}: {outcome:?}", rule.answer());
    }
}

/// Each turn changes the rules of all pods, the Service of each cluster, and one further Service.
pub fn change_objects(network: &TestNetwork, directories: &[ManifestDir; 2], changes: &ChurnCounts) -> Result<()> {
    let others = FIRST_POD + 1..FIRST_POD + PODS;
    let _cgroups = others.map(|number| cgroup(network, number)).collect::<Result<Vec<_>>>()?;
    let (observer, _cgroup) = client_in_pod(network, FIRST_POD)?;
    let mut exists = [false; SHORT_LIVED];
    for turn in (0..).take_while(|_| !changes.stop.load(Ordering::Relaxed)) {
        for (directory, backends) in directories.iter().zip(Backends::WEB) {
            directory.write("web.yaml", backends.service("web", WEB, turn))?;
        }
        toggle_service(&directories[0], turn % SHORT_LIVED, &mut exists[turn % SHORT_LIVED])?;
        let rule = |pod: usize| PodRule::ALL[(turn + pod) % PodRule::ALL.len()];
        directories[0].write("changing-pods.yaml", objects::pods(FIRST_POD, (0..PODS).map(rule)))?;
        wait_for_answer(&observer, rule(0))?;
        changes.turns.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

fn toggle_service(directory: &ManifestDir, number: usize, exists: &mut bool) -> Result<()> {
    let name = format!("short-lived-{number}");
    let file = format!("{name}.yaml");
    *exists = !*exists;
    if !*exists {
        return directory.remove(&file);
    }
    let address = Ipv4Addr::new(10, 96, 0, 100 + number as u8);
    directory.write(&file, Backends::SHORT_LIVED.service(&name, address, number))
}
