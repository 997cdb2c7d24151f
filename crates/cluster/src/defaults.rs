//! The defaults that an API server sets, for manifests, which pass no API server: a file means what `kubectl apply` of
//! it would mean.
//!
//! The default of `targetPort` is left out, because the port of an endpoint comes from its slice. What an API server
//! allocates (a ClusterIP, a nodePort) cannot be defaulted; a manifest without it is refused.

use crate::convert::{DEFAULT_AFFINITY_SECONDS, RefusalCollector};
use crate::kind::ResourceKind;
use beeline_model::Family;
use beeline_model::address::parse_ip;
use beeline_model::refusal::{Refusal, RefusalReason};
use k8s_openapi::api::core::v1::{ClientIPConfig, Endpoints, Namespace, Service, ServiceSpec, SessionAffinityConfig};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::Value;

pub(crate) fn service(object: &mut Service) {
    namespace(&mut object.metadata);
    let spec = object.spec.get_or_insert_default();
    fill(&mut spec.type_, "ClusterIP");
    fill(&mut spec.session_affinity, "None");
    fill(&mut spec.external_traffic_policy, "Cluster");
    fill(&mut spec.internal_traffic_policy, "Cluster");
    affinity(spec);
    cluster_ips(spec);
    for port in spec.ports.iter_mut().flatten() {
        port.name.get_or_insert_default();
        fill(&mut port.protocol, "TCP");
    }
}

pub(crate) fn slice(object: &mut EndpointSlice) {
    namespace(&mut object.metadata);
    for port in object.ports.iter_mut().flatten() {
        port.name.get_or_insert_default();
        fill(&mut port.protocol, "TCP");
    }
}

pub(crate) fn endpoints(object: &mut Endpoints) {
    namespace(&mut object.metadata);
    let subsets = object.subsets.iter_mut().flatten();
    for port in subsets.flat_map(|subset| subset.ports.iter_mut().flatten()) {
        fill(&mut port.protocol, "TCP");
    }
}

/// The label by which a namespace can be selected by its name.
pub(crate) fn namespace_labels(object: &mut Namespace) {
    if let Some(name) = object.metadata.name.clone() {
        object.metadata.labels.get_or_insert_default().insert("kubernetes.io/metadata.name".into(), name);
    }
}

/// Removes fields that are null and have a default in the schema of policies. The defaults themselves are set when the
/// types are deserialized.
pub(crate) fn policy(value: &mut Value) {
    const DEFAULTED: [&str; 4] = ["config", "enableOutCluster", "protocol", "redirectMode"];
    match value {
        Value::Object(map) => {
            map.retain(|key, value| !(value.is_null() && DEFAULTED.contains(&key.as_str())));
            map.values_mut().for_each(policy);
        }
        Value::Array(items) => items.iter_mut().for_each(policy),
        _ => {}
    }
}

/// Refusals of the fields that an API server would have allocated.
pub(crate) fn refuse_unallocated(object: &Service) -> Vec<Refusal> {
    let mut refusals = RefusalCollector::new(ResourceKind::Service, &object.metadata);
    let Some(spec) = &object.spec else { return Vec::new() };
    let kind = spec.type_.as_deref().unwrap_or_default();
    if kind != "ExternalName" && spec.cluster_ip.as_deref().unwrap_or_default().is_empty() {
        let message = "spec.clusterIP: a manifest folder cannot allocate an address; write the address, or None";
        refusals.refuse(RefusalReason::NoClusterIp, message);
    }
    for port in spec.ports.iter().flatten().filter(|port| kind == "NodePort" && port.node_port.unwrap_or(0) == 0) {
        let message = format!("port {}: a manifest folder cannot allocate a nodePort; write the number", port.port);
        refusals.refuse(RefusalReason::NoNodePort, message);
    }
    refusals.into_refusals()
}

pub(crate) fn namespace(meta: &mut ObjectMeta) {
    fill(&mut meta.namespace, "default");
}

/// Sets an absent field. The API treats an empty string as absent.
fn fill(field: &mut Option<String>, value: &str) {
    if field.as_deref().unwrap_or_default().is_empty() {
        *field = Some(value.to_owned());
    }
}

fn affinity(spec: &mut ServiceSpec) {
    if spec.session_affinity.as_deref() != Some("ClientIP") {
        spec.session_affinity_config = None;
        return;
    }
    let config: &mut SessionAffinityConfig = spec.session_affinity_config.get_or_insert_default();
    let client: &mut ClientIPConfig = config.client_ip.get_or_insert_default();
    client.timeout_seconds.get_or_insert(DEFAULT_AFFINITY_SECONDS);
}

/// Fills `clusterIP` and `clusterIPs[0]` from each other, and `ipFamilies` from the addresses without a family.
fn cluster_ips(spec: &mut ServiceSpec) {
    let first = spec.cluster_ip.take().filter(|ip| !ip.is_empty());
    let ips = spec.cluster_ips.get_or_insert_default();
    if let (Some(first), true) = (&first, ips.is_empty()) {
        ips.push(first.clone());
    }
    spec.cluster_ip = first.or_else(|| ips.first().cloned());
    let families = spec.ip_families.get_or_insert_default();
    for ip in ips.iter().skip(families.len()) {
        // A malformed address gets any family, because the converter refuses the address.
        let family = parse_ip(ip).map_or(Family::V4, Family::of);
        families.push(family.to_string());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(text: &str) -> ServiceSpec {
        let mut object: Service = serde_saphyr::from_str(text).unwrap();
        service(&mut object);
        object.spec.unwrap()
    }

    #[test]
    fn an_empty_service_gets_the_defaults_of_the_api() {
        let spec = spec("metadata: {name: a}\nspec: {ports: [{port: 80}]}");
        let port = &spec.ports.as_ref().unwrap()[0];
        assert_eq!((port.name.as_deref(), port.protocol.as_deref()), (Some(""), Some("TCP")));
        assert_eq!(spec.type_.as_deref(), Some("ClusterIP"));
        assert_eq!(spec.session_affinity.as_deref(), Some("None"));
        assert_eq!(spec.external_traffic_policy.as_deref(), Some("Cluster"));
        assert_eq!(spec.cluster_ip, None);
    }

    #[test]
    fn cluster_ip_and_cluster_ips_fill_each_other() {
        let from_one = spec("spec: {clusterIP: 10.0.0.1}");
        assert_eq!(from_one.cluster_ips, Some(vec!["10.0.0.1".into()]));
        assert_eq!(from_one.ip_families, Some(vec!["IPv4".into()]));
        let from_many = spec("spec: {clusterIPs: ['fd00::1', 10.0.0.1]}");
        assert_eq!(from_many.cluster_ip.as_deref(), Some("fd00::1"));
        assert_eq!(from_many.ip_families, Some(vec!["IPv6".into(), "IPv4".into()]));
    }

    #[test]
    fn affinity_has_a_timeout_only_with_client_ip() {
        let seconds = |spec: ServiceSpec| spec.session_affinity_config.and_then(|c| c.client_ip?.timeout_seconds);
        assert_eq!(seconds(spec("spec: {sessionAffinity: ClientIP}")), Some(10_800));
        assert_eq!(seconds(spec("spec: {sessionAffinityConfig: {clientIP: {timeoutSeconds: 5}}}")), None);
    }

    #[test]
    fn fields_that_only_an_api_server_can_allocate_are_refused() {
        let reasons = |text: &str| {
            let mut object: Service = serde_saphyr::from_str(text).unwrap();
            service(&mut object);
            refuse_unallocated(&object).iter().map(|refusal| refusal.reason).collect::<Vec<_>>()
        };
        assert_eq!(reasons("spec: {ports: [{port: 80}]}"), ["noClusterIP"]);
        assert_eq!(reasons("spec: {type: NodePort, clusterIP: 10.0.0.1, ports: [{port: 80}]}"), ["noNodePort"]);
        assert!(reasons("spec: {type: ExternalName, externalName: a.b}").is_empty());
        assert!(reasons("spec: {clusterIP: None}").is_empty());
    }
}
