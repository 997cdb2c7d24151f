//! Tables of policies under random changes: LocalRedirectPolicies over BalancingPolicies over Services, with limits and
//! selected pods, on maps that fail. The plans are built here, so that every combination occurs.

#[allow(dead_code)]
mod support;

use beeline_model::claim::Claim;
use beeline_model::diff::{ReconcileOutcome, reconcile};
use beeline_model::event::Action;
use beeline_model::name::LOCAL_CLUSTER;
use beeline_model::op::{FaultyMaps, Maps, MemoryMaps, Op};
use beeline_model::plan::{BackendPlan, ServicePlan, SetPlan, SetPolicy};
use beeline_model::planner::Delta;
use beeline_model::policy::{Limit, PolicyKind, PolicyName};
use beeline_model::resolve::Dial;
use beeline_model::row::*;
use beeline_model::rules::NoLocalEndpointAction;
use beeline_model::table::Tables;
use beeline_model::{Address, Audience, Family, PortName, Protocol, ServiceName, SetName, SetRole};
use std::collections::{BTreeMap, BTreeSet};
use support::dial_result::DialResult;
use support::objects::address;
use support::observed_maps::{ObservedMaps, failing_with_odd_seeds};
use support::seed::seeds;

const PODS: u8 = 6;
const PORTS: [(&str, Protocol); 2] = [("dns", Protocol::Udp), ("dns-tcp", Protocol::Tcp)];
const SERVED: &str = "10.96.0.10";
const VIRTUAL: &str = "169.254.20.10";

fn sizes() -> Sizes {
    Sizes { members: 40, ..Sizes::for_services(40) }
}

fn pod(number: u8) -> Address {
    address(&format!("10.244.1.{}", 10 + number))
}

fn cgroup(number: u8) -> u64 {
    1000 + u64::from(number)
}

fn policy(kind: PolicyKind, name: &str) -> ServiceName {
    ServiceName::of_policy(&PolicyName {
        kind,
        cluster: LOCAL_CLUSTER.into(),
        namespace: "a".into(),
        name: name.into(),
    })
}

/// A LocalRedirectPolicy. Its ready pods are backends.
#[derive(Clone, Debug, Default, PartialEq)]
struct Redirect {
    selected: BTreeSet<u8>,
    ready: BTreeSet<u8>,
    limit: Option<Limit>,
}

/// The current objects: up to three levels at the Service's address, and a LocalRedirectPolicy at the virtual address.
#[derive(Clone, Debug, Default, PartialEq)]
struct Levels {
    service: Option<BTreeSet<u8>>,
    balancing: Option<BTreeSet<u8>>,
    redirect: Option<Redirect>,
    at_virtual: Option<Redirect>,
}

impl Levels {
    fn change(&mut self, rng: &mut fastrand::Rng) {
        let pods = |rng: &mut fastrand::Rng| (0..PODS).filter(|_| rng.u8(..3) == 0).collect::<BTreeSet<u8>>();
        let flip = |redirect: &mut Option<Redirect>, rng: &mut fastrand::Rng| match rng.u8(..6) {
            0 => *redirect = if redirect.is_some() { None } else { Some(Redirect::default()) },
            1 => {
                let limit = Limit { connects_per_second: rng.u32(1..4), burst: rng.u32(1..4) };
                redirect.get_or_insert_default().limit = rng.bool().then_some(limit);
            }
            2 => redirect.get_or_insert_default().ready.clear(),
            _ => {
                let redirect = redirect.get_or_insert_default();
                redirect.selected = pods(rng);
                redirect.ready = redirect.selected.iter().copied().filter(|_| rng.u8(..3) != 0).collect();
            }
        };
        match rng.u8(..8) {
            0 => self.service = if self.service.is_some() && rng.bool() { None } else { Some(pods(rng)) },
            1 => self.service = Some(pods(rng)),
            2 => self.balancing = (rng.u8(..3) != 0).then(|| pods(rng)),
            3..6 => flip(&mut self.redirect, rng),
            _ => flip(&mut self.at_virtual, rng),
        }
    }

    /// The levels at the Service's address. Without the Service there are none.
    fn levels(&self) -> Vec<(ServiceName, Rule, &BTreeSet<u8>, Option<&Redirect>)> {
        let Some(service) = &self.service else { return Vec::new() };
        let mut levels = Vec::new();
        if let Some(redirect) = &self.redirect {
            let name = policy(PolicyKind::LocalRedirect, "cache");
            levels.push((name, Rule::Redirect, &redirect.ready, Some(redirect)));
        }
        if let Some(pods) = &self.balancing {
            levels.push((policy(PolicyKind::Balancing, "api"), Rule::Balancing, pods, None));
        }
        levels.push((ServiceName::local("a", "kube-dns"), Rule::Service, service, None));
        levels
    }

    fn plan(&self) -> Plan {
        let mut plan = Plan::default();
        plan.add(SERVED, FrontendKind::ClusterIp, &self.levels());
        if let Some(redirect) = &self.at_virtual {
            let name = policy(PolicyKind::LocalRedirect, "virtual");
            plan.add(VIRTUAL, FrontendKind::Virtual, &[(name, Rule::Redirect, &redirect.ready, Some(redirect))]);
        }
        plan
    }
}

#[derive(Clone, Debug, Default)]
struct Plan {
    services: BTreeMap<ServiceName, ServicePlan>,
    /// The chain of each frontend.
    frontends: BTreeMap<FrontendKey, Vec<Claim>>,
}

impl Plan {
    fn add(&mut self, at: &str, kind: FrontendKind, levels: &[(ServiceName, Rule, &BTreeSet<u8>, Option<&Redirect>)]) {
        for (port, protocol) in PORTS {
            let (mut next, mut chain) = (None, Vec::new());
            for (owner, rule, pods, redirect) in levels.iter().rev() {
                let set = set(owner, port, protocol, *rule, pods, *redirect, next.take());
                next = Some(set.name.clone());
                chain.insert(0, Claim { kind, rank: 0, created: 0, service: owner.clone(), set: next.clone() });
                let plan = self.services.entry(owner.clone()).or_default();
                plan.sets.push(set);
                plan.members = redirect.iter().flat_map(|r| &r.selected).map(|pod| cgroup(*pod)).collect();
            }
            if !chain.is_empty() {
                self.frontends.insert(FrontendKey::new(address(at), 53, protocol), chain);
            }
        }
    }

    /// The changes since an earlier plan, including owners whose chains changed and owners to retry.
    fn delta(&self, old: &Plan, retried: &BTreeSet<ServiceName>, full: bool) -> Delta {
        let names: BTreeSet<&ServiceName> = self.services.keys().chain(old.services.keys()).chain(retried).collect();
        let inherited = self.frontends.iter().filter(|(key, chain)| old.frontends.get(key) != Some(chain));
        let inheritors: BTreeSet<&ServiceName> =
            inherited.flat_map(|(_, chain)| chain).map(|claim| &claim.service).collect();
        let differs = |name: &&&ServiceName| {
            let needed = full || retried.contains(**name) || inheritors.contains(**name);
            needed || self.services.get(**name) != old.services.get(**name)
        };
        let services = names.iter().filter(differs).map(|name| ((*name).clone(), self.services.get(*name).cloned()));
        let keys: BTreeSet<&FrontendKey> = self.frontends.keys().chain(old.frontends.keys()).collect();
        let chain = |key: &FrontendKey| self.frontends.get(key).cloned().unwrap_or_default();
        let frontends = keys.iter().map(|key| (**key, chain(key).into_iter().next()));
        let below = keys.iter().map(|key| (**key, chain(key).into_iter().skip(1).collect()));
        Delta {
            services: services.collect(),
            frontends: frontends.collect(),
            below: below.collect(),
            ..Delta::default()
        }
    }
}

fn set(
    owner: &ServiceName,
    port: &str,
    protocol: Protocol,
    rule: Rule,
    pods: &BTreeSet<u8>,
    redirect: Option<&Redirect>,
    next: Option<SetName>,
) -> SetPlan {
    let role = if rule == Rule::Redirect { SetRole::Local } else { SetRole::Cluster };
    let owner = PortName::new(owner.clone(), port.into(), protocol);
    // The backends of each level have their own port, so that a result shows the level.
    let number = 53 + 1000 * rule as u16;
    SetPlan {
        name: SetName { owner, family: Family::V4, role, audience: Audience::Everyone },
        backends: pods.iter().map(|n| BackendPlan { address: pod(*n), port: number, node: None }).collect(),
        rule,
        affinity: 0,
        when_empty: WhenEmpty::Refuse,
        has_any_endpoint: !pods.is_empty(),
        next,
        policy: match rule {
            Rule::Service => None,
            _ => Some(SetPolicy { limit: redirect.and_then(|r| r.limit), self_next: redirect.is_some() }),
        },
    }
}

/// Dials from each pod, and from elsewhere.
fn dials() -> Vec<Dial> {
    let from: Vec<Vec<u64>> = (0..PODS).map(|n| vec![1, cgroup(n), 7]).chain([vec![], vec![1]]).collect();
    let mut dials = Vec::new();
    for (at, (_, protocol)) in [SERVED, VIRTUAL].iter().flat_map(|at| PORTS.iter().map(move |port| (at, port))) {
        let to = |cgroups: &Vec<u64>| Dial { cgroups: cgroups.clone(), ..Dial::to(address(at), 53, *protocol) };
        dials.extend(from.iter().map(to));
    }
    dials
}

fn result(rows: &Rows, dial: &Dial) -> DialResult {
    DialResult::of(rows, dial, NoLocalEndpointAction::Refuse)
}

/// Holds between any two writes, whatever failed: no pod is redirected to itself, and every set with a limit has a
/// bucket.
fn check_invariants(rows: &Rows, op: &Op) {
    for id in rows.reachable_sets() {
        let Some(set) = rows.sets.get(id) else { continue };
        let header = set.header;
        assert!(!header.limited || rows.buckets.contains_key(&header.policy), "set {id} has no bucket after {op:?}");
        for member in rows.members(set).iter().filter(|_| set.rule == Rule::Redirect) {
            let number = rows.backends[*member].address.0[15] - 10;
            let known = header.self_next && rows.selected.contains(&(header.policy, cgroup(number)));
            assert!(known, "pod {number} is in set {id} and may be sent to itself after {op:?}");
        }
        if let Op::FillBucket(policy) = op {
            assert_ne!(header.policy, *policy, "a bucket in use was filled");
        }
    }
}

struct TestAgent {
    rng: fastrand::Rng,
    state: Levels,
    plan: Plan,
    retried: BTreeSet<ServiceName>,
    tables: Tables,
    memory: MemoryMaps,
}

impl TestAgent {
    fn new(seed: u64) -> TestAgent {
        let (rng, state, plan) = (fastrand::Rng::with_seed(seed), Levels::default(), Plan::default());
        let (tables, memory) = (Tables::new(sizes()), MemoryMaps::new(sizes()));
        TestAgent { rng, state, plan, retried: BTreeSet::new(), tables, memory }
    }

    fn next_delta(&mut self, full: bool) -> Delta {
        let plan = self.state.plan();
        let delta = plan.delta(&self.plan, &self.retried, full);
        self.plan = plan;
        delta
    }

    fn round(&mut self, full: bool, one_in: u32) -> ReconcileOutcome {
        let delta = self.next_delta(full);
        let mut coin = fastrand::Rng::with_seed(self.rng.u64(..));
        let mut memory = std::mem::replace(&mut self.memory, MemoryMaps::new(sizes()));
        let observed = ObservedMaps { inner: &mut memory, observe: Box::new(check_invariants) };
        let mut maps = FaultyMaps::new(observed, move |_| one_in > 0 && coin.u32(..one_in) == 0);
        let outcome = reconcile(&mut self.tables, &mut maps, &delta, full);
        drop(maps);
        self.memory = memory;
        self.check(&outcome);
        outcome
    }

    fn check(&mut self, outcome: &ReconcileOutcome) {
        self.retried = outcome.failed.keys().cloned().collect();
        if let Err(problem) = self.tables.audit(sizes()) {
            panic!("{problem}\nafter {outcome:?}");
        }
        // Unreachable sets are ignored: old rows that arrays keep, and sets that are kept for a failed write.
        let (mut mirror, mut map) = (self.tables.rows().clone(), self.memory.rows.clone());
        let reachable = map.reachable_sets();
        [&mut mirror, &mut map].iter_mut().for_each(|rows| rows.sets.retain(|id, _| reachable.contains(&id)));
        map.slots.clone_from(&mirror.slots);
        assert_eq!(map, mirror);
    }

    fn reconcile_until_clean(&mut self) {
        let mut outcome = self.round(false, 0);
        for _ in 0..4 {
            if outcome.is_clean() {
                return;
            }
            outcome = self.round(false, 0);
        }
        panic!("still not clean: {outcome:?}");
    }

    fn restart(&mut self) {
        self.tables = Tables::restore(self.memory.dump().unwrap(), sizes());
    }
}

fn programmed(state: &Levels) -> Rows {
    let (mut tables, mut memory) = (Tables::new(sizes()), MemoryMaps::new(sizes()));
    let delta = state.plan().delta(&Plan::default(), &BTreeSet::new(), true);
    assert!(reconcile(&mut tables, &mut memory, &delta, true).is_clean());
    memory.rows
}

#[test]
fn the_tables_reach_the_plan_after_changes_failures_and_restarts() {
    let dials = dials();
    let mut ops = 0;
    for seed in seeds(0..200) {
        let mut agent = TestAgent::new(seed);
        let one_in = [0, 10, 4][seed as usize % 3];
        for step in 0..40 {
            (0..agent.rng.usize(1..4)).for_each(|_| agent.state.change(&mut agent.rng));
            let restarts = agent.rng.u8(..10) == 0;
            if restarts {
                agent.restart();
            }
            let full = restarts || agent.rng.u8(..10) == 0;
            ops += agent.round(full, one_in).ops;
            if agent.rng.u8(..5) == 0 {
                agent.tables.recycle(&mut agent.memory).unwrap();
            }
            if step % 4 == 3 {
                agent.reconcile_until_clean();
                let fresh = programmed(&agent.state);
                dials.iter().for_each(|d| assert_eq!(result(&agent.memory.rows, d), result(&fresh, d), "{d:?}"));
            }
        }
        agent.reconcile_until_clean();
        agent.restart();
        assert_eq!(agent.round(true, 0).ops, 0, "no changes, so no writes");
        agent.state = Levels::default();
        agent.round(false, one_in);
        agent.reconcile_until_clean();
        let rows = agent.tables.rows();
        assert!(rows.names.is_empty() && rows.buckets.is_empty() && rows.selected.is_empty() && rows.sets.is_empty());
    }
    println!("{ops} writes");
}

/// With failures on odd seeds. Results of several simultaneous changes may be mixed, but a dial that is resolved before
/// and after is resolved all the time.
#[test]
fn between_two_writes_a_dial_gets_the_old_or_the_new_result() {
    let (dials, mut checked) = (dials(), 0u64);
    for seed in seeds(1000..1150) {
        let mut agent = TestAgent::new(seed);
        for _ in 0..30 {
            let before = agent.memory.rows.clone();
            let changes = agent.rng.usize(1..4);
            (0..changes).for_each(|_| agent.state.change(&mut agent.rng));
            let after = programmed(&agent.state);
            let watched: Vec<_> = dials.iter().map(|d| (d, result(&before, d), result(&after, d))).collect();
            for round in 0.. {
                let delta = agent.next_delta(false);
                let mut memory = std::mem::replace(&mut agent.memory, MemoryMaps::new(sizes()));
                let observe = |rows: &Rows, op: &Op| {
                    for (dial, old, new) in &watched {
                        let now = result(rows, dial);
                        let served = [old, new, &now].map(|result| result.action == Action::Resolved);
                        let fits = if changes == 1 { now.is_between(old, new) } else { served != [true, true, false] };
                        assert!(fits, "{dial:?}\nold {old:?}\nnew {new:?}\nnow {now:?}\nafter {op:?}");
                        checked += 1;
                    }
                };
                let mut maps = failing_with_odd_seeds(&mut memory, Box::new(observe), seed, round);
                let outcome = reconcile(&mut agent.tables, &mut maps, &delta, false);
                drop(maps);
                agent.memory = memory;
                agent.check(&outcome);
                if outcome.is_clean() {
                    break;
                }
                assert!(round < 30, "still not clean: {outcome:?}");
            }
            for (dial, _, new) in &watched {
                assert_eq!(&result(&agent.memory.rows, dial), new, "{dial:?}");
            }
        }
    }
    println!("{checked} dials between writes");
}

/// A policy that is deleted and created again gets another id, or the same id with a full bucket.
#[test]
fn a_policy_keeps_its_id_while_it_exists() {
    let mut agent = TestAgent::new(1);
    let limit = Some(Limit { connects_per_second: 5, burst: 10 });
    let redirect = Redirect { selected: [1, 2].into(), ready: [1].into(), limit };
    agent.state.service = Some([3].into());
    agent.state.redirect = Some(redirect.clone());
    agent.reconcile_until_clean();
    let policy_id = |agent: &TestAgent| *agent.tables.rows().buckets.keys().next().expect("a bucket");
    let first = policy_id(&agent);
    let sets = agent.tables.rows().sets.values().filter(|set| set.header.policy == first && set.header.limited);
    assert_eq!(sets.count(), PORTS.len(), "one id for all ports");
    for ready in [vec![], vec![1, 2], vec![2]] {
        agent.state.redirect = Some(Redirect { ready: ready.into_iter().collect(), ..redirect.clone() });
        agent.reconcile_until_clean();
        agent.restart();
        assert_eq!((policy_id(&agent), agent.round(true, 0).ops), (first, 0));
    }
    agent.state.redirect = None;
    agent.reconcile_until_clean();
    assert!(agent.tables.rows().buckets.is_empty() && agent.tables.rows().selected.is_empty());
    agent.state.redirect = Some(redirect);
    let delta = agent.next_delta(false);
    let mut filled = Vec::new();
    let observe = |_: &Rows, op: &Op| filled.extend(if let Op::FillBucket(id) = op { Some(*id) } else { None });
    let mut maps = ObservedMaps { inner: &mut agent.memory, observe: Box::new(observe) };
    assert!(reconcile(&mut agent.tables, &mut maps, &delta, false).is_clean());
    drop(maps);
    assert_eq!(filled, [policy_id(&agent)]);
}
