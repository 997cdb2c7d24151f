//! v1 Node to fact.

use super::name::is_subdomain;
use super::{Convert, Converted, Report, Unserved, address, entry, label};
use beeline_model::Address;
use beeline_model::fact::{self, AddressType};
use k8s_openapi::api::core::v1::{Node, NodeAddress};

const ZONE: &str = "topology.kubernetes.io/zone";
/// Set by the cluster autoscaler on a node that it is about to remove.
const TO_BE_DELETED: &str = "ToBeDeletedByClusterAutoscaler";
/// Where a node takes what is sent to its entry, set by an administrator.
pub(crate) const ENTRY_ADDRESS: &str = "beeline.dev/entry-address";
/// Where hosts outside the cluster reach a node, set by an administrator.
pub(crate) const OUTSIDE_ADDRESS: &str = "beeline.dev/outside-address";
/// KubeEdge's: nothing proxies there.
const EDGE: &str = "node-role.kubernetes.io/edge";

impl Convert {
    pub fn node(&mut self, object: &Node) -> Converted<fact::Node> {
        let mut report = Report::new("Node", &object.metadata);
        let fact = self.stand(object, &mut report);
        report.close(fact)
    }

    fn stand(&mut self, object: &Node, report: &mut Report) -> Result<fact::Node, Unserved> {
        let name = object.metadata.name.as_deref().filter(|name| is_subdomain(name));
        let name = name.ok_or_else(|| report.bad_name())?;
        let zone = label(&object.metadata, ZONE).filter(|zone| !zone.is_empty());
        Ok(fact::Node {
            cluster: self.cluster.clone(),
            name: self.names.word(name),
            addresses: addresses(object, report),
            zone: zone.map(|zone| self.names.word(zone)),
            eligible: object.metadata.deletion_timestamp.is_none() && !is_tainted(object),
            ready: is_ready(object),
            labels: self.labels(&object.metadata),
            entry: annotated(object, ENTRY_ADDRESS, report).into(),
            outside: annotated(object, OUTSIDE_ADDRESS, report).into(),
            edge: label(&object.metadata, EDGE).is_some(),
        })
    }
}

fn addresses(object: &Node, report: &mut Report) -> Vec<(AddressType, Address)> {
    let listed = object.status.iter().flat_map(|status| status.addresses.iter().flatten());
    let typed = listed.filter_map(|entry| address_type(entry).map(|kind| (kind, address::parse(&entry.address))));
    let keep = |(kind, address)| Some((kind, report.keep("badAddress", "status.addresses", address)?));
    typed.filter_map(keep).collect()
}

/// Hostname and DNS entries are names; nobody dials a NodePort by them at a socket.
fn address_type(entry: &NodeAddress) -> Option<AddressType> {
    match entry.type_.as_str() {
        "InternalIP" => Some(AddressType::Internal),
        "ExternalIP" => Some(AddressType::External),
        _ => None,
    }
}

/// One address, or one of each family with a comma between them.
fn annotated(object: &Node, annotation: &str, report: &mut Report) -> Vec<Address> {
    let given = entry(&object.metadata.annotations, annotation).unwrap_or_default();
    let texts = given.split(',').map(str::trim).filter(|text| !text.is_empty());
    let mut found: Vec<Address> = Vec::new();
    for text in texts {
        let Some(address) = report.keep("badAnnotation", annotation, address::parse(text)) else { continue };
        if found.iter().any(|other| other.family() == address.family()) {
            report.refuse("badAnnotation", format!("{annotation}: {address} is a second one of its family"));
        } else {
            found.push(address);
        }
    }
    found
}

/// One that says nothing of it (a manifest) is taken as ready.
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
    use crate::convert::Claim;

    fn convert(annotations: serde_json::Value, labels: serde_json::Value) -> Converted<fact::Node> {
        let meta = serde_json::json!({ "name": "n1", "annotations": annotations, "labels": labels });
        let node = serde_json::from_value(serde_json::json!({ "metadata": meta })).unwrap();
        Convert::new("blue", Claim::default()).node(&node)
    }

    #[test]
    fn where_it_is_reached_from_outside_and_whether_it_is_an_edge_node() {
        let given = serde_json::json!({ OUTSIDE_ADDRESS: "198.51.100.7, 2001:db8::7" });
        let node = convert(given, serde_json::json!({ EDGE: "" })).fact.unwrap();
        assert_eq!((node.outside.len(), node.entry.len(), node.edge), (2, 0, true));
        let twice = convert(serde_json::json!({ OUTSIDE_ADDRESS: "198.51.100.7,198.51.100.8" }), serde_json::json!({}));
        assert_eq!((twice.refusals.len(), twice.refusals[0].reason), (1, "badAnnotation"));
        let node = twice.fact.unwrap();
        assert_eq!((node.outside.len(), node.edge), (1, false));
    }
}
