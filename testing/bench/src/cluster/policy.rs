//! One BalancingPolicy for each service, all at once. The policies are created and deleted while the agent runs and
//! clients dial, and they exist when another agent starts.

use std::{
    net::{Ipv4Addr, SocketAddrV4},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use beeline_cluster::policy::definitions;
use serde_json::{Value, json};

use super::{
    contender::Contender,
    control_plane::ControlPlane,
    measurement::BenchRun,
    network::BenchNetwork,
    objects::{self, CHANGING, POD_PORT, SERVICE_PORT, SPARE_PODS},
    probe,
    process::BenchProcess,
};
use crate::report::{BenchReport, ReportRow, TextTable};

const POLICY_PATH: &str = "/apis/beeline.dev/v1alpha1/namespaces/default/balancingpolicies";
const DEFINITION_PATH: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const TIMEOUT: Duration = Duration::from_secs(300);
const LIMIT: f64 = 5.0;
/// Number of the first pod that policies use; pods of services have smaller numbers.
const FIRST: u32 = SPARE_PODS + 1_000_000;

/// Times in seconds, and dials meanwhile.
#[derive(Debug, Default)]
pub struct PolicyFigures {
    policies: u32,
    /// From the API server's response to the last creation until all policies are in effect.
    created: f64,
    /// From the agent's start until all policies are in effect.
    cold: f64,
    /// From the API server's response to the last deletion until no policy is in effect.
    deleted: f64,
    failed: u64,
    dials: u64,
    memory: u64,
}

/// Creates the CRDs before an agent starts that watches them.
pub fn define(control: &ControlPlane) -> Result<()> {
    for definition in definitions() {
        control.write("POST", DEFINITION_PATH, &definition)?;
    }
    let end = Instant::now() + TIMEOUT;
    while control.read(POLICY_PATH).is_err() {
        ensure!(Instant::now() < end, "the API server does not serve {POLICY_PATH}");
        thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}

pub fn measure(run: &mut BenchRun) -> Result<PolicyFigures> {
    let mut figures = PolicyFigures { policies: run.services, ..PolicyFigures::default() };
    run.network.recreate_node()?;
    let mut agent = run.contenders.start(Contender::Beeline, &run.network)?;
    let result = create_and_delete(run, &mut agent, &mut figures).with_context(|| agent.log_tail());
    figures.memory = agent.peak_memory()?;
    agent.end()?;
    run.contenders.clean()?;
    result?;
    cold(run, &mut figures)?;
    Ok(figures)
}

fn create_and_delete(run: &BenchRun, agent: &mut BenchProcess, figures: &mut PolicyFigures) -> Result<()> {
    let BenchRun { network, control, .. } = run;
    wait_for_targets(network, run.services, is_own)?;
    let (dials, failed) = dial_during(network, run.services, || {
        let written = create(control, run.services)?;
        let end = wait_for_targets(network, run.services, |service, who| who == policy_target(service))?;
        figures.created = end.saturating_duration_since(written).as_secs_f64();
        let removed = remove(control, run.services)?;
        let end = wait_for_targets(network, run.services, is_own)?;
        figures.deleted = end.saturating_duration_since(removed).as_secs_f64();
        Ok(())
    })?;
    (figures.dials, figures.failed) = (dials, failed);
    agent.require_running()
}

/// Measures a start with existing policies.
fn cold(run: &mut BenchRun, figures: &mut PolicyFigures) -> Result<()> {
    create(&run.control, run.services)?;
    run.network.recreate_node()?;
    let start = Instant::now();
    let agent = run.contenders.start(Contender::Beeline, &run.network)?;
    let end = wait_for_targets(&run.network, run.services, |service, who| who == policy_target(service));
    let end = end.with_context(|| agent.log_tail())?;
    figures.cold = (end - start).as_secs_f64();
    figures.memory = figures.memory.max(agent.peak_memory()?);
    agent.end()?;
    run.contenders.clean()?;
    remove(&run.control, run.services).map(drop)
}

/// Creates all policies, the last one after all others, and returns the time of the API server's last response.
fn create(control: &ControlPlane, services: u32) -> Result<Instant> {
    let policy = |service| (POLICY_PATH.to_owned(), policy(service));
    control.write_all("POST", (0..services - 1).map(policy))?;
    Ok(control.write("POST", POLICY_PATH, &policy(services - 1).1)?.answered)
}

fn remove(control: &ControlPlane, services: u32) -> Result<Instant> {
    let path = |service| format!("{POLICY_PATH}/{}", objects::name(service));
    control.write_all("DELETE", (0..services - 1).map(|service| (path(service), json!({}))))?;
    Ok(control.write("DELETE", &path(services - 1), &json!({}))?.answered)
}

fn policy(service: u32) -> Value {
    json!({
        "apiVersion": "beeline.dev/v1alpha1",
        "kind": "BalancingPolicy",
        "metadata": {"name": objects::name(service)},
        "spec": {
            "frontend": {"serviceMatcher": {
                "serviceName": objects::name(service),
                "toPorts": [{"name": "http", "port": SERVICE_PORT, "protocol": "TCP"}],
            }},
            "backend": {"addressEndpoint": {
                "addresses": [policy_target(service)],
                "toPorts": [{"name": "http", "port": POD_PORT, "protocol": "TCP"}],
            }},
        },
    })
}

fn policy_target(service: u32) -> Ipv4Addr {
    *objects::pod_address(FIRST + service).ip()
}

/// Whether the answer came from a pod of the service itself, including the replaced endpoint of the changing service.
fn is_own(service: u32, who: Ipv4Addr) -> bool {
    let pod = who.to_bits() - objects::pod_address(0).ip().to_bits();
    pod / objects::ENDPOINTS == service || (service == CHANGING && (SPARE_PODS..FIRST).contains(&pod))
}

/// Waits until every service leads to the wanted pod, and returns the time of the last one.
fn wait_for_targets(
    network: &BenchNetwork,
    services: u32,
    wanted: impl Fn(u32, Ipv4Addr) -> bool + Sync + Send,
) -> Result<Instant> {
    let target = objects::service_address;
    network.client.run(|| {
        let last = services - 1;
        let mut end = probe::until(target(last), |pod| wanted(last, pod), TIMEOUT, || {})?.began;
        for service in 0..services {
            if !probe::dial(target(service), probe::LONG).is_ok_and(|pod| pod.is_some_and(|pod| wanted(service, pod))) {
                let effect = probe::until(target(service), |pod| wanted(service, pod), TIMEOUT, || {})?;
                end = end.max(effect.began);
            }
        }
        Ok(end)
    })
}

/// Dials all services in turn while `work` runs. Returns the number of dials and of failures.
fn dial_during(network: &BenchNetwork, services: u32, work: impl FnOnce() -> Result<()>) -> Result<(u64, u64)> {
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let dialler = scope.spawn(|| {
            network.client.enter()?;
            let all: Vec<SocketAddrV4> = (0..services).map(objects::service_address).collect();
            let (mut dials, mut failed) = (0, 0);
            for target in all.iter().cycle() {
                if done.load(Ordering::Relaxed) {
                    break;
                }
                dials += 1;
                failed += u64::from(!probe::dial(*target, probe::LONG).is_ok_and(|pod| pod.is_some()));
                thread::sleep(Duration::from_millis(1));
            }
            Ok((dials, failed))
        });
        let worked = work();
        done.store(true, Ordering::Relaxed);
        let counted = dialler.join().expect("the dialling thread does not panic");
        worked.and(counted)
    })
}

pub fn print(report: &mut BenchReport, all: &[&PolicyFigures]) {
    let columns =
        ["policies, one per service", "last answer to kernel, s", "removed, s", "cold start, s", "peak, MB", "failed"];
    let mut table = TextTable::new("Policies, all at once", &columns);
    for figures in all {
        let PolicyFigures { policies, created, cold, deleted, failed, dials, memory } = figures;
        let megabytes = *memory as f64 / super::line::MB;
        let cells = [format!("{created:.2}"), format!("{deleted:.2}"), format!("{cold:.2}"), format!("{megabytes:.1}")];
        table.line(&policies.to_string(), cells.into_iter().chain([format!("{failed} of {dials} dials")]));
        let row = |name: &str, value, unit| ReportRow::new(format!("{name}/{policies}"), value, unit);
        let created = row("policies at once, last answer to kernel", *created, "s");
        report.row(if *policies == 10_000 { created.at_most(LIMIT) } else { created });
        report.row(row("policies removed at once, last answer to kernel", *deleted, "s"));
        report.row(row("cold start with a policy for each service", *cold, "s"));
        report.row(row("peak memory with a policy for each service", megabytes, "MB"));
        report.row(
            row("dials that failed while policies were created and deleted", *failed as f64, "of n")
                .samples(*dials as usize),
        );
    }
    print!("{table}");
}
