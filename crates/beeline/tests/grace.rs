//! The grace period, proved by its absence. Services come and go as fast as the diff can write them, so ids, sets and
//! ranges are used again and again, while the kernel's own decision is made millions of times through the door. Every
//! service has a backend port of its own: another port is another service's pod.
//!
//! Some of the dials are held up between their two steps, as an interrupt would do it.
//! With the grace period not one dial may go wrong; without it the very same loop must find some, or it proves nothing.

mod stage;

use beeline_datapath::door::Toll;
use beeline_datapath::{Config, Door, Kernel, Program};
use beeline_harness::Cgroup;
use beeline_model::diff::reconcile;
use beeline_model::fact::{Endpoint, Fact, Policy, Service, ServicePort, Slice, SliceName, SlicePort};
use beeline_model::name::LOCAL_CLUSTER;
use beeline_model::planner::Planner;
use beeline_model::resolve::Dial;
use beeline_model::row::Sizes;
use beeline_model::rules::{EmptyLocal, Rules};
use beeline_model::table::Tables;
use beeline_model::{Address, Family, OwnerName, Protocol};
use stage::{StopOnDrop, is_long};
use std::net::IpAddr;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The one that must always answer: a hundred backends, some of them going and coming.
const STEADY: u16 = 0;
const STEADY_BACKENDS: usize = 100;
/// Those that come and go; half of them stand at a time.
const FLEETING: Range<u16> = 1..9;
/// Dials of one call: long enough to be fast, short enough that a grace period need not wait long for its end.
const ROUNDS: u32 = 20_000;
/// Among these some wait between their look and their pick: interrupts, and a host that takes the processor away, do the
/// same to any dial, only seldom.
const SLOW_ROUNDS: u32 = 1_000;
const LINGER: Duration = Duration::from_millis(1);

fn address(bytes: [u8; 4]) -> Address {
    Address::from(IpAddr::from(bytes))
}

fn cluster_ip(service: u16) -> Address {
    address([10, 96, 0, service as u8 + 1])
}

/// By which a backend shows whose it is.
fn port_of(service: u16) -> u16 {
    10_000 + service
}

fn name_of(service: u16) -> OwnerName {
    OwnerName::local("churn", &format!("s{service}"))
}

fn service(number: u16) -> Fact {
    Fact::Service(Service {
        name: name_of(number),
        created: 0,
        cluster_ips: Box::new([cluster_ip(number)]),
        load_balancer_ips: Box::default(),
        external_ips: Box::default(),
        source_ranges: Box::default(),
        has_node_ports: false,
        internal: Policy::Cluster,
        external: Policy::Cluster,
        affinity: None,
        health_check_node_port: 0,
        ports: Box::new([ServicePort { name: "".into(), protocol: Protocol::Tcp, port: 80, node_port: 0 }]),
    })
}

fn slice_name(number: u16) -> SliceName {
    SliceName { cluster: LOCAL_CLUSTER.into(), namespace: "churn".into(), name: format!("s{number}").as_str().into() }
}

fn slice(number: u16, hosts: impl Iterator<Item = usize>) -> Fact {
    let endpoint = |host: usize| Endpoint {
        address: address([10, 244, number as u8, host as u8 + 1]),
        ready: true,
        serving: true,
        terminating: false,
        node: None,
        hints: None,
    };
    Fact::Slice(Slice {
        name: slice_name(number),
        service: name_of(number),
        family: Family::V4,
        ports: Box::new([SlicePort { name: "".into(), protocol: Protocol::Tcp, port: port_of(number) }]),
        endpoints: hosts.map(endpoint).collect(),
        hostnames: None,
    })
}

/// The writing half: what an agent does, without a folder to wait for.
struct Writer {
    planner: Planner,
    tables: Tables,
    kernel: Kernel,
    rng: fastrand::Rng,
    changes: u64,
}

impl Writer {
    fn new(program: &Program, skip_grace: bool) -> Writer {
        let mut tables = Tables::new(program.config().sizes);
        tables.skip_grace = skip_grace;
        let (planner, rng) = (Planner::new(Rules::for_node("n1")), fastrand::Rng::with_seed(7));
        let mut writer = Writer { planner, tables, kernel: program.kernel().unwrap(), rng, changes: 0 };
        writer.apply([service(STEADY), slice(STEADY, 0..STEADY_BACKENDS)]);
        writer
    }

    fn apply(&mut self, facts: impl IntoIterator<Item = Fact>) {
        self.changes += facts.into_iter().filter(|fact| self.planner.apply(fact.clone())).count() as u64;
        let outcome = reconcile(&mut self.tables, &mut self.kernel, &self.planner.take(), false);
        assert!(outcome.is_clean(), "{outcome:?}");
    }

    /// One service goes and another takes its place, small and large in turn; a few endpoints of the steady one change.
    fn turn(&mut self, turn: u64) {
        let count = u64::from(FLEETING.end - FLEETING.start);
        let (old, new) = ((turn % count) as u16, ((turn + count / 2) % count) as u16);
        let (old, new) = (FLEETING.start + old, FLEETING.start + new);
        self.apply([Fact::ServiceGone(name_of(old)), Fact::SliceGone(slice_name(old))]);
        self.apply([service(new), slice(new, 0..if new % 2 == 0 { 3 } else { 20 })]);
        let (first, gone) = (self.rng.usize(..STEADY_BACKENDS), self.rng.usize(..STEADY_BACKENDS / 2));
        let stays = move |host: &usize| (host + STEADY_BACKENDS - first) % STEADY_BACKENDS >= gone;
        self.apply([slice(STEADY, (0..STEADY_BACKENDS).filter(stays))]);
    }
}

#[derive(Default)]
struct Sum {
    resolved: AtomicU64,
    unanswered: AtomicU64,
    wrong: AtomicU64,
}

impl Sum {
    fn add(&self, toll: Toll) {
        self.resolved.fetch_add(toll.resolved, Ordering::Relaxed);
        self.unanswered.fetch_add(toll.refused + toll.untouched, Ordering::Relaxed);
        self.wrong.fetch_add(toll.wrong, Ordering::Relaxed);
    }

    fn read(&self) -> [u64; 3] {
        [&self.resolved, &self.unanswered, &self.wrong].map(|n| n.load(Ordering::Relaxed))
    }
}

/// The dialling half.
fn besiege(door: &Door, services: Range<u16>, sum: &Sum, stop: &AtomicBool) {
    for service in services.cycle() {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        let dial = Dial::to(cluster_ip(service), 80, Protocol::Tcp);
        sum.add(door.besiege(&dial, ROUNDS, port_of(service), 0).unwrap());
        sum.add(door.besiege_slowly(&dial, SLOW_ROUNDS, port_of(service), LINGER).unwrap());
    }
}

struct Report {
    steady: [u64; 3],
    fleeting: [u64; 3],
    changes: u64,
    recycled: u64,
}

struct Pins(PathBuf);

impl Drop for Pins {
    fn drop(&mut self) {
        let _ = beeline_datapath::program::cleanup(&self.0);
    }
}

/// Writes and dials until `enough`, or for `limit`.
fn run(skip_grace: bool, limit: Duration, enough: impl Fn(&Sum, &Sum) -> bool) -> Report {
    let cgroup = Cgroup::new().expect("these tests need root, BPF and cgroup2: `make setup`");
    let pins = Pins(format!("/sys/fs/bpf/beeline-grace-{}-{skip_grace}", std::process::id()).into());
    let config = Config {
        pin_dir: pins.0.clone(),
        cgroup: cgroup.path().to_owned(),
        sizes: Sizes::for_services(1024),
        empty_local: EmptyLocal::Refuse,
    };
    let program = Program::open(config).unwrap();
    let door = program.door().unwrap();
    let mut writer = Writer::new(&program, skip_grace);
    let (steady, fleeting, stop) = (Sum::default(), Sum::default(), AtomicBool::new(false));
    let mut recycled = 0;
    std::thread::scope(|scope| {
        scope.spawn(|| besiege(&door, STEADY..STEADY + 1, &steady, &stop));
        scope.spawn(|| besiege(&door, FLEETING, &fleeting, &stop));
        let _stop = StopOnDrop(&stop);
        let end = Instant::now() + limit;
        for turn in 0.. {
            writer.turn(turn);
            if turn % 16 == 0 {
                recycled += writer.tables.recycle(&mut writer.kernel).unwrap() as u64;
            }
            if enough(&steady, &fleeting) || Instant::now() >= end {
                break;
            }
        }
    });
    Report { steady: steady.read(), fleeting: fleeting.read(), changes: writer.changes, recycled }
}

fn print(what: &str, report: &Report) {
    let Report { steady: [resolved, unanswered, wrong], fleeting, changes, recycled } = report;
    println!("{what}: {changes} changes, {recycled} ids recycled after a grace period");
    println!("  steady service: {resolved} dials resolved, {unanswered} not, {wrong} to another service's pod");
    let [resolved, unanswered, wrong] = fleeting;
    println!("  services that come and go: {resolved} resolved, {unanswered} not, {wrong} to another service's pod");
}

#[test]
fn no_dial_goes_wrong_with_the_grace_period_and_some_do_without() {
    let wanted = if is_long() { 300_000_000 } else { 30_000_000 };
    let dials = |sum: &Sum| sum.read()[..2].iter().sum::<u64>();
    let kept = run(false, Duration::from_secs(300), |a, b| dials(a) + dials(b) >= wanted);
    print("with the grace period", &kept);
    let control = run(true, Duration::from_secs(120), |a, b| a.read()[2] + b.read()[2] >= 3);
    print("without it", &control);
    assert!(kept.steady[0] + kept.fleeting[0] + kept.fleeting[1] >= wanted, "too few dials");
    assert!(kept.changes >= 1000 && kept.recycled >= 1000, "too few changes");
    assert_eq!(kept.steady[1..], [0, 0], "the steady service must always answer, and by itself");
    assert_eq!(kept.fleeting[2], 0, "an id was used again while a dial held it");
    assert!(control.steady[2] + control.fleeting[2] > 0, "nothing went wrong without it: this test proves nothing");
}
