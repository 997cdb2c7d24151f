//! LocalRedirectPolicies over real sockets: limits, pods that dial an address that is redirected to them, and the counters
//! and events of both. The test makes the plans and writes the tables as the agent does.

use beeline_datapath::control::EventLevel;
use beeline_datapath::{Config, KernelMaps, Program, cgroup};
use beeline_harness::{
    Cgroup, Client, DialKind, DialRequest, EchoServer, LoadConfig, LoadKind, NetworkNamespace, Socket, SocketFamily,
    TestNetwork,
};
use beeline_model::claim::Claim;
use beeline_model::diff::reconcile;
use beeline_model::event::Action;
use beeline_model::name::LOCAL_CLUSTER;
use beeline_model::plan::{BackendPlan, ServicePlan, SetPlan, SetPolicy};
use beeline_model::planner::Delta;
use beeline_model::policy::{Limit, PolicyKind, PolicyName};
use beeline_model::row::*;
use beeline_model::rules::NoLocalEndpointAction;
use beeline_model::table::Tables;
use beeline_model::{Address, Audience, Family, PortName, Protocol, ServiceName, SetName, SetRole};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

const PORT: u16 = 53;
const TARGET_PORT: u16 = 5353;
const SERVICE_ADDRESSES: [&str; 2] = ["10.96.0.10", "fd00:96::10"];

fn frontends() -> [SocketAddr; 2] {
    SERVICE_ADDRESSES.map(|at| SocketAddr::new(at.parse().unwrap(), PORT))
}

/// pod-a is the cache that the LocalRedirectPolicy selects, pod-b the backend of the Service, and pod-c dials.
struct RedirectFixture {
    program: Program,
    kernel: KernelMaps,
    tables: Tables,
    pin_dir: PathBuf,
    _servers: Vec<EchoServer>,
    network: TestNetwork,
}

impl RedirectFixture {
    fn new() -> RedirectFixture {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let pin_dir = PathBuf::from(format!("/sys/fs/bpf/beeline-redirect-{}-{number}", std::process::id()));
        let (network, sizes) = (TestNetwork::new(3).unwrap(), Sizes::for_services(64));
        let _servers = (0..2)
            .map(|n| network.pod(n).echo_service(TARGET_PORT).banner().start(&network.pod(n).namespace).unwrap())
            .collect();
        let cgroup = network.cgroup().path().to_owned();
        let config = Config {
            pin_dir: pin_dir.clone(),
            cgroup,
            sizes,
            no_local_endpoint_action: NoLocalEndpointAction::Refuse,
            skip_rule_check: false,
        };
        let mut program = Program::open(config).unwrap();
        program.attach_hooks().unwrap();
        let kernel = program.kernel().unwrap();
        RedirectFixture { program, kernel, tables: Tables::new(sizes), pin_dir, _servers, network }
    }

    fn write(&mut self, limit: Option<Limit>, members: Vec<u64>) {
        let delta = self.delta(limit, members);
        let outcome = reconcile(&mut self.tables, &mut self.kernel, &delta, true);
        assert!(outcome.is_clean(), "{outcome:?}");
    }

    fn delta(&self, limit: Option<Limit>, members: Vec<u64>) -> Delta {
        let (service, redirect) = owners();
        let policy = Some(SetPolicy { limit, self_next: true });
        let (mut service_plan, mut policy_plan) =
            (ServicePlan::default(), ServicePlan { members, ..Default::default() });
        let mut delta = Delta::default();
        for (at, protocol) in SERVICE_ADDRESSES.iter().flat_map(|at| [Protocol::Udp, Protocol::Tcp].map(|p| (*at, p))) {
            let address = Address::from(at.parse::<IpAddr>().unwrap());
            let name = |owner: &ServiceName, role| {
                let owner = PortName::new(owner.clone(), "dns".into(), protocol);
                SetName { owner, family: address.family(), role, audience: Audience::Everyone }
            };
            let (service_set, policy_set) = (name(&service, SetRole::Cluster), name(&redirect, SetRole::Local));
            service_plan.sets.push(self.set(1, service_set.clone(), Rule::Service, None, None));
            policy_plan.sets.push(self.set(0, policy_set.clone(), Rule::Redirect, Some(service_set), policy));
            let claim = Claim {
                kind: FrontendKind::ClusterIp,
                rank: 0,
                created: 0,
                service: redirect.clone(),
                set: Some(policy_set),
            };
            delta.frontends.push((FrontendKey::new(address, PORT, protocol), Some(claim)));
        }
        delta.services = vec![(service, Some(service_plan)), (redirect, Some(policy_plan))];
        delta
    }

    fn set(&self, pod: usize, name: SetName, rule: Rule, next: Option<SetName>, policy: Option<SetPolicy>) -> SetPlan {
        let pod = self.network.pod(pod);
        let address = if name.family == Family::V4 { IpAddr::from(pod.v4) } else { pod.v6.into() };
        let backends = vec![BackendPlan { address: address.into(), port: TARGET_PORT, node: None }];
        SetPlan {
            name,
            backends,
            rule,
            affinity: 0,
            when_empty: WhenEmpty::Refuse,
            has_any_endpoint: true,
            next,
            policy,
        }
    }

    fn owner(&self, name: &ServiceName, protocol: Protocol) -> OwnerId {
        let is_owner = |name: &&PortName, of: &ServiceName| name.service == *of && name.protocol == protocol;
        self.tables.port_names().find(|(port, _)| is_owner(port, name)).expect("the owner has an id").1
    }

    fn counters(&self, name: &ServiceName, protocol: Protocol) -> beeline_datapath::counter::Counters {
        self.program.counters().unwrap().of_owner(self.owner(name, protocol))
    }
}

impl Drop for RedirectFixture {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(self.pin_dir.join("links"));
        // The program holds the lock of the pin directory until it is dropped, so `cleanup` cannot be used.
        let _ = std::fs::remove_dir_all(&self.pin_dir);
    }
}

fn owners() -> (ServiceName, ServiceName) {
    let [cluster, namespace, name] = [LOCAL_CLUSTER, "dns", "cache"].map(Into::into);
    let policy = PolicyName { kind: PolicyKind::LocalRedirect, cluster, namespace, name };
    (ServiceName::local("dns", "kube-dns"), ServiceName::of_policy(&policy))
}

/// Eight threads connect for ten seconds, over both families of one port.
#[test]
fn connects_of_many_threads_get_exactly_the_tokens_of_the_limit() {
    let mut fixture = RedirectFixture::new();
    let limit = Limit { connects_per_second: 100, burst: 200 };
    fixture.write(Some(limit), Vec::new());
    let client = fixture.network.pod(2).client().unwrap();
    let load = LoadConfig { threads: 8, limit_ms: 10_000, ..LoadConfig::new(LoadKind::Tcp, frontends()) };
    client.start_load(load).unwrap();
    let report = client.finish_load().unwrap();
    let answers_of = |name: &str| {
        let of = |(server, count): (&String, &u64)| if server.starts_with(name) { *count } else { 0 };
        report.answers.values().flat_map(|answers| answers.iter().map(of)).sum::<u64>()
    };
    let (cache, service_backend, elapsed) = (answers_of("pod-a"), answers_of("pod-b"), report.elapsed_ns as f64 / 1e9);
    let allowed = f64::from(limit.burst) + f64::from(limit.connects_per_second) * elapsed;
    println!(
        "{cache} of {} connects of 8 threads in {elapsed:.3} s went to the cache; burst + rate x time is {allowed:.1} \
         ({:+.3} %); {service_backend} went to the Service, {} failed",
        report.dials,
        (cache as f64 / allowed - 1.0) * 100.0,
        report.failed()
    );
    assert_eq!((report.failed(), cache + service_backend), (0, report.dials), "{report:?}");
    assert!(cache as f64 <= allowed + 1.0 && cache as f64 >= 0.99 * allowed);
    let (service, redirect) = owners();
    let (of_policy, of_service) =
        (fixture.counters(&redirect, Protocol::Tcp), fixture.counters(&service, Protocol::Tcp));
    assert_eq!((of_policy.dials, of_policy.limited, of_policy.refused), (cache, service_backend, 0), "{of_policy:?}");
    assert_eq!((of_service.dials, of_service.limited), (service_backend, 0), "{of_service:?}");
    assert!(service_backend > cache, "too few connects were above the limit");
}

/// The first datagram of an unconnected socket picks a backend, and the others reuse it.
#[test]
fn datagrams_that_reuse_a_backend_take_no_token_and_events_name_the_limiting_policy() {
    let mut fixture = RedirectFixture::new();
    fixture.write(Some(Limit { connects_per_second: 1, burst: 1 }), Vec::new());
    let control = fixture.program.control().unwrap();
    control.set_event_level(EventLevel::All);
    let events = fixture.program.event_reader(Default::default()).unwrap();
    let client = fixture.network.pod(2).client().unwrap();
    let socket = client.udp(SocketFamily::V4).unwrap();
    let mut names = Vec::new();
    for _ in 0..20 {
        socket.send_to(frontends()[0], b"who\n").unwrap();
        let (_, bytes) = socket.receive().unwrap();
        names.push(String::from_utf8_lossy(&bytes).split(' ').next().unwrap_or_default().to_owned());
    }
    assert!(names.iter().all(|name| name == "pod-a"), "{names:?}");
    // These dials are faster than one token per second, so some of them find no token.
    let others: Vec<String> = (0..20)
        .map(|n| {
            let kind = [DialKind::UdpSendTo, DialKind::UdpConnected, DialKind::Tcp][n % 3];
            client.dial(&DialRequest::new(kind, frontends()[n % 2])).unwrap().name().to_owned()
        })
        .collect();
    assert!(others.iter().all(|name| name == "pod-a" || name == "pod-b"), "{others:?}");
    let limited = others.iter().filter(|name| *name == "pod-b").count();
    assert!(limited > 0, "{others:?}");
    let reported = events.poll(Duration::from_millis(500));
    let (service, redirect) = owners();
    assert_eq!(reported.len(), 40, "20 datagrams and 20 dials: {reported:?}");
    let limited_events: Vec<_> = reported.iter().filter(|event| event.limited != 0).collect();
    assert_eq!(limited_events.len(), limited);
    for event in limited_events {
        let protocol = event.protocol.unwrap();
        let actual = (event.limited, event.owner, event.rule, event.action);
        let wanted = (fixture.owner(&redirect, protocol), fixture.owner(&service, protocol));
        assert_eq!(actual, (wanted.0, wanted.1, Some(Rule::Service), Action::Resolved), "{event:?}");
    }
    let by_policy = reported.iter().filter(|event| event.limited == 0);
    by_policy.for_each(|e| {
        assert_eq!((e.owner, e.rule), (fixture.owner(&redirect, e.protocol.unwrap()), Some(Rule::Redirect)))
    });
}

/// A socket that started with a backend of the Service keeps it, also when the policy has a token again. A new socket gets
/// a backend of the policy.
#[test]
fn a_socket_keeps_a_backend_of_the_service_while_it_exists() {
    let mut fixture = RedirectFixture::new();
    let limit = Some(Limit { connects_per_second: 1, burst: 1 });
    fixture.write(limit, Vec::new());
    let client = fixture.network.pod(2).client().unwrap();
    let answer = |socket: &Socket<'_>| {
        socket.send_to(frontends()[0], b"who\n").unwrap();
        let (_, bytes) = socket.receive().unwrap();
        String::from_utf8_lossy(&bytes).split(' ').next().unwrap_or_default().to_owned()
    };
    let over_the_limit = |_| {
        let socket = client.udp(SocketFamily::V4).unwrap();
        (answer(&socket) == "pod-b").then_some(socket)
    };
    let socket = (0..20).find_map(over_the_limit).expect("one of 20 sockets finds no token");
    let (service, redirect) = owners();
    let before = fixture.counters(&redirect, Protocol::Udp);
    for _ in 0..4 {
        std::thread::sleep(Duration::from_millis(400));
        assert_eq!(answer(&socket), "pod-b");
    }
    let after = fixture.counters(&redirect, Protocol::Udp);
    assert_eq!((after.dials, after.limited), (before.dials, before.limited), "the policy was not consulted");
    assert!(fixture.counters(&service, Protocol::Udp).dials >= 5);
    assert_eq!(answer(&client.udp(SocketFamily::V4).unwrap()), "pod-a", "the token is still available");
    // After its backend is removed, the socket uses a remaining one.
    let mut delta = fixture.delta(None, Vec::new());
    for plan in delta.services.iter_mut().filter(|(name, _)| *name == service).filter_map(|(_, plan)| plan.as_mut()) {
        plan.sets.iter_mut().for_each(|set| set.backends.clear());
    }
    assert!(reconcile(&mut fixture.tables, &mut fixture.kernel, &delta, true).is_clean());
    assert_eq!(answer(&socket), "pod-a");
}

const CONTAINER: &str = "4f2a4f2a4f2a4f2a4f2a4f2a4f2a4f2a4f2a4f2a4f2a4f2a4f2a4f2a4f2a4f2a";

/// Cgroup paths of pods for both cgroup drivers and every QoS class: the levels of the pod, and those of its containers.
fn layouts() -> Vec<(Vec<String>, Vec<String>)> {
    let uid = |number: usize| format!("0c9a3a3e-5b1f-4c3d-9a55-6f0e3f1d2b1{number}");
    let systemd = |number: usize| uid(number).replace('-', "_");
    let path = |levels: &[&str]| levels.iter().map(|level| level.to_string()).collect::<Vec<_>>();
    let scope = format!("cri-containerd-{CONTAINER}.scope");
    let slice = |class: &str, number| format!("kubepods{class}-pod{}.slice", systemd(number));
    vec![
        (path(&["kubepods", &format!("pod{}", uid(0))]), path(&[CONTAINER])),
        (path(&["kubepods", "burstable", &format!("pod{}", uid(1))]), path(&[CONTAINER, "nested", "deeper"])),
        (path(&["kubepods", "besteffort", &format!("pod{}", uid(2))]), path(&[CONTAINER])),
        (path(&["kubepods.slice", &slice("", 3)]), path(&[&scope])),
        (path(&["kubepods.slice", "kubepods-burstable.slice", &slice("-burstable", 4)]), path(&[&scope, "init"])),
        (path(&["kubepods.slice", "kubepods-besteffort.slice", &slice("-besteffort", 5)]), path(&[&scope])),
    ]
}

/// The names of all servers that answer a client, over all frontends and kinds of dials.
fn answering_servers(client: &Client) -> Vec<String> {
    let mut names = Vec::new();
    for to in frontends() {
        for kind in [DialKind::Tcp, DialKind::UdpConnected, DialKind::UdpSendTo] {
            names.push(client.dial(&DialRequest::new(kind, to)).unwrap().name().to_owned());
        }
        let mapped = client.dial(&DialRequest::new(DialKind::UdpSendTo, to).mapped()).unwrap();
        names.push(mapped.name().to_owned());
    }
    names.sort();
    names.dedup();
    names
}

#[test]
fn a_selected_pod_uses_the_service_from_any_cgroup_and_namespace() {
    let mut fixture = RedirectFixture::new();
    fixture.write(None, Vec::new());
    let control = fixture.program.control().unwrap();
    for (pod, containers) in layouts() {
        let mut cgroups: Vec<Cgroup> = Vec::new();
        for level in pod.iter().chain(&containers) {
            let next = cgroups.last().unwrap_or(&fixture.network.node().cgroup).child(level).unwrap();
            cgroups.push(next);
        }
        let own = cgroups[pod.len() - 1].id().unwrap();
        let start = |namespace: &NetworkNamespace, cgroup| Client::start(Some(namespace), Some(cgroup)).unwrap();
        let (pod_netns, host_netns) = (&fixture.network.pod(2).namespace, &fixture.network.node().namespace);
        // In the network namespaces of a pod and of the host, in the pod's cgroup and in the innermost one.
        let clients: Vec<Client> = [pod_netns, host_netns]
            .into_iter()
            .flat_map(|namespace| {
                [&cgroups[pod.len() - 1], cgroups.last().unwrap()].map(|cgroup| start(namespace, cgroup))
            })
            .collect();
        clients.iter().for_each(|client| assert_eq!(answering_servers(client), ["pod-a"], "{pod:?}: not selected yet"));
        control.add_member_levels([cgroup::level(cgroups[pod.len() - 1].path()).unwrap()]).unwrap();
        fixture.write(None, vec![own]);
        clients.iter().for_each(|client| assert_eq!(answering_servers(client), ["pod-b"], "{pod:?}"));
        let other = fixture.network.node().client().unwrap();
        assert_eq!(answering_servers(&other), ["pod-a"], "{pod:?}: another process of the node");
        fixture.write(None, Vec::new());
        clients
            .iter()
            .for_each(|client| assert_eq!(answering_servers(client), ["pod-a"], "{pod:?}: not selected any more"));
    }
    assert!(control.member_levels().len() <= 4, "{:?}", control.member_levels());
}
