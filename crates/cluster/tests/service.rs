//! The conversion of v1 Services.

mod support;

use beeline_cluster::ServiceFilter;
use beeline_model::object::TrafficPolicy;
use beeline_model::{Family, Protocol};
use support::{only_service, read, read_with, reasons, service, texts};

#[test]
fn a_plain_service_gets_the_defaults_of_the_api() {
    let snapshot = service("clusterIP: 10.0.0.1, ports: [{port: 80}]");
    let converted = only_service(&snapshot);
    assert_eq!(converted.name.to_string(), "default/a");
    assert_eq!(texts(&converted.cluster_ips), ["10.0.0.1"]);
    assert_eq!(
        (converted.internal, converted.external, converted.affinity),
        (TrafficPolicy::Cluster, TrafficPolicy::Cluster, None)
    );
    assert_eq!((converted.created, converted.has_node_ports, converted.health_check_node_port), (i64::MAX, false, 0));
    let port = &converted.ports[0];
    assert_eq!((&*port.name, port.protocol, port.port, port.node_port), ("", Protocol::Tcp, 80, 0));
    assert!(snapshot.refusals.is_empty());
}

#[test]
fn headless_and_external_name_services_are_skipped_without_a_refusal() {
    for spec in [
        "clusterIP: None, ports: [{port: 80}]",
        "clusterIPs: [None]",
        "type: ExternalName, externalName: a.example",
        "type: ExternalName, externalName: a.example, clusterIP: 10.0.0.1",
    ] {
        let snapshot = service(spec);
        assert!(snapshot.services.is_empty() && snapshot.refusals.is_empty(), "{spec}: {:?}", snapshot.refusals);
    }
    let unallocated = service("ports: [{port: 80}]");
    assert!(unallocated.services.is_empty());
    assert_eq!(reasons(&unallocated), ["noClusterIP"]);
}

#[test]
fn services_are_selected_by_proxy_name() {
    let text = "
apiVersion: v1
kind: List
items:
- {apiVersion: v1, kind: Service, metadata: {name: plain}, spec: {clusterIP: 10.0.0.1, ports: [{port: 80}]}}
- apiVersion: v1
  kind: Service
  metadata: {name: named, labels: {service.kubernetes.io/service-proxy-name: beeline}}
  spec: {clusterIP: 10.0.0.2, ports: [{port: 80}]}
";
    let selected = |name: Option<&str>| {
        only_service(&read_with(text, ServiceFilter { proxy_name: name.map(Into::into), dns_names: false }))
            .name
            .to_string()
    };
    assert_eq!(selected(None), "default/plain");
    assert_eq!(selected(Some("beeline")), "default/named");
    assert!(read_with(text, ServiceFilter { proxy_name: Some("other".into()), dns_names: false }).services.is_empty());
}

#[test]
fn cluster_ips_follow_the_families() {
    let snapshot = service("clusterIPs: ['fd00::1', 10.0.0.1], ports: [{port: 80}]");
    let converted = only_service(&snapshot);
    assert_eq!(converted.cluster_ip(Family::V4).unwrap().to_string(), "10.0.0.1");
    assert_eq!(converted.cluster_ip(Family::V6).unwrap().to_string(), "fd00::1");
    let zeros = service("clusterIP: 010.096.000.001, ports: [{port: 80}]");
    assert_eq!(texts(&only_service(&zeros).cluster_ips), ["10.96.0.1"]);
    // A family without an address has no rows, which is valid.
    let short = service("clusterIP: 10.0.0.1, ipFamilies: [IPv4, IPv6], ports: [{port: 80}]");
    assert_eq!(texts(&only_service(&short).cluster_ips), ["10.0.0.1"]);
}

#[test]
fn a_malformed_cluster_ip_refuses_the_whole_service() {
    for spec in [
        "clusterIP: 10.0.0",
        "clusterIP: 10.0.0.256",
        "clusterIP: 0.0.0.0",
        "clusterIP: 127.0.0.1",
        "clusterIP: 224.0.0.1",
        "clusterIP: '::1'",
        "clusterIPs: [10.0.0.1, x]",
        "clusterIPs: [10.0.0.1, 10.0.0.2]",
        "clusterIP: 10.0.0.1, clusterIPs: [10.0.0.2]",
        "clusterIP: 10.0.0.1, ipFamilies: [IPv6]",
        "clusterIP: 10.0.0.1, ipFamilies: [IPv5]",
    ] {
        let snapshot = service(&format!("{spec}, ports: [{{port: 80}}]"));
        assert!(snapshot.services.is_empty(), "{spec}");
        assert_eq!(reasons(&snapshot), ["badClusterIP"], "{spec}");
    }
}

#[test]
fn an_invalid_port_is_refused_and_the_others_are_kept() {
    let snapshot = service(
        "clusterIP: 10.0.0.1, ports: [{name: a, port: 0}, {name: b, port: 70000}, {name: c, port: 80}, {port: 81},
        {name: c, port: 82}, {name: d, port: 80}, {name: e, port: 80, protocol: UDP}, {name: f, port: 83, protocol: ICMP},
        {name: G, port: 84}, {name: h, port: 80, protocol: SCTP}]",
    );
    let ports: Vec<String> =
        only_service(&snapshot).ports.iter().map(|p| format!("{}:{}/{}", p.name, p.port, p.protocol)).collect();
    assert_eq!(ports, ["c:80/TCP", "e:80/UDP", "h:80/SCTP"]);
    assert_eq!(reasons(&snapshot), ["badPort"; 7]);
    assert!(snapshot.refusals[1].message.contains("70000"), "{:?}", snapshot.refusals[1]);
    assert!(snapshot.refusals[1].message.contains("input document 1"), "{:?}", snapshot.refusals[1]);
    assert_eq!(snapshot.refusals[1].subject.to_string(), "Service default/a");
}

#[test]
fn a_service_without_ports_is_refused_in_part() {
    let snapshot = service("clusterIP: 10.0.0.1");
    assert!(only_service(&snapshot).ports.is_empty());
    assert_eq!(reasons(&snapshot), ["noPorts"]);
}

#[test]
fn node_ports_need_a_type_that_has_them() {
    let node_port = |kind: &str, port: &str| {
        let snapshot = service(&format!("type: {kind}, clusterIP: 10.0.0.1, ports: [{{port: 80, nodePort: {port}}}]"));
        (only_service(&snapshot).ports[0].node_port, reasons(&snapshot))
    };
    assert_eq!(node_port("NodePort", "30080"), (30080, vec![]));
    assert_eq!(node_port("LoadBalancer", "30080"), (30080, vec![]));
    assert_eq!(node_port("LoadBalancer", "0"), (0, vec![]));
    assert_eq!(node_port("NodePort", "0"), (0, vec!["noNodePort"]));
    assert_eq!(node_port("NodePort", "70000"), (0, vec!["badNodePort"]));
    assert_eq!(node_port("ClusterIP", "30080"), (0, vec!["badNodePort"]));
}

#[test]
fn special_external_ips_are_refused() {
    let snapshot = service(
        "clusterIP: 10.0.0.1, ports: [{port: 80}],
        externalIPs: [198.51.100.1, 127.0.0.1, 169.254.169.254, '', 'fe80::1', 0.0.0.0, x, 198.51.100.1, '2001:db8::1']",
    );
    assert_eq!(texts(&only_service(&snapshot).external_ips), ["198.51.100.1", "2001:db8::1"]);
    assert_eq!(reasons(&snapshot), ["badExternalIP"; 5]);
}

fn balanced(ranges: &str, ips: &str) -> (Vec<String>, Vec<String>, Vec<&'static str>) {
    let ingress: String = ips.split(' ').map(|ip| format!("{{ip: '{ip}'}}, ")).collect();
    let snapshot = read(&format!(
        "
apiVersion: v1
kind: Service
metadata: {{name: a}}
spec: {{type: LoadBalancer, clusterIP: 10.0.0.1, ports: [{{port: 80}}], loadBalancerSourceRanges: [{ranges}]}}
status: {{loadBalancer: {{ingress: [{ingress}]}}}}
"
    ));
    let converted = only_service(&snapshot);
    (texts(&converted.source_ranges), texts(&converted.load_balancer_ips), reasons(&snapshot))
}

#[test]
fn source_ranges_apply_per_family() {
    let (ranges, ips, refused) = balanced("' 192.0.2.7/24 ', ''", "203.0.113.1 2001:db8::1");
    assert_eq!((ranges, ips.len(), refused), (vec!["192.0.2.0/24".to_owned()], 2, vec![]));
    let (ranges, _, _) = balanced("192.0.2.0/24, 0.0.0.0/0, '2001:db8::/32'", "203.0.113.1");
    assert_eq!(ranges, ["2001:db8::/32"], "a /0 allows all clients of its own family only");
}

#[test]
fn with_a_malformed_source_range_the_family_is_not_served() {
    let (ranges, ips, refused) = balanced("10.0.0.0/33", "203.0.113.1");
    assert_eq!((ranges.len(), ips.len(), refused), (0, 0, vec!["badSourceRange", "badSourceRange"]));
    let (ranges, ips, refused) = balanced("nonsense, 192.0.2.0/24", "203.0.113.1 2001:db8::1");
    assert_eq!((ranges.len(), ips), (1, vec!["203.0.113.1".to_owned()]));
    assert_eq!(refused, ["badSourceRange", "badSourceRange"]);
}

#[test]
fn only_vip_ingress_addresses_are_served() {
    let snapshot = read(
        "
apiVersion: v1
kind: Service
metadata: {name: a}
spec: {type: LoadBalancer, clusterIP: 10.0.0.1, ports: [{port: 80}]}
status:
  loadBalancer:
    ingress: [{ip: 203.0.113.1}, {ip: 203.0.113.2, ipMode: VIP}, {ip: 203.0.113.3, ipMode: Proxy}, {hostname: lb}, {ip: x}]
",
    );
    assert_eq!(texts(&only_service(&snapshot).load_balancer_ips), ["203.0.113.1", "203.0.113.2"]);
    assert_eq!(reasons(&snapshot), ["badLoadBalancerIP"]);
}

#[test]
fn the_affinity_timeout_is_limited() {
    let affinity = |text: &str| {
        let snapshot = service(&format!("clusterIP: 10.0.0.1, ports: [{{port: 80}}], {text}"));
        (only_service(&snapshot).affinity, reasons(&snapshot))
    };
    let seconds =
        |n: i32| format!("sessionAffinity: ClientIP, sessionAffinityConfig: {{clientIP: {{timeoutSeconds: {n}}}}}");
    assert_eq!(affinity("sessionAffinity: ClientIP"), (Some(10_800), vec![]));
    assert_eq!(affinity(&seconds(1)), (Some(1), vec![]));
    assert_eq!(affinity(&seconds(86_400)), (Some(86_400), vec![]));
    for bad in [0, -1, 86_401, i32::MIN] {
        assert_eq!(affinity(&seconds(bad)), (Some(10_800), vec!["badAffinity"]));
    }
    assert_eq!(affinity("sessionAffinity: Cookie"), (None, vec!["badAffinity"]));
}

#[test]
fn traffic_policies_and_the_health_check_port_are_read() {
    let snapshot = service(
        "type: LoadBalancer, clusterIP: 10.0.0.1, ports: [{port: 80}], healthCheckNodePort: 32000,
        externalTrafficPolicy: Local, internalTrafficPolicy: Local",
    );
    let converted = only_service(&snapshot);
    assert_eq!(
        (converted.internal, converted.external, converted.health_check_node_port),
        (TrafficPolicy::Local, TrafficPolicy::Local, 32000)
    );
    let cluster = service("type: LoadBalancer, clusterIP: 10.0.0.1, ports: [{port: 80}], healthCheckNodePort: 32000");
    assert_eq!(only_service(&cluster).health_check_node_port, 0, "only externalTrafficPolicy Local has a health check");
    let odd = service("clusterIP: 10.0.0.1, ports: [{port: 80}], internalTrafficPolicy: Near");
    assert_eq!((only_service(&odd).internal, reasons(&odd)), (TrafficPolicy::Cluster, vec!["badPolicy"]));
}

#[test]
fn invalid_names_are_refused() {
    for (namespace, name) in
        [("default", "a/b"), ("default", "A"), ("a b", "a"), ("default", "''"), ("default", "null")]
    {
        let snapshot = read(&format!(
            "{{apiVersion: v1, kind: Service, metadata: {{name: {name}, namespace: {namespace}}},
            spec: {{clusterIP: 10.0.0.1, ports: [{{port: 80}}]}}}}"
        ));
        assert!(snapshot.services.is_empty());
        assert_eq!(reasons(&snapshot), ["badName"], "{namespace}/{name}");
    }
}

#[test]
fn a_missing_creation_time_counts_as_now() {
    let snapshot = read(
        "{apiVersion: v1, kind: Service, metadata: {name: a, creationTimestamp: '1970-01-01T00:01:00Z'},
        spec: {clusterIP: 10.0.0.1, ports: [{port: 80}]}}",
    );
    assert_eq!(only_service(&snapshot).created, 60);
    let null = "{apiVersion: v1, kind: Service, metadata: {name: a, creationTimestamp: null},
        spec: {clusterIP: 10.0.0.1, ports: [{port: 80}]}}";
    assert_eq!(only_service(&read(null)).created, i64::MAX);
}
