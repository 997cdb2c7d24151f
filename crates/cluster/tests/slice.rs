//! The conversion of EndpointSlices, v1 Endpoints and Nodes.

mod support;

use beeline_cluster::{Converter, ServiceFilter, Unserved};
use beeline_model::object::{AddressType, Slice};
use beeline_model::{Family, Protocol};
use support::{only_slice, read, reasons, slice};

#[test]
fn absent_conditions_of_endpoints_have_the_defaults_of_the_api() {
    let snapshot = slice(
        "
addressType: IPv4
ports: [{port: 8080}]
endpoints:
- {addresses: [10.1.0.1, 10.1.0.99]}
- {addresses: [10.1.0.2], nodeName: n1, conditions: {ready: false}}
- {addresses: [10.1.0.3], conditions: {ready: true, serving: false, terminating: true}}
- {addresses: [10.1.0.4], conditions: {ready: null, serving: null, terminating: null}}
",
    );
    let slice = only_slice(&snapshot);
    assert_eq!((slice.family, slice.service.to_string()), (Family::V4, "default/a".into()));
    assert_eq!((&*slice.ports[0].name, slice.ports[0].protocol, slice.ports[0].port), ("", Protocol::Tcp, 8080));
    let seen: Vec<_> =
        slice.endpoints.iter().map(|e| (e.address.to_string(), e.ready, e.serving, e.terminating)).collect();
    let expected = [
        ("10.1.0.1", true, true, false),
        ("10.1.0.2", false, true, false),
        ("10.1.0.3", true, false, true),
        ("10.1.0.4", true, true, false),
    ];
    assert_eq!(seen, expected.map(|(a, r, s, t)| (a.to_owned(), r, s, t)));
    assert_eq!(slice.endpoints[1].node.as_deref(), Some("n1"));
    assert!(snapshot.refusals.is_empty());
}

#[test]
fn hints_are_kept_and_empty_hints_are_dropped() {
    let snapshot = slice(
        "
addressType: IPv4
endpoints:
- {addresses: [10.1.0.1], hints: {forZones: [{name: z1}, {name: z2}], forNodes: [{name: n1}]}}
- {addresses: [10.1.0.2], hints: {forZones: []}}
- {addresses: [10.1.0.3], hints: {}}
",
    );
    let slice = only_slice(&snapshot);
    let hints = slice.endpoints[0].hints.as_ref().unwrap();
    assert_eq!((hints.zones.len(), hints.nodes.len()), (2, 1));
    assert!(slice.endpoints[1].hints.is_none() && slice.endpoints[2].hints.is_none());
}

#[test]
fn invalid_ports_and_endpoints_are_refused_one_by_one() {
    let snapshot = slice(
        "
addressType: IPv4
ports: [{name: a, port: 0}, {name: b}, {name: c, port: 70000}, {name: d, port: 80}, {name: d, port: 81}, {name: e, port: 1, protocol: X}]
endpoints:
- {addresses: [10.1.0.1]}
- {addresses: [10.1.0]}
- {addresses: []}
- {addresses: ['fd00::1']}
- {addresses: [127.0.0.1]}
- {addresses: [169.254.169.254]}
- {addresses: [10.1.0.2], nodeName: 'n/1'}
",
    );
    let slice = only_slice(&snapshot);
    assert_eq!((slice.ports.len(), slice.endpoints.len()), (1, 1));
    assert_eq!(reasons(&snapshot), [["badPort"; 5].as_slice(), ["badEndpoint"; 6].as_slice()].concat());
}

#[test]
fn headless_and_fqdn_slices_are_skipped_and_invalid_ones_refused() {
    let read_meta = |meta: &str, kind: &str| {
        read(&format!(
            "{{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {{name: s, {meta}}}, addressType: {kind},
            endpoints: [{{addresses: [10.1.0.1]}}]}}"
        ))
    };
    let owned = "labels: {kubernetes.io/service-name: a}";
    let headless = "labels: {kubernetes.io/service-name: a, service.kubernetes.io/headless: ''}";
    assert!(read_meta(headless, "IPv4").refusals.is_empty());
    assert!(read_meta(owned, "FQDN").refusals.is_empty());
    assert_eq!(reasons(&read_meta(owned, "IPX")), ["badFamily"]);
    assert_eq!(reasons(&read_meta("labels: {}", "IPv4")), ["noService"]);
    assert_eq!(reasons(&read_meta("labels: {kubernetes.io/service-name: a/b}", "IPv4")), ["badName"]);
    let orphan = read_meta(owned, "IPv4");
    assert_eq!(
        (orphan.slices.len(), reasons(&orphan)),
        (1, vec!["noService"]),
        "kept, because its Service may be added later"
    );
}

#[test]
fn a_port_without_a_name_field_is_refused() {
    let object = serde_saphyr::from_str(
        "{metadata: {name: a-1, namespace: default, labels: {kubernetes.io/service-name: a}}, addressType: IPv4,
        ports: [{port: 80, protocol: TCP}, {name: '', port: 81, protocol: TCP}], endpoints: []}",
    );
    let converted = Converter::new("local", ServiceFilter::default()).slice(&object.unwrap());
    assert_eq!(converted.result.unwrap().ports.iter().map(|p| p.port).collect::<Vec<_>>(), [81]);
    assert_eq!(converted.refusals[0].reason.as_str(), "badPort");
}

fn mirrored(service: &str, endpoints: &str) -> Vec<Slice> {
    let text = format!("{service}\n---\napiVersion: v1\nkind: Endpoints\n{endpoints}");
    read(&text).slices.into_values().collect()
}

const SERVICE: &str =
    "{apiVersion: v1, kind: Service, metadata: {name: a}, spec: {clusterIP: 10.0.0.1, ports: [{port: 80}]}}";

#[test]
fn endpoints_are_mirrored_into_one_slice_per_family_and_ports() {
    let slices = mirrored(
        SERVICE,
        "
metadata: {name: a}
subsets:
- addresses: [{ip: 10.1.0.1, nodeName: n1}, {ip: 'fd00::1'}]
  notReadyAddresses: [{ip: 10.1.0.2}]
  ports: [{port: 80}, {name: x, port: 81}]
- addresses: [{ip: 10.1.0.3}]
  ports: [{name: x, port: 81}, {port: 80}]
- addresses: [{ip: 10.1.0.1}]
  ports: [{port: 90}]
",
    );
    let mut shape: Vec<_> = slices.iter().map(|s| (s.family, s.ports.len(), s.endpoints.len())).collect();
    shape.sort();
    assert_eq!(shape, [(Family::V4, 1, 1), (Family::V4, 2, 3), (Family::V6, 2, 1)]);
    let unready: Vec<_> = slices.iter().flat_map(|s| s.endpoints.iter()).filter(|e| !e.ready).collect();
    assert_eq!(unready.len(), 1);
    assert!(unready[0].serving && !unready[0].terminating);
}

#[test]
fn endpoints_that_the_mirroring_controller_ignores_are_ignored() {
    let one = "subsets: [{addresses: [{ip: 10.1.0.1}], ports: [{port: 80}]}]";
    let with = |meta: &str| mirrored(SERVICE, &format!("metadata: {{name: a{meta}}}\n{one}")).len();
    assert_eq!(with(""), 1);
    assert_eq!(with(", labels: {endpointslice.kubernetes.io/skip-mirror: 'false'}"), 1);
    assert_eq!(with(", labels: {endpointslice.kubernetes.io/skip-mirror: 'true'}"), 0);
    assert_eq!(with(", labels: {service.kubernetes.io/headless: ''}"), 0);
    assert_eq!(with(", annotations: {control-plane.alpha.kubernetes.io/leader: ''}"), 0);
    assert_eq!(with(", namespace: other"), 0, "no such Service");
    let plain = format!("metadata: {{name: a}}\n{one}");
    assert_eq!(mirrored(&SERVICE.replace("spec: {", "spec: {selector: {app: a}, "), &plain).len(), 0);
    assert_eq!(mirrored(&SERVICE.replace("spec: {", "spec: {selector: {}, "), &plain).len(), 1);
}

#[test]
fn at_most_a_thousand_addresses_of_a_subset_are_mirrored() {
    let addresses: String = (0..1010).map(|i| format!("{{ip: 10.1.{}.{}}}, ", i / 250, i % 250 + 1)).collect();
    let text = format!(
        "{SERVICE}\n---\n{{apiVersion: v1, kind: Endpoints, metadata: {{name: a}},
        subsets: [{{addresses: [{{ip: x}}, {addresses}], ports: [{{port: 80}}]}}]}}"
    );
    let snapshot = read(&text);
    assert_eq!(only_slice(&snapshot).endpoints.len(), 1000);
    assert_eq!(reasons(&snapshot), ["badEndpoint", "tooManyAddresses"]);
}

#[test]
fn a_node_has_addresses_a_zone_and_eligibility() {
    let node = |meta: &str, rest: &str| {
        let text = format!("{{apiVersion: v1, kind: Node, metadata: {{name: n1.example, {meta}}}, {rest}}}");
        let snapshot = read(&text);
        (snapshot.nodes.values().next().unwrap().clone(), reasons(&snapshot))
    };
    let (plain, refused) = node(
        "labels: {topology.kubernetes.io/zone: east}",
        "status: {addresses: [{type: InternalIP, address: 10.0.0.9}, {type: ExternalIP, address: '2001:db8::9'},
        {type: Hostname, address: n1}, {type: InternalIP, address: nonsense}]}",
    );
    let kinds: Vec<_> = plain.addresses.iter().map(|(kind, address)| (*kind, address.to_string())).collect();
    assert_eq!(kinds, [(AddressType::Internal, "10.0.0.9".into()), (AddressType::External, "2001:db8::9".into())]);
    assert_eq!((plain.zone.as_deref(), plain.eligible, refused), (Some("east"), true, vec!["badAddress"]));
    let (tainted, _) = node(
        "labels: {topology.kubernetes.io/zone: ''}",
        "spec: {taints: [{key: ToBeDeletedByClusterAutoscaler, effect: NoSchedule}]}",
    );
    assert_eq!((tainted.zone, tainted.eligible), (None, false));
    let (leaving, _) = node("deletionTimestamp: '2026-01-01T00:00:00Z'", "spec: {}");
    assert!(!leaving.eligible);
}

#[test]
fn a_headless_service_is_skipped_and_a_broken_one_refused() {
    let mut converter = Converter::new("local", ServiceFilter::default());
    let headless = serde_saphyr::from_str("{metadata: {name: a, namespace: b}, spec: {clusterIP: None}}").unwrap();
    assert_eq!(converter.service(&headless).result.unwrap_err(), Unserved::Skipped);
    let broken = serde_saphyr::from_str("{metadata: {name: a, namespace: b}, spec: {clusterIP: x}}").unwrap();
    assert_eq!(converter.service(&broken).result.unwrap_err(), Unserved::Refused);
}
