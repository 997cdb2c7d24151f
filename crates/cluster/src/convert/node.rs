//! Converts v1 Nodes.

use super::name::is_subdomain;
use super::range::parse as parse_range;
use super::{Converted, Converter, RefusalCollector, Unserved, address, entry, label};
use crate::kind::ResourceKind;
use beeline_model::Address;
use beeline_model::object::{self, AddressType};
use beeline_model::refusal::RefusalReason;
use ipnet::IpNet;
use k8s_openapi::api::core::v1::{Node, NodeAddress};

const ZONE: &str = "topology.kubernetes.io/zone";
/// Set by the cluster autoscaler on a node that it is about to remove.
const TO_BE_DELETED: &str = "ToBeDeletedByClusterAutoscaler";
/// The address of a node for traffic of policies with redirectMode nodeProxy, set by an administrator.
pub(crate) const ENTRY_ADDRESS: &str = "beeline.dev/entry-address";
/// The address at which hosts outside the cluster reach a node, set by an administrator.
pub(crate) const OUTSIDE_ADDRESS: &str = "beeline.dev/outside-address";
/// KubeEdge's label of edge nodes, which run no proxy.
const EDGE: &str = "node-role.kubernetes.io/edge";

impl Converter {
    pub fn node(&mut self, object: &Node) -> Converted<object::Node> {
        let mut refusals = RefusalCollector::new(ResourceKind::Node, &object.metadata);
        let result = self.parse_node(object, &mut refusals);
        refusals.finish(result)
    }

    fn parse_node(&mut self, object: &Node, refusals: &mut RefusalCollector) -> Result<object::Node, Unserved> {
        let name = object.metadata.name.as_deref().filter(|name| is_subdomain(name));
        let name = name.ok_or_else(|| refusals.refuse_name())?;
        let zone = label(&object.metadata, ZONE).filter(|zone| !zone.is_empty());
        Ok(object::Node {
            cluster: self.cluster.clone(),
            name: self.names.intern(name),
            addresses: addresses(object, refusals),
            zone: zone.map(|zone| self.names.intern(zone)),
            eligible: object.metadata.deletion_timestamp.is_none() && !is_tainted(object),
            ready: is_ready(object),
            labels: self.labels(&object.metadata),
            entry: annotated(object, ENTRY_ADDRESS, refusals).into(),
            outside: annotated(object, OUTSIDE_ADDRESS, refusals).into(),
            edge: label(&object.metadata, EDGE).is_some(),
            pod_ranges: pod_ranges(object, refusals),
        })
    }
}

fn addresses(object: &Node, refusals: &mut RefusalCollector) -> Vec<(AddressType, Address)> {
    let listed = object.status.iter().flat_map(|status| status.addresses.iter().flatten());
    let typed = listed.filter_map(|entry| address_type(entry).map(|kind| (kind, address::parse(&entry.address))));
    let mut accept = |address| refusals.accept(RefusalReason::BadAddress, "status.addresses", address);
    typed.filter_map(|(kind, address)| Some((kind, accept(address)?))).collect()
}

/// `podCIDRs` contains `podCIDR`, which older objects have alone.
fn pod_ranges(object: &Node, refusals: &mut RefusalCollector) -> Box<[IpNet]> {
    let Some(spec) = &object.spec else { return Box::default() };
    let all = spec.pod_cidrs.as_deref().filter(|all| !all.is_empty());
    let texts = all.unwrap_or(spec.pod_cidr.as_slice()).iter().filter(|text| !text.is_empty());
    texts.filter_map(|text| refusals.accept(RefusalReason::BadRange, "spec.podCIDRs", parse_range(text))).collect()
}

/// `None` for entries that are names: a socket dials addresses only.
fn address_type(entry: &NodeAddress) -> Option<AddressType> {
    match entry.type_.as_str() {
        "InternalIP" => Some(AddressType::Internal),
        "ExternalIP" => Some(AddressType::External),
        _ => None,
    }
}

/// One address, or one address of each family separated by a comma.
fn annotated(object: &Node, annotation: &str, refusals: &mut RefusalCollector) -> Vec<Address> {
    let given = entry(&object.metadata.annotations, annotation).unwrap_or_default();
    let texts = given.split(',').map(str::trim).filter(|text| !text.is_empty());
    let mut found: Vec<Address> = Vec::new();
    for text in texts {
        let Some(address) = refusals.accept(RefusalReason::BadAnnotation, annotation, address::parse(text)) else {
            continue;
        };
        if found.iter().any(|other| other.family() == address.family()) {
            refusals.refuse(
                RefusalReason::BadAnnotation,
                format!("{annotation}: {address} is a second address of its family"),
            );
        } else {
            found.push(address);
        }
    }
    found
}

/// A Node without the condition (in a manifest) counts as ready.
fn is_ready(object: &Node) -> bool {
    let mut conditions = object.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.find(|condition| condition.type_ == "Ready").is_none_or(|condition| condition.status == "True")
}

fn is_tainted(object: &Node) -> bool {
    let mut taints = object.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
    taints.any(|taint| taint.key == TO_BE_DELETED)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::convert::ServiceFilter;

    fn convert(annotations: serde_json::Value, labels: serde_json::Value) -> Converted<object::Node> {
        let meta = serde_json::json!({ "name": "n1", "annotations": annotations, "labels": labels });
        let node = serde_json::from_value(serde_json::json!({ "metadata": meta })).unwrap();
        Converter::new("blue", ServiceFilter::default()).node(&node)
    }

    #[test]
    fn pod_ranges_of_both_families_are_read_and_an_invalid_one_is_refused() {
        let convert = |spec: serde_json::Value| {
            let node = serde_json::json!({ "metadata": { "name": "n1" }, "spec": spec });
            Converter::new("blue", ServiceFilter::default()).node(&serde_json::from_value(node).unwrap())
        };
        let ranges =
            |spec| convert(spec).result.unwrap().pod_ranges.iter().map(ToString::to_string).collect::<Vec<_>>();
        let both = serde_json::json!({ "podCIDR": "10.244.1.0/24", "podCIDRs": ["10.244.1.0/24", "fd00:244:1::/64"] });
        assert_eq!(ranges(both), ["10.244.1.0/24", "fd00:244:1::/64"]);
        assert_eq!(ranges(serde_json::json!({ "podCIDR": "10.244.1.0/24" })), ["10.244.1.0/24"]);
        assert_eq!(ranges(serde_json::json!({})), [""; 0]);
        let bad = convert(serde_json::json!({ "podCIDRs": ["10.244.1.0/99"] }));
        assert_eq!((bad.refusals.len(), bad.refusals[0].reason), (1, RefusalReason::BadRange));
    }

    #[test]
    fn the_outside_address_and_the_edge_label_are_read() {
        let given = serde_json::json!({ OUTSIDE_ADDRESS: "198.51.100.7, 2001:db8::7" });
        let node = convert(given, serde_json::json!({ EDGE: "" })).result.unwrap();
        assert_eq!((node.outside.len(), node.entry.len(), node.edge), (2, 0, true));
        let twice = convert(serde_json::json!({ OUTSIDE_ADDRESS: "198.51.100.7,198.51.100.8" }), serde_json::json!({}));
        assert_eq!((twice.refusals.len(), twice.refusals[0].reason), (1, RefusalReason::BadAnnotation));
        let node = twice.result.unwrap();
        assert_eq!((node.outside.len(), node.edge), (1, false));
    }
}
