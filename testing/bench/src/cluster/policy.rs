//! As many policies as there are services, all at once: one for each, which sends its dials to an address that no service
//! has. They come while the agent runs, are there when it starts, and go again, while somebody dials.

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
    control::Control,
    probe,
    process::Process,
    site::Site,
    turn::Course,
    world::{self, CHANGING, POD_PORT, SERVICE_PORT, SPARE_PODS},
};
use crate::report::{Report, Row, Table};

const POLICY_PATH: &str = "/apis/beeline.dev/v1alpha1/namespaces/default/balancingpolicies";
const DEFINITION_PATH: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const PATIENCE: Duration = Duration::from_secs(300);
const BAR: f64 = 5.0;
/// Addresses that policies lead to are counted from here; services' own pods are below.
const FIRST: u32 = SPARE_PODS + 1_000_000;

/// Seconds, and dials meanwhile.
#[derive(Debug, Default)]
pub struct Figures {
    policies: u32,
    /// From the API server's answer to the last write until every service leads where its policy says.
    come: f64,
    /// From the agent's start to the same.
    cold: f64,
    /// From the API server's answer to the last removal until every service leads to its own pods.
    gone: f64,
    failed: u64,
    dials: u64,
    memory: u64,
}

/// The kinds must be known before an agent starts that is to follow them.
pub fn define(control: &Control) -> Result<()> {
    for definition in definitions() {
        control.write("POST", DEFINITION_PATH, &definition)?;
    }
    let end = Instant::now() + PATIENCE;
    while control.read(POLICY_PATH).is_err() {
        ensure!(Instant::now() < end, "the API server does not serve {POLICY_PATH}");
        thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}

pub fn measure(course: &mut Course) -> Result<Figures> {
    let mut figures = Figures { policies: course.services, ..Figures::default() };
    course.site.renew_node()?;
    let mut agent = course.stable.start(Contender::Beeline, &course.site)?;
    let result = come_and_go(course, &mut agent, &mut figures).with_context(|| agent.last_words());
    figures.memory = agent.peak_memory()?;
    agent.end()?;
    course.stable.clean()?;
    result?;
    cold(course, &mut figures)?;
    Ok(figures)
}

fn come_and_go(course: &Course, agent: &mut Process, figures: &mut Figures) -> Result<()> {
    let Course { site, control, .. } = course;
    settle(site, course.services, is_own)?;
    let (dials, failed) = dialling(site, course.services, || {
        let written = create(control, course.services)?;
        let end = settle(site, course.services, |service, who| who == policys(service))?;
        figures.come = end.saturating_duration_since(written).as_secs_f64();
        let removed = remove(control, course.services)?;
        let end = settle(site, course.services, is_own)?;
        figures.gone = end.saturating_duration_since(removed).as_secs_f64();
        Ok(())
    })?;
    (figures.dials, figures.failed) = (dials, failed);
    agent.require_running()
}

/// They are there before the agent.
fn cold(course: &mut Course, figures: &mut Figures) -> Result<()> {
    create(&course.control, course.services)?;
    course.site.renew_node()?;
    let start = Instant::now();
    let agent = course.stable.start(Contender::Beeline, &course.site)?;
    let end = settle(&course.site, course.services, |service, who| who == policys(service));
    let end = end.with_context(|| agent.last_words())?;
    figures.cold = (end - start).as_secs_f64();
    figures.memory = figures.memory.max(agent.peak_memory()?);
    agent.end()?;
    course.stable.clean()?;
    remove(&course.control, course.services).map(drop)
}

/// The last when all others are there. When the API server answered to it.
fn create(control: &Control, services: u32) -> Result<Instant> {
    let policy = |service| (POLICY_PATH.to_owned(), policy(service));
    control.write_all("POST", (0..services - 1).map(policy))?;
    Ok(control.write("POST", POLICY_PATH, &policy(services - 1).1)?.answered)
}

fn remove(control: &Control, services: u32) -> Result<Instant> {
    let path = |service| format!("{POLICY_PATH}/{}", world::name(service));
    control.write_all("DELETE", (0..services - 1).map(|service| (path(service), json!({}))))?;
    Ok(control.write("DELETE", &path(services - 1), &json!({}))?.answered)
}

fn policy(service: u32) -> Value {
    json!({
        "apiVersion": "beeline.dev/v1alpha1",
        "kind": "BalancingPolicy",
        "metadata": {"name": world::name(service)},
        "spec": {
            "frontend": {"serviceMatcher": {
                "serviceName": world::name(service),
                "toPorts": [{"name": "http", "port": SERVICE_PORT, "protocol": "TCP"}],
            }},
            "backend": {"addressEndpoint": {
                "addresses": [policys(service)],
                "toPorts": [{"name": "http", "port": POD_PORT, "protocol": "TCP"}],
            }},
        },
    })
}

fn policys(service: u32) -> Ipv4Addr {
    *world::pod_address(FIRST + service).ip()
}

/// Any of its ten; the service whose endpoints change has one that counts, which may be a spare one.
fn is_own(service: u32, who: Ipv4Addr) -> bool {
    let pod = who.to_bits() - world::pod_address(0).ip().to_bits();
    pod / world::ENDPOINTS == service || (service == CHANGING && (SPARE_PODS..FIRST).contains(&pod))
}

/// Until every service leads to whom it should; when the last of them did.
fn settle(site: &Site, services: u32, wanted: impl Fn(u32, Ipv4Addr) -> bool + Sync + Send) -> Result<Instant> {
    let target = world::service_address;
    site.client.run(|| {
        let last = services - 1;
        let mut end = probe::until(target(last), |who| wanted(last, who), PATIENCE, || {})?.began;
        for service in 0..services {
            if !probe::dial(target(service), probe::LONG).is_ok_and(|who| who.is_some_and(|who| wanted(service, who))) {
                let effect = probe::until(target(service), |who| wanted(service, who), PATIENCE, || {})?;
                end = end.max(effect.began);
            }
        }
        Ok(end)
    })
}

/// One service after the other, as long as the work takes: how many dials, and how many failed.
fn dialling(site: &Site, services: u32, work: impl FnOnce() -> Result<()>) -> Result<(u64, u64)> {
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let dialler = scope.spawn(|| {
            site.client.enter()?;
            let all: Vec<SocketAddrV4> = (0..services).map(world::service_address).collect();
            let (mut dials, mut failed) = (0, 0);
            for target in all.iter().cycle() {
                if done.load(Ordering::Relaxed) {
                    break;
                }
                dials += 1;
                failed += u64::from(!probe::dial(*target, probe::LONG).is_ok_and(|who| who.is_some()));
                thread::sleep(Duration::from_millis(1));
            }
            Ok((dials, failed))
        });
        let worked = work();
        done.store(true, Ordering::Relaxed);
        let counted = dialler.join().expect("the dialler does not panic");
        worked.and(counted)
    })
}

pub fn show(report: &mut Report, all: &[&Figures]) {
    let columns =
        ["policies, one a service", "last answer to kernel, s", "removed, s", "cold start, s", "peak, MB", "failed"];
    let mut table = Table::new("Policies, all at once", &columns);
    for figures in all {
        let Figures { policies, come, cold, gone, failed, dials, memory } = figures;
        let megabytes = *memory as f64 / super::line::MB;
        let cells = [format!("{come:.2}"), format!("{gone:.2}"), format!("{cold:.2}"), format!("{megabytes:.1}")];
        table.line(&policies.to_string(), cells.into_iter().chain([format!("{failed} of {dials} dials")]));
        let row = |name: &str, value, unit| Row::new(format!("{name}/{policies}"), value, unit);
        let came = row("policies at once, last answer to kernel", *come, "s");
        report.row(if *policies == 10_000 { came.at_most(BAR) } else { came });
        report.row(row("policies removed at once, last answer to kernel", *gone, "s"));
        report.row(row("cold start with a policy for each service", *cold, "s"));
        report.row(row("peak memory with a policy for each service", megabytes, "MB"));
        report.row(
            row("dials that failed while policies came and went", *failed as f64, "of n").samples(*dials as usize),
        );
    }
    print!("{table}");
}
