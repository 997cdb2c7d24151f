//! Redirects over real sockets: a limit under real connects, pods that dial what is redirected to them, and what counters
//! and events say of both. The tables are written as the agent writes them, from plans made here.

use beeline_datapath::control::EventLevel;
use beeline_datapath::{Config, Kernel, Program, cgroup};
use beeline_harness::{
    Cgroup, Client, Dial, Family as Sort, Kind as Way, Lab, Namespace, Server, Socket, Storm, StormKind,
};
use beeline_model::claim::Claim;
use beeline_model::diff::reconcile;
use beeline_model::event::Action;
use beeline_model::name::LOCAL_CLUSTER;
use beeline_model::plan::{BackendPlan, ServicePlan, SetPlan, SetPolicy};
use beeline_model::planner::Delta;
use beeline_model::policy::{Limit, PolicyKind, PolicyName};
use beeline_model::row::*;
use beeline_model::rules::EmptyLocal;
use beeline_model::table::Tables;
use beeline_model::{Address, Audience, Family, OwnerName, PortName, Protocol, SetName, SetRole};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

const PORT: u16 = 53;
const TARGET: u16 = 5353;
const AT: [&str; 2] = ["10.96.0.10", "fd00:96::10"];

fn frontends() -> [SocketAddr; 2] {
    AT.map(|at| SocketAddr::new(at.parse().unwrap(), PORT))
}

/// pod-a is the cache that the policy redirects to, pod-b the Service's own backend, pod-c dials.
struct Ground {
    program: Program,
    kernel: Kernel,
    tables: Tables,
    pin_dir: PathBuf,
    _servers: Vec<Server>,
    lab: Lab,
}

impl Ground {
    fn new() -> Ground {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let pin_dir = PathBuf::from(format!("/sys/fs/bpf/beeline-redirect-{}-{number}", std::process::id()));
        let (lab, sizes) = (Lab::new(3).unwrap(), Sizes::for_services(64));
        let _servers =
            (0..2).map(|n| lab.pod(n).service(TARGET).banner().start(&lab.pod(n).namespace).unwrap()).collect();
        let cgroup = lab.cgroup().path().to_owned();
        let config = Config { pin_dir: pin_dir.clone(), cgroup, sizes, empty_local: EmptyLocal::Refuse };
        let mut program = Program::open(config).unwrap();
        program.go_live().unwrap();
        let kernel = program.kernel().unwrap();
        Ground { program, kernel, tables: Tables::new(sizes), pin_dir, _servers, lab }
    }

    fn write(&mut self, limit: Option<Limit>, members: Vec<u64>) {
        let delta = self.delta(limit, members);
        let outcome = reconcile(&mut self.tables, &mut self.kernel, &delta, true);
        assert!(outcome.is_clean(), "{outcome:?}");
    }

    fn delta(&self, limit: Option<Limit>, members: Vec<u64>) -> Delta {
        let (service, redirect) = owners();
        let policy = Some(SetPolicy { limit, self_next: true });
        let (mut below, mut above) = (ServicePlan::default(), ServicePlan { members, ..Default::default() });
        let mut delta = Delta::default();
        for (at, protocol) in AT.iter().flat_map(|at| [Protocol::Udp, Protocol::Tcp].map(|p| (*at, p))) {
            let address = Address::from(at.parse::<IpAddr>().unwrap());
            let name = |owner: &OwnerName, role| {
                let owner = PortName::new(owner.clone(), "dns".into(), protocol);
                SetName { owner, family: address.family(), role, audience: Audience::Everyone }
            };
            let (under, over) = (name(&service, SetRole::Cluster), name(&redirect, SetRole::Local));
            below.sets.push(self.set(1, under.clone(), Rule::Service, None, None));
            above.sets.push(self.set(0, over.clone(), Rule::Redirect, Some(under), policy));
            let claim =
                Claim { kind: Kind::ClusterIp, rank: 0, created: 0, service: redirect.clone(), set: Some(over) };
            delta.frontends.push((FrontendKey::new(address, PORT, protocol), Some(claim)));
        }
        delta.services = vec![(service, Some(below)), (redirect, Some(above))];
        delta
    }

    fn set(&self, pod: usize, name: SetName, rule: Rule, next: Option<SetName>, policy: Option<SetPolicy>) -> SetPlan {
        let pod = self.lab.pod(pod);
        let address = if name.family == Family::V4 { IpAddr::from(pod.v4) } else { pod.v6.into() };
        let backends = vec![BackendPlan { address: address.into(), port: TARGET, node: None }];
        SetPlan { name, backends, rule, affinity: 0, when_empty: WhenEmpty::Refuse, any: true, next, policy }
    }

    fn owner(&self, name: &OwnerName, protocol: Protocol) -> OwnerId {
        let is_it = |name: &&PortName, of: &OwnerName| name.service == *of && name.protocol == protocol;
        self.tables.port_names().find(|(port, _)| is_it(port, name)).expect("an owner").1
    }

    fn counters(&self, name: &OwnerName, protocol: Protocol) -> beeline_datapath::count::Counters {
        self.program.count().unwrap().of_owner(self.owner(name, protocol))
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(self.pin_dir.join("links"));
        // The lock is the program's until it is dropped; what is pinned goes by hand.
        let _ = std::fs::remove_dir_all(&self.pin_dir);
    }
}

fn owners() -> (OwnerName, OwnerName) {
    let [cluster, namespace, name] = [LOCAL_CLUSTER, "dns", "cache"].map(Into::into);
    let policy = PolicyName { kind: PolicyKind::LocalRedirect, cluster, namespace, name };
    (OwnerName::local("dns", "kube-dns"), OwnerName::of_policy(&policy))
}

/// 8 threads that connect for ten seconds, over both families of one port.
#[test]
fn a_limit_under_real_connects() {
    let mut ground = Ground::new();
    let limit = Limit { connects_per_second: 100, burst: 200 };
    ground.write(Some(limit), Vec::new());
    let client = ground.lab.pod(2).client().unwrap();
    let storm = Storm { threads: 8, limit_ms: 10_000, ..Storm::new(StormKind::Tcp, frontends()) };
    client.storm(storm).unwrap();
    let tally = client.storm_wait().unwrap();
    let by = |name: &str| {
        let of = |(server, count): (&String, &u64)| if server.starts_with(name) { *count } else { 0 };
        tally.answers.values().flat_map(|answers| answers.iter().map(of)).sum::<u64>()
    };
    let (cache, below, took) = (by("pod-a"), by("pod-b"), tally.elapsed_ns as f64 / 1e9);
    let allowed = f64::from(limit.burst) + f64::from(limit.connects_per_second) * took;
    println!(
        "{cache} of {} connects of 8 threads in {took:.3} s went to the cache; burst + rate x time is {allowed:.1} \
         ({:+.3} %); {below} went to the Service, {} failed",
        tally.dials,
        (cache as f64 / allowed - 1.0) * 100.0,
        tally.failed()
    );
    assert_eq!((tally.failed(), cache + below), (0, tally.dials), "{tally:?}");
    assert!(cache as f64 <= allowed + 1.0 && cache as f64 >= 0.99 * allowed);
    let (service, redirect) = owners();
    let (over, under) = (ground.counters(&redirect, Protocol::Tcp), ground.counters(&service, Protocol::Tcp));
    assert_eq!((over.dials, over.limited, over.refused), (cache, below, 0), "{over:?}");
    assert_eq!((under.dials, under.limited), (below, 0), "{under:?}");
    assert!(below > cache, "nobody was over the limit");
}

/// One unconnected socket asks again and again: the first datagram picks, the others follow it.
#[test]
fn datagrams_that_follow_their_record_cost_nothing_and_events_say_who_was_limited() {
    let mut ground = Ground::new();
    ground.write(Some(Limit { connects_per_second: 1, burst: 1 }), Vec::new());
    let control = ground.program.control().unwrap();
    control.set_event_level(EventLevel::All);
    let events = ground.program.events(Default::default()).unwrap();
    let client = ground.lab.pod(2).client().unwrap();
    let socket = client.udp(Sort::V4).unwrap();
    let mut names = Vec::new();
    for _ in 0..20 {
        socket.send_to(frontends()[0], b"who\n").unwrap();
        let (_, bytes) = socket.receive().unwrap();
        names.push(String::from_utf8_lossy(&bytes).split(' ').next().unwrap_or_default().to_owned());
    }
    assert!(names.iter().all(|name| name == "pod-a"), "{names:?}");
    // Faster than a token a second: some of these find none.
    let others: Vec<String> = (0..20)
        .map(|n| {
            let way = [Way::UdpSendTo, Way::UdpConnected, Way::Tcp][n % 3];
            client.dial(&Dial::new(way, frontends()[n % 2])).unwrap().name().to_owned()
        })
        .collect();
    assert!(others.iter().all(|name| name == "pod-a" || name == "pod-b"), "{others:?}");
    let limited = others.iter().filter(|name| *name == "pod-b").count();
    assert!(limited > 0, "{others:?}");
    let told = events.poll(Duration::from_millis(500));
    let (service, redirect) = owners();
    assert_eq!(told.len(), 40, "20 datagrams and 20 dials: {told:?}");
    let over: Vec<_> = told.iter().filter(|event| event.limited != 0).collect();
    assert_eq!(over.len(), limited);
    for event in over {
        let protocol = event.protocol.unwrap();
        let said = (event.limited, event.owner, event.rule, event.action);
        let wanted = (ground.owner(&redirect, protocol), ground.owner(&service, protocol));
        assert_eq!(said, (wanted.0, wanted.1, Some(Rule::Service), Action::Resolved), "{event:?}");
    }
    let by_policy = told.iter().filter(|event| event.limited == 0);
    by_policy.for_each(|e| {
        assert_eq!((e.owner, e.rule), (ground.owner(&redirect, e.protocol.unwrap()), Some(Rule::Redirect)))
    });
}

/// A conversation that began below the redirect stays there, also when the redirect has a token again; who comes anew
/// gets the redirect.
#[test]
fn a_socket_keeps_a_backend_from_below_while_it_lives() {
    let mut ground = Ground::new();
    let limit = Some(Limit { connects_per_second: 1, burst: 1 });
    ground.write(limit, Vec::new());
    let client = ground.lab.pod(2).client().unwrap();
    let who = |socket: &Socket<'_>| {
        socket.send_to(frontends()[0], b"who\n").unwrap();
        let (_, bytes) = socket.receive().unwrap();
        String::from_utf8_lossy(&bytes).split(' ').next().unwrap_or_default().to_owned()
    };
    let over_the_limit = |_| {
        let socket = client.udp(Sort::V4).unwrap();
        (who(&socket) == "pod-b").then_some(socket)
    };
    let socket = (0..20).find_map(over_the_limit).expect("one of 20 sockets finds no token");
    let (service, redirect) = owners();
    let before = ground.counters(&redirect, Protocol::Udp);
    for _ in 0..4 {
        std::thread::sleep(Duration::from_millis(400));
        assert_eq!(who(&socket), "pod-b");
    }
    let after = ground.counters(&redirect, Protocol::Udp);
    assert_eq!((after.dials, after.limited), (before.dials, before.limited), "it was not even asked");
    assert!(ground.counters(&service, Protocol::Udp).dials >= 5);
    assert_eq!(who(&client.udp(Sort::V4).unwrap()), "pod-a", "the token is still there");
    // Its backend is gone: what is left serves.
    let mut delta = ground.delta(None, Vec::new());
    for plan in delta.services.iter_mut().filter(|(name, _)| *name == service).filter_map(|(_, plan)| plan.as_mut()) {
        plan.sets.iter_mut().for_each(|set| set.backends.clear());
    }
    assert!(reconcile(&mut ground.tables, &mut ground.kernel, &delta, true).is_clean());
    assert_eq!(who(&socket), "pod-a");
}

const CONTAINER: &str = "4f2a4f2a4f2a4f2a4f2a4f2a4f2a4f2a4f2a4f2a4f2a4f2a4f2a4f2a4f2a4f2a";

/// Both drivers of the kubelet, every QoS class; the pod's own level, and what lies below it.
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

fn names(client: &Client) -> Vec<String> {
    let mut names = Vec::new();
    for to in frontends() {
        for way in [Way::Tcp, Way::UdpConnected, Way::UdpSendTo] {
            names.push(client.dial(&Dial::new(way, to)).unwrap().name().to_owned());
        }
        let mapped = client.dial(&Dial::new(Way::UdpSendTo, to).mapped()).unwrap();
        names.push(mapped.name().to_owned());
    }
    names.sort();
    names.dedup();
    names
}

#[test]
fn a_selected_pod_gets_what_is_below_wherever_its_processes_are() {
    let mut ground = Ground::new();
    ground.write(None, Vec::new());
    let control = ground.program.control().unwrap();
    for (pod, inside) in layouts() {
        let mut made: Vec<Cgroup> = Vec::new();
        for level in pod.iter().chain(&inside) {
            let next = made.last().unwrap_or(&ground.lab.node().cgroup).child(level).unwrap();
            made.push(next);
        }
        let own = made[pod.len() - 1].id().unwrap();
        let start = |namespace: &Namespace, cgroup| Client::start(Some(namespace), Some(cgroup)).unwrap();
        let (there, host) = (&ground.lab.pod(2).namespace, &ground.lab.node().namespace);
        // In the pod's network namespace and in the host's, in its own cgroup and in the innermost.
        let clients: Vec<Client> = [there, host]
            .into_iter()
            .flat_map(|namespace| [&made[pod.len() - 1], made.last().unwrap()].map(|cgroup| start(namespace, cgroup)))
            .collect();
        clients.iter().for_each(|client| assert_eq!(names(client), ["pod-a"], "{pod:?}: nobody selects it yet"));
        control.add_member_levels([cgroup::level(made[pod.len() - 1].path()).unwrap()]).unwrap();
        ground.write(None, vec![own]);
        clients.iter().for_each(|client| assert_eq!(names(client), ["pod-b"], "{pod:?}"));
        let beside = ground.lab.node().client().unwrap();
        assert_eq!(names(&beside), ["pod-a"], "{pod:?}: another process of the node");
        ground.write(None, Vec::new());
        clients.iter().for_each(|client| assert_eq!(names(client), ["pod-a"], "{pod:?}: selected no more"));
    }
    assert!(control.member_levels().len() <= 4, "{:?}", control.member_levels());
}
