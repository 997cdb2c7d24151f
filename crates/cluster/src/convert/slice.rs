//! Converts discovery.k8s.io/v1 EndpointSlices.

use super::name::{is_label, is_subdomain};
use super::{Converted, Converter, HEADLESS, RefusalCollector, SERVICE_NAME, Unserved, address, label, port};
use crate::kind::ResourceKind;
use beeline_model::object::{self, Hints, Hostnames, SliceName, SlicePort};
use beeline_model::refusal::RefusalReason;
use beeline_model::{Family, Name, ServiceName};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointConditions, EndpointHints, EndpointPort, EndpointSlice};
use std::collections::HashSet;

impl Converter {
    pub fn slice(&mut self, object: &EndpointSlice) -> Converted<object::Slice> {
        let mut refusals = RefusalCollector::new(ResourceKind::EndpointSlice, &object.metadata);
        let headless = label(&object.metadata, HEADLESS).is_some();
        let result = if headless { Err(Unserved::Skipped) } else { self.parse_slice(object, &mut refusals) };
        refusals.finish(result)
    }

    pub(super) fn parse_slice(
        &mut self,
        object: &EndpointSlice,
        refusals: &mut RefusalCollector,
    ) -> Result<object::Slice, Unserved> {
        if object.address_type == "FQDN" {
            return Err(Unserved::Skipped);
        }
        let name = self.slice_name(object).ok_or_else(|| refusals.refuse_name())?;
        let service = self.owning_service(object, refusals)?;
        let family = address::parse_family(&object.address_type);
        let family =
            family.map_err(|why| refusals.refuse_all(RefusalReason::BadFamily, format!("addressType: {why}")))?;
        let ports = self.slice_ports(object, refusals);
        let mut endpoints = Vec::with_capacity(object.endpoints.len());
        let mut hostnames = Hostnames::new();
        for (i, endpoint) in object.endpoints.iter().enumerate() {
            let field = format!("endpoints[{i}]");
            let parsed = self.endpoint(endpoint, family);
            let Some(parsed) = refusals.accept(RefusalReason::BadEndpoint, &field, parsed) else { continue };
            let hostname = self.hostname(&field, endpoint.hostname.as_deref(), refusals);
            hostnames.extend(hostname.map(|name| (endpoints.len(), name)));
            endpoints.push(parsed);
        }
        let hostnames = (!hostnames.is_empty()).then(|| Box::new(hostnames));
        Ok(object::Slice { name, service, family, ports, endpoints: endpoints.into(), hostnames })
    }

    pub(crate) fn slice_name(&mut self, object: &EndpointSlice) -> Option<SliceName> {
        let (namespace, name) = (object.metadata.namespace.as_deref()?, object.metadata.name.as_deref()?);
        let valid = is_label(namespace) && is_subdomain(name);
        let cluster = self.cluster.clone();
        valid.then(|| SliceName { cluster, namespace: self.names.intern(namespace), name: name.into() })
    }

    fn owning_service(
        &mut self,
        object: &EndpointSlice,
        refusals: &mut RefusalCollector,
    ) -> Result<ServiceName, Unserved> {
        let namespace = object.metadata.namespace.as_deref().unwrap_or_default();
        match label(&object.metadata, SERVICE_NAME) {
            None | Some("") => {
                Err(refusals.refuse_all(RefusalReason::NoService, format!("it has no label {SERVICE_NAME}")))
            }
            Some(name) if is_label(name) => Ok(self.names.intern_service(&self.cluster, namespace, name)),
            Some(name) => Err(refusals.refuse_all(
                RefusalReason::BadName,
                format!("label {SERVICE_NAME}: {name:?} is not the name of a Service"),
            )),
        }
    }

    pub(super) fn slice_ports(&mut self, object: &EndpointSlice, refusals: &mut RefusalCollector) -> Box<[SlicePort]> {
        let mut names = HashSet::new();
        let ports = object.ports.iter().flatten().enumerate();
        let kept = ports.filter_map(|(i, port)| {
            let parsed = self.slice_port(port, &mut names);
            refusals.accept(RefusalReason::BadPort, &format!("ports[{i}]"), parsed)
        });
        kept.collect()
    }

    /// The API server writes `name: ""` for the one port without a name, so a port without the field is incomplete. An
    /// absent number or 0 means "all ports" in the API, which no proxy serves.
    fn slice_port(&mut self, port: &EndpointPort, names: &mut HashSet<Name>) -> Result<SlicePort, String> {
        let name = port.name.as_deref().ok_or("it has no name field")?;
        let name = self.names.intern(port::parse_name(name)?);
        let protocol = port::parse_protocol(port.protocol.as_deref())?;
        let port = port::parse_number(port.port.unwrap_or(0))?;
        if names.insert(name.clone()) {
            Ok(SlicePort { name, protocol, port })
        } else {
            Err(format!("{name:?} is the name of an earlier port"))
        }
    }

    pub(super) fn endpoint(&mut self, endpoint: &Endpoint, family: Family) -> Result<object::Endpoint, String> {
        // The API allows more than one address and defines that only the first one is used.
        let text = endpoint.addresses.first().ok_or("it has no address")?;
        let address = address::parse_plain(text)?;
        if address.family() != family {
            return Err(format!("{text} is not an {family} address, which addressType requires"));
        }
        let condition = |read: fn(&EndpointConditions) -> Option<bool>| endpoint.conditions.as_ref().and_then(read);
        Ok(object::Endpoint {
            address,
            ready: condition(|c| c.ready).unwrap_or(true),
            serving: condition(|c| c.serving).unwrap_or(true),
            terminating: condition(|c| c.terminating).unwrap_or(false),
            node: self.node_name(endpoint.node_name.as_deref())?,
            hints: endpoint.hints.as_ref().and_then(|hints| self.hints(hints)),
        })
    }

    pub(super) fn node_name(&mut self, name: Option<&str>) -> Result<Option<Name>, String> {
        match name {
            None | Some("") => Ok(None),
            Some(name) if is_subdomain(name) => Ok(Some(self.names.intern(name))),
            Some(name) => Err(format!("nodeName: {name:?} is not the name of a Node")),
        }
    }

    fn hints(&mut self, hints: &EndpointHints) -> Option<Box<Hints>> {
        let zones = hints.for_zones.iter().flatten().map(|zone| self.names.intern(&zone.name)).collect();
        let nodes = hints.for_nodes.iter().flatten().map(|node| self.names.intern(&node.name)).collect();
        let hints = Hints { zones, nodes };
        (hints != Hints::default()).then(|| Box::new(hints))
    }
}
