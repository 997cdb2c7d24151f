//! Routes come and go while clients dial without pause. A route that comes is taken up without a failed dial. One that goes
//! takes those dials with it that were on their way, or began before the agent could know: they are counted apart, and all
//! others are answered.

use std::{
    io::{BufRead, BufReader},
    process::{Child, Stdio},
    sync::{Arc, Mutex},
    thread::{self, sleep},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use kit::{
    host::{Road, announce},
    storm::{Failure, Tally, Target},
};
use serde_json::json;

use crate::stand::{Stand, pod, served, targets};

/// So long after a route has gone a dial may still begin that is led by it: a burst of changes is waited for, and the
/// machine is busy.
const MOMENT: f64 = 1.0;

/// When routes went, as the kernel told.
struct Watch {
    child: Child,
    gone: Arc<Mutex<Vec<f64>>>,
}

impl Watch {
    fn start(stand: &Stand) -> Watch {
        let mut command = stand.outside.command().unwrap();
        let mut child = command.args(["ip", "monitor", "route"]).stdout(Stdio::piped()).spawn().unwrap();
        let (lines, gone) = (BufReader::new(child.stdout.take().unwrap()).lines(), Arc::new(Mutex::new(Vec::new())));
        let list = gone.clone();
        thread::spawn(move || {
            let deleted = lines.map_while(Result::ok).filter(|line| line.starts_with("Deleted"));
            deleted.for_each(|_| list.lock().unwrap().push(now()));
        });
        Watch { child, gone }
    }

    fn stop(mut self) -> Vec<f64> {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.gone.lock().unwrap().clone()
    }
}

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64()
}

/// How long after the last route that had gone this dial began; none: no route's end explains it.
fn delay(failure: &Failure, gone: &[f64]) -> Option<f64> {
    let explains = |at: &&f64| failure.until >= **at - 0.1 && failure.from <= **at + MOMENT;
    gone.iter().filter(explains).map(|at| failure.from - at).reduce(f64::min)
}

fn report(what: &str, tally: &Tally, gone: &[f64]) {
    let delays: Vec<Option<f64>> = tally.failures.iter().map(|failure| delay(failure, gone)).collect();
    let latest = delays.iter().flatten().fold(0.0, |a: f64, b| a.max(*b));
    let others: Vec<&Failure> =
        tally.failures.iter().zip(&delays).filter(|(_, delay)| delay.is_none()).map(|(failure, _)| failure).collect();
    println!(
        "{what}: {} dials, {} routes gone; {} dials failed that began at most {:.0} ms after one; {} others failed; slowest {} ms",
        tally.dials,
        gone.len(),
        delays.iter().flatten().count(),
        latest * 1e3,
        others.len(),
        tally.slowest_ms,
    );
    assert!(tally.dials >= 100, "{what}: only {} dials", tally.dials);
    assert!(others.is_empty(), "{what}: {others:?}");
}

/// By two each: whoever is caught when a route goes sees nothing more for a while.
fn twice(targets: &[Target]) -> Vec<Target> {
    [targets, targets].concat()
}

/// Whose pods are known to be reached how.
fn wait(stand: &Stand, pods: &[[std::net::IpAddr; 2]], found: &str) -> Vec<String> {
    stand.wait_found(&pods.concat(), found)
}

#[test]
fn routes_come_and_go_while_clients_dial() {
    let field = served("flap", &[("web", json!({"type": "NodePort"}))]);
    field.settle("web", 2);
    let pods = ["web-1", "web-2"].map(|name| pod(&field, name));
    let learned = Stand::outside(1, Road::Bgp);
    wait(&learned, &pods, "node");
    let targets = targets(&field, "web");
    let (storm, watch) = (learned.storm(&twice(&targets)), Watch::start(&learned));
    let speakers = announce(&field.cluster.nodes()).unwrap();
    for _ in 0..3 {
        assert_eq!(wait(&learned, &pods, "direct")[0], "route to 10.245.1.0/24");
        sleep(Duration::from_secs(1));
        speakers[0].part.stop().unwrap();
        let evidence = wait(&learned, &pods[..1], "node");
        assert!(evidence.iter().all(|text| text.starts_with("3 misses, the last at ")), "{evidence:?}");
        wait(&learned, &pods[1..], "direct");
        let mixed = learned.explain(&targets[0]).ways();
        assert!(mixed.iter().any(|way| way == "direct") && mixed.iter().any(|way| way.starts_with("by its node")));
        speakers[1].part.stop().unwrap();
        wait(&learned, &pods, "node");
        speakers[..2].iter().for_each(|speaker| speaker.part.start().unwrap());
    }
    wait(&learned, &pods, "direct");
    sleep(Duration::from_secs(1));
    let (tally, gone) = (storm.stop().unwrap(), watch.stop());
    assert!(gone.len() >= 12, "two nodes, two families, three times: {gone:?}");
    report("routes by BGP", &tally, &gone);
}

#[test]
fn a_route_that_goes_costs_nothing_where_the_default_route_leads_there_too() {
    let field = served("spare", &[("plain", json!({}))]);
    field.settle("plain", 2);
    let pods = ["web-1", "web-2"].map(|name| pod(&field, name));
    let stand = Stand::outside(1, Road::Default);
    wait(&stand, &pods, "direct");
    let storm = stand.storm(&targets(&field, "plain"));
    let route = |verb: &str| {
        for (range, via) in kit::plan::PODS.iter().zip(kit::plan::CONTROL) {
            stand.outside.run(&["ip", "route", verb, range, "via", &via.to_string()]).unwrap();
        }
    };
    let evidence = |text: &str| {
        crate::field::eventually(text, || stand.findings(&pods[0])[0].1.contains(text));
    };
    for _ in 0..5 {
        evidence("answered");
        route("add");
        evidence("route to 10.245.0.0/16");
        route("del");
    }
    evidence("answered");
    report("routes beside a default route", &storm.stop().unwrap(), &[]);
}
