//! A check for tests and the fuzzer: any policy object is refused with a reason, or can be planned beside other objects.

use crate::object_check::check_policy;
use crate::policy::{BalancingPolicySpec, LocalRedirectPolicySpec};
use crate::{Converted, Converter, ManifestFormat, ServiceFilter, parse_manifests};
use beeline_model::change::Change;
use beeline_model::object::Object;
use beeline_model::policy::Policy;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize;
use std::sync::OnceLock;

/// What the policies of the corpus match and select: a Service with two ports and pods on two nodes.
const OBJECTS: &str = "
{apiVersion: v1, kind: Node, metadata: {name: node-1, labels: {zone: a}},
 status: {addresses: [{type: InternalIP, address: 172.31.0.11}], conditions: [{type: Ready, status: 'True'}]}}
---
{apiVersion: v1, kind: Namespace, metadata: {name: default, labels: {team: shop}}}
---
{apiVersion: v1, kind: Service, metadata: {name: web, namespace: default},
 spec: {clusterIP: 10.96.0.10, ports: [{name: http, port: 80}, {name: dns, port: 53, protocol: UDP}]}}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, addressType: IPv4, ports: [{name: http, port: 8080}],
 metadata: {name: web-1, namespace: default, labels: {kubernetes.io/service-name: web}},
 endpoints: [{addresses: [10.244.1.2], nodeName: node-1}, {addresses: [10.244.2.2], nodeName: node-2}]}
---
{apiVersion: v1, kind: Pod, metadata: {name: web-1, namespace: default, uid: u1, labels: {app: web}},
 spec: {nodeName: node-1, containers: [{name: c, image: i, ports: [{name: http, containerPort: 8080, hostPort: 18080}]}]},
 status: {phase: Running, podIPs: [{ip: 10.244.1.2}], hostIP: 172.31.0.11, conditions: [{type: Ready, status: 'True'}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: web-2, namespace: default, uid: u2, labels: {app: web}},
 spec: {nodeName: node-2, containers: [{name: c, image: i, ports: [{name: http, containerPort: 8081}]}]},
 status: {phase: Running, podIPs: [{ip: 10.244.2.2}], hostIP: 172.31.0.12, conditions: [{type: Ready, status: 'True'}]}}
";

#[derive(Deserialize)]
struct PolicyText {
    #[serde(default)]
    metadata: ObjectMeta,
    #[serde(default)]
    spec: serde_json::Value,
}

/// The input is a policy as JSON; it is read as both kinds. Panics if an invariant does not hold. Returns whether
/// one of them is a policy.
#[doc(hidden)]
pub fn check_policy_object(input: &[u8]) -> bool {
    let Ok(PolicyText { metadata, spec }) = serde_json::from_slice(input) else { return false };
    let mut converter = Converter::new("local", ServiceFilter::default());
    let mut policies = Vec::new();
    if let Ok(spec) = serde_json::from_value::<LocalRedirectPolicySpec>(spec.clone()) {
        policies.extend(checked(converter.local_redirect(&metadata, &spec)));
    }
    if let Ok(spec) = serde_json::from_value::<BalancingPolicySpec>(spec) {
        policies.extend(checked(converter.balancing(&metadata, &spec)));
    }
    if policies.is_empty() {
        return false;
    }
    let policies = policies.into_iter().map(|policy| Change::Upsert(Object::Policy(policy)));
    let changes: Vec<Change> = objects().iter().cloned().chain(policies).collect();
    beeline_model::check_plan(changes.clone());
    beeline_model::check_plan(changes.into_iter().rev().collect());
    true
}

fn checked(converted: Converted<Policy>) -> Option<Policy> {
    match converted.result {
        Ok(policy) => {
            check_policy(&policy).unwrap_or_else(|rule| panic!("{rule}: {policy:?}"));
            Some(policy)
        }
        Err(_) => {
            assert!(!converted.refusals.is_empty(), "a policy is refused without a reason");
            assert!(converted.refusals.iter().all(|refusal| !refusal.message.is_empty()));
            None
        }
    }
}

fn objects() -> &'static [Change] {
    static CHANGES: OnceLock<Vec<Change>> = OnceLock::new();
    CHANGES.get_or_init(|| {
        let mut converter = Converter::new("local", ServiceFilter::default());
        let snapshot = parse_manifests(OBJECTS.as_bytes(), ManifestFormat::Yaml, &mut converter);
        assert!(snapshot.refusals.is_empty(), "{:?}", snapshot.refusals);
        snapshot.into_changes()
    })
}
