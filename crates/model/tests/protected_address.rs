//! No externalIP, load-balancer address or virtual address takes an API server's address, a service range or a pod's
//! address away from the other processes of this host. What is refused is reported on the object.

use beeline_model::change::{Change, ObjectKey};
use beeline_model::cluster::ClusterRules;
use beeline_model::name::LOCAL_CLUSTER;
use beeline_model::object::*;
use beeline_model::planner::Planner;
use beeline_model::policy::*;
use beeline_model::row::FrontendKey;
use beeline_model::rules::{ExternalIps, HostRole, Rules};
use beeline_model::selector::Selector;
use beeline_model::{Address, Family, Protocol, ServiceName};

const API_SERVER: &str = "192.0.2.10";

fn address(text: &str) -> Address {
    Address::from(text.parse::<std::net::IpAddr>().expect("an address"))
}

fn service(namespace: &str, name: &str, cluster_ip: &str, external_ips: &[&str]) -> Service {
    Service {
        cluster_ips: [address(cluster_ip)].into(),
        external_ips: external_ips.iter().map(|text| address(text)).collect(),
        ports: [80, 6443]
            .map(|port| ServicePort { name: format!("p{port}").into(), protocol: Protocol::Tcp, port, node_port: 0 })
            .into(),
        ..Service::named(ServiceName::local(namespace, name))
    }
}

/// An attacker's Service.
fn greedy(external_ips: &[&str]) -> Service {
    service("tenant", "greedy", "10.96.0.66", external_ips)
}

fn api_slice(endpoints: &[&str]) -> Object {
    let endpoint = |at: &&str| Endpoint::ready(address(at));
    Object::Slice(Slice {
        name: SliceName { cluster: LOCAL_CLUSTER.into(), namespace: "default".into(), name: "kubernetes".into() },
        service: ServiceName::local("default", "kubernetes"),
        family: Family::V4,
        ports: [SlicePort { name: "https".into(), protocol: Protocol::Tcp, port: 6443 }].into(),
        endpoints: endpoints.iter().map(endpoint).collect(),
        hostnames: None,
    })
}

fn planner(objects: impl IntoIterator<Item = Object>) -> Planner {
    let mut planner = Planner::new(Rules::for_node("n1"));
    apply(&mut planner, objects);
    planner
}

fn apply(planner: &mut Planner, objects: impl IntoIterator<Item = Object>) {
    objects.into_iter().for_each(|object| _ = planner.apply(Change::Upsert(object)));
    planner.take_delta();
}

/// Who holds a frontend.
fn holder(planner: &Planner, at: &str, port: u16) -> Option<String> {
    let key = FrontendKey::new(address(at), port, Protocol::Tcp);
    planner.claims().winner(&key).map(|claim| claim.service.to_string())
}

fn refusals(planner: &Planner) -> Vec<(String, &'static str)> {
    planner.refusals().iter().map(|refusal| (refusal.subject.to_string(), refusal.reason.as_str())).collect()
}

const GREEDY: &str = "tenant/greedy";

fn refused(reason: &'static str) -> (String, &'static str) {
    (format!("Service {GREEDY}"), reason)
}

#[test]
fn an_api_server_that_the_agent_dials_is_never_taken() {
    let mut planner = planner([Object::Service(greedy(&[API_SERVER]))]);
    assert_eq!(holder(&planner, API_SERVER, 6443).as_deref(), Some(GREEDY), "nothing is known of API servers yet");
    planner.set_api_servers(&LOCAL_CLUSTER.into(), vec![(address(API_SERVER), 6443)]);
    planner.take_delta();
    assert_eq!(holder(&planner, API_SERVER, 6443), None);
    assert_eq!(
        holder(&planner, API_SERVER, 80).as_deref(),
        Some(GREEDY),
        "a node's own address may be served elsewhere"
    );
    assert_eq!(refusals(&planner), [refused("apiServerAddress")]);
}

#[test]
fn the_endpoints_of_default_kubernetes_are_never_taken() {
    let mut planner = planner([Object::Service(greedy(&[API_SERVER, "192.0.2.11"])), api_slice(&[API_SERVER])]);
    assert_eq!(holder(&planner, API_SERVER, 6443), None);
    assert_eq!(holder(&planner, "192.0.2.11", 6443).as_deref(), Some(GREEDY));
    apply(&mut planner, [api_slice(&["192.0.2.11"])]);
    assert_eq!(holder(&planner, "192.0.2.11", 6443), None, "the API server has moved");
    assert_eq!(holder(&planner, API_SERVER, 6443).as_deref(), Some(GREEDY));
}

#[test]
fn a_load_balancer_address_cannot_be_an_api_server_either() {
    let balancer = Service { load_balancer_ips: [address(API_SERVER)].into(), ..greedy(&[]) };
    let planner = planner([Object::Service(balancer), api_slice(&[API_SERVER])]);
    assert_eq!(holder(&planner, API_SERVER, 6443), None);
    assert_eq!(refusals(&planner), [refused("apiServerAddress")]);
}

#[test]
fn an_external_ip_inside_the_service_range_is_refused() {
    let range = ServiceRange {
        cluster: LOCAL_CLUSTER.into(),
        name: "kubernetes".into(),
        ranges: ["10.96.0.0/16".parse().unwrap()].into(),
    };
    let mut planner = planner([Object::Service(greedy(&["10.96.0.10", "10.96.0.66"]))]);
    assert_eq!(holder(&planner, "10.96.0.10", 80).as_deref(), Some(GREEDY), "the range is not known yet");
    apply(&mut planner, [Object::ServiceRange(range)]);
    assert_eq!(holder(&planner, "10.96.0.10", 80), None);
    assert_eq!(holder(&planner, "10.96.0.66", 80).as_deref(), Some(GREEDY), "the Service's own ClusterIP");
    assert_eq!(refusals(&planner), [refused("serviceRangeAddress")]);
}

/// Also without a known range, and whichever Service comes first.
#[test]
fn an_external_ip_never_takes_a_port_of_another_services_cluster_ip() {
    let victim = Service { ports: greedy(&[]).ports[..1].into(), ..service("default", "web", "10.96.0.10", &[]) };
    let objects = [Object::Service(victim.clone()), Object::Service(greedy(&["10.96.0.10"]))];
    for order in [[0, 1], [1, 0]] {
        let mut planner = planner(order.map(|at| objects[at].clone()));
        assert_eq!(holder(&planner, "10.96.0.10", 6443), None, "the victim has no such port");
        assert_eq!(refusals(&planner), [refused("addressConflict")]);
        planner.apply(Change::Delete(ObjectKey::Service(victim.name.clone())));
        planner.take_delta();
        assert_eq!(holder(&planner, "10.96.0.10", 6443).as_deref(), Some(GREEDY), "the address is free");
    }
    let mut planner = planner([objects[1].clone()]);
    apply(&mut planner, [objects[0].clone()]);
    assert_eq!(holder(&planner, "10.96.0.10", 6443), None, "the victim came later");
}

#[test]
fn an_external_ip_inside_a_pod_range_is_refused() {
    let node = |ranges: &[&str]| {
        let pod_ranges = ranges.iter().map(|range| range.parse().unwrap()).collect();
        Object::Node(Node { pod_ranges, ..Node::named(LOCAL_CLUSTER, "n2") })
    };
    let mut planner = planner([Object::Service(greedy(&["10.244.2.5"])), node(&[])]);
    assert_eq!(holder(&planner, "10.244.2.5", 80).as_deref(), Some(GREEDY));
    apply(&mut planner, [node(&["10.244.2.0/24"])]);
    assert_eq!(holder(&planner, "10.244.2.5", 80), None);
    assert_eq!(refusals(&planner), [refused("podAddress")]);
    let configured = Rules { pod_ranges: vec!["10.244.0.0/16".parse().unwrap()], ..Rules::for_node("n1") };
    let mut planner = Planner::new(configured);
    apply(&mut planner, [Object::Service(greedy(&["10.244.2.5"]))]);
    assert_eq!(refusals(&planner), [refused("podAddress")]);
}

fn pod(at: &str) -> Pod {
    Pod {
        name: PodName { cluster: LOCAL_CLUSTER.into(), namespace: "default".into(), name: "web".into() },
        uid: "uid".into(),
        node: Some("n1".into()),
        addresses: [address(at)].into(),
        containers: [].into(),
        exclusion: Default::default(),
        view: None,
        labels: Default::default(),
        ready: true,
        ports: [].into(),
    }
}

#[test]
fn the_address_of_a_pod_on_this_host_is_refused() {
    let own =
        Node { addresses: vec![(AddressType::Internal, address("172.18.0.1"))], ..Node::named(LOCAL_CLUSTER, "n1") };
    let mut planner = planner([Object::Service(greedy(&["10.1.2.3", "172.18.0.1"])), Object::Node(own)]);
    assert_eq!(holder(&planner, "10.1.2.3", 80).as_deref(), Some(GREEDY));
    apply(&mut planner, [Object::Pod(pod("10.1.2.3"))]);
    assert_eq!(holder(&planner, "10.1.2.3", 80), None);
    assert_eq!(refusals(&planner), [refused("podAddress")]);
    assert_eq!(holder(&planner, "172.18.0.1", 80).as_deref(), Some(GREEDY), "a node's own address is served");
    apply(&mut planner, [Object::Pod(pod("10.1.2.4"))]);
    assert_eq!(holder(&planner, "10.1.2.3", 80).as_deref(), Some(GREEDY), "the pod is gone");
}

fn virtual_policy(at: &str, port: u16) -> Policy {
    let name = PolicyName {
        kind: PolicyKind::Balancing,
        cluster: LOCAL_CLUSTER.into(),
        namespace: "tenant".into(),
        name: "greedy".into(),
    };
    let dialled = DialledPort { name: "".into(), port, protocol: Protocol::Tcp };
    let backend = BackendPort { name: "".into(), port: PortChoice::Number(80), protocol: Protocol::Tcp };
    Policy {
        name,
        uid: "uid".into(),
        created: 0,
        generation: 1,
        matcher: Matcher::Address { address: address(at), ports: [dialled].into() },
        target: Target::Pods {
            selector: Selector([].into()),
            namespaces: None,
            mode: RedirectMode::PodEndpoint,
            ports: [backend].into(),
        },
        nodes: None,
        out_cluster: true,
        limit: None,
    }
}

#[test]
fn a_virtual_address_is_checked_as_an_external_one() {
    let plan = |virtual_address_cidrs: &[&str], at, port| {
        let virtual_address_cidrs = virtual_address_cidrs.iter().map(|range| range.parse().unwrap()).collect();
        let pod_ranges = vec!["10.244.0.0/16".parse().unwrap()];
        let mut planner = Planner::new(Rules { virtual_address_cidrs, pod_ranges, ..Rules::for_node("n1") });
        planner.set_api_servers(&LOCAL_CLUSTER.into(), vec![(address("10.0.0.1"), 6443)]);
        apply(&mut planner, [Object::Policy(virtual_policy(at, port))]);
        refusals(&planner).into_iter().map(|(_, reason)| reason).collect::<Vec<_>>()
    };
    assert_eq!(plan(&["10.0.0.0/8"], "10.0.0.1", 6443), ["apiServerAddress"]);
    assert_eq!(plan(&["10.0.0.0/8"], "10.0.0.1", 80), [""; 0]);
    assert_eq!(plan(&["10.0.0.0/8"], "10.244.7.7", 80), ["virtualAddressNotAllowed"]);
    assert_eq!(plan(&["10.244.7.0/24"], "10.244.7.7", 80), [""; 0], "an administrator reserved this part of the range");
}

#[test]
fn the_external_ips_of_a_cluster_that_this_host_is_outside_of_are_off_by_default() {
    let holder_with = |external_ips, role| {
        let clusters = vec![ClusterRules::for_role(LOCAL_CLUSTER, role)];
        let mut planner = Planner::new(Rules { external_ips, clusters, host_role: role, ..Rules::for_node("") });
        let endpoint = Endpoint {
            address: address("10.244.1.5"),
            ready: true,
            serving: true,
            terminating: false,
            node: None,
            hints: None,
        };
        let ports = [80, 6443].map(|port| SlicePort { name: format!("p{port}").into(), protocol: Protocol::Tcp, port });
        let slice = Slice {
            name: SliceName { cluster: LOCAL_CLUSTER.into(), namespace: "tenant".into(), name: "greedy-1".into() },
            service: greedy(&[]).name,
            family: Family::V4,
            ports: ports.into(),
            endpoints: [endpoint].into(),
            hostnames: None,
        };
        apply(&mut planner, [Object::Service(greedy(&["198.51.100.1"])), Object::Slice(slice)]);
        holder(&planner, "198.51.100.1", 80).is_some()
    };
    assert!(!holder_with(ExternalIps::default(), HostRole::Outside));
    assert!(holder_with(ExternalIps::On, HostRole::Outside));
    assert!(holder_with(ExternalIps::default(), HostRole::Edge));
}
