//! Buckets in the kernel: exact under concurrency, one for all sets of a policy, and filled by nothing but time.

mod ground;

use beeline_datapath::level::Levels;
use beeline_datapath::{Config, Door, Kernel, Program, StartKind};
use beeline_model::claim::Claim;
use beeline_model::diff::reconcile;
use beeline_model::event::{Action, Reason};
use beeline_model::name::LOCAL_CLUSTER;
use beeline_model::op::Maps;
use beeline_model::plan::{BackendPlan, ServicePlan, SetPlan, SetPolicy};
use beeline_model::planner::Delta;
use beeline_model::policy::{Limit, PolicyKind, PolicyName};
use beeline_model::resolve::Dial;
use beeline_model::row::*;
use beeline_model::table::Tables;
use beeline_model::{Address, Audience, Family, OwnerName, PortName, Protocol, SetName, SetRole};
use ground::Ground;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const SECOND: u64 = 1_000_000_000;
/// Backends of the redirect, and of the Service below it.
const OURS: u16 = 5353;
const BELOW: u16 = 8053;

/// The ports and families of one policy, and where they are dialled.
const KEYS: [(&str, Protocol); 4] = [
    ("10.96.0.10", Protocol::Udp),
    ("10.96.0.10", Protocol::Tcp),
    ("fd00:96::10", Protocol::Udp),
    ("fd00:96::10", Protocol::Tcp),
];
/// The same policy at an address with nothing below it.
const VIRTUAL: &str = "169.254.20.10";

fn address(text: &str) -> Address {
    Address::from(text.parse::<IpAddr>().unwrap())
}

fn redirect() -> OwnerName {
    let [cluster, namespace, name] = [LOCAL_CLUSTER, "dns", "cache"].map(Into::into);
    OwnerName::of_policy(&PolicyName { kind: PolicyKind::LocalRedirect, cluster, namespace, name })
}

fn name(owner: &OwnerName, port: &str, at: Address, protocol: Protocol) -> SetName {
    let role = if owner.policy_kind().is_some() { SetRole::Local } else { SetRole::Cluster };
    let owner = PortName::new(owner.clone(), port.into(), protocol);
    SetName { owner, family: at.family(), role, audience: Audience::Everyone }
}

fn set(name: SetName, rule: Rule, port: u16, next: Option<SetName>, policy: Option<SetPolicy>) -> SetPlan {
    let at = if name.family == Family::V4 { "10.244.1.5" } else { "fd00:244::1:5" };
    let backends = vec![BackendPlan { address: address(at), port, node: None }];
    SetPlan { name, backends, rule, affinity: 0, when_empty: WhenEmpty::Refuse, any: true, next, policy }
}

/// A Service, and over each of its keys the redirect, which also has an address of its own.
fn delta(limit: Option<Limit>) -> Delta {
    let (service, redirect) = (OwnerName::local("dns", "kube-dns"), redirect());
    let policy = Some(SetPolicy { limit, self_next: true });
    let (mut below, mut above) = (ServicePlan::default(), ServicePlan { members: vec![77], ..Default::default() });
    let mut delta = Delta::default();
    for (at, protocol) in KEYS.map(|(at, protocol)| (address(at), protocol)) {
        let (under, over) = (name(&service, "dns", at, protocol), name(&redirect, "dns", at, protocol));
        below.sets.push(set(under.clone(), Rule::Service, BELOW, None, None));
        above.sets.push(set(over.clone(), Rule::Redirect, OURS, Some(under), policy));
        let claim = Claim { kind: Kind::ClusterIp, rank: 0, created: 0, service: redirect.clone(), set: Some(over) };
        delta.frontends.push((FrontendKey::new(at, 53, protocol), Some(claim)));
    }
    let alone = name(&redirect, "alone", address(VIRTUAL), Protocol::Tcp);
    above.sets.push(set(alone.clone(), Rule::Redirect, OURS, None, policy));
    let claim = Claim { kind: Kind::Virtual, rank: 0, created: 0, service: redirect.clone(), set: Some(alone) };
    delta.frontends.push((FrontendKey::new(address(VIRTUAL), 53, Protocol::Tcp), Some(claim)));
    delta.services = vec![(service, Some(below)), (redirect, Some(above))];
    delta
}

/// An agent, as far as the tables go.
struct Agent {
    program: Program,
    kernel: Kernel,
    tables: Tables,
    door: Door,
}

impl Agent {
    fn start(config: Config) -> Agent {
        let sizes = config.sizes;
        let mut program = Program::open(config).unwrap();
        let kernel = program.kernel().unwrap();
        let tables = Tables::restore(kernel.dump().unwrap(), sizes);
        let door = program.door().unwrap();
        program.go_live().unwrap();
        Agent { program, kernel, tables, door }
    }

    fn write(&mut self, delta: &Delta) -> usize {
        let outcome = reconcile(&mut self.tables, &mut self.kernel, delta, true);
        assert!(outcome.is_clean(), "{outcome:?}");
        outcome.ops
    }

    /// Where this dial goes at this time: the redirect's backend, the one below, or none.
    fn ask(&self, key: usize, now: u64) -> Option<u16> {
        let (at, protocol) = KEYS[key];
        let answer = self.door.ask(&Dial::to(address(at), 53, protocol), 7, 1, now).unwrap();
        assert_eq!(answer.limited != 0, answer.chosen.is_some_and(|(_, port)| port == BELOW), "{answer:?}");
        answer.chosen.map(|(_, port)| port)
    }

    fn number(&self) -> PolicyId {
        *self.tables.rows().buckets.keys().next().expect("a bucket")
    }
}

#[test]
fn eight_threads_for_ten_seconds() {
    let ground = Ground::new();
    let mut agent = Agent::start(ground.config());
    let limit = Limit { connects_per_second: 500, burst: 1000 };
    agent.write(&delta(Some(limit)));
    let (ours, below, lost) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    let start = Instant::now();
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let (agent, ours, below, lost) = (&agent, &ours, &below, &lost);
            scope.spawn(move || {
                let (at, protocol) = KEYS[thread % KEYS.len()];
                let dial = Dial::to(address(at), 53, protocol);
                while start.elapsed() < Duration::from_secs(10) {
                    let toll = agent.door.besiege_in_time(&dial, 20_000, OURS).unwrap();
                    ours.fetch_add(toll.resolved - toll.wrong, Ordering::Relaxed);
                    below.fetch_add(toll.wrong, Ordering::Relaxed);
                    lost.fetch_add(toll.refused + toll.untouched, Ordering::Relaxed);
                }
            });
        }
    });
    let took = start.elapsed().as_secs_f64();
    let [ours, below, lost] = [&ours, &below, &lost].map(|count| count.load(Ordering::Relaxed));
    let allowed = f64::from(limit.burst) + f64::from(limit.connects_per_second) * took;
    println!(
        "{ours} of {} dials of 8 threads over 4 keys in {took:.3} s got a token; burst + rate x time is {allowed:.1} \
         ({:+.3} %); {below} went below, {lost} were lost",
        ours + below + lost,
        (ours as f64 / allowed - 1.0) * 100.0
    );
    assert_eq!(lost, 0, "the set below can serve");
    assert!(ours as f64 <= allowed, "more than the limit allows");
    assert!(ours as f64 >= 0.99 * allowed, "fewer than the limit allows");
    assert!(below > 10 * ours, "nobody was over the limit: the test proves nothing");
}

#[test]
fn one_bucket_for_all_and_only_time_fills_it() {
    let ground = Ground::new();
    let mut agent = Agent::start(ground.config());
    let limit = Limit { connects_per_second: 2, burst: 5 };
    agent.write(&delta(Some(limit)));
    let now = 1_000 * SECOND;
    let got = |agent: &Agent, now| (0..8).filter(|dial| agent.ask(dial % KEYS.len(), now) == Some(OURS)).count();
    assert_eq!(got(&agent, now), 5, "ports and families share one burst");
    let answer = agent.door.ask(&Dial::to(address(VIRTUAL), 53, Protocol::Tcp), 7, 1, now).unwrap();
    assert_eq!((answer.action, answer.reason), (Action::Refused, Reason::Limited), "nothing is below");
    assert_ne!(answer.limited, 0);

    let dump = agent.kernel.dump().unwrap();
    agent.tables = Tables::restore(dump, ground.config().sizes);
    assert_eq!((agent.write(&delta(Some(limit))), got(&agent, now)), (0, 0), "a resync");
    let before = Levels::new(agent.program.maps()).unwrap().of(agent.number()).unwrap();
    drop(agent);
    let mut agent = Agent::start(ground.config());
    assert_eq!(agent.program.start, StartKind::Adopted);
    assert_eq!((agent.write(&delta(Some(limit))), got(&agent, now)), (0, 0), "a restart");
    drop(agent);
    for services in [1024, 300] {
        let mut agent = Agent::start(Config { sizes: Sizes::for_services(services), ..ground.config() });
        assert_eq!(agent.program.start, StartKind::Resized);
        assert_eq!(Levels::new(agent.program.maps()).unwrap().of(agent.number()).unwrap(), before);
        assert_eq!((agent.write(&delta(Some(limit))), got(&agent, now)), (0, 0), "tables for {services} services");
    }
    let mut agent = Agent::start(Config { sizes: Sizes::for_services(300), ..ground.config() });
    assert_eq!(got(&agent, now + SECOND - 1), 1, "two a second: one after half of it, and not yet the other");
    assert_eq!(got(&agent, now + SECOND), 1);
    assert_eq!(got(&agent, now + 100 * SECOND), 5, "never more than the burst");

    agent.write(&delta(Some(Limit { burst: 2, ..limit })));
    assert_eq!(got(&agent, now + 200 * SECOND), 2, "another burst holds at once");
    agent.write(&delta(None));
    assert_eq!(got(&agent, now + 200 * SECOND), 8, "no limit");
    agent.write(&delta(Some(limit)));
    assert_eq!(got(&agent, now + 200 * SECOND), 0, "it was not used meanwhile, and it is the same policy");
    agent.write(&Delta::default());
    agent.write(&delta(Some(limit)));
    assert_eq!(got(&agent, now + 200 * SECOND), 5, "made again after it was gone: another one");
}

#[test]
fn what_costs_no_token() {
    let ground = Ground::new();
    let mut agent = Agent::start(ground.config());
    agent.write(&delta(Some(Limit { connects_per_second: 1, burst: 3 })));
    let now = 1_000 * SECOND;
    let to = |at: &str| Dial::to(address(at), 53, Protocol::Udp);
    // A pod that the policy selects, in whatever cgroup below its own.
    for _ in 0..10 {
        let dial = Dial { cgroups: vec![1, 77], ..to(KEYS[0].0) };
        let answer = agent.door.ask(&dial, 7, 1, now).unwrap();
        assert_eq!((answer.chosen.map(|(_, port)| port), answer.limited), (Some(BELOW), 0));
    }
    let virtual_dial = Dial { cgroups: vec![77], ..Dial::to(address(VIRTUAL), 53, Protocol::Tcp) };
    let answer = agent.door.ask(&virtual_dial, 7, 1, now).unwrap();
    assert_eq!((answer.action, answer.reason), (Action::Refused, Reason::SelfDial));
    // A datagram that follows its socket's record.
    let first = agent.door.ask(&to(KEYS[0].0), 7, 1, now).unwrap();
    let generation = agent.tables.rows().backends[first.backend].state.generation;
    for _ in 0..10 {
        let dial = Dial { prefer: Some((first.backend, generation)), ..to(KEYS[0].0) };
        let answer = agent.door.ask(&dial, 7, 1, now).unwrap();
        assert_eq!((answer.backend, answer.limited), (first.backend, 0));
    }
    // Nor one whose record is from below, though the redirect has tokens.
    let from_selected = |prefer| Dial { cgroups: vec![77], prefer, ..to(KEYS[0].0) };
    let below = agent.door.ask(&from_selected(None), 7, 1, now).unwrap();
    let record = Some((below.backend, agent.tables.rows().backends[below.backend].state.generation));
    let answer = agent.door.ask(&Dial { prefer: record, ..to(KEYS[0].0) }, 7, 1, now).unwrap();
    assert_eq!((answer.backend, answer.limited), (below.backend, 0));
    // A selected pod keeps nothing of what selects it.
    let answer = agent.door.ask(&from_selected(Some((first.backend, generation))), 7, 1, now).unwrap();
    assert_eq!(answer.backend, below.backend);
    // A set that is empty.
    let mut empty = delta(Some(Limit { connects_per_second: 1, burst: 3 }));
    let plans = empty.services.iter_mut().filter(|(name, _)| name.policy_kind().is_some());
    let sets = plans.flat_map(|(_, plan)| plan.iter_mut().flat_map(|plan| &mut plan.sets));
    sets.filter(|set| set.name.family == Family::V6).for_each(|set| set.backends.clear());
    agent.write(&empty);
    for _ in 0..10 {
        let answer = agent.door.ask(&to(KEYS[2].0), 7, 1, now).unwrap();
        assert_eq!((answer.chosen.map(|(_, port)| port), answer.limited), (Some(BELOW), 0));
    }
    assert_eq!([agent.ask(0, now), agent.ask(1, now), agent.ask(0, now)], [Some(OURS), Some(OURS), Some(BELOW)]);
}
