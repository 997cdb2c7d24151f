//! Token buckets in the kernel: exact under concurrency, shared by all sets of a policy, and refilled only by time.

mod fixture;

use beeline_datapath::bucket::BucketLevels;
use beeline_datapath::{Config, KernelMaps, Program, StartKind, TestResolver};
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
use beeline_model::{Address, Audience, Family, PortName, Protocol, ServiceName, SetName, SetRole};
use fixture::Fixture;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const SECOND: u64 = 1_000_000_000;
/// Backend port of the LocalRedirectPolicy.
const REDIRECT_PORT: u16 = 5353;
/// Backend port of the Service, which has lower precedence.
const SERVICE_PORT: u16 = 8053;

/// The frontends of the policy.
const FRONTENDS: [(&str, Protocol); 4] = [
    ("10.96.0.10", Protocol::Udp),
    ("10.96.0.10", Protocol::Tcp),
    ("fd00:96::10", Protocol::Udp),
    ("fd00:96::10", Protocol::Tcp),
];
/// A virtual address of the policy. No Service is behind it.
const VIRTUAL: &str = "169.254.20.10";

fn address(text: &str) -> Address {
    Address::from(text.parse::<IpAddr>().unwrap())
}

fn redirect() -> ServiceName {
    let [cluster, namespace, name] = [LOCAL_CLUSTER, "dns", "cache"].map(Into::into);
    ServiceName::of_policy(&PolicyName { kind: PolicyKind::LocalRedirect, cluster, namespace, name })
}

fn name(owner: &ServiceName, port: &str, at: Address, protocol: Protocol) -> SetName {
    let role = if owner.policy_kind().is_some() { SetRole::Local } else { SetRole::Cluster };
    let owner = PortName::new(owner.clone(), port.into(), protocol);
    SetName { owner, family: at.family(), role, audience: Audience::Everyone }
}

fn set(name: SetName, rule: Rule, port: u16, next: Option<SetName>, policy: Option<SetPolicy>) -> SetPlan {
    let at = if name.family == Family::V4 { "10.244.1.5" } else { "fd00:244::1:5" };
    let backends = vec![BackendPlan { address: address(at), port, node: None }];
    SetPlan { name, backends, rule, affinity: 0, when_empty: WhenEmpty::Refuse, has_any_endpoint: true, next, policy }
}

/// A Service, and a LocalRedirectPolicy for all its frontends, which also has a virtual address.
fn delta(limit: Option<Limit>) -> Delta {
    let (service, redirect) = (ServiceName::local("dns", "kube-dns"), redirect());
    let policy = Some(SetPolicy { limit, self_next: true });
    let (mut service_plan, mut policy_plan) =
        (ServicePlan::default(), ServicePlan { members: vec![77], ..Default::default() });
    let mut delta = Delta::default();
    for (at, protocol) in FRONTENDS.map(|(at, protocol)| (address(at), protocol)) {
        let (service_set, policy_set) = (name(&service, "dns", at, protocol), name(&redirect, "dns", at, protocol));
        service_plan.sets.push(set(service_set.clone(), Rule::Service, SERVICE_PORT, None, None));
        policy_plan.sets.push(set(policy_set.clone(), Rule::Redirect, REDIRECT_PORT, Some(service_set), policy));
        let claim = Claim {
            kind: FrontendKind::ClusterIp,
            rank: 0,
            created: 0,
            service: redirect.clone(),
            set: Some(policy_set),
        };
        delta.frontends.push((FrontendKey::new(at, 53, protocol), Some(claim)));
    }
    let alone = name(&redirect, "alone", address(VIRTUAL), Protocol::Tcp);
    policy_plan.sets.push(set(alone.clone(), Rule::Redirect, REDIRECT_PORT, None, policy));
    let claim = Claim { kind: FrontendKind::Virtual, rank: 0, created: 0, service: redirect.clone(), set: Some(alone) };
    delta.frontends.push((FrontendKey::new(address(VIRTUAL), 53, Protocol::Tcp), Some(claim)));
    delta.services = vec![(service, Some(service_plan)), (redirect, Some(policy_plan))];
    delta
}

/// Writes the tables as an agent does.
struct TableWriter {
    program: Program,
    kernel: KernelMaps,
    tables: Tables,
    resolver: TestResolver,
}

impl TableWriter {
    fn start(config: Config) -> TableWriter {
        let sizes = config.sizes;
        let mut program = Program::open(config).unwrap();
        let kernel = program.kernel().unwrap();
        let tables = Tables::restore(kernel.dump().unwrap(), sizes);
        let resolver = program.test_resolver().unwrap();
        program.attach_hooks().unwrap();
        TableWriter { program, kernel, tables, resolver }
    }

    fn write(&mut self, delta: &Delta) -> usize {
        let outcome = reconcile(&mut self.tables, &mut self.kernel, delta, true);
        assert!(outcome.is_clean(), "{outcome:?}");
        outcome.ops
    }

    /// The port that a dial resolves to at this time: `REDIRECT_PORT`, `SERVICE_PORT` or none.
    fn resolve(&self, frontend: usize, now: u64) -> Option<u16> {
        let (at, protocol) = FRONTENDS[frontend];
        let verdict = self.resolver.resolve(&Dial::to(address(at), 53, protocol), 7, 1, now).unwrap();
        assert_eq!(verdict.limited != 0, verdict.chosen.is_some_and(|(_, port)| port == SERVICE_PORT), "{verdict:?}");
        verdict.chosen.map(|(_, port)| port)
    }

    fn policy_id(&self) -> PolicyId {
        *self.tables.rows().buckets.keys().next().expect("a bucket")
    }
}

#[test]
fn concurrent_dials_get_exactly_the_tokens_of_the_limit() {
    let fixture = Fixture::new();
    let mut writer = TableWriter::start(fixture.config());
    // The bucket is larger than what 10 seconds add to it: it is never full again after the start, so that no token is
    // lost while other programs use the processors.
    let limit = Limit { connects_per_second: 500, burst: 10_000 };
    writer.write(&delta(Some(limit)));
    let (redirected, to_service, lost) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    let start = Instant::now();
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let (writer, redirected, to_service, lost) = (&writer, &redirected, &to_service, &lost);
            scope.spawn(move || {
                let (at, protocol) = FRONTENDS[thread % FRONTENDS.len()];
                let dial = Dial::to(address(at), 53, protocol);
                while start.elapsed() < Duration::from_secs(10) {
                    let counts = writer.resolver.resolve_many_by_clock(&dial, 20_000, REDIRECT_PORT).unwrap();
                    redirected.fetch_add(counts.resolved - counts.wrong, Ordering::Relaxed);
                    to_service.fetch_add(counts.wrong, Ordering::Relaxed);
                    lost.fetch_add(counts.refused + counts.untouched, Ordering::Relaxed);
                }
            });
        }
    });
    let elapsed = start.elapsed().as_secs_f64();
    let [redirected, to_service, lost] = [&redirected, &to_service, &lost].map(|count| count.load(Ordering::Relaxed));
    let allowed = f64::from(limit.burst) + f64::from(limit.connects_per_second) * elapsed;
    println!(
        "{redirected} of {} dials of 8 threads over 4 frontends in {elapsed:.3} s got a token; burst + rate x time is \
         {allowed:.1} ({:+.3} %); {to_service} used the Service, {lost} were not resolved",
        redirected + to_service + lost,
        (redirected as f64 / allowed - 1.0) * 100.0
    );
    assert_eq!(lost, 0, "dials above the limit use the Service");
    assert!(redirected as f64 <= allowed, "more than the limit allows");
    assert!(redirected as f64 >= 0.99 * allowed, "fewer than the limit allows");
    assert!(to_service > 10 * redirected, "too few dials were above the limit to prove anything");
}

#[test]
fn all_sets_share_one_bucket_and_only_time_refills_it() {
    let fixture = Fixture::new();
    let mut writer = TableWriter::start(fixture.config());
    let limit = Limit { connects_per_second: 2, burst: 5 };
    writer.write(&delta(Some(limit)));
    let now = 1_000 * SECOND;
    let got = |writer: &TableWriter, now| {
        (0..8).filter(|dial| writer.resolve(dial % FRONTENDS.len(), now) == Some(REDIRECT_PORT)).count()
    };
    assert_eq!(got(&writer, now), 5, "ports and families share one burst");
    let verdict = writer.resolver.resolve(&Dial::to(address(VIRTUAL), 53, Protocol::Tcp), 7, 1, now).unwrap();
    assert_eq!((verdict.action, verdict.reason), (Action::Refused, Reason::Limited), "there is no next set");
    assert_ne!(verdict.limited, 0);

    let dump = writer.kernel.dump().unwrap();
    writer.tables = Tables::restore(dump, fixture.config().sizes);
    assert_eq!((writer.write(&delta(Some(limit))), got(&writer, now)), (0, 0), "a resync refills nothing");
    let before = BucketLevels::new(writer.program.maps()).unwrap().of(writer.policy_id()).unwrap();
    drop(writer);
    let mut writer = TableWriter::start(fixture.config());
    assert_eq!(writer.program.start, StartKind::Adopted);
    assert_eq!((writer.write(&delta(Some(limit))), got(&writer, now)), (0, 0), "a restart refills nothing");
    drop(writer);
    for services in [1024, 300] {
        let mut writer = TableWriter::start(Config { sizes: Sizes::for_services(services), ..fixture.config() });
        assert_eq!(writer.program.start, StartKind::Resized);
        assert_eq!(BucketLevels::new(writer.program.maps()).unwrap().of(writer.policy_id()).unwrap(), before);
        assert_eq!((writer.write(&delta(Some(limit))), got(&writer, now)), (0, 0), "tables for {services} services");
    }
    let mut writer = TableWriter::start(Config { sizes: Sizes::for_services(300), ..fixture.config() });
    assert_eq!(got(&writer, now + SECOND - 1), 1, "two tokens per second: one token after half a second");
    assert_eq!(got(&writer, now + SECOND), 1);
    assert_eq!(got(&writer, now + 100 * SECOND), 5, "at most the burst");

    writer.write(&delta(Some(Limit { burst: 2, ..limit })));
    assert_eq!(got(&writer, now + 200 * SECOND), 2, "another burst applies at once");
    writer.write(&delta(None));
    assert_eq!(got(&writer, now + 200 * SECOND), 8, "no limit");
    writer.write(&delta(Some(limit)));
    assert_eq!(got(&writer, now + 200 * SECOND), 0, "the same policy continues with its bucket");
    writer.write(&Delta::default());
    writer.write(&delta(Some(limit)));
    assert_eq!(got(&writer, now + 200 * SECOND), 5, "a policy that was deleted and created again has a full bucket");
}

#[test]
fn reused_self_and_empty_dials_take_no_token() {
    let fixture = Fixture::new();
    let mut writer = TableWriter::start(fixture.config());
    writer.write(&delta(Some(Limit { connects_per_second: 1, burst: 3 })));
    let now = 1_000 * SECOND;
    let to = |at: &str| Dial::to(address(at), 53, Protocol::Udp);
    // A dial of a pod that the policy selects, from a cgroup below the pod's.
    for _ in 0..10 {
        let dial = Dial { cgroups: vec![1, 77], ..to(FRONTENDS[0].0) };
        let verdict = writer.resolver.resolve(&dial, 7, 1, now).unwrap();
        assert_eq!((verdict.chosen.map(|(_, port)| port), verdict.limited), (Some(SERVICE_PORT), 0));
    }
    let virtual_dial = Dial { cgroups: vec![77], ..Dial::to(address(VIRTUAL), 53, Protocol::Tcp) };
    let verdict = writer.resolver.resolve(&virtual_dial, 7, 1, now).unwrap();
    assert_eq!((verdict.action, verdict.reason), (Action::Refused, Reason::SelfDial));
    // A datagram that uses the backend in the record of its socket.
    let first = writer.resolver.resolve(&to(FRONTENDS[0].0), 7, 1, now).unwrap();
    let generation = writer.tables.rows().backends[first.backend].state.generation;
    for _ in 0..10 {
        let dial = Dial { prefer: Some((first.backend, generation)), ..to(FRONTENDS[0].0) };
        let verdict = writer.resolver.resolve(&dial, 7, 1, now).unwrap();
        assert_eq!((verdict.backend, verdict.limited), (first.backend, 0));
    }
    // A datagram whose record has a backend of the Service, though the policy has tokens.
    let from_selected = |prefer| Dial { cgroups: vec![77], prefer, ..to(FRONTENDS[0].0) };
    let below = writer.resolver.resolve(&from_selected(None), 7, 1, now).unwrap();
    let record = Some((below.backend, writer.tables.rows().backends[below.backend].state.generation));
    let verdict = writer.resolver.resolve(&Dial { prefer: record, ..to(FRONTENDS[0].0) }, 7, 1, now).unwrap();
    assert_eq!((verdict.backend, verdict.limited), (below.backend, 0));
    // A selected pod does not keep a backend of the policy.
    let verdict = writer.resolver.resolve(&from_selected(Some((first.backend, generation))), 7, 1, now).unwrap();
    assert_eq!(verdict.backend, below.backend);
    // A dial to a set without backends.
    let mut empty = delta(Some(Limit { connects_per_second: 1, burst: 3 }));
    let plans = empty.services.iter_mut().filter(|(name, _)| name.policy_kind().is_some());
    let sets = plans.flat_map(|(_, plan)| plan.iter_mut().flat_map(|plan| &mut plan.sets));
    sets.filter(|set| set.name.family == Family::V6).for_each(|set| set.backends.clear());
    writer.write(&empty);
    for _ in 0..10 {
        let verdict = writer.resolver.resolve(&to(FRONTENDS[2].0), 7, 1, now).unwrap();
        assert_eq!((verdict.chosen.map(|(_, port)| port), verdict.limited), (Some(SERVICE_PORT), 0));
    }
    assert_eq!(
        [writer.resolve(0, now), writer.resolve(1, now), writer.resolve(0, now)],
        [Some(REDIRECT_PORT), Some(REDIRECT_PORT), Some(SERVICE_PORT)]
    );
}
