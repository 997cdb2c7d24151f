//! Tests the grace period before ids are recycled. Services are created and deleted as fast as the diff can write them, so
//! that ids, sets and ranges are recycled all the time, while millions of dials are resolved through the test entry points
//! of the BPF programs. Every service has its own backend port, so another port is a backend of another service.
//!
//! Some of the dials pause between their two steps, as if they were interrupted. With the grace period no dial may reach
//! another service. Without it the same loop must find such dials, or it would prove nothing.

mod fixture;

use beeline_datapath::test_resolver::ResolveCounts;
use beeline_datapath::{Config, KernelMaps, Program, TestResolver};
use beeline_harness::{Cgroup, test_seed};
use beeline_model::change::{Change, ObjectKey};
use beeline_model::diff::reconcile;
use beeline_model::name::LOCAL_CLUSTER;
use beeline_model::object::{Endpoint, Object, Service, ServicePort, Slice, SliceName, SlicePort};
use beeline_model::planner::Planner;
use beeline_model::resolve::Dial;
use beeline_model::row::Sizes;
use beeline_model::rules::{NoLocalEndpointAction, Rules};
use beeline_model::table::Tables;
use beeline_model::{Address, Family, Protocol, ServiceName};
use fixture::{StopOnDrop, is_long};
use std::net::IpAddr;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The service that must always resolve. Some of its hundred backends change.
const STEADY: u16 = 0;
const STEADY_BACKENDS: usize = 100;
/// Services that are created and deleted. Half of them exist at a time.
const SHORT_LIVED: Range<u16> = 1..9;
/// Dials per call: enough to be fast, and few enough that a grace period does not wait long for the end of the call.
const ROUNDS: u32 = 20_000;
/// Dials per call with pauses. Some of these wait between the lookup of the frontend and the pick. Interrupts and a busy
/// hypervisor do the same to any dial, but rarely.
const SLOW_ROUNDS: u32 = 1_000;
const PAUSE: Duration = Duration::from_millis(1);

fn address(bytes: [u8; 4]) -> Address {
    Address::from(IpAddr::from(bytes))
}

fn cluster_ip(service: u16) -> Address {
    address([10, 96, 0, service as u8 + 1])
}

/// The backend port, which identifies the service.
fn port_of(service: u16) -> u16 {
    10_000 + service
}

fn name_of(service: u16) -> ServiceName {
    ServiceName::local("churn", &format!("s{service}"))
}

fn service(number: u16) -> Change {
    Change::Upsert(Object::Service(Service {
        cluster_ips: Box::new([cluster_ip(number)]),
        ports: Box::new([ServicePort { name: "".into(), protocol: Protocol::Tcp, port: 80, node_port: 0 }]),
        ..Service::named(name_of(number))
    }))
}

fn slice_name(number: u16) -> SliceName {
    SliceName { cluster: LOCAL_CLUSTER.into(), namespace: "churn".into(), name: format!("s{number}").as_str().into() }
}

fn slice(number: u16, hosts: impl Iterator<Item = usize>) -> Change {
    let endpoint = |host: usize| Endpoint::ready(address([10, 244, number as u8, host as u8 + 1]));
    Change::Upsert(Object::Slice(Slice {
        name: slice_name(number),
        service: name_of(number),
        family: Family::V4,
        ports: Box::new([SlicePort { name: "".into(), protocol: Protocol::Tcp, port: port_of(number) }]),
        endpoints: hosts.map(endpoint).collect(),
        hostnames: None,
    }))
}

/// Writes the tables as an agent does, without a manifest directory.
struct TableWriter {
    planner: Planner,
    tables: Tables,
    kernel: KernelMaps,
    rng: fastrand::Rng,
    changes: u64,
}

impl TableWriter {
    fn new(program: &Program, skip_grace: bool) -> TableWriter {
        let mut tables = Tables::new(program.config().sizes);
        tables.skip_grace = skip_grace;
        let (planner, rng) = (Planner::new(Rules::for_node("n1")), fastrand::Rng::with_seed(test_seed(7)));
        let mut writer = TableWriter { planner, tables, kernel: program.kernel().unwrap(), rng, changes: 0 };
        writer.apply([service(STEADY), slice(STEADY, 0..STEADY_BACKENDS)]);
        writer
    }

    fn apply(&mut self, changes: impl IntoIterator<Item = Change>) {
        self.changes += changes.into_iter().filter(|change| self.planner.apply(change.clone())).count() as u64;
        let outcome = reconcile(&mut self.tables, &mut self.kernel, &self.planner.take_delta(), false);
        assert!(outcome.is_clean(), "{outcome:?}");
    }

    /// Deletes one service, creates another one, small and large in turn, and changes endpoints of the steady service.
    fn change(&mut self, round: u64) {
        let count = u64::from(SHORT_LIVED.end - SHORT_LIVED.start);
        let (old, new) = ((round % count) as u16, ((round + count / 2) % count) as u16);
        let (old, new) = (SHORT_LIVED.start + old, SHORT_LIVED.start + new);
        self.apply([
            Change::Delete(ObjectKey::Service(name_of(old))),
            Change::Delete(ObjectKey::Slice(slice_name(old))),
        ]);
        self.apply([service(new), slice(new, 0..if new % 2 == 0 { 3 } else { 20 })]);
        let (first, removed) = (self.rng.usize(..STEADY_BACKENDS), self.rng.usize(..STEADY_BACKENDS / 2));
        let is_kept = move |host: &usize| (host + STEADY_BACKENDS - first) % STEADY_BACKENDS >= removed;
        self.apply([slice(STEADY, (0..STEADY_BACKENDS).filter(is_kept))]);
    }
}

#[derive(Default)]
struct SharedCounts {
    resolved: AtomicU64,
    unresolved: AtomicU64,
    wrong: AtomicU64,
}

impl SharedCounts {
    fn add(&self, counts: ResolveCounts) {
        self.resolved.fetch_add(counts.resolved, Ordering::Relaxed);
        self.unresolved.fetch_add(counts.refused + counts.untouched, Ordering::Relaxed);
        self.wrong.fetch_add(counts.wrong, Ordering::Relaxed);
    }

    fn read(&self) -> [u64; 3] {
        [&self.resolved, &self.unresolved, &self.wrong].map(|n| n.load(Ordering::Relaxed))
    }
}

/// Resolves dials of these services until `stop`.
fn resolve_repeatedly(resolver: &TestResolver, services: Range<u16>, sum: &SharedCounts, stop: &AtomicBool) {
    for service in services.cycle() {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        let dial = Dial::to(cluster_ip(service), 80, Protocol::Tcp);
        sum.add(resolver.resolve_many(&dial, ROUNDS, port_of(service), 0).unwrap());
        sum.add(resolver.resolve_many_with_pauses(&dial, SLOW_ROUNDS, port_of(service), PAUSE).unwrap());
    }
}

struct Report {
    steady: [u64; 3],
    short_lived: [u64; 3],
    changes: u64,
    recycled: u64,
}

/// Removes the pins on drop.
struct Pins(PathBuf);

impl Drop for Pins {
    fn drop(&mut self) {
        let _ = beeline_datapath::program::cleanup(&self.0);
    }
}

/// Writes tables and resolves dials until `enough`, at most for `limit`.
fn run(skip_grace: bool, limit: Duration, enough: impl Fn(&SharedCounts, &SharedCounts) -> bool) -> Report {
    let cgroup = Cgroup::new().expect("this test needs root, BPF and cgroup2: run `make setup`");
    let pins = Pins(format!("/sys/fs/bpf/beeline-grace-{}-{skip_grace}", std::process::id()).into());
    let config = Config {
        pin_dir: pins.0.clone(),
        cgroup: cgroup.path().to_owned(),
        sizes: Sizes::for_services(1024),
        no_local_endpoint_action: NoLocalEndpointAction::Refuse,
        skip_rule_check: false,
    };
    let program = Program::open(config).unwrap();
    let resolver = program.test_resolver().unwrap();
    let mut writer = TableWriter::new(&program, skip_grace);
    let (steady, short_lived, stop) = (SharedCounts::default(), SharedCounts::default(), AtomicBool::new(false));
    let mut recycled = 0;
    std::thread::scope(|scope| {
        scope.spawn(|| resolve_repeatedly(&resolver, STEADY..STEADY + 1, &steady, &stop));
        scope.spawn(|| resolve_repeatedly(&resolver, SHORT_LIVED, &short_lived, &stop));
        let _stop = StopOnDrop(&stop);
        let end = Instant::now() + limit;
        for round in 0.. {
            writer.change(round);
            if round % 16 == 0 {
                recycled += writer.tables.recycle(&mut writer.kernel).unwrap() as u64;
            }
            if enough(&steady, &short_lived) || Instant::now() >= end {
                break;
            }
        }
    });
    Report { steady: steady.read(), short_lived: short_lived.read(), changes: writer.changes, recycled }
}

fn print_report(what: &str, report: &Report) {
    let Report { steady: [resolved, unresolved, wrong], short_lived, changes, recycled } = report;
    println!("{what}: {changes} changes, {recycled} ids recycled after a grace period");
    println!("  steady service: {resolved} dials resolved, {unresolved} not, {wrong} to a backend of another service");
    let [resolved, unresolved, wrong] = short_lived;
    println!("  short-lived services: {resolved} resolved, {unresolved} not, {wrong} to a backend of another service");
}

#[test]
fn only_the_grace_period_prevents_dials_to_another_service() {
    let wanted = if is_long() { 300_000_000 } else { 30_000_000 };
    let dials = |sum: &SharedCounts| sum.read()[..2].iter().sum::<u64>();
    let tested = run(false, Duration::from_secs(300), |a, b| dials(a) + dials(b) >= wanted);
    print_report("with the grace period", &tested);
    let control = run(true, Duration::from_secs(120), |a, b| a.read()[2] + b.read()[2] >= 3);
    print_report("without a grace period", &control);
    assert!(tested.steady[0] + tested.short_lived[0] + tested.short_lived[1] >= wanted, "too few dials");
    assert!(tested.changes >= 1000 && tested.recycled >= 1000, "too few changes");
    assert_eq!(tested.steady[1..], [0, 0], "every dial of the steady service must resolve to one of its backends");
    assert_eq!(tested.short_lived[2], 0, "an id was recycled while a dial used it");
    assert!(
        control.steady[2] + control.short_lived[2] > 0,
        "no dial went wrong without the grace period, so this test proves nothing"
    );
}
