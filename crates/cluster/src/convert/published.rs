//! What the controller publishes, as EndpointSlices, both ways: backends of BalancingPolicies in the policy's namespace,
//! and nodes' addresses in the controller's. Neither has a Service's label, so no other proxy takes them for its own.
//!
//! Anybody who may write EndpointSlices can write one that looks like these. What counts is an owner (its uid is compared
//! where the policy is known) and, for nodes, the namespace; what lacks them is ignored, with a reason.

use super::name::is_subdomain;
use super::{Convert, Converted, Report, SERVICE_NAME, Unserved, address, entry, label};
use crate::policy::{API_VERSION, GROUP, MAX_NAME};
use beeline_model::Family;
use beeline_model::fact::{self, SlicePort};
use beeline_model::policy::{PolicyKind, PolicyName, PolicySlice, Shape};
use beeline_model::publish::{NodeAddress, NodeEndpoint, NodeSlice};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointConditions, EndpointPort, EndpointSlice};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

/// On a slice of backends: the policy's name.
pub const POLICY: &str = "beeline.dev/policy";
/// On a slice of backends, as an annotation: the shape of the policy that it was made for.
pub(crate) const SHAPE: &str = "beeline.dev/shape";
/// On a slice of nodes: which of their addresses.
pub const NODES: &str = "beeline.dev/nodes";
pub const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
pub const MANAGER: &str = "beeline.dev";

/// What an EndpointSlice is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    Service,
    Policy,
    Nodes,
}

/// A Service's slice stays one, whatever other labels it is given.
pub(crate) fn purpose(object: &EndpointSlice) -> Purpose {
    let has = |key| label(&object.metadata, key).is_some();
    match () {
        () if has(SERVICE_NAME) => Purpose::Service,
        () if has(POLICY) => Purpose::Policy,
        () if has(NODES) => Purpose::Nodes,
        () => Purpose::Service,
    }
}

impl Convert {
    pub fn policy_slice(&mut self, object: &EndpointSlice) -> Converted<PolicySlice> {
        let mut report = Report::new("EndpointSlice", &object.metadata);
        let fact = self.cut_policy(object, &mut report);
        report.close(fact)
    }

    /// `namespace`: the controller's. Slices elsewhere say nothing of nodes.
    pub fn node_slice(&mut self, object: &EndpointSlice, namespace: &str) -> Converted<NodeSlice> {
        let mut report = Report::new("EndpointSlice", &object.metadata);
        let fact = self.cut_nodes(object, namespace, &mut report);
        report.close(fact)
    }

    fn cut_policy(&mut self, object: &EndpointSlice, report: &mut Report) -> Result<PolicySlice, Unserved> {
        let name = self.slice_name(object).ok_or_else(|| report.bad_name())?;
        let named = label(&object.metadata, POLICY).unwrap_or_default();
        if !is_subdomain(named) || named.len() > MAX_NAME {
            return Err(report.stop("badName", format!("label {POLICY}: {named:?} is no policy's name")));
        }
        let owner = owner(object).ok_or_else(|| {
            report.stop("notOwned", format!("it has the label {POLICY}, but no BalancingPolicy as its controller"))
        })?;
        if owner.name != named || owner.uid.is_empty() {
            let why = format!("label {POLICY} says {named}, but its owner is {} ({})", owner.name, owner.uid);
            return Err(report.stop("notOwned", why));
        }
        let family = family(object, report)?;
        let policy = PolicyName {
            kind: PolicyKind::Balancing,
            cluster: self.cluster.clone(),
            namespace: name.namespace.clone(),
            name: self.names.word(named),
        };
        let endpoints = object.endpoints.iter().enumerate().filter_map(|(i, endpoint)| {
            let parsed = self.endpoint(endpoint, family);
            report.keep("badEndpoint", &format!("endpoints[{i}]"), parsed)
        });
        let endpoints = endpoints.collect();
        let ports = self.slice_ports(object, report);
        let (uid, shape) = (owner.uid.as_str().into(), shape(object));
        Ok(PolicySlice { name, policy, uid, shape, family, ports, endpoints })
    }

    fn cut_nodes(
        &mut self,
        object: &EndpointSlice,
        namespace: &str,
        report: &mut Report,
    ) -> Result<NodeSlice, Unserved> {
        let name = self.slice_name(object).ok_or_else(|| report.bad_name())?;
        if &*name.namespace != namespace {
            let why = format!("nodes' addresses are read in the namespace {namespace} only (--controller-namespace)");
            return Err(report.stop("wrongNamespace", why));
        }
        let said = label(&object.metadata, NODES).unwrap_or_default();
        let kind = NodeAddress::ALL.into_iter().find(|kind| word(*kind) == said).ok_or_else(|| {
            report.stop("badLabel", format!("label {NODES}: {said:?} is none of InternalIP, ExternalIP and Entry"))
        })?;
        let family = family(object, report)?;
        let endpoints = object.endpoints.iter().enumerate().filter_map(|(i, endpoint)| {
            let parsed = self.node_endpoint(endpoint, family);
            report.keep("badEndpoint", &format!("endpoints[{i}]"), parsed)
        });
        Ok(NodeSlice { name: name.name, kind, family, endpoints: endpoints.collect() })
    }

    fn node_endpoint(&mut self, endpoint: &Endpoint, family: Family) -> Result<NodeEndpoint, String> {
        let text = endpoint.addresses.first().ok_or("it has no address")?;
        let address = address::parse_plain(text)?;
        if address.family() != family {
            return Err(format!("{text} is not {family}, as addressType says"));
        }
        let conditions = endpoint.conditions.clone().unwrap_or_default();
        Ok(NodeEndpoint {
            node: self.node_name(endpoint.node_name.as_deref())?.ok_or("it has no nodeName")?,
            address,
            zone: endpoint.zone.as_deref().filter(|zone| !zone.is_empty()).map(|zone| self.names.word(zone)),
            ready: conditions.ready.unwrap_or(true),
            eligible: !conditions.terminating.unwrap_or(false),
        })
    }
}

fn family(object: &EndpointSlice, report: &mut Report) -> Result<Family, Unserved> {
    address::parse_family(&object.address_type).map_err(|why| report.stop("badFamily", format!("addressType: {why}")))
}

fn owner(object: &EndpointSlice) -> Option<&OwnerReference> {
    let ours = |owner: &&OwnerReference| {
        let group = owner.api_version.split_once('/').map(|(group, _)| group);
        owner.controller == Some(true) && group == Some(GROUP) && owner.kind == "BalancingPolicy"
    };
    object.metadata.owner_references.iter().flatten().find(ours)
}

fn shape(object: &EndpointSlice) -> Option<Shape> {
    entry(&object.metadata.annotations, SHAPE).and_then(Shape::from_text)
}

fn word(kind: NodeAddress) -> &'static str {
    match kind {
        NodeAddress::Internal => "InternalIP",
        NodeAddress::External => "ExternalIP",
        NodeAddress::Entry => "Entry",
    }
}

/// As the controller writes it.
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
            labels: Some([(NODES.into(), word(slice.kind).into()), managed()].into()),
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

fn endpoint_object(endpoint: &fact::Endpoint) -> Endpoint {
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
    use crate::Claim;
    use beeline_model::fact::SliceName;
    use beeline_model::policy::RedirectMode;
    use beeline_model::{Address, Protocol};

    fn convert() -> Convert {
        Convert::new("local", Claim::default())
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
        let endpoint = |text: &str| fact::Endpoint {
            address: ip(text),
            ready: true,
            serving: true,
            terminating: false,
            node: Some("node-1".into()),
            hints: None,
        };
        PolicySlice {
            name: SliceName { cluster: "local".into(), namespace: "shop".into(), name: "api-1a2b-0".into() },
            policy,
            uid: "1a2b".into(),
            shape: Some(Shape { mode: RedirectMode::HostPort, ports: 0x0123_4567_89ab_cdef }),
            family: Family::V4,
            ports: [SlicePort { name: "http".into(), protocol: Protocol::Tcp, port: 8080 }].into(),
            endpoints: [endpoint("10.0.0.1"), endpoint("10.0.0.2")].into(),
        }
    }

    #[test]
    fn backends_there_and_back() {
        let said = backends();
        let object = policy_slice_object(&said);
        assert_eq!(purpose(&object), Purpose::Policy);
        let read = convert().policy_slice(&object);
        assert_eq!((read.fact, read.refusals), (Ok(said), vec![]));
    }

    #[test]
    fn a_policys_name_may_have_a_dot_and_a_slice_without_a_shape_is_for_none() {
        let mut said = backends();
        said.policy.name = "api.v2".into();
        let mut object = policy_slice_object(&said);
        assert_eq!(convert().policy_slice(&object).fact, Ok(said.clone()));
        for odd in ["", "x", "-1", "podEndpoint", "podendpoint-1", "hostPort-x", "hostPort-10123456789abcdef"] {
            object.metadata.annotations = Some([(SHAPE.into(), odd.into())].into());
            assert_eq!(convert().policy_slice(&object).fact.unwrap().shape, None, "{odd}");
        }
        object.metadata.annotations = None;
        assert_eq!(convert().policy_slice(&object).fact.unwrap().shape, None);
    }

    #[test]
    fn nodes_there_and_back() {
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
            let said = NodeSlice { name: "beeline-nodes-0".into(), kind, family, endpoints };
            let object = node_slice_object(&said, "kube-system");
            assert_eq!(purpose(&object), Purpose::Nodes);
            assert_eq!(convert().node_slice(&object, "kube-system").fact, Ok(said));
        }
    }

    fn refused(change: impl FnOnce(&mut EndpointSlice)) -> &'static str {
        let mut object = policy_slice_object(&backends());
        change(&mut object);
        let read = convert().policy_slice(&object);
        assert_eq!(read.fact, Err(Unserved::Refused));
        read.refusals[0].reason
    }

    #[test]
    fn what_is_not_owned_does_not_count() {
        let owner = |o: &mut EndpointSlice, change: fn(&mut OwnerReference)| {
            change(&mut o.metadata.owner_references.as_mut().unwrap()[0]);
        };
        assert_eq!(refused(|o| o.metadata.owner_references = None), "notOwned");
        assert_eq!(refused(|o| owner(o, |owner| owner.name = "other".into())), "notOwned");
        assert_eq!(refused(|o| owner(o, |owner| owner.uid.clear())), "notOwned");
        assert_eq!(refused(|o| owner(o, |owner| owner.controller = None)), "notOwned");
        assert_eq!(refused(|o| owner(o, |owner| owner.kind = "LocalRedirectPolicy".into())), "notOwned");
        assert_eq!(refused(|o| owner(o, |owner| owner.api_version = "example.com/v1".into())), "notOwned");
        let relabel = |o: &mut EndpointSlice, to: &str| {
            o.metadata.labels.as_mut().unwrap().insert(POLICY.into(), to.into());
        };
        assert_eq!(refused(|o| relabel(o, "other")), "notOwned");
        assert_eq!(refused(|o| relabel(o, "../x")), "badName");
        assert_eq!(refused(|o| relabel(o, &"a.".repeat(32))), "badName");
        assert_eq!(refused(|o| o.address_type = "FQDN".into()), "badFamily");
    }

    #[test]
    fn a_forged_address_is_left_out_and_a_services_slice_stays_one() {
        let mut object = policy_slice_object(&backends());
        object.endpoints[0].addresses = vec!["169.254.169.254".into()];
        let read = convert().policy_slice(&object);
        assert_eq!((read.fact.unwrap().endpoints.len(), read.refusals[0].reason), (1, "badEndpoint"));
        object.metadata.labels.as_mut().unwrap().insert(SERVICE_NAME.into(), "web".into());
        assert_eq!(purpose(&object), Purpose::Service);
    }

    #[test]
    fn nodes_are_read_in_one_namespace_only() {
        let said = NodeSlice {
            name: "beeline-nodes-0".into(),
            kind: NodeAddress::Internal,
            family: Family::V4,
            endpoints: [].into(),
        };
        let read = convert().node_slice(&node_slice_object(&said, "shop"), "kube-system");
        assert_eq!(read.refusals[0].reason, "wrongNamespace");
        let mut object = node_slice_object(&said, "kube-system");
        object.metadata.labels.as_mut().unwrap().insert(NODES.into(), "Hostname".into());
        assert_eq!(convert().node_slice(&object, "kube-system").refusals[0].reason, "badLabel");
    }
}
