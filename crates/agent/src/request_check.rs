//! A check for tests and the fuzzer: any line that is sent to the agent's socket is answered without a panic. The parts of the
//! answers that need the kernel are left out.

use crate::explain::{explain, pending_addresses};
use beeline_api::Request;
use beeline_cluster::{Converter, ManifestFormat, ServiceFilter, parse_manifests};
use beeline_datapath::control::EventLevel;
use beeline_model::planner::Planner;
use beeline_model::{Address, PortName};
use std::cell::OnceCell;

/// A Service that has endpoints, one whose address is taken, and a policy.
const OBJECTS: &str = "
{apiVersion: v1, kind: Service, metadata: {name: web, namespace: default},
 spec: {clusterIP: 10.96.0.10, externalIPs: [198.51.100.1], ports: [{name: http, port: 80}]}}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, addressType: IPv4, ports: [{name: http, port: 8080}],
 metadata: {name: web-1, namespace: default, labels: {kubernetes.io/service-name: web}},
 endpoints: [{addresses: [10.244.1.2], nodeName: node-1}, {addresses: [10.244.2.2], conditions: {ready: false}}]}
---
{apiVersion: v1, kind: Service, metadata: {name: late, namespace: default},
 spec: {clusterIP: 10.96.0.11, externalIPs: [198.51.100.1], ports: [{name: http, port: 80}]}}
---
{apiVersion: beeline.dev/v1alpha1, kind: LocalRedirectPolicy, metadata: {name: near, namespace: default, uid: u1},
 spec: {frontend: {serviceMatcher: {serviceName: web, toPorts: [{port: 80, protocol: TCP}]}},
 backend: {endpointSelector: {matchLabels: {app: web}}, toPorts: [{port: 8080, protocol: TCP}]}}}
";

thread_local! {
    static PLANNER: OnceCell<Planner> = const { OnceCell::new() };
}

/// The input is one line. Returns whether it is a request.
#[doc(hidden)]
pub fn check_request(line: &[u8]) -> bool {
    let Ok(request) = serde_json::from_slice::<Request>(line) else { return false };
    let text = serde_json::to_string(&request).expect("a request can be encoded");
    let again: Request = serde_json::from_str(&text).expect("an encoded request can be parsed");
    assert_eq!(serde_json::to_string(&again).ok(), Some(text), "a request is encoded as it was read");
    PLANNER.with(|planner| check_answer(planner.get_or_init(planner_with_objects), &request));
    true
}

fn planner_with_objects() -> Planner {
    let mut converter = Converter::new("local", ServiceFilter::default());
    let objects = parse_manifests(OBJECTS.as_bytes(), ManifestFormat::Yaml, &mut converter);
    assert!(objects.refusals.is_empty(), "{:?}", objects.refusals);
    beeline_model::check_plan(objects.into_changes())
}

fn check_answer(planner: &Planner, request: &Request) {
    match request {
        Request::Explain { owner } => {
            let owner = PortName::from_text(owner);
            let text = owner.as_ref().map(PortName::to_text);
            assert_eq!(text.as_deref().and_then(PortName::from_text), owner, "a name is encoded as it was read");
            check_json(&owner.and_then(|owner| explain(planner, &owner)));
        }
        Request::ExplainAddress { address } => check_json(&pending_addresses(planner, Address::from(*address))),
        Request::Policies(query) => {
            let service = query.owner.as_deref().and_then(PortName::from_text).map(|port| port.service);
            query.name.as_deref().map(|name| planner.policies_named(name));
            query.address.map(|address| planner.policies_for(Address::from(address), service.as_ref()));
        }
        Request::SetEventLevel { level } => check_level(level),
        Request::Monitor { level: Some(level), .. } => check_level(level),
        Request::Monitor { level: None, .. } => {}
        Request::Status | Request::Pods { .. } | Request::CreateViewCgroup { .. } => {}
    }
}

fn check_level(text: &str) {
    if let Ok(level) = text.parse::<EventLevel>() {
        assert_eq!(level.to_string().parse(), Ok(level), "an event level is printed as it is read");
    }
}

fn check_json(value: &impl serde::Serialize) {
    serde_json::to_string(value).expect("an answer can be encoded");
}
