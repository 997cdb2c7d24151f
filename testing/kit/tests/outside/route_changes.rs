//! Routes are added and removed while clients dial in a loop. An added route fails no dial. A removed route may fail
//! dials that were in flight or started before the agent could react; these are counted separately, and all others must
//! succeed.

use std::{
    io::{BufRead, BufReader},
    process::{Child, Stdio},
    sync::{Arc, Mutex},
    thread::{self, sleep},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use kit::{
    host::{HostRoute, announce_pods},
    load::{DialFailure, DialReport, DialTarget},
};
use serde_json::json;

use crate::outside_agent::{OutsideAgent, fixture_with_services, pod_addresses, targets};

/// Time in seconds after the removal of a route during which a dial may still use it, because the agent waits for the
/// end of a burst of changes.
const REACTION_TIME: f64 = 1.0;

/// Records when the kernel reported removed routes.
struct RouteMonitor {
    child: Child,
    removed: Arc<Mutex<Vec<f64>>>,
}

impl RouteMonitor {
    fn start(agent: &OutsideAgent) -> RouteMonitor {
        let mut command = agent.outside.command().unwrap();
        let mut child = command.args(["ip", "monitor", "route"]).stdout(Stdio::piped()).spawn().unwrap();
        let (lines, removed) = (BufReader::new(child.stdout.take().unwrap()).lines(), Arc::new(Mutex::new(Vec::new())));
        let list = removed.clone();
        thread::spawn(move || {
            let deleted = lines.map_while(Result::ok).filter(|line| line.starts_with("Deleted"));
            deleted.for_each(|_| list.lock().unwrap().push(now()));
        });
        RouteMonitor { child, removed }
    }

    fn stop(mut self) -> Vec<f64> {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.removed.lock().unwrap().clone()
    }
}

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64()
}

/// Time between the removal of a route and the start of this dial; None if no removed route explains the failure.
fn delay(failure: &DialFailure, removed: &[f64]) -> Option<f64> {
    let explains = |at: &&f64| failure.until >= **at - 0.1 && failure.from <= **at + REACTION_TIME;
    removed.iter().filter(explains).map(|at| failure.from - at).reduce(f64::min)
}

fn check(what: &str, report: &DialReport, removed: &[f64]) {
    let delays: Vec<Option<f64>> = report.failures.iter().map(|failure| delay(failure, removed)).collect();
    let latest = delays.iter().flatten().fold(0.0, |a: f64, b| a.max(*b));
    let others: Vec<&DialFailure> =
        report.failures.iter().zip(&delays).filter(|(_, delay)| delay.is_none()).map(|(failure, _)| failure).collect();
    println!(
        "{what}: {} dials, {} routes removed; {} dials failed that started at most {:.0} ms after one; {} others failed; slowest {} ms",
        report.dials,
        removed.len(),
        delays.iter().flatten().count(),
        latest * 1e3,
        others.len(),
        report.slowest_ms,
    );
    assert!(report.dials >= 100, "{what}: only {} dials", report.dials);
    assert!(others.is_empty(), "{what}: {others:?}");
}

/// Two clients per target, because a client that waits for a timeout does not dial meanwhile.
fn doubled(targets: &[DialTarget]) -> Vec<DialTarget> {
    [targets, targets].concat()
}

/// Waits until these pods are reached in this way.
fn wait(agent: &OutsideAgent, pods: &[[std::net::IpAddr; 2]], found: &str) -> Vec<String> {
    agent.wait_for_reachability(&pods.concat(), found)
}

#[test]
fn removed_bgp_routes_fail_only_dials_in_flight() {
    let fixture = fixture_with_services("flap", &[("web", json!({"type": "NodePort"}))]);
    fixture.wait_for_endpoints("web", 2);
    let pods = ["web-1", "web-2"].map(|name| pod_addresses(&fixture, name));
    let host = OutsideAgent::outside(1, HostRoute::Bgp);
    wait(&host, &pods, "node");
    let targets = targets(&fixture, "web");
    let (load, monitor) = (host.start_load(&doubled(&targets)), RouteMonitor::start(&host));
    let speakers = announce_pods(&fixture.cluster.nodes()).unwrap();
    for _ in 0..3 {
        assert_eq!(wait(&host, &pods, "direct")[0], "route to 10.245.1.0/24");
        sleep(Duration::from_secs(1));
        speakers[0].component.stop().unwrap();
        let evidence = wait(&host, &pods[..1], "node");
        assert!(
            evidence.iter().all(|text| text.starts_with("3 probes without an answer, the last to ")),
            "{evidence:?}"
        );
        wait(&host, &pods[1..], "direct");
        let mixed = host.explain(&targets[0]).paths();
        assert!(mixed.iter().any(|path| path == "direct") && mixed.iter().any(|path| path.starts_with("by its node")));
        speakers[1].component.stop().unwrap();
        wait(&host, &pods, "node");
        speakers[..2].iter().for_each(|speaker| speaker.component.start().unwrap());
    }
    wait(&host, &pods, "direct");
    sleep(Duration::from_secs(1));
    let (report, removed) = (load.stop().unwrap(), monitor.stop());
    assert!(removed.len() >= 12, "two nodes, two families, three times: {removed:?}");
    check("routes by BGP", &report, &removed);
}

#[test]
fn a_removed_route_fails_no_dial_if_the_default_route_reaches_pods() {
    let fixture = fixture_with_services("spare", &[("plain", json!({}))]);
    fixture.wait_for_endpoints("plain", 2);
    let pods = ["web-1", "web-2"].map(|name| pod_addresses(&fixture, name));
    let agent = OutsideAgent::outside(1, HostRoute::Default);
    wait(&agent, &pods, "direct");
    let load = agent.start_load(&targets(&fixture, "plain"));
    let route = |verb: &str| {
        for (range, via) in kit::address_plan::PODS.iter().zip(kit::address_plan::CONTROL) {
            agent.outside.run(&["ip", "route", verb, range, "via", &via.to_string()]).unwrap();
        }
    };
    let evidence = |text: &str| {
        crate::fixture::wait_until(text, || agent.reachability(&pods[0])[0].1.contains(text));
    };
    for _ in 0..5 {
        evidence("answered");
        route("add");
        evidence("route to 10.245.0.0/16");
        route("del");
    }
    evidence("answered");
    check("routes beside a default route", &load.stop().unwrap(), &[]);
}
