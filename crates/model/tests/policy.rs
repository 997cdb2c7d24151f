//! Policies over Services: precedence, which pods become backends and which are left out, and that a change plans only
//! what depends on it again.

use beeline_model::change::{Change, ObjectKey};
use beeline_model::diff::{ReconcileOutcome, reconcile};
use beeline_model::event::Action;
use beeline_model::name::LOCAL_CLUSTER;
use beeline_model::object::{TrafficPolicy, *};
use beeline_model::op::{Maps, MemoryMaps};
use beeline_model::plan::policy::PolicyApplicability;
use beeline_model::planner::policy_state::{FrontendHolder, PolicyState};
use beeline_model::planner::{Delta, Planner};
use beeline_model::policy::{self, *};
use beeline_model::resolve::{Dial, resolve};
use beeline_model::row::Sizes;
use beeline_model::rules::{ExternalIps, HostRole, NoLocalEndpointAction, Rules};
use beeline_model::selector::{LabelOperator, Labels, Requirement, Selector};
use beeline_model::table::Tables;
use beeline_model::{Address, Family, Protocol, ServiceName};

const SERVICE: &str = "10.96.0.10:53";
const VIRTUAL: &str = "169.254.20.10:53";

fn address(text: &str) -> Address {
    Address::from(text.parse::<std::net::IpAddr>().unwrap())
}

fn labels(app: &str) -> Labels {
    Labels::from([("app".into(), app.into())])
}

fn selector(app: &str) -> Selector {
    Selector([Requirement { key: "app".into(), operator: LabelOperator::In([app.into()].into()) }].into())
}

fn dns() -> Service {
    Service {
        created: 5,
        cluster_ips: [address("10.96.0.10")].into(),
        load_balancer_ips: [address("192.0.2.1")].into(),
        affinity: Some(60),
        ports: [ServicePort { name: "dns".into(), protocol: Protocol::Udp, port: 53, node_port: 0 }].into(),
        ..Service::named(ServiceName::local("kube-system", "dns"))
    }
}

fn endpoint(at: &str, node: &str) -> Endpoint {
    let address = address(at);
    Endpoint { node: Some(node.into()), ..Endpoint::ready(address) }
}

fn slice_name(namespace: &str, name: &str) -> SliceName {
    SliceName { cluster: LOCAL_CLUSTER.into(), namespace: namespace.into(), name: name.into() }
}

fn dns_slice(endpoints: Vec<Endpoint>) -> Slice {
    Slice {
        name: slice_name("kube-system", "dns-1"),
        service: dns().name,
        family: Family::V4,
        ports: [SlicePort { name: "dns".into(), protocol: Protocol::Udp, port: 53 }].into(),
        endpoints: endpoints.into(),
        hostnames: None,
    }
}

fn pod(name: &str, at: &str) -> Pod {
    Pod {
        name: PodName { cluster: LOCAL_CLUSTER.into(), namespace: "kube-system".into(), name: name.into() },
        uid: format!("uid-{name}").into(),
        node: Some("n1".into()),
        addresses: [address(at)].into(),
        containers: [].into(),
        exclusion: Default::default(),
        view: None,
        labels: labels("cache"),
        ready: true,
        ports: [ContainerPort { name: "dns".into(), protocol: Protocol::Udp, port: 5300, host_port: 0 }].into(),
    }
}

fn number(name: &str, port: u16) -> BackendPort {
    BackendPort { name: name.into(), port: PortChoice::Number(port), protocol: Protocol::Udp }
}

fn dialled(name: &str, port: u16) -> DialledPort {
    DialledPort { name: name.into(), port, protocol: Protocol::Udp }
}

fn policy_name(kind: PolicyKind, name: &str) -> PolicyName {
    PolicyName { kind, cluster: LOCAL_CLUSTER.into(), namespace: "kube-system".into(), name: name.into() }
}

fn on_service() -> Matcher {
    Matcher::Service { name: "dns".into(), ports: None }
}

fn at_virtual(at: &str) -> Matcher {
    Matcher::Address { address: address(at), ports: [dialled("", 53)].into() }
}

fn policy(name: PolicyName, matcher: Matcher, target: Target) -> policy::Policy {
    let uid = format!("uid-{name}").into();
    let (created, generation) = (10, 1);
    policy::Policy { name, uid, created, generation, matcher, target, nodes: None, out_cluster: true, limit: None }
}

fn redirect(name: &str, matcher: Matcher) -> policy::Policy {
    let ports = [number("", 5353)].into();
    policy(
        policy_name(PolicyKind::LocalRedirect, name),
        matcher,
        Target::LocalPods { selector: selector("cache"), ports },
    )
}

fn balance(name: &str, matcher: Matcher, addresses: &[&str]) -> policy::Policy {
    let addresses = addresses.iter().map(|a| address(a)).collect();
    let target = Target::Addresses { addresses, ports: [number("", 9053)].into() };
    policy(policy_name(PolicyKind::Balancing, name), matcher, target)
}

fn pods(name: &str, matcher: Matcher, mode: RedirectMode) -> policy::Policy {
    let target = Target::Pods { selector: selector("api"), namespaces: None, mode, ports: [number("", 8053)].into() };
    policy(policy_name(PolicyKind::Balancing, name), matcher, target)
}

fn published(of: &policy::Policy, endpoints: Vec<Endpoint>) -> PolicySlice {
    PolicySlice {
        name: slice_name("kube-system", &format!("{}-1", of.name.name)),
        policy: of.name.clone(),
        uid: of.uid.clone(),
        shape: of.shape(),
        family: Family::V4,
        ports: [SlicePort { name: "".into(), protocol: Protocol::Udp, port: 8053 }].into(),
        endpoints: endpoints.into(),
    }
}

fn node(name: &str, at: &str) -> Node {
    Node { addresses: vec![(AddressType::Internal, address(at))], ..Node::named(LOCAL_CLUSTER, name) }
}

struct TestAgent {
    planner: Planner,
    tables: Tables,
    memory: MemoryMaps,
}

impl TestAgent {
    /// A Service with one pod on another node.
    fn new() -> TestAgent {
        TestAgent::with_role(HostRole::Node)
    }

    fn with_role(host_role: HostRole) -> TestAgent {
        let sizes = Sizes::for_services(64);
        let planner = Planner::new(Rules { host_role, ..Rules::for_node("n1") });
        let mut agent = TestAgent { planner, tables: Tables::new(sizes), memory: MemoryMaps::new(sizes) };
        agent.apply(Change::Upsert(Object::Service(dns())));
        agent.apply(Change::Upsert(Object::Slice(dns_slice(vec![endpoint("10.244.2.5", "n2")]))));
        agent
    }

    fn apply(&mut self, change: Change) -> Delta {
        self.planner.apply(change);
        self.reconcile()
    }

    fn policy(&mut self, policy: policy::Policy) -> Delta {
        self.apply(Change::Upsert(Object::Policy(policy)))
    }

    fn pod(&mut self, pod: Pod) -> Delta {
        self.apply(Change::Upsert(Object::Pod(pod)))
    }

    fn cgroup(&mut self, uid: &str, id: Option<u64>) -> Delta {
        self.planner.set_cgroup(uid, id);
        self.reconcile()
    }

    fn reconcile(&mut self) -> Delta {
        let delta = self.planner.take_delta();
        let outcome = reconcile(&mut self.tables, &mut self.memory, &delta, false);
        assert!(outcome.is_clean(), "{outcome:?}");
        self.tables.audit(self.memory.sizes).unwrap();
        delta
    }

    /// The backends of a dial, or its verdict.
    fn dial(&self, to: &str) -> String {
        let at: std::net::SocketAddr = to.parse().unwrap();
        let dial = Dial::to(Address::from(at.ip()), at.port(), Protocol::Udp);
        let verdict = resolve(&self.memory.rows, &dial, NoLocalEndpointAction::Refuse);
        let backend = |id: &u32| {
            let row = self.memory.rows.backends[*id];
            std::net::SocketAddr::new(row.address.ip(), row.port).to_string()
        };
        match verdict.action {
            Action::Resolved => verdict.backends.iter().map(backend).collect::<Vec<_>>().join(" "),
            Action::Refused => "refused".into(),
            Action::Untouched => "untouched".into(),
        }
    }

    fn state(&self, name: &str) -> PolicyState {
        self.planner.policies().into_iter().find(|state| &*state.name.name == name).unwrap()
    }

    fn reason(&self, name: &str) -> Option<&'static str> {
        self.state(name).refused.map(|refusal| refusal.reason.as_str())
    }

    /// Names and reasons of the policies that serve nothing although they should.
    fn failures(&self) -> Vec<(String, &'static str)> {
        let failures = self.planner.policy_failures();
        let mut all: Vec<_> =
            failures.map(|(name, refusal)| (name.name().to_owned(), refusal.reason.as_str())).collect();
        all.sort_unstable();
        all
    }

    fn left_out(&self, name: &str) -> Vec<&'static str> {
        self.state(name).left_out.into_iter().map(|refusal| refusal.reason.as_str()).collect()
    }
}

fn planned(delta: &Delta) -> Vec<String> {
    let mut names: Vec<&ServiceName> = delta.services.iter().map(|(name, _)| name).collect();
    names.sort_unstable();
    names.into_iter().map(ServiceName::subject).collect()
}

#[test]
fn precedence_is_redirect_balancing_service_and_a_level_without_backends_is_skipped() {
    let mut agent = TestAgent::new();
    agent.policy(redirect("cache", on_service()));
    assert_eq!(agent.dial(SERVICE), "10.244.2.5:53");
    agent.policy(balance("out", on_service(), &["192.0.2.53"]));
    assert_eq!(agent.dial(SERVICE), "192.0.2.53:9053");
    agent.pod(Pod { uid: "".into(), ..pod("a", "10.244.1.5") });
    assert_eq!(agent.dial(SERVICE), "10.244.1.5:5353");
    agent.pod(Pod { uid: "".into(), ready: false, ..pod("a", "10.244.1.5") });
    assert_eq!(agent.dial(SERVICE), "192.0.2.53:9053");
    agent.apply(Change::Delete(ObjectKey::Policy(policy_name(PolicyKind::Balancing, "out"))));
    assert_eq!(agent.dial(SERVICE), "10.244.2.5:53");
    agent.pod(Pod { uid: "".into(), ..pod("a", "10.244.1.5") });
    assert_eq!(agent.dial(SERVICE), "10.244.1.5:5353");
    agent.apply(Change::Delete(ObjectKey::Policy(policy_name(PolicyKind::LocalRedirect, "cache"))));
    assert_eq!(agent.dial(SERVICE), "10.244.2.5:53");
}

#[test]
fn a_policy_passes_dials_on_to_the_current_set_of_its_service() {
    let mut agent = TestAgent::new();
    agent.policy(redirect("cache", on_service()));
    let local = Service { internal: TrafficPolicy::Local, ..dns() };
    agent.apply(Change::Upsert(Object::Slice(dns_slice(vec![
        endpoint("10.244.2.5", "n2"),
        endpoint("10.244.1.9", "n1"),
    ]))));
    agent.apply(Change::Upsert(Object::Service(local)));
    assert_eq!(agent.dial(SERVICE), "10.244.1.9:53");
    agent.apply(Change::Delete(ObjectKey::Service(dns().name)));
    assert_eq!((agent.dial(SERVICE), agent.reason("cache")), ("untouched".into(), Some("serviceNotFound")));
    agent.apply(Change::Upsert(Object::Service(dns())));
    assert_eq!(agent.dial(SERVICE).split(' ').count(), 2);
    assert_eq!(agent.reason("cache"), None);
}

#[test]
fn a_pod_joins_only_when_its_cgroup_is_known() {
    let mut agent = TestAgent::new();
    agent.policy(redirect("cache", on_service()));
    agent.pod(pod("a", "10.244.1.5"));
    assert_eq!(agent.dial(SERVICE), "10.244.2.5:53");
    let delta = agent.cgroup("uid-a", Some(77));
    assert_eq!(agent.dial(SERVICE), "10.244.1.5:5353");
    let of_policy = |(name, plan): &(ServiceName, Option<beeline_model::plan::ServicePlan>)| {
        name.policy_kind().and(plan.as_ref()).map(|plan| plan.members.clone())
    };
    assert_eq!(delta.services.iter().find_map(of_policy), Some(vec![77]));
    // A replaced pod of the same name has its own cgroup.
    agent.pod(Pod { uid: "uid-b".into(), ..pod("a", "10.244.1.6") });
    assert_eq!(agent.dial(SERVICE), "10.244.2.5:53");
    agent.cgroup("uid-b", Some(78));
    assert_eq!(agent.dial(SERVICE), "10.244.1.6:5353");
    agent.cgroup("uid-b", None);
    assert_eq!(agent.dial(SERVICE), "10.244.2.5:53");
}

#[test]
fn an_unready_pod_is_selected_but_not_a_backend() {
    let mut agent = TestAgent::new();
    agent.policy(redirect("cache", on_service()));
    agent.cgroup("uid-a", Some(77));
    agent.pod(Pod { ready: false, ..pod("a", "10.244.1.5") });
    let delta = agent.planner.take_full_delta();
    let plan = delta.services.iter().find(|(name, _)| name.policy_kind().is_some()).unwrap().1.as_ref().unwrap();
    assert_eq!((plan.members.as_slice(), plan.sets[0].backends.len()), (&[77][..], 0));
    assert!(plan.sets[0].policy.unwrap().self_next);
}

#[test]
fn a_pod_that_loses_its_label_address_or_node_or_is_deleted_is_no_backend() {
    let mut agent = TestAgent::new();
    agent.policy(redirect("cache", on_service()));
    let good = Pod { uid: "".into(), ..pod("a", "10.244.1.5") };
    let others = [
        Pod { labels: labels("other"), ..good.clone() },
        Pod { addresses: [].into(), ..good.clone() },
        Pod { node: Some("n2".into()), ..good.clone() },
        Pod { addresses: [address("fd00::5")].into(), ..good.clone() },
    ];
    for other in others {
        agent.pod(good.clone());
        assert_eq!(agent.dial(SERVICE), "10.244.1.5:5353");
        agent.pod(other.clone());
        assert_eq!(agent.dial(SERVICE), "10.244.2.5:53", "{other:?}");
    }
    agent.pod(good.clone());
    agent.apply(Change::Delete(ObjectKey::Pod(good.name.clone())));
    assert_eq!(agent.dial(SERVICE), "10.244.2.5:53");
    let elsewhere = PodName { namespace: "default".into(), ..good.name.clone() };
    agent.pod(Pod { name: elsewhere, ..good });
    assert_eq!(agent.dial(SERVICE), "10.244.2.5:53");
}

#[test]
fn a_container_port_is_looked_up_in_each_pod() {
    let mut agent = TestAgent::new();
    let mut named = redirect("cache", on_service());
    let port = BackendPort { name: "".into(), port: PortChoice::Name("dns".into()), protocol: Protocol::Udp };
    named.target = Target::LocalPods { selector: selector("cache"), ports: [port].into() };
    agent.policy(named);
    agent.pod(Pod { uid: "".into(), ..pod("a", "10.244.1.5") });
    let other = ContainerPort { name: "dns".into(), protocol: Protocol::Udp, port: 5400, host_port: 0 };
    agent.pod(Pod { uid: "".into(), ports: [other.clone()].into(), ..pod("b", "10.244.1.6") });
    agent.pod(Pod { uid: "".into(), ports: [].into(), ..pod("c", "10.244.1.7") });
    let tcp = ContainerPort { protocol: Protocol::Tcp, ..other };
    agent.pod(Pod { uid: "".into(), ports: [tcp].into(), ..pod("d", "10.244.1.8") });
    assert_eq!(agent.dial(SERVICE), "10.244.1.5:5300 10.244.1.6:5400");
    assert_eq!(agent.left_out("cache"), ["podWithoutPort", "podWithoutPort"]);
}

#[test]
fn a_virtual_address_without_backends_refuses() {
    let mut agent = TestAgent::new();
    assert_eq!(agent.dial(VIRTUAL), "untouched");
    agent.policy(redirect("cache", at_virtual("169.254.20.10")));
    assert_eq!((agent.dial(VIRTUAL), agent.dial("169.254.20.10:54")), ("refused".into(), "untouched".into()));
    agent.pod(Pod { uid: "".into(), ..pod("a", "10.244.1.5") });
    assert_eq!(agent.dial(VIRTUAL), "10.244.1.5:5353");
    agent.apply(Change::Delete(ObjectKey::Pod(pod("a", "10.244.1.5").name)));
    agent.policy(balance("out", at_virtual("169.254.20.10"), &["192.0.2.53"]));
    assert_eq!(agent.dial(VIRTUAL), "192.0.2.53:9053");
}

#[test]
fn a_virtual_address_that_is_in_use_is_refused() {
    let mut agent = TestAgent::new();
    let mut rules = Rules::for_node("n1");
    rules
        .virtual_address_cidrs
        .extend(["10.0.0.0/8", "192.0.2.0/24", "172.16.0.0/12"].map(|net| net.parse::<ipnet::IpNet>().unwrap()));
    agent.planner = Planner::new(rules);
    agent.apply(Change::Upsert(Object::Service(dns())));
    for (at, why) in [("10.96.0.10", "the ClusterIP of"), ("10.0.0.9", "")] {
        agent.policy(balance("out", at_virtual(at), &["198.51.100.1"]));
        let message = agent.state("out").refused.map_or(String::new(), |refusal| refusal.message);
        assert_eq!((message.contains(why), message.is_empty()), (true, why.is_empty()), "{at}: {message}");
    }
    // The policy is accepted exactly while the address is free.
    assert_eq!(agent.dial("10.0.0.9:53"), "198.51.100.1:9053");
    agent.apply(Change::Upsert(Object::Node(node("n2", "10.0.0.9"))));
    assert_eq!(
        (agent.reason("out"), agent.dial("10.0.0.9:53")),
        (Some("virtualAddressNotAllowed"), "untouched".into())
    );
    agent.apply(Change::Upsert(Object::Node(node("n2", "10.0.0.8"))));
    assert_eq!(agent.reason("out"), None);
    agent.pod(pod("x", "10.0.0.9"));
    assert_eq!(agent.reason("out"), Some("virtualAddressNotAllowed"));
    agent.apply(Change::Delete(ObjectKey::Pod(pod("x", "10.0.0.9").name)));
    agent.apply(Change::Upsert(Object::Service(Service { cluster_ips: [address("10.0.0.9")].into(), ..dns() })));
    assert_eq!(agent.reason("out"), Some("virtualAddressNotAllowed"));
    agent.apply(Change::Delete(ObjectKey::Service(dns().name)));
    assert_eq!((agent.reason("out"), agent.dial("10.0.0.9:53")), (None, "198.51.100.1:9053".into()));
}

/// An agent whose tables are too small.
fn with_sizes(sizes: Sizes, policies: Vec<policy::Policy>) -> (TestAgent, ReconcileOutcome) {
    let planner = Planner::new(Rules::for_node("n1"));
    let mut agent = TestAgent { planner, tables: Tables::new(sizes), memory: MemoryMaps::new(sizes) };
    agent.planner.apply(Change::Upsert(Object::Service(dns())));
    agent.planner.apply(Change::Upsert(Object::Slice(dns_slice(vec![endpoint("10.244.2.5", "n2")]))));
    agent.planner.apply(Change::Upsert(Object::Pod(Pod { uid: "".into(), ..pod("a", "10.244.1.5") })));
    policies.into_iter().for_each(|policy| _ = agent.planner.apply(Change::Upsert(Object::Policy(policy))));
    let outcome = reconcile(&mut agent.tables, &mut agent.memory, &agent.planner.take_delta(), false);
    agent.tables.audit(sizes).unwrap();
    (agent, outcome)
}

fn refusals(outcome: &ReconcileOutcome) -> Vec<(String, &'static str)> {
    let mut refused: Vec<_> =
        outcome.refusals().into_iter().map(|r| (r.subject.to_string(), r.reason.as_str())).collect();
    refused.sort_unstable();
    refused
}

#[test]
fn a_service_serves_if_there_is_no_capacity_for_its_policy() {
    let full = |name: &str| (name.to_owned(), "tableFull");
    // Set ids begin at 2.
    let sizes = |sets| Sizes { sets, ..Sizes::for_services(64) };
    let both = || vec![redirect("cache", on_service()), balance("out", on_service(), &["192.0.2.53"])];
    let (agent, outcome) = with_sizes(sizes(3), both());
    assert_eq!(
        refusals(&outcome),
        [full("BalancingPolicy kube-system/out"), full("LocalRedirectPolicy kube-system/cache")]
    );
    let dials = |agent: &TestAgent| [SERVICE, "192.0.2.1:53", "10.96.0.10:99"].map(|at| agent.dial(at));
    assert_eq!(dials(&agent), ["10.244.2.5:53", "10.244.2.5:53", "refused"]);
    let (agent, outcome) = with_sizes(sizes(4), both());
    assert_eq!(refusals(&outcome), [full("LocalRedirectPolicy kube-system/cache")]);
    assert_eq!(dials(&agent), ["192.0.2.53:9053", "10.244.2.5:53", "refused"]);
    // The policy in the middle of the chain is skipped.
    let nine: Vec<String> = (1..10).map(|n| format!("192.0.2.{n}")).collect();
    let large = balance("out", on_service(), &nine.iter().map(String::as_str).collect::<Vec<_>>());
    let sizes = Sizes { slots: 8, ..Sizes::for_services(64) };
    let (mut agent, outcome) = with_sizes(sizes, vec![redirect("cache", on_service()), large]);
    assert_eq!(refusals(&outcome), [full("BalancingPolicy kube-system/out")]);
    assert_eq!(dials(&agent), ["10.244.1.5:5353", "10.244.2.5:53", "refused"]);
    agent.planner.apply(Change::Delete(ObjectKey::Pod(pod("a", "10.244.1.5").name)));
    agent.planner.retry(&outcome);
    reconcile(&mut agent.tables, &mut agent.memory, &agent.planner.take_delta(), false);
    assert_eq!(dials(&agent), ["10.244.2.5:53", "10.244.2.5:53", "refused"]);
    agent.policy(balance("out", on_service(), &["192.0.2.53"]));
    assert_eq!(dials(&agent), ["192.0.2.53:9053", "10.244.2.5:53", "refused"]);
}

#[test]
fn a_policy_serves_if_there_is_no_capacity_for_its_service() {
    let sizes = Sizes { slots: 8, ..Sizes::for_services(64) };
    let mut agent = TestAgent {
        planner: Planner::new(Rules::for_node("n1")),
        tables: Tables::new(sizes),
        memory: MemoryMaps::new(sizes),
    };
    agent.planner.apply(Change::Upsert(Object::Service(dns())));
    let nine = (1..10).map(|n| endpoint(&format!("10.244.2.{n}"), "n2")).collect();
    agent.planner.apply(Change::Upsert(Object::Slice(dns_slice(nine))));
    agent.planner.apply(Change::Upsert(Object::Policy(balance("out", on_service(), &["192.0.2.53"]))));
    let outcome = reconcile(&mut agent.tables, &mut agent.memory, &agent.planner.take_delta(), false);
    assert!(refusals(&outcome).contains(&("Service kube-system/dns".to_owned(), "tableFull")), "{outcome:?}");
    assert_eq!(agent.dial(SERVICE), "192.0.2.53:9053");
    // With capacity for the Service, the policy passes dials on to it.
    agent.planner.retry(&outcome);
    agent.apply(Change::Upsert(Object::Slice(dns_slice(vec![endpoint("10.244.2.5", "n2")]))));
    agent.policy(balance("out", on_service(), &[]));
    assert_eq!(agent.dial(SERVICE), "10.244.2.5:53");
}

#[test]
fn a_frontend_of_a_policy_counts_for_its_service() {
    // Three frontends: the all-ports row, and the port at the ClusterIP and at the load-balancer address.
    let sizes = |frontends| Sizes { frontends, ..Sizes::for_services(64) };
    let (agent, outcome) = with_sizes(sizes(2), vec![balance("out", on_service(), &["192.0.2.53"])]);
    assert!(agent.memory.rows.frontends.is_empty(), "a partly programmed service: {:?}", agent.memory.rows.frontends);
    let refused = ["BalancingPolicy kube-system/out", "Service kube-system/dns"];
    assert_eq!(refusals(&outcome), refused.map(|name| (name.to_owned(), "tableFull")));
    let (agent, outcome) = with_sizes(sizes(3), vec![balance("out", on_service(), &["192.0.2.53"])]);
    assert!(outcome.is_clean() && agent.memory.rows.frontends.len() == 3, "{outcome:?}");
}

/// Otherwise anyone who may create a Service could take over the virtual address.
#[test]
fn a_load_balancer_address_or_external_ip_does_not_take_over_a_virtual_address() {
    let mut agent = TestAgent::new();
    let virtual_ip = address("169.254.20.10");
    for outer in [
        Service { external_ips: [virtual_ip].into(), ..dns() },
        Service { load_balancer_ips: [virtual_ip].into(), ..dns() },
    ] {
        agent.apply(Change::Upsert(Object::Service(outer.clone())));
        assert_eq!(agent.dial(VIRTUAL), "10.244.2.5:53");
        let policy = balance("out", at_virtual("169.254.20.10"), &["192.0.2.53"]);
        agent.policy(policy.clone());
        assert_eq!((agent.reason("out"), agent.dial(VIRTUAL)), (None, "192.0.2.53:9053".into()));
        let refused = agent.planner.refusals();
        assert!(
            refused.iter().any(|r| r.subject.to_string() == "Service kube-system/dns" && r.reason == "virtualRange"),
            "{refused:?}"
        );
        // The policy keeps the address even without backends.
        agent.policy(balance("out", at_virtual("169.254.20.10"), &["fd00::3"]));
        assert_eq!(agent.dial(VIRTUAL), "refused");
        agent.apply(Change::Delete(ObjectKey::Policy(policy.name)));
        assert_eq!(agent.dial(VIRTUAL), "10.244.2.5:53");
    }
}

#[test]
fn a_forbidden_external_ip_does_not_block_a_virtual_address() {
    let mut agent = TestAgent::new();
    agent.planner = Planner::new(Rules { external_ips: ExternalIps::Off, ..Rules::for_node("n1") });
    agent.apply(Change::Upsert(Object::Service(Service { external_ips: [address("169.254.20.10")].into(), ..dns() })));
    agent.policy(balance("out", at_virtual("169.254.20.10"), &["192.0.2.53"]));
    assert_eq!((agent.reason("out"), agent.dial(VIRTUAL)), (None, "192.0.2.53:9053".into()));
}

#[test]
fn a_service_may_use_a_metadata_address_only_if_it_is_listed_explicitly() {
    let mut agent = TestAgent::new();
    let outer = |at| Service { external_ips: [address(at)].into(), load_balancer_ips: [address(at)].into(), ..dns() };
    for at in ["169.254.169.254", "169.254.170.2", "168.63.129.16", "100.100.100.200", "169.254.0.5"] {
        agent.apply(Change::Upsert(Object::Service(outer(at))));
        let refused: Vec<_> = agent.planner.refusals().into_iter().map(|refusal| refusal.reason.as_str()).collect();
        assert_eq!((agent.dial(&format!("{at}:53")), refused), ("untouched".into(), vec!["metadataAddress"]), "{at}");
    }
    let mut rules = Rules::for_node("n1");
    rules.virtual_address_cidrs.push("100.100.100.200/32".parse().unwrap());
    agent.planner = Planner::new(rules);
    agent.apply(Change::Upsert(Object::Service(outer("100.100.100.200"))));
    assert_eq!((agent.dial("100.100.100.200:53"), agent.planner.refusals()), ("refused".into(), vec![]));
}

#[test]
fn of_two_policies_of_one_kind_the_older_wins_and_the_other_is_refused() {
    let mut agent = TestAgent::new();
    agent.policy(balance("young", on_service(), &["192.0.2.2"]));
    assert_eq!(agent.dial(SERVICE), "192.0.2.2:9053");
    let old = policy::Policy { created: 1, ..balance("old", on_service(), &["192.0.2.3"]) };
    agent.policy(old.clone());
    assert_eq!(agent.dial(SERVICE), "192.0.2.3:9053");
    assert_eq!(
        agent.state("young").frontends[0].holder,
        FrontendHolder::OlderPolicy(ServiceName::of_policy(&old.name))
    );
    assert_eq!(agent.state("old").frontends[0].holder, FrontendHolder::ThisPolicy);
    let refused = agent.planner.refusals();
    assert!(
        refused
            .iter()
            .any(|r| r.subject.to_string() == "BalancingPolicy kube-system/young" && r.reason == "addressConflict")
    );
    // While the older policy has no backends, the Service serves, never the younger policy.
    agent.policy(policy::Policy { created: 1, ..balance("old", on_service(), &["fd00::3"]) });
    assert_eq!(agent.dial(SERVICE), "10.244.2.5:53");
    agent.apply(Change::Delete(ObjectKey::Policy(old.name)));
    assert_eq!((agent.dial(SERVICE), agent.planner.refusals()), ("192.0.2.2:9053".into(), vec![]));
}

#[test]
fn both_policies_report_the_precedence_between_kinds() {
    let mut agent = TestAgent::new();
    let (redirect, balance) = (redirect("cache", on_service()), balance("out", on_service(), &["192.0.2.2"]));
    let names = [&redirect.name, &balance.name].map(ServiceName::of_policy);
    agent.policy(redirect);
    agent.policy(balance);
    let state = agent.state("cache").frontends.remove(0);
    assert_eq!((state.holder, state.next), (FrontendHolder::ThisPolicy, Some(names[1].clone())));
    let state = agent.state("out").frontends.remove(0);
    assert_eq!((state.holder, state.next), (FrontendHolder::HigherPolicy(names[0].clone()), Some(dns().name)));
    assert_eq!(agent.planner.refusals(), vec![]);
}

#[test]
fn a_policy_does_not_hold_an_address_that_its_service_lost() {
    let mut agent = TestAgent::new();
    agent.policy(balance("out", on_service(), &["192.0.2.2"]));
    let other = Service { name: ServiceName::local("a", "other"), created: 1, ..dns() };
    agent.apply(Change::Upsert(Object::Service(other.clone())));
    assert_eq!(agent.dial(SERVICE), "refused");
    assert_eq!(agent.state("out").frontends[0].holder, FrontendHolder::OtherService(other.name.clone()));
    agent.apply(Change::Delete(ObjectKey::Service(other.name)));
    assert_eq!(agent.dial(SERVICE), "192.0.2.2:9053");
}

#[test]
fn a_policy_takes_only_the_cluster_ip_and_uses_the_affinity_of_the_service() {
    let mut agent = TestAgent::new();
    agent.policy(balance("out", on_service(), &["192.0.2.2"]));
    agent.policy(redirect("cache", on_service()));
    assert_eq!(agent.dial("192.0.2.1:53"), "10.244.2.5:53");
    let delta = agent.planner.take_full_delta();
    let affinity = |name: &str| {
        let plan = delta.services.iter().find(|(owner, _)| owner.name() == name).unwrap().1.as_ref().unwrap();
        plan.sets[0].affinity
    };
    assert_eq!((affinity("cache"), affinity("out"), affinity("dns")), (0, 60, 60));
}

#[test]
fn host_ports_and_node_proxies_follow_the_nodes() {
    let mut agent = TestAgent::new();
    let host = pods("host", on_service(), RedirectMode::HostPort);
    agent.policy(host.clone());
    assert!(agent.state("host").awaits_controller);
    agent.apply(Change::Upsert(Object::PolicySlice(published(
        &host,
        vec![endpoint("10.244.2.7", "n2"), endpoint("10.244.3.7", "n3")],
    ))));
    assert_eq!((agent.state("host").awaits_controller, agent.left_out("host")), (false, vec!["nodeWithoutAddress"; 2]));
    assert_eq!(agent.dial(SERVICE), "10.244.2.5:53");
    agent.apply(Change::Upsert(Object::Node(node("n2", "172.18.0.3"))));
    assert_eq!((agent.dial(SERVICE), agent.left_out("host").len()), ("172.18.0.3:8053".into(), 1));
    agent.apply(Change::Upsert(Object::Node(node("n2", "172.18.0.9"))));
    assert_eq!(agent.dial(SERVICE), "172.18.0.9:8053");

    let proxy = policy::Policy {
        name: policy_name(PolicyKind::Balancing, "host"),
        ..pods("host", on_service(), RedirectMode::NodeProxy)
    };
    agent.policy(proxy.clone());
    assert_eq!(agent.dial(SERVICE), "172.18.0.9:8053", "the old host port, until new slices are published");
    agent.apply(Change::Upsert(Object::PolicySlice(published(
        &proxy,
        vec![endpoint("10.244.2.7", "n2"), endpoint("10.244.3.7", "n3")],
    ))));
    assert_eq!(agent.dial(SERVICE), "10.244.2.5:53");
    let entry = [address("100.64.0.2"), address("fd00:64::2")].into();
    agent.apply(Change::Upsert(Object::Node(Node { entry, ..node("n2", "172.18.0.9") })));
    assert_eq!(agent.dial(SERVICE), "100.64.0.2:53");
    agent.apply(Change::Delete(ObjectKey::Node { cluster: LOCAL_CLUSTER.into(), name: "n2".into() }));
    assert_eq!(agent.dial(SERVICE), "10.244.2.5:53");
}

#[test]
fn a_policy_fails_if_it_is_refused_or_all_its_backends_are_left_out() {
    let mut agent = TestAgent::new();
    let proxy = pods("proxy", on_service(), RedirectMode::NodeProxy);
    agent.policy(proxy.clone());
    agent.policy(redirect("local", on_service()));
    assert_eq!(agent.failures(), [], "no pod is selected");
    let slice = published(&proxy, vec![endpoint("10.244.2.7", "n2"), endpoint("10.244.3.7", "n3")]);
    agent.apply(Change::Upsert(Object::PolicySlice(slice)));
    assert_eq!(agent.failures(), [("proxy".to_owned(), "nodeWithoutAddress")], "no node has an entry address");
    assert_eq!(agent.state("proxy").backends, 0);
    let entry = [address("100.64.0.2")].into();
    agent.apply(Change::Upsert(Object::Node(Node { entry, ..node("n2", "172.18.0.3") })));
    assert_eq!((agent.failures(), agent.state("proxy").backends), (Vec::new(), 1), "one pod is enough");
    agent.policy(balance("refused", at_virtual("8.8.8.8"), &["192.0.2.2"]));
    assert_eq!(agent.failures(), [("refused".to_owned(), "virtualAddressNotAllowed")]);
    agent.apply(Change::Delete(ObjectKey::Policy(policy_name(PolicyKind::Balancing, "refused"))));
    assert_eq!(agent.failures(), []);
}

#[test]
fn an_address_endpoint_at_a_frontend_is_refused_while_it_is_one() {
    let mut agent = TestAgent::new();
    agent.policy(balance("p", on_service(), &["192.0.2.2", "10.96.0.77"]));
    assert_eq!(agent.dial(SERVICE), "10.96.0.77:9053 192.0.2.2:9053");
    let other = Service {
        name: ServiceName::local("kube-system", "other"),
        cluster_ips: [address("10.96.0.77")].into(),
        load_balancer_ips: [].into(),
        ..dns()
    };
    agent.apply(Change::Upsert(Object::Service(other.clone())));
    assert_eq!((agent.reason("p"), agent.dial(SERVICE)), (Some("badBackend"), "10.244.2.5:53".into()));
    let message = agent.state("p").refused.unwrap().message;
    assert!(
        message.starts_with("addressEndpoint 10.96.0.77 is the ClusterIP of Service kube-system/other,"),
        "{message}"
    );
    agent.apply(Change::Delete(ObjectKey::Service(other.name)));
    assert_eq!((agent.reason("p"), agent.state("p").backends), (None, 2));
    agent.policy(balance("p", on_service(), &["fd00:bee::7", "192.0.2.2"]));
    agent.policy(balance("virtual", at_virtual("fd00:bee::7"), &["2001:db8::1"]));
    assert_eq!((agent.reason("p"), agent.dial(SERVICE)), (Some("badBackend"), "10.244.2.5:53".into()));
    agent.apply(Change::Delete(ObjectKey::Policy(policy_name(PolicyKind::Balancing, "virtual"))));
    assert_eq!((agent.reason("p"), agent.dial(SERVICE)), (None, "192.0.2.2:9053".into()));
    agent.policy(balance("itself", at_virtual("fd00:bee::8"), &["fd00:bee::8"]));
    assert_eq!(agent.reason("itself"), Some("badBackend"), "its own virtual address");
}

#[test]
fn a_node_proxy_is_weighted_by_its_pods() {
    let mut agent = TestAgent::new();
    for (name, at) in [("n2", "100.64.0.2"), ("n3", "100.64.0.3")] {
        agent.apply(Change::Upsert(Object::Node(Node { entry: [address(at)].into(), ..node(name, at) })));
    }
    let proxy = pods("proxy", on_service(), RedirectMode::NodeProxy);
    agent.policy(proxy.clone());
    let two = vec![endpoint("10.244.2.7", "n2"), endpoint("10.244.2.8", "n2"), endpoint("10.244.3.7", "n3")];
    agent.apply(Change::Upsert(Object::PolicySlice(published(&proxy, two))));
    assert_eq!(agent.dial(SERVICE), "100.64.0.2:53 100.64.0.3:53");
    let set = agent.memory.rows.sets.values().find(|set| set.span.count == 3).expect("two slots and one");
    assert_eq!(set.rule, beeline_model::row::Rule::Balancing);
}

#[test]
fn a_policy_that_is_not_listed_yet_keeps_its_frontends() {
    let mut before = TestAgent::new();
    before.policy(balance("away", on_service(), &["192.0.2.7"]));
    assert_eq!(before.dial(SERVICE), "192.0.2.7:9053");
    // A new agent has listed Services and slices, but no policies.
    let mut after = TestAgent { planner: Planner::new(Rules::for_node("n1")), ..before };
    after.tables = Tables::restore(after.memory.dump().unwrap(), after.memory.sizes);
    after.tables.unlisted.insert(LOCAL_CLUSTER.into());
    after.apply(Change::Upsert(Object::Service(dns())));
    after.apply(Change::Upsert(Object::Slice(dns_slice(vec![endpoint("10.244.2.6", "n2")]))));
    assert_eq!(after.dial(SERVICE), "192.0.2.7:9053");
    // The policies are listed now, and this one is deleted.
    after.tables.unlisted.clear();
    let delta = after.planner.take_full_delta();
    assert!(reconcile(&mut after.tables, &mut after.memory, &delta, true).is_clean());
    assert_eq!(after.dial(SERVICE), "10.244.2.6:53");
}

/// One kind of policy is listed, the other is not.
#[test]
fn a_policy_that_is_not_listed_yet_keeps_its_position_in_the_chain() {
    let local = || pod("a", "10.244.1.5");
    let start = |listed: policy::Policy| {
        let mut before = TestAgent::new();
        before.policy(balance("out", on_service(), &["192.0.2.53"]));
        before.pod(local());
        before.cgroup(&local().uid, Some(7));
        before.policy(redirect("cache", on_service()));
        assert_eq!(before.dial(SERVICE), "10.244.1.5:5353");
        let mut after = TestAgent { planner: Planner::new(Rules::for_node("n1")), ..before };
        after.tables = Tables::restore(after.memory.dump().unwrap(), after.memory.sizes);
        after.tables.unlisted.insert(LOCAL_CLUSTER.into());
        after.planner.apply(Change::Upsert(Object::Service(dns())));
        after.planner.apply(Change::Upsert(Object::Slice(dns_slice(vec![endpoint("10.244.2.5", "n2")]))));
        after.planner.apply(Change::Upsert(Object::Pod(local())));
        after.planner.set_cgroup(&local().uid, Some(7));
        after.policy(listed);
        after
    };
    assert_eq!(start(balance("out", on_service(), &["192.0.2.53"])).dial(SERVICE), "10.244.1.5:5353");
    let mut after = start(redirect("cache", on_service()));
    assert_eq!(after.dial(SERVICE), "10.244.1.5:5353");
    after.apply(Change::Delete(ObjectKey::Pod(local().name)));
    assert_eq!(after.dial(SERVICE), "192.0.2.53:9053", "the balancing policy is still below the redirect");
}

#[test]
fn a_self_publishing_planner_does_not_wait_for_a_controller() {
    let mut agent = TestAgent::new();
    agent.planner.set_self_publishing();
    agent.policy(pods("api", on_service(), RedirectMode::PodEndpoint));
    assert!(!agent.state("api").awaits_controller, "the policy only has no ready pods");
}

#[test]
fn pods_without_a_cgroup_are_listed() {
    let mut agent = TestAgent::new();
    agent.policy(redirect("cache", on_service()));
    agent.pod(pod("cache-1", "10.244.1.5"));
    agent.pod(Pod { uid: "".into(), ..pod("by-hand", "10.244.1.6") });
    agent.pod(Pod { labels: labels("web"), ..pod("web-1", "10.244.1.7") });
    assert_eq!(agent.state("cache").without_cgroup, ["kube-system/cache-1"]);
    agent.cgroup("uid-cache-1", Some(7));
    assert!(agent.state("cache").without_cgroup.is_empty());
}

#[test]
fn policies_are_found_by_name_by_address_and_by_service() {
    let mut agent = TestAgent::new();
    agent.policy(redirect("cache", on_service()));
    agent.policy(redirect("far", at_virtual("169.254.20.10")));
    let mut closed = redirect("closed", on_service());
    closed.matcher = Matcher::Service { name: "dns".into(), ports: Some([dialled("other", 99)].into()) };
    agent.policy(closed);
    let names = |states: Vec<PolicyState>| states.iter().map(|s| s.name.name.to_string()).collect::<Vec<_>>();
    let about = |at: &str, service: Option<&ServiceName>| names(agent.planner.policies_for(address(at), service));
    assert_eq!(about("10.96.0.10", None), ["cache", "closed"]);
    assert_eq!(about("192.0.2.1", Some(&dns().name)), ["cache", "closed"], "its load balancer");
    assert_eq!(about("169.254.20.10", None), ["far"]);
    assert!(about("10.96.0.99", None).is_empty());
    assert_eq!(names(agent.planner.policies_named("kube-system/far")), ["far"]);
    assert_eq!((names(agent.planner.policies_named("far")).len(), agent.planner.policies_named("x/far").len()), (1, 0));
    let closed = agent.state("closed");
    assert_eq!((closed.refused.unwrap().reason.as_str(), closed.ports), ("portNotFound", Some(vec!["99/UDP".into()])));
}

#[test]
fn slices_of_another_policy_are_ignored() {
    let mut agent = TestAgent::new();
    let mut api = pods("api", on_service(), RedirectMode::PodEndpoint);
    agent.policy(api.clone());
    let unready = Endpoint { ready: false, ..endpoint("10.244.2.8", "n2") };
    agent.apply(Change::Upsert(Object::PolicySlice(published(&api, vec![endpoint("10.244.2.7", "n2"), unready]))));
    assert_eq!(agent.dial(SERVICE), "10.244.2.7:8053");
    api.uid = "another".into();
    agent.policy(api.clone());
    assert_eq!((agent.dial(SERVICE), agent.state("api").awaits_controller), ("10.244.2.5:53".into(), true));
    agent.apply(Change::Upsert(Object::PolicySlice(published(&api, vec![endpoint("10.244.2.9", "n2")]))));
    assert_eq!(agent.dial(SERVICE), "10.244.2.9:8053");
    agent.apply(Change::Delete(ObjectKey::PolicySlice(published(&api, vec![]).name)));
    assert_eq!(agent.dial(SERVICE), "10.244.2.5:53");
}

/// Slices of another mode or other ports must not be read as if they were current.
#[test]
fn slices_are_read_with_the_mode_and_ports_they_were_built_for() {
    let mut agent = TestAgent::new();
    let pod_ports = pods("api", on_service(), RedirectMode::PodEndpoint);
    let old = Change::Upsert(Object::PolicySlice(published(&pod_ports, vec![endpoint("10.244.2.7", "n2")])));
    agent.policy(pod_ports.clone());
    agent.apply(Change::Upsert(Object::Node(node("n2", "172.18.0.3"))));
    agent.apply(old.clone());
    assert_eq!(agent.dial(SERVICE), "10.244.2.7:8053");

    let mut other_pods = policy::Policy { generation: 2, ..pod_ports.clone() };
    let Target::Pods { selector: chosen, .. } = &mut other_pods.target else { panic!() };
    *chosen = selector("other");
    agent.policy(other_pods);
    assert_eq!(agent.dial(SERVICE), "10.244.2.7:8053", "the old slices, until the new ones exist");

    let host = policy::Policy { generation: 3, ..pods("api", on_service(), RedirectMode::HostPort) };
    agent.policy(host.clone());
    assert_eq!(agent.dial(SERVICE), "10.244.2.7:8053", "the old slices with their own mode: not port 8053 of the node");
    assert!(agent.state("api").awaits_controller);
    agent.apply(Change::Upsert(Object::PolicySlice(published(&host, vec![endpoint("10.244.2.7", "n2")]))));
    assert_eq!(agent.dial(SERVICE), "172.18.0.3:8053");

    let mut moved = policy::Policy { generation: 4, ..pod_ports };
    let Target::Pods { ports, .. } = &mut moved.target else { panic!() };
    *ports = [number("", 9053)].into();
    agent.policy(moved.clone());
    agent.apply(old);
    assert_eq!(agent.dial(SERVICE), "10.244.2.7:8053", "the old port, until the new one is published");
    agent.apply(Change::Upsert(Object::PolicySlice(published(&moved, vec![]))));
    assert_eq!(agent.dial(SERVICE), "10.244.2.5:53", "no pod has the port");
}

#[test]
fn a_policy_applies_to_selected_nodes_and_outside_if_enabled() {
    let mut agent = TestAgent::new();
    let on_gpu = policy::Policy { nodes: Some(selector("gpu")), ..balance("out", on_service(), &["192.0.2.2"]) };
    agent.policy(on_gpu);
    assert_eq!(
        (agent.dial(SERVICE), agent.state("out").applicability),
        ("10.244.2.5:53".into(), PolicyApplicability::OtherNodes)
    );
    let delta =
        agent.apply(Change::Upsert(Object::Node(Node { labels: labels("gpu"), ..Node::named(LOCAL_CLUSTER, "n1") })));
    assert_eq!(
        (agent.dial(SERVICE), agent.state("out").applicability),
        ("192.0.2.2:9053".into(), PolicyApplicability::ThisNode)
    );
    assert!(planned(&delta).contains(&"BalancingPolicy kube-system/out".to_owned()));
    agent.apply(Change::Upsert(Object::Node(Node::named(LOCAL_CLUSTER, "n1"))));
    assert_eq!(agent.dial(SERVICE), "10.244.2.5:53");

    let mut agent = TestAgent::with_role(HostRole::Outside);
    agent.policy(balance("out", on_service(), &["192.0.2.2"]));
    assert_eq!(agent.dial(SERVICE), "192.0.2.2:9053");
    agent.policy(policy::Policy { out_cluster: false, ..balance("out", on_service(), &["192.0.2.2"]) });
    assert_eq!(
        (agent.dial(SERVICE), agent.state("out").applicability),
        ("10.244.2.5:53".into(), PolicyApplicability::InsideOnly)
    );
}

/// Policies that admission should have refused are refused here too, and the Service serves.
#[test]
fn invalid_policies_are_refused() {
    let good = || balance("p", on_service(), &["192.0.2.2"]);
    let ports =
        |ports: &[BackendPort]| Target::Addresses { addresses: [address("192.0.2.2")].into(), ports: ports.into() };
    let listed = |ports: &[DialledPort]| Matcher::Service { name: "dns".into(), ports: Some(ports.into()) };
    let virtual_at = |at: &str, ports: &[DialledPort]| Matcher::Address { address: address(at), ports: ports.into() };
    let named = BackendPort { port: PortChoice::Name("dns".into()), ..number("", 1) };
    let tcp = BackendPort { protocol: Protocol::Tcp, ..number("", 9053) };
    let cases: Vec<(&str, policy::Policy)> = vec![
        ("serviceNotFound", policy::Policy { matcher: Matcher::Service { name: "no".into(), ports: None }, ..good() }),
        ("portNotFound", policy::Policy { matcher: listed(&[dialled("", 54)]), ..good() }),
        (
            "portNotFound",
            policy::Policy { matcher: listed(&[DialledPort { protocol: Protocol::Tcp, ..dialled("", 53) }]), ..good() },
        ),
        ("portNotFound", policy::Policy { target: ports(&[number("dns", 1), number("more", 2)]), ..good() }),
        ("badPorts", policy::Policy { matcher: listed(&[]), ..good() }),
        ("badPorts", policy::Policy { target: ports(&[]), ..good() }),
        ("badPorts", policy::Policy { target: ports(&[number("", 0)]), ..good() }),
        ("badPorts", policy::Policy { target: ports(&[named]), ..good() }),
        ("badPorts", policy::Policy { target: ports(&[tcp]), ..good() }),
        ("badPorts", policy::Policy { target: ports(&[number("", 1), number("", 2)]), ..good() }),
        ("badPorts", policy::Policy { target: ports(&[number("a", 1), number("a", 2)]), ..good() }),
        (
            "badPorts",
            policy::Policy {
                target: ports(&[number("a", 1), number("b", 2)]),
                matcher: listed(&[dialled("a", 53)]),
                ..good()
            },
        ),
        (
            "badPorts",
            policy::Policy {
                target: ports(&[number("a", 1)]),
                matcher: virtual_at("169.254.0.1", &[dialled("a", 53), dialled("b", 54)]),
                ..good()
            },
        ),
        ("badPorts", policy::Policy { matcher: virtual_at("169.254.0.1", &[dialled("", 0)]), ..good() }),
        (
            "badPorts",
            policy::Policy { matcher: virtual_at("169.254.0.1", &[dialled("a", 53), dialled("b", 53)]), ..good() },
        ),
        ("virtualAddressNotAllowed", policy::Policy { matcher: at_virtual("10.0.0.1"), ..good() }),
        ("virtualAddressNotAllowed", policy::Policy { matcher: at_virtual("169.254.169.254"), ..good() }),
        ("virtualAddressNotAllowed", policy::Policy { matcher: at_virtual("0.0.0.0"), ..good() }),
        ("badBackend", balance("p", on_service(), &[])),
        ("badBackend", balance("p", on_service(), &["127.0.0.1"])),
        ("badBackend", policy::Policy { target: redirect("p", on_service()).target, ..good() }),
        ("badBackend", policy::Policy { target: good().target, ..redirect("p", on_service()) }),
        ("badLimit", policy::Policy { limit: Some(Limit { connects_per_second: 0, burst: 1 }), ..good() }),
        ("badLimit", policy::Policy { limit: Some(Limit { connects_per_second: 1, burst: 0 }), ..good() }),
    ];
    for (reason, bad) in cases {
        let mut agent = TestAgent::new();
        agent.policy(bad.clone());
        assert_eq!(agent.reason("p"), Some(reason), "{bad:?}");
        assert_eq!(agent.dial(SERVICE), "10.244.2.5:53", "{bad:?}");
        let refused = agent.planner.refusals();
        assert!(
            refused.iter().any(|r| r.reason == reason && r.subject.to_string() == bad.name.to_string()),
            "{refused:?}"
        );
        agent.policy(policy::Policy {
            name: bad.name.clone(),
            ..if bad.name.kind == PolicyKind::Balancing { good() } else { redirect("p", on_service()) }
        });
        assert_eq!((agent.reason("p"), agent.planner.refusals()), (None, vec![]));
    }
}

#[test]
fn ports_are_paired_by_name_and_other_ports_stay_with_the_service() {
    let mut agent = TestAgent::new();
    let port = |name: &str, port| ServicePort { name: name.into(), protocol: Protocol::Udp, port, node_port: 0 };
    let several = Service { ports: [port("dns", 53), port("metrics", 9153), port("alt", 54)].into(), ..dns() };
    agent.apply(Change::Upsert(Object::Service(several)));
    let mut out = balance("out", on_service(), &["192.0.2.2"]);
    let ports = [number("alt", 1054), number("dns", 1053)].into();
    out.target = Target::Addresses { addresses: [address("192.0.2.2")].into(), ports };
    agent.policy(out);
    assert_eq!((agent.dial(SERVICE), agent.dial("10.96.0.10:54")), ("192.0.2.2:1053".into(), "192.0.2.2:1054".into()));
    assert_eq!((agent.dial("10.96.0.10:9153"), agent.left_out("out")), ("refused".into(), vec!["portWithoutBackend"]));
}

/// The cost is proportional to the change.
#[test]
fn only_what_depends_on_a_change_is_planned_again() {
    let mut agent = TestAgent::new();
    for i in 0..50 {
        let name = ServiceName::local("other", &format!("s{i}"));
        let ip = address(&format!("10.96.1.{i}"));
        agent.apply(Change::Upsert(Object::Service(Service {
            name,
            cluster_ips: [ip].into(),
            load_balancer_ips: [].into(),
            ..dns()
        })));
        let at = format!("169.254.30.{i}");
        agent.policy(balance(&format!("v{i}"), at_virtual(&at), &["192.0.2.2"]));
    }
    agent.policy(redirect("cache", on_service()));
    let other = Target::LocalPods { selector: selector("other"), ports: [number("", 1)].into() };
    agent.policy(policy::Policy { target: other, ..redirect("other", at_virtual("169.254.20.10")) });
    agent.policy(pods("host", at_virtual("169.254.20.11"), RedirectMode::HostPort));
    let host = pods("host", at_virtual("169.254.20.11"), RedirectMode::HostPort);
    let delta = agent.apply(Change::Upsert(Object::PolicySlice(published(&host, vec![endpoint("10.244.2.7", "n2")]))));
    assert_eq!(planned(&delta), ["BalancingPolicy kube-system/host"]);

    let cache = ["Service kube-system/dns".to_owned(), "LocalRedirectPolicy kube-system/cache".to_owned()];
    assert_eq!(planned(&agent.pod(Pod { uid: "".into(), ..pod("a", "10.244.1.5") })), cache);
    assert_eq!(planned(&agent.pod(Pod { uid: "".into(), labels: labels("none"), ..pod("b", "10.244.1.6") })), [""; 0]);
    assert_eq!(
        planned(&agent.apply(Change::Upsert(Object::Node(node("n2", "172.18.0.3"))))),
        ["BalancingPolicy kube-system/host"]
    );
    assert_eq!(planned(&agent.apply(Change::Upsert(Object::Node(node("n3", "172.18.0.4"))))), [""; 0]);
    assert_eq!(planned(&agent.apply(Change::Upsert(Object::Service(Service { affinity: None, ..dns() })))), cache);
    let labelled = Node { labels: labels("x"), ..Node::named(LOCAL_CLUSTER, "n1") };
    agent.apply(Change::Upsert(Object::Node(Node::named(LOCAL_CLUSTER, "n1"))));
    assert_eq!(planned(&agent.apply(Change::Upsert(Object::Node(labelled)))), [""; 0]);
}

#[test]
fn deleting_a_policy_restores_its_service() {
    let mut agent = TestAgent::new();
    let host = pods("host", on_service(), RedirectMode::HostPort);
    agent.policy(host.clone());
    agent.policy(redirect("cache", at_virtual("169.254.20.10")));
    agent.apply(Change::Upsert(Object::PolicySlice(published(&host, vec![endpoint("10.244.2.7", "n2")]))));
    agent.apply(Change::Delete(ObjectKey::Policy(host.name.clone())));
    agent.apply(Change::Delete(ObjectKey::Policy(policy_name(PolicyKind::LocalRedirect, "cache"))));
    assert_eq!((agent.planner.policy_clusters().count(), agent.planner.policies()), (0, vec![]));
    assert_eq!((agent.dial(SERVICE), agent.dial(VIRTUAL)), ("10.244.2.5:53".into(), "untouched".into()));
    // A slice may be received before its policy. It is used as soon as the policy exists.
    agent.apply(Change::Upsert(Object::Node(node("n2", "172.18.0.3"))));
    agent.policy(host);
    assert_eq!(agent.dial(SERVICE), "172.18.0.3:8053");
}
