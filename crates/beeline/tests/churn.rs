//! Churn: endpoints of a hundred-backend service come and go as fast as files can be written, services around it are
//! made and deleted (so their ids are used again), and the agent is killed and started again all the while. Clients dial
//! without pause, by sockets and through the door into the kernel's decision. No dial may fail, and none may reach a
//! backend of another service. (`grace.rs` shows that such a test can fail.)

mod stage;

use beeline_datapath::door::Toll as DoorToll;
use beeline_datapath::object::Knobs;
use beeline_datapath::pin::PinDir;
use beeline_datapath::program::shards;
use beeline_datapath::{Door, Kernel};
use beeline_harness::StormKind;
use beeline_model::op::Maps;
use beeline_model::resolve::Dial;
use beeline_model::{Address, Protocol};
use stage::{BEELINE, Folder, PORT, Stage, Target, Toll, is_long, target_port};
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const BIG: u8 = 100;
const FLEETING: u8 = 8;

/// The actors, and the backends that each of them has.
struct Cast {
    /// Always there; its endpoints come and go, at least one stays.
    big: (Target, Vec<Ipv4Addr>),
    /// Nothing of it ever changes.
    calm: Target,
    /// There or not.
    fleeting: Vec<(Target, Vec<Ipv4Addr>)>,
}

impl Cast {
    fn new(stage: &mut Stage) -> Cast {
        let calm = Target::new("calm", 2);
        let pods = stage.serve("calm", 10, 3);
        stage.folder.put("calm.yaml", calm.manifest(&pods));
        let big = (Target::new("big", 1), stage.serve("big", 100, BIG));
        stage.folder.put("big.yaml", big.0.manifest(&big.1));
        let fleeting = (0..FLEETING).map(|number| {
            let name = format!("fleeting-{number}");
            let pods = stage.serve(&name, 20 + 3 * number, 3);
            (Target::new(&name, 10 + number), pods)
        });
        let fleeting: Vec<_> = fleeting.collect();
        let names = fleeting.iter().map(|(target, _)| target.name.as_str()).chain(["big", "calm"]);
        let ports: BTreeSet<u16> = names.map(target_port).collect();
        assert_eq!(ports.len(), usize::from(FLEETING) + 2, "two services share a port: a mix-up would go unseen");
        Cast { big, calm, fleeting }
    }

    fn steady(&self) -> Vec<Target> {
        vec![self.big.0.clone(), self.calm.clone()]
    }

    fn come_and_go(&self) -> Vec<Target> {
        self.fleeting.iter().map(|(target, _)| target.clone()).collect()
    }
}

/// Changes one object after another; gives how many.
fn change_all_the_time(folder: &Folder, cast: &Cast, stop: &AtomicBool) -> u64 {
    let (mut rng, mut changes) = (fastrand::Rng::with_seed(3), 0);
    let mut there = [false; FLEETING as usize];
    while !stop.load(Ordering::Relaxed) {
        let (target, pods) = &cast.big;
        // Now and then from many to few and back, mostly a few endpoints.
        let count = if rng.u8(..4) == 0 { rng.usize(1..=pods.len()) } else { pods.len() - rng.usize(..10) };
        let mut pods = pods.clone();
        rng.shuffle(&mut pods);
        folder.put("big.yaml", target.manifest(&pods[..count]));
        let number = rng.usize(..cast.fleeting.len());
        let (target, pods) = &cast.fleeting[number];
        let file = format!("{}.yaml", target.name);
        if there[number] {
            folder.remove(&file);
        } else {
            folder.put(&file, target.manifest(&pods[..rng.usize(1..=pods.len())]));
        }
        there[number] = !there[number];
        changes += 2;
        std::thread::sleep(Duration::from_millis(3));
    }
    changes
}

fn door(stage: &Stage) -> Door {
    let (maps, meta) = (stage.maps(), PinDir::read_only(&stage.pin_dir).meta().unwrap());
    let sizes = Kernel::new(&maps).unwrap().sizes();
    let knobs = Knobs { shards: shards(), epoch: meta.epoch, empty_local_drops: false, host_netns: 0 };
    Door::new(&maps, &sizes, shards(), knobs).unwrap()
}

#[derive(Default)]
struct Decisions {
    made: AtomicU64,
    unanswered: AtomicU64,
    wrong: AtomicU64,
}

/// The kernel's decision, again and again, with pauses in which others get a processor.
fn decide_all_the_time(door: &Door, targets: &[Target], sum: &Decisions, stop: &AtomicBool) {
    for target in targets.iter().cycle() {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        let start = Instant::now();
        let dial = Dial::to(Address::from(IpAddr::from(target.address)), PORT, Protocol::Tcp);
        let DoorToll { resolved, refused, untouched, wrong, .. } =
            door.besiege(&dial, 10_000, target_port(&target.name), 0).unwrap();
        sum.made.fetch_add(resolved + refused + untouched, Ordering::Relaxed);
        sum.unanswered.fetch_add(refused + untouched, Ordering::Relaxed);
        sum.wrong.fetch_add(wrong, Ordering::Relaxed);
        std::thread::sleep(start.elapsed());
    }
}

/// Rounds and writes that an agent reported.
fn programmed(log: &str) -> (u64, u64) {
    let rounds = log.lines().filter(|line| line.contains("programmed"));
    let writes = rounds.filter_map(|line| line.split("writes=").nth(1)?.split(' ').next()?.parse::<u64>().ok());
    writes.fold((0, 0), |(rounds, sum), writes| (rounds + 1, sum + writes))
}

/// Kills the agent again and again, also while it starts; leaves one that serves. Gives what they programmed.
fn kill_all_the_time(stage: &mut Stage, times: u32) -> (u64, u64) {
    let (mut rng, mut sum) = (fastrand::Rng::with_seed(4), (0, 0));
    for number in 0..=times {
        if number % 3 == 2 && number < times {
            stage.spawn(Path::new(BEELINE), &[]);
            std::thread::sleep(Duration::from_millis(rng.u64(..400)));
        } else {
            stage.start(&[]);
            std::thread::sleep(Duration::from_millis(300 + rng.u64(..500)));
        }
        if number < times {
            let (rounds, writes) = programmed(&stage.kill());
            sum = (sum.0 + rounds, sum.1 + writes);
        }
    }
    sum
}

#[test]
fn nothing_is_lost_or_mixed_up_while_everything_changes() {
    let _alone = stage::alone();
    let kills = if is_long() { 100 } else { 20 };
    let mut stage = Stage::new();
    let cast = Cast::new(&mut stage);
    stage.start(&[]);
    let door = door(&stage);
    let stop = AtomicBool::new(false);
    let (steady, fleeting) = (Decisions::default(), Decisions::default());
    let storms = {
        let (node, pod, targets) = (stage.lab.node(), stage.lab.pod(1), cast.steady());
        vec![
            stage.storm(node, StormKind::Tcp, &targets),
            stage.storm(pod, StormKind::Tcp, &targets),
            stage.storm(pod, StormKind::UdpUnconnected, &targets),
            // A connected UDP socket is destroyed, as it should be, when its backend goes: so only where none does.
            stage.storm(node, StormKind::UdpConnected, std::slice::from_ref(&cast.calm)),
        ]
    };
    // These fail while their service is gone; they must never reach another one.
    let gusts = [StormKind::Tcp, StormKind::UdpUnconnected]
        .map(|kind| stage.storm_with(stage.lab.pod(1), kind, &cast.come_and_go(), 20));
    let first = stage.kill();
    let (changes, mut agents) = std::thread::scope(|scope| {
        let folder = stage.folder.clone();
        let (cast, stop, door) = (&cast, &stop, &door);
        let changing = scope.spawn(move || change_all_the_time(&folder, cast, stop));
        scope.spawn(|| decide_all_the_time(door, &cast.steady(), &steady, stop));
        scope.spawn(|| decide_all_the_time(door, &cast.come_and_go(), &fleeting, stop));
        let agents = {
            let _stop = stage::StopOnDrop(stop);
            kill_all_the_time(&mut stage, kills)
        };
        (changing.join().unwrap(), agents)
    });
    let read = |n: &AtomicU64| n.load(Ordering::Relaxed);
    let (toll, gusts) = (Toll::of(storms), Toll::of(gusts.into()));
    let converged = || {
        let manifests = stage.folder.0.display().to_string();
        let plan = ["plan", "--diff", "--node-name", "node-1", "--manifests", &manifests];
        Command::new(BEELINE).args(plan).args(stage.place()).output().unwrap().status.success()
    };
    stage::wait_until("the kernel holds what the folder says", converged);
    for log in [first, stage.stop()] {
        let (rounds, writes) = programmed(&log);
        agents = (agents.0 + rounds, agents.1 + writes);
    }
    println!("{changes} objects changed, {} rounds with {} writes to the kernel, {kills} kills", agents.0, agents.1);
    println!(
        "door, steady services: {} decisions, {} unanswered, {} wrong",
        read(&steady.made),
        read(&steady.unanswered),
        read(&steady.wrong)
    );
    println!("door, services that come and go: {} decisions, {} wrong", read(&fleeting.made), read(&fleeting.wrong));
    println!("sockets, services that come and go: {} dials, {} wrong", gusts.dials, gusts.wrong);
    toll.must_be_clean("sockets, steady services", 100_000);
    assert_eq!([read(&steady.unanswered), read(&steady.wrong), read(&fleeting.wrong), gusts.wrong], [0; 4]);
    assert!(changes >= 1000 && agents.1 >= 1000, "too few changes to mean anything");
}
