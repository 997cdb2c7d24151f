//! Endpoints of a service with a hundred backends are added and removed as fast as files can be written, other services are
//! created and deleted (so that their ids are recycled), and the agent is repeatedly killed and started. Meanwhile clients
//! dial without pause, by sockets and through the test entry points of the BPF programs. No dial may fail, and none may
//! reach a backend of another service. (`grace_period.rs` shows that such a test can fail.)

mod fixture;

use beeline_datapath::object::LoadConstants;
use beeline_datapath::pin::PinDir;
use beeline_datapath::program::shards;
use beeline_datapath::test_resolver::ResolveCounts;
use beeline_datapath::{KernelMaps, TestResolver};
use beeline_harness::{LoadKind, ManifestDir, test_seed};
use beeline_model::op::Maps;
use beeline_model::resolve::Dial;
use beeline_model::{Address, Protocol};
use fixture::{AgentFixture, BEELINE, LoadSummary, PORT, TestService, is_long, target_port};
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const BIG: u8 = 100;
const SHORT_LIVED: u8 = 8;

/// The services of the test, and their backends.
struct ChurnServices {
    /// Always exists. Its endpoints change, but at least one stays.
    big: (TestService, Vec<Ipv4Addr>),
    /// Never changes.
    stable: TestService,
    /// Created and deleted.
    short_lived: Vec<(TestService, Vec<Ipv4Addr>)>,
}

impl ChurnServices {
    fn new(fixture: &mut AgentFixture) -> ChurnServices {
        let stable = TestService::new("stable", 2);
        let pods = fixture.start_backends("stable", 10, 3);
        fixture.write_file("stable.yaml", stable.manifest(&pods));
        let big = (TestService::new("big", 1), fixture.start_backends("big", 100, BIG));
        fixture.write_file("big.yaml", big.0.manifest(&big.1));
        let short_lived = (0..SHORT_LIVED).map(|number| {
            let name = format!("short-lived-{number}");
            let pods = fixture.start_backends(&name, 20 + 3 * number, 3);
            (TestService::new(&name, 10 + number), pods)
        });
        let short_lived: Vec<_> = short_lived.collect();
        let names = short_lived.iter().map(|(target, _)| target.name.as_str()).chain(["big", "stable"]);
        let ports: BTreeSet<u16> = names.map(target_port).collect();
        assert_eq!(
            ports.len(),
            usize::from(SHORT_LIVED) + 2,
            "two services share a port, so a wrong backend would not be noticed"
        );
        ChurnServices { big, stable, short_lived }
    }

    fn steady(&self) -> Vec<TestService> {
        vec![self.big.0.clone(), self.stable.clone()]
    }

    fn short_lived(&self) -> Vec<TestService> {
        self.short_lived.iter().map(|(target, _)| target.clone()).collect()
    }
}

/// Changes one object after another until `stop`, and returns the number of changes.
fn change_objects(manifests: &ManifestDir, services: &ChurnServices, seed: u64, stop: &AtomicBool) -> u64 {
    let (mut rng, mut changes) = (fastrand::Rng::with_seed(seed), 0);
    let mut exists = [false; SHORT_LIVED as usize];
    while !stop.load(Ordering::Relaxed) {
        let (target, pods) = &services.big;
        // Mostly a few endpoints change, sometimes many.
        let count = if rng.u8(..4) == 0 { rng.usize(1..=pods.len()) } else { pods.len() - rng.usize(..10) };
        let mut pods = pods.clone();
        rng.shuffle(&mut pods);
        manifests.write("big.yaml", target.manifest(&pods[..count])).unwrap();
        let number = rng.usize(..services.short_lived.len());
        let (target, pods) = &services.short_lived[number];
        let file = format!("{}.yaml", target.name);
        if exists[number] {
            manifests.remove(&file).unwrap();
        } else {
            manifests.write(&file, target.manifest(&pods[..rng.usize(1..=pods.len())])).unwrap();
        }
        exists[number] = !exists[number];
        changes += 2;
        std::thread::sleep(Duration::from_millis(3));
    }
    changes
}

fn test_resolver(fixture: &AgentFixture) -> TestResolver {
    let (maps, meta) = (fixture.maps(), PinDir::read_only(fixture.pin_dir()).meta().unwrap());
    let sizes = KernelMaps::new(&maps).unwrap().sizes();
    let constants = LoadConstants { shards: shards(), epoch: meta.epoch, ..Default::default() };
    TestResolver::new(&maps, &sizes, shards(), constants).unwrap()
}

#[derive(Default)]
struct Decisions {
    made: AtomicU64,
    unresolved: AtomicU64,
    wrong: AtomicU64,
}

/// Resolves dials until `stop`, with pauses that leave the processor to other threads.
fn resolve_repeatedly(resolver: &TestResolver, targets: &[TestService], sum: &Decisions, stop: &AtomicBool) {
    for target in targets.iter().cycle() {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        let start = Instant::now();
        let dial = Dial::to(Address::from(IpAddr::from(target.address)), PORT, Protocol::Tcp);
        let ResolveCounts { resolved, refused, untouched, wrong, .. } =
            resolver.resolve_many(&dial, 10_000, target_port(&target.name), 0).unwrap();
        sum.made.fetch_add(resolved + refused + untouched, Ordering::Relaxed);
        sum.unresolved.fetch_add(refused + untouched, Ordering::Relaxed);
        sum.wrong.fetch_add(wrong, Ordering::Relaxed);
        std::thread::sleep(start.elapsed());
    }
}

/// Number of rounds and of writes in the log of an agent.
fn programmed_in(log: &str) -> (u64, u64) {
    let rounds = log.lines().filter(|line| line.contains("programmed"));
    let writes = rounds.filter_map(|line| line.split("writes=").nth(1)?.split(' ').next()?.parse::<u64>().ok());
    writes.fold((0, 0), |(rounds, sum), writes| (rounds + 1, sum + writes))
}

/// Kills and starts the agent repeatedly, also while it starts, and leaves one that serves. Returns the rounds and writes
/// of all agents.
fn kill_repeatedly(fixture: &mut AgentFixture, times: u32, seed: u64) -> (u64, u64) {
    let (mut rng, mut sum) = (fastrand::Rng::with_seed(seed), (0, 0));
    for number in 0..=times {
        if number % 3 == 2 && number < times {
            fixture.spawn(Path::new(BEELINE), &[]);
            std::thread::sleep(Duration::from_millis(rng.u64(..400)));
        } else {
            fixture.start(&[]);
            std::thread::sleep(Duration::from_millis(300 + rng.u64(..500)));
        }
        if number < times {
            let (rounds, writes) = programmed_in(&fixture.kill());
            sum = (sum.0 + rounds, sum.1 + writes);
        }
    }
    sum
}

#[test]
fn no_dial_fails_or_reaches_another_service_while_everything_changes() {
    let _alone = fixture::run_alone();
    let seed = test_seed(3);
    let kills = if is_long() { 100 } else { 20 };
    let mut fixture = AgentFixture::new();
    let services = ChurnServices::new(&mut fixture);
    fixture.start(&[]);
    let resolver = test_resolver(&fixture);
    let stop = AtomicBool::new(false);
    let (steady, short_lived) = (Decisions::default(), Decisions::default());
    let loads = {
        let (node, pod, targets) = (fixture.network.node(), fixture.network.pod(1), services.steady());
        vec![
            fixture.start_load(node, LoadKind::Tcp, &targets),
            fixture.start_load(pod, LoadKind::Tcp, &targets),
            fixture.start_load(pod, LoadKind::UdpUnconnected, &targets),
            // A connected UDP socket is destroyed when its backend is removed, so it dials only the service that never changes.
            fixture.start_load(node, LoadKind::UdpConnected, std::slice::from_ref(&services.stable)),
        ]
    };
    // These dials fail while their service does not exist. They must never reach another service.
    let short_lived_loads = [LoadKind::Tcp, LoadKind::UdpUnconnected]
        .map(|kind| fixture.start_load_with_timeout(fixture.network.pod(1), kind, &services.short_lived(), 20));
    let first = fixture.kill();
    let (changes, mut agents) = std::thread::scope(|scope| {
        let manifests = fixture.manifests().clone();
        let (services, stop, resolver) = (&services, &stop, &resolver);
        let changing = scope.spawn(move || change_objects(&manifests, services, seed, stop));
        scope.spawn(|| resolve_repeatedly(resolver, &services.steady(), &steady, stop));
        scope.spawn(|| resolve_repeatedly(resolver, &services.short_lived(), &short_lived, stop));
        let agents = {
            let _stop = fixture::StopOnDrop(stop);
            kill_repeatedly(&mut fixture, kills, seed + 1)
        };
        (changing.join().unwrap(), agents)
    });
    let read = |n: &AtomicU64| n.load(Ordering::Relaxed);
    let (steady_load, short_lived_loads) = (LoadSummary::collect(loads), LoadSummary::collect(short_lived_loads));
    let converged = || {
        let manifests = fixture.manifests().path().display().to_string();
        let plan = ["plan", "--diff", "--node-name", "node-1", "--manifests", &manifests];
        Command::new(BEELINE).args(plan).args(fixture.location_args()).output().unwrap().status.success()
    };
    fixture::wait_until("the kernel tables match the manifests", converged);
    for log in [first, fixture.stop()] {
        let (rounds, writes) = programmed_in(&log);
        agents = (agents.0 + rounds, agents.1 + writes);
    }
    println!("{changes} objects changed, {} rounds with {} writes to the kernel, {kills} kills", agents.0, agents.1);
    println!(
        "resolver, steady services: {} decisions, {} unresolved, {} wrong",
        read(&steady.made),
        read(&steady.unresolved),
        read(&steady.wrong)
    );
    println!(
        "resolver, short-lived services: {} decisions, {} wrong",
        read(&short_lived.made),
        read(&short_lived.wrong)
    );
    println!("sockets, short-lived services: {} dials, {} wrong", short_lived_loads.dials, short_lived_loads.wrong);
    steady_load.assert_clean("sockets, steady services", 100_000);
    assert_eq!(
        [read(&steady.unresolved), read(&steady.wrong), read(&short_lived.wrong), short_lived_loads.wrong],
        [0; 4]
    );
    assert!(changes >= 1000 && agents.1 >= 1000, "too few changes to be meaningful");
}
