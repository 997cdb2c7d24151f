//! Dials without pause while rules of cgroups and services change. Two clusters have a Service at the same address, and a
//! server on the host outside has this address too. The server that answers tells which rule a dial was resolved by: the
//! view of one cluster, the view of the other, or exclusion. Every dial of a client must get the answer of the client's own
//! rule, while the rules of other cgroups, the endpoints of both Services and further Services change.

mod changes;
mod objects;

use std::{
    net::{IpAddr, SocketAddr},
    sync::atomic::Ordering,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow, ensure};
use beeline_harness::{
    AgentProcess, Cgroup, Client, EchoServer, EchoService, LoadConfig, LoadKind, LoadReport, ManifestDir, TestNetwork,
};

use self::{
    changes::{ChurnCounts, change_objects, client_in_pod, wait_for_answer},
    objects::{Backends, CLUSTERS, OUTSIDE, PORT, PodRule, WEB},
};
use crate::check::Checks;

const KINDS: [LoadKind; 2] = [LoadKind::Tcp, LoadKind::UdpUnconnected];
/// Eight clients make 12,000 dials. They repeat this until enough rules have changed.
const DIALS_PER_CLIENT: u64 = 1500;
const FEWEST_RULE_CHANGES: usize = 800;
const LIMIT: Duration = Duration::from_secs(300);
/// A busy emulated machine may take long for an answer.
const ANSWER_TIMEOUT_MS: u64 = 20_000;

pub fn churn(network: &TestNetwork, checks: &mut Checks) {
    checks.check("churn:", |_| {
        let mut agent = AgentProcess::new(&[])?;
        let result = run(network, &mut agent);
        agent.stop()?;
        agent.run(&["cleanup"])?;
        result
    });
}

/// A client in the cgroup of a pod whose rule does not change.
struct SteadyClient {
    rule: PodRule,
    kind: LoadKind,
    client: Client,
    _cgroup: Cgroup,
}

fn run(network: &TestNetwork, agent: &mut AgentProcess) -> Result<String> {
    let _servers = serve(network)?;
    let near = |name: &str| agent.manifests.path().with_file_name(name);
    let (config, state) = (near("beeline.yaml"), near("state"));
    let directories = [agent.manifests.clone(), ManifestDir::create(near(CLUSTERS[1]))?];
    std::fs::write(&config, objects::config(&directories, &state))?;
    for (directory, backends) in directories.iter().zip(Backends::WEB) {
        directory.write("web.yaml", backends.service("web", WEB, 0))?;
    }
    let rules = || PodRule::ALL.into_iter().flat_map(|rule| KINDS.map(|_| rule));
    directories[0].write("steady-pods.yaml", objects::pods(0, rules()))?;
    let client = |(number, (rule, kind))| {
        let (client, cgroup) = client_in_pod(network, number)?;
        Ok(SteadyClient { rule, kind, client, _cgroup: cgroup })
    };
    let clients = rules().zip(KINDS.into_iter().cycle()).enumerate().map(client).collect::<Result<Vec<_>>>()?;
    agent.start_with_config(network, &config)?;
    clients.iter().try_for_each(|steady| wait_for_answer(&steady.client, steady.rule))?;
    let changes = ChurnCounts::default();
    let counts = thread::scope(|scope| {
        let changing = scope.spawn(|| change_objects(network, &directories, &changes));
        let counts = dial(&clients, &changes);
        changes.stop.store(true, Ordering::Relaxed);
        let changed = changing.join().map_err(|_| anyhow!("the thread that changes objects panicked"))?;
        changed.context("cannot change objects")?;
        counts
    })?;
    let (rules, services) = (changes.rules(), changes.services());
    let Counts { dials, wrong, details } = counts;
    let summary =
        format!("{wrong} of {dials} dials wrong, while {rules} rules of cgroups and {services} services changed");
    ensure!(wrong == 0, "{summary}: {}", details.join("; "));
    ensure!(dials >= DIALS_PER_CLIENT * clients.len() as u64, "{summary}: too few dials within {LIMIT:?}");
    ensure!(rules >= FEWEST_RULE_CHANGES, "{summary}: too few changes within {LIMIT:?}");
    Ok(summary)
}

/// Starts the backends in pod-a, and the server outside.
fn serve(network: &TestNetwork) -> Result<Vec<EchoServer>> {
    let (pod, outside) = (network.pod(0), &network.outside.namespace);
    outside.ip(&format!("addr replace {WEB}/32 dev bridge0\n"))?;
    let mut servers = vec![EchoService::new(OUTSIDE, [SocketAddr::from((WEB, PORT))]).banner().start(outside)?];
    for backends in Backends::WEB.into_iter().chain([Backends::SHORT_LIVED]) {
        pod.add_addresses(backends.addresses().into_iter().map(IpAddr::from))?;
        servers.push(EchoService::new(backends.name, backends.sockets()).banner().start(&pod.namespace)?);
    }
    Ok(servers)
}

#[derive(Default)]
struct Counts {
    dials: u64,
    wrong: u64,
    details: Vec<String>,
}

fn dial(clients: &[SteadyClient], changes: &ChurnCounts) -> Result<Counts> {
    let (mut counts, end) = (Counts::default(), Instant::now() + LIMIT);
    while counts.dials == 0 || changes.rules() < FEWEST_RULE_CHANGES && counts.wrong == 0 && Instant::now() < end {
        let limit_ms = (end - Instant::now()).as_millis() as u64;
        for steady in clients {
            let load = LoadConfig::new(steady.kind, [SocketAddr::from((WEB, PORT))]);
            let timeout_ms = ANSWER_TIMEOUT_MS;
            steady.client.start_load(LoadConfig { dials: DIALS_PER_CLIENT, limit_ms, timeout_ms, ..load })?;
        }
        for steady in clients {
            counts.add(steady, &steady.client.finish_load()?);
        }
    }
    Ok(counts)
}

impl Counts {
    /// A dial is wrong if no server answered, or another one than that of the client's rule.
    fn add(&mut self, steady: &SteadyClient, report: &LoadReport) {
        let is_wrong = |name: &str| name.split(' ').next() != Some(steady.rule.answer());
        let answers = report.answers.values().flatten().filter(|(name, _)| is_wrong(name));
        for (what, count) in answers.chain(report.failures.values().flatten()) {
            self.wrong += count;
            self.details.push(format!("{:?} of a pod with {:?}: {count} times {what}", steady.kind, steady.rule));
        }
        self.dials += report.dials;
    }
}
