//! A check for tests and the fuzzer: any AdmissionReview is decided without a panic, and a policy that is admitted can be
//! evaluated beside other policies.

use crate::admission::parse_policy;
use crate::cluster_state::{CLUSTER, ClusterState};
use crate::settings::Overlap;
use crate::validation::cluster_scope;
use beeline_cluster::{Converter, ManifestFormat, ServiceFilter, parse_manifests};
use beeline_model::change::Change;
use beeline_model::object::Object;
use beeline_model::policy::{Policy, PolicyKind};
use kube::api::DynamicObject;
use kube::core::admission::{AdmissionRequest, AdmissionResponse, AdmissionReview};

/// A Service and a policy on one of its ports.
const OBJECTS: &str = "
{apiVersion: v1, kind: Service, metadata: {name: web, namespace: default},
 spec: {clusterIP: 10.96.0.10, ports: [{name: http, port: 80}, {name: dns, port: 53, protocol: UDP}]}}
---
{apiVersion: beeline.dev/v1alpha1, kind: BalancingPolicy, metadata: {name: web, namespace: default, uid: u1},
 spec: {frontend: {serviceMatcher: {serviceName: web, toPorts: [{port: 53, protocol: UDP}]}},
 backend: {serviceEndpoint: {endpointSelector: {matchLabels: {app: web}}, toPorts: [{port: 5353, protocol: UDP}]}}}}
";

/// The input is the body of a request to the webhook. Returns whether it is about a policy.
#[doc(hidden)]
pub fn check_review(input: &[u8]) -> bool {
    let Ok(review) = serde_json::from_slice::<AdmissionReview<DynamicObject>>(input) else { return false };
    let Ok(request): Result<AdmissionRequest<DynamicObject>, _> = review.try_into() else { return false };
    let response = AdmissionResponse::from(&request);
    let Some(kind) = PolicyKind::from_text(&request.kind.kind) else { return false };
    let Some(object) = request.object.as_ref() else { return false };
    let response = match parse_policy(kind, object, &request) {
        Ok(policy) => {
            let before = request.old_object.as_ref().and_then(|old| parse_policy(kind, old, &request).ok());
            cluster_scope(&policy, before.as_ref());
            check_policy(&policy).map_or(response.clone(), |reason| response.deny(reason))
        }
        Err(reason) => {
            assert!(!reason.is_empty(), "a policy is denied without a reason");
            response.deny(reason)
        }
    };
    serde_json::to_string(&response.into_review()).expect("a response can be encoded");
    true
}

/// Returns why the policy is not admitted.
fn check_policy(policy: &Policy) -> Option<String> {
    let mut converter = Converter::new(CLUSTER, ServiceFilter::default());
    let objects = parse_manifests(OBJECTS.as_bytes(), ManifestFormat::Yaml, &mut converter);
    assert!(objects.refusals.is_empty(), "{:?}", objects.refusals);
    let mut state = ClusterState::with_rules(beeline_model::virtual_address::default_ranges(), Overlap::Refuse);
    state.push(objects.into_changes(), true, true);
    while state.advance() {}
    let denied = state.check_admission(policy).err().map(|finding| finding.to_string());
    assert!(denied.as_ref().is_none_or(|reason| !reason.is_empty()), "a policy is denied without a reason");
    state.start_leading();
    state.push(vec![Change::Upsert(Object::Policy(policy.clone()))], false, false);
    while state.advance() {}
    let evaluated = state.policy(&policy.name).map(|policy| state.evaluate(policy));
    assert!(evaluated.is_some(), "the policy is not stored");
    denied
}
