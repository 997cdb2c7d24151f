//! discovery.k8s.io/v1 EndpointSlice to fact.

use super::name::{is_label, is_subdomain};
use super::{Convert, Converted, HEADLESS, Report, SERVICE_NAME, Unserved, address, label, port};
use beeline_model::fact::{self, Hints, Hostnames, SliceName, SlicePort};
use beeline_model::{Family, Name, OwnerName};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointConditions, EndpointHints, EndpointPort, EndpointSlice};
use std::collections::HashSet;

impl Convert {
    pub fn slice(&mut self, object: &EndpointSlice) -> Converted<fact::Slice> {
        let mut report = Report::new("EndpointSlice", &object.metadata);
        let headless = label(&object.metadata, HEADLESS).is_some();
        let fact = if headless { Err(Unserved::Skipped) } else { self.cut(object, &mut report) };
        report.close(fact)
    }

    pub(super) fn cut(&mut self, object: &EndpointSlice, report: &mut Report) -> Result<fact::Slice, Unserved> {
        if object.address_type == "FQDN" {
            return Err(Unserved::Skipped);
        }
        let name = self.slice_name(object).ok_or_else(|| report.bad_name())?;
        let service = self.owner(object, report)?;
        let family = address::parse_family(&object.address_type);
        let family = family.map_err(|why| report.stop("badFamily", format!("addressType: {why}")))?;
        let ports = self.slice_ports(object, report);
        let mut endpoints = Vec::with_capacity(object.endpoints.len());
        let mut hostnames = Hostnames::new();
        for (i, endpoint) in object.endpoints.iter().enumerate() {
            let field = format!("endpoints[{i}]");
            let parsed = self.endpoint(endpoint, family);
            let Some(parsed) = report.keep("badEndpoint", &field, parsed) else { continue };
            let hostname = self.hostname(&field, endpoint.hostname.as_deref(), report);
            hostnames.extend(hostname.map(|name| (endpoints.len(), name)));
            endpoints.push(parsed);
        }
        let hostnames = (!hostnames.is_empty()).then(|| Box::new(hostnames));
        Ok(fact::Slice { name, service, family, ports, endpoints: endpoints.into(), hostnames })
    }

    pub(crate) fn slice_name(&mut self, object: &EndpointSlice) -> Option<SliceName> {
        let (namespace, name) = (object.metadata.namespace.as_deref()?, object.metadata.name.as_deref()?);
        let valid = is_label(namespace) && is_subdomain(name);
        let cluster = self.cluster.clone();
        valid.then(|| SliceName { cluster, namespace: self.names.word(namespace), name: name.into() })
    }

    fn owner(&mut self, object: &EndpointSlice, report: &mut Report) -> Result<OwnerName, Unserved> {
        let namespace = object.metadata.namespace.as_deref().unwrap_or_default();
        match label(&object.metadata, SERVICE_NAME) {
            None | Some("") => Err(report.stop("noService", format!("it has no label {SERVICE_NAME}"))),
            Some(name) if is_label(name) => Ok(self.names.service(&self.cluster, namespace, name)),
            Some(name) => Err(report.stop("badName", format!("label {SERVICE_NAME}: {name:?} is no Service's name"))),
        }
    }

    pub(super) fn slice_ports(&mut self, object: &EndpointSlice, report: &mut Report) -> Box<[SlicePort]> {
        let mut taken = HashSet::new();
        let ports = object.ports.iter().flatten().enumerate();
        let kept = ports.filter_map(|(i, port)| {
            let parsed = self.slice_port(port, &mut taken);
            report.keep("badPort", &format!("ports[{i}]"), parsed)
        });
        kept.collect()
    }

    /// The API server writes `name: ""` for the one nameless port; no name field at all is a port that nobody has
    /// settled yet. Absent or 0 as number is the API's word for "all ports", which no proxy serves.
    fn slice_port(&mut self, port: &EndpointPort, taken: &mut HashSet<Name>) -> Result<SlicePort, String> {
        let name = port.name.as_deref().ok_or("it has no name field")?;
        let name = self.names.word(port::parse_name(name)?);
        let protocol = port::parse_protocol(port.protocol.as_deref())?;
        let port = port::parse_number(port.port.unwrap_or(0))?;
        if taken.insert(name.clone()) {
            Ok(SlicePort { name, protocol, port })
        } else {
            Err(format!("{name:?} is the name of an earlier port"))
        }
    }

    pub(super) fn endpoint(&mut self, endpoint: &Endpoint, family: Family) -> Result<fact::Endpoint, String> {
        // The API allows more than one address and says that only the first means anything.
        let text = endpoint.addresses.first().ok_or("it has no address")?;
        let address = address::parse_plain(text)?;
        if address.family() != family {
            return Err(format!("{text} is not {family}, as addressType says"));
        }
        let condition = |read: fn(&EndpointConditions) -> Option<bool>| endpoint.conditions.as_ref().and_then(read);
        Ok(fact::Endpoint {
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
            Some(name) if is_subdomain(name) => Ok(Some(self.names.word(name))),
            Some(name) => Err(format!("nodeName: {name:?} is no Node's name")),
        }
    }

    fn hints(&mut self, hints: &EndpointHints) -> Option<Box<Hints>> {
        let zones = hints.for_zones.iter().flatten().map(|zone| self.names.word(&zone.name)).collect();
        let nodes = hints.for_nodes.iter().flatten().map(|node| self.names.word(&node.name)).collect();
        let hints = Hints { zones, nodes };
        (hints != Hints::default()).then(|| Box::new(hints))
    }
}
