//! The EndpointSlices that the controller publishes, written and read: the backends of BalancingPolicies in the
//! namespace of the policy, and node addresses in the namespace of the controller. Neither has the label of a Service,
//! so no other proxy uses them.
//!
//! A user who may write EndpointSlices can write one that looks like these. So a slice of a policy must have the policy
//! as its owner (the planner compares the uid), and a slice of nodes must be in the controller's namespace. Others are
//! refused.

use super::name::is_subdomain;
use super::{Converted, Converter, RefusalCollector, SERVICE_NAME, Unserved, address, entry, label};
use crate::kind::ResourceKind;
use crate::policy::{API_VERSION, GROUP, MAX_NAME};
use beeline_model::Family;
use beeline_model::object::{self, SlicePort};
use beeline_model::policy::{PolicyKind, PolicyName, PolicyShape, PolicySlice};
use beeline_model::publish::{NodeAddress, NodeEndpoint, NodeSlice};
use beeline_model::refusal::RefusalReason;
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointConditions, EndpointPort, EndpointSlice};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

/// Label of a slice of backends: the name of the policy.
pub const POLICY: &str = "beeline.dev/policy";
/// Annotation of a slice of backends: the shape of the policy that it was computed for.
pub(crate) const SHAPE: &str = "beeline.dev/shape";
/// Label of a slice of nodes: the type of the addresses.
pub const NODES: &str = "beeline.dev/nodes";
pub const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
pub const MANAGER: &str = "beeline.dev";

/// What an EndpointSlice describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    Service,
    Policy,
    Nodes,
}

/// A slice with the label of a Service belongs to that Service, whatever other labels it has.
pub(crate) fn purpose(object: &EndpointSlice) -> Purpose {
    let has = |key| label(&object.metadata, key).is_some();
    match () {
        () if has(SERVICE_NAME) => Purpose::Service,
        () if has(POLICY) => Purpose::Policy,
        () if has(NODES) => Purpose::Nodes,
        () => Purpose::Service,
    }
}

impl Converter {
    pub fn policy_slice(&mut self, object: &EndpointSlice) -> Converted<PolicySlice> {
        let mut refusals = RefusalCollector::new(ResourceKind::EndpointSlice, &object.metadata);
        let result = self.parse_policy_slice(object, &mut refusals);
        refusals.finish(result)
    }

    /// Slices outside `namespace`, the controller's, are refused.
    pub fn node_slice(&mut self, object: &EndpointSlice, namespace: &str) -> Converted<NodeSlice> {
        let mut refusals = RefusalCollector::new(ResourceKind::EndpointSlice, &object.metadata);
        let result = self.parse_node_slice(object, namespace, &mut refusals);
        refusals.finish(result)
    }

    fn parse_policy_slice(
        &mut self,
        object: &EndpointSlice,
        refusals: &mut RefusalCollector,
    ) -> Result<PolicySlice, Unserved> {
        let name = self.slice_name(object).ok_or_else(|| refusals.refuse_name())?;
        let named = label(&object.metadata, POLICY).unwrap_or_default();
        if !is_subdomain(named) || named.len() > MAX_NAME {
            return Err(refusals
                .refuse_all(RefusalReason::BadName, format!("label {POLICY}: {named:?} is not the name of a policy")));
        }
        let owner = owner(object).ok_or_else(|| {
            let message = format!("it has the label {POLICY}, but no BalancingPolicy as its controller");
            refusals.refuse_all(RefusalReason::NotOwned, message)
        })?;
        if owner.name != named || owner.uid.is_empty() {
            let message = format!("label {POLICY} is {named}, but its owner is {} ({})", owner.name, owner.uid);
            return Err(refusals.refuse_all(RefusalReason::NotOwned, message));
        }
        let family = family(object, refusals)?;
        let policy = PolicyName {
            kind: PolicyKind::Balancing,
            cluster: self.cluster.clone(),
            namespace: name.namespace.clone(),
            name: self.names.intern(named),
        };
        let endpoints = object.endpoints.iter().enumerate().filter_map(|(i, endpoint)| {
            let parsed = self.endpoint(endpoint, family);
            refusals.accept(RefusalReason::BadEndpoint, &format!("endpoints[{i}]"), parsed)
        });
        let endpoints = endpoints.collect();
        let ports = self.slice_ports(object, refusals);
        let (uid, shape) = (owner.uid.as_str().into(), shape(object));
        Ok(PolicySlice { name, policy, uid, shape, family, ports, endpoints })
    }

    fn parse_node_slice(
        &mut self,
        object: &EndpointSlice,
        namespace: &str,
        refusals: &mut RefusalCollector,
    ) -> Result<NodeSlice, Unserved> {
        let name = self.slice_name(object).ok_or_else(|| refusals.refuse_name())?;
        if &*name.namespace != namespace {
            let message = format!("node addresses are read in namespace {namespace} only (--controller-namespace)");
            return Err(refusals.refuse_all(RefusalReason::WrongNamespace, message));
        }
        let text = label(&object.metadata, NODES).unwrap_or_default();
        let kind = NodeAddress::ALL.into_iter().find(|kind| label_value(*kind) == text).ok_or_else(|| {
            let message = format!("label {NODES}: {text:?} is none of InternalIP, ExternalIP and Entry");
            refusals.refuse_all(RefusalReason::BadLabel, message)
        })?;
        let family = family(object, refusals)?;
        let endpoints = object.endpoints.iter().enumerate().filter_map(|(i, endpoint)| {
            let parsed = self.node_endpoint(endpoint, family);
            refusals.accept(RefusalReason::BadEndpoint, &format!("endpoints[{i}]"), parsed)
        });
        Ok(NodeSlice { name: name.name, kind, family, endpoints: endpoints.collect() })
    }

    fn node_endpoint(&mut self, endpoint: &Endpoint, family: Family) -> Result<NodeEndpoint, String> {
        let text = endpoint.addresses.first().ok_or("it has no address")?;
        let address = address::parse_plain(text)?;
        if address.family() != family {
            return Err(format!("{text} is not an {family} address, which addressType requires"));
        }
        let conditions = endpoint.conditions.clone().unwrap_or_default();
        Ok(NodeEndpoint {
            node: self.node_name(endpoint.node_name.as_deref())?.ok_or("it has no nodeName")?,
            address,
            zone: endpoint.zone.as_deref().filter(|zone| !zone.is_empty()).map(|zone| self.names.intern(zone)),
            ready: conditions.ready.unwrap_or(true),
            eligible: !conditions.terminating.unwrap_or(false),
        })
    }
}

fn family(object: &EndpointSlice, refusals: &mut RefusalCollector) -> Result<Family, Unserved> {
    let family = address::parse_family(&object.address_type);
    family.map_err(|why| refusals.refuse_all(RefusalReason::BadFamily, format!("addressType: {why}")))
}

fn owner(object: &EndpointSlice) -> Option<&OwnerReference> {
    let is_policy = |owner: &&OwnerReference| {
        let group = owner.api_version.split_once('/').map(|(group, _)| group);
        owner.controller == Some(true) && group == Some(GROUP) && owner.kind == "BalancingPolicy"
    };
    object.metadata.owner_references.iter().flatten().find(is_policy)
}

fn shape(object: &EndpointSlice) -> Option<PolicyShape> {
    entry(&object.metadata.annotations, SHAPE).and_then(PolicyShape::from_text)
}

fn label_value(kind: NodeAddress) -> &'static str {
    match kind {
        NodeAddress::Internal => "InternalIP",
        NodeAddress::External => "ExternalIP",
        NodeAddress::Entry => "Entry",
    }
}

/// The EndpointSlice that the controller writes.
pub fn policy_slice_object(slice: &PolicySlice) -> EndpointSlice {
    let owner = OwnerReference {
        api_version: API_VERSION.into(),
        kind: slice.policy.kind.to_string(),
        name: slice.policy.name.to_string(),
        uid: slice.uid.to_string(),
        controller: Some(true),
        block_owner_deletion: None,
    };
    EndpointSlice {
        metadata: ObjectMeta {
            name: Some(slice.name.name.to_string()),
            namespace: Some(slice.name.namespace.to_string()),
            labels: Some([(POLICY.into(), slice.policy.name.to_string()), managed()].into()),
            annotations: slice.shape.map(|shape| [(SHAPE.into(), shape.to_string())].into()),
            owner_references: Some(vec![owner]),
            ..ObjectMeta::default()
        },
        address_type: slice.family.to_string(),
        endpoints: slice.endpoints.iter().map(endpoint_object).collect(),
        ports: Some(slice.ports.iter().map(port_object).collect()),
    }
}

pub fn node_slice_object(slice: &NodeSlice, namespace: &str) -> EndpointSlice {
    EndpointSlice {
        metadata: ObjectMeta {
            name: Some(slice.name.to_string()),
            namespace: Some(namespace.into()),
            labels: Some([(NODES.into(), label_value(slice.kind).into()), managed()].into()),
            ..ObjectMeta::default()
        },
        address_type: slice.family.to_string(),
        endpoints: slice.endpoints.iter().map(node_object).collect(),
        ports: Some(Vec::new()),
    }
}

fn managed() -> (String, String) {
    (MANAGED_BY.into(), MANAGER.into())
}

fn endpoint_object(endpoint: &object::Endpoint) -> Endpoint {
    Endpoint {
        addresses: vec![endpoint.address.to_string()],
        conditions: Some(EndpointConditions {
            ready: Some(endpoint.ready),
            serving: Some(endpoint.serving),
            terminating: Some(endpoint.terminating),
        }),
        node_name: endpoint.node.as_ref().map(ToString::to_string),
        ..Endpoint::default()
    }
}

fn node_object(endpoint: &NodeEndpoint) -> Endpoint {
    Endpoint {
        addresses: vec![endpoint.address.to_string()],
        conditions: Some(EndpointConditions {
            ready: Some(endpoint.ready),
            serving: None,
            terminating: Some(!endpoint.eligible),
        }),
        node_name: Some(endpoint.node.to_string()),
        zone: endpoint.zone.as_ref().map(ToString::to_string),
        ..Endpoint::default()
    }
}

fn port_object(port: &SlicePort) -> EndpointPort {
    EndpointPort {
        name: Some(port.name.to_string()),
        protocol: Some(port.protocol.to_string()),
        port: Some(i32::from(port.port)),
        app_protocol: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ServiceFilter;
    use beeline_model::object::SliceName;
    use beeline_model::policy::RedirectMode;
    use beeline_model::{Address, Protocol};

    fn converter() -> Converter {
        Converter::new("local", ServiceFilter::default())
    }

    fn ip(text: &str) -> Address {
        address::parse(text).unwrap()
    }

    fn backends() -> PolicySlice {
        let policy = PolicyName {
            kind: PolicyKind::Balancing,
            cluster: "local".into(),
            namespace: "shop".into(),
            name: "api".into(),
        };
        let endpoint =
            |text: &str| object::Endpoint { node: Some("node-1".into()), ..object::Endpoint::ready(ip(text)) };
        PolicySlice {
            name: SliceName { cluster: "local".into(), namespace: "shop".into(), name: "api-1a2b-0".into() },
            policy,
            uid: "1a2b".into(),
            shape: Some(PolicyShape { mode: RedirectMode::HostPort, ports: 0x0123_4567_89ab_cdef }),
            family: Family::V4,
            ports: [SlicePort { name: "http".into(), protocol: Protocol::Tcp, port: 8080 }].into(),
            endpoints: [endpoint("10.0.0.1"), endpoint("10.0.0.2")].into(),
        }
    }

    #[test]
    fn published_backends_are_read_back_unchanged() {
        let slice = backends();
        let object = policy_slice_object(&slice);
        assert_eq!(purpose(&object), Purpose::Policy);
        let read = converter().policy_slice(&object);
        assert_eq!((read.result, read.refusals), (Ok(slice), vec![]));
    }

    #[test]
    fn a_policy_name_may_contain_a_dot_and_an_invalid_shape_is_read_as_none() {
        let mut slice = backends();
        slice.policy.name = "api.v2".into();
        let mut object = policy_slice_object(&slice);
        assert_eq!(converter().policy_slice(&object).result, Ok(slice.clone()));
        for odd in ["", "x", "-1", "podEndpoint", "podendpoint-1", "hostPort-x", "hostPort-10123456789abcdef"] {
            object.metadata.annotations = Some([(SHAPE.into(), odd.into())].into());
            assert_eq!(converter().policy_slice(&object).result.unwrap().shape, None, "{odd}");
        }
        object.metadata.annotations = None;
        assert_eq!(converter().policy_slice(&object).result.unwrap().shape, None);
    }

    #[test]
    fn published_nodes_are_read_back_unchanged() {
        let endpoint = |node: &str, text: &str| NodeEndpoint {
            node: node.into(),
            address: ip(text),
            zone: Some("z1".into()),
            ready: node == "n1",
            eligible: node != "n1",
        };
        for (kind, family, one, two) in [
            (NodeAddress::Internal, Family::V4, "172.31.0.11", "172.31.0.12"),
            (NodeAddress::External, Family::V6, "fd00::1", "fd00::2"),
            (NodeAddress::Entry, Family::V4, "10.9.0.1", "10.9.0.2"),
        ] {
            let endpoints = [endpoint("n1", one), endpoint("n2", two)].into();
            let slice = NodeSlice { name: "beeline-nodes-0".into(), kind, family, endpoints };
            let object = node_slice_object(&slice, "kube-system");
            assert_eq!(purpose(&object), Purpose::Nodes);
            assert_eq!(converter().node_slice(&object, "kube-system").result, Ok(slice));
        }
    }

    fn refusal_reason(change: impl FnOnce(&mut EndpointSlice)) -> &'static str {
        let mut object = policy_slice_object(&backends());
        change(&mut object);
        let read = converter().policy_slice(&object);
        assert_eq!(read.result, Err(Unserved::Refused));
        read.refusals[0].reason.as_str()
    }

    #[test]
    fn a_slice_without_the_policy_as_owner_is_refused() {
        let owner = |o: &mut EndpointSlice, change: fn(&mut OwnerReference)| {
            change(&mut o.metadata.owner_references.as_mut().unwrap()[0]);
        };
        assert_eq!(refusal_reason(|o| o.metadata.owner_references = None), "notOwned");
        assert_eq!(refusal_reason(|o| owner(o, |owner| owner.name = "other".into())), "notOwned");
        assert_eq!(refusal_reason(|o| owner(o, |owner| owner.uid.clear())), "notOwned");
        assert_eq!(refusal_reason(|o| owner(o, |owner| owner.controller = None)), "notOwned");
        assert_eq!(refusal_reason(|o| owner(o, |owner| owner.kind = "LocalRedirectPolicy".into())), "notOwned");
        assert_eq!(refusal_reason(|o| owner(o, |owner| owner.api_version = "example.com/v1".into())), "notOwned");
        let relabel = |o: &mut EndpointSlice, to: &str| {
            o.metadata.labels.as_mut().unwrap().insert(POLICY.into(), to.into());
        };
        assert_eq!(refusal_reason(|o| relabel(o, "other")), "notOwned");
        assert_eq!(refusal_reason(|o| relabel(o, "../x")), "badName");
        assert_eq!(refusal_reason(|o| relabel(o, &"a.".repeat(32))), "badName");
        assert_eq!(refusal_reason(|o| o.address_type = "FQDN".into()), "badFamily");
    }

    #[test]
    fn a_forged_address_is_refused_and_the_service_label_takes_precedence() {
        let mut object = policy_slice_object(&backends());
        object.endpoints[0].addresses = vec!["169.254.169.254".into()];
        let read = converter().policy_slice(&object);
        assert_eq!((read.result.unwrap().endpoints.len(), read.refusals[0].reason), (1, RefusalReason::BadEndpoint));
        object.metadata.labels.as_mut().unwrap().insert(SERVICE_NAME.into(), "web".into());
        assert_eq!(purpose(&object), Purpose::Service);
    }

    #[test]
    fn node_slices_outside_the_namespace_of_the_controller_are_refused() {
        let slice = NodeSlice {
            name: "beeline-nodes-0".into(),
            kind: NodeAddress::Internal,
            family: Family::V4,
            endpoints: [].into(),
        };
        let read = converter().node_slice(&node_slice_object(&slice, "shop"), "kube-system");
        assert_eq!(read.refusals[0].reason, "wrongNamespace");
        let mut object = node_slice_object(&slice, "kube-system");
        object.metadata.labels.as_mut().unwrap().insert(NODES.into(), "Hostname".into());
        assert_eq!(converter().node_slice(&object, "kube-system").refusals[0].reason, "badLabel");
    }
}
