//! Mirrors v1 Endpoints into slices as Kubernetes' endpointslicemirroring controller does: one slice per family and set
//! of ports. Only folders and the edge cache need it, because that controller has already run in a cluster.

use super::{Converted, Converter, HEADLESS, RefusalCollector, Unserved, address, entry, label, port};
use crate::kind::ResourceKind;
use beeline_model::object::{self, Endpoint, Hostnames, SliceName, SlicePort};
use beeline_model::refusal::RefusalReason;
use beeline_model::{Family, Name, ServiceName};
use k8s_openapi::api::core::v1::{EndpointAddress, EndpointPort, EndpointSubset, Endpoints};
use std::collections::HashMap;

const SKIP_MIRROR: &str = "endpointslice.kubernetes.io/skip-mirror";
pub(crate) const LEADER: &str = "control-plane.alpha.kubernetes.io/leader";
/// The limit of the mirroring controller.
const MAX_SUBSET_ADDRESSES: usize = 1000;

impl Converter {
    /// The slices of these Endpoints. They apply only if the Service of the same name exists and has no selector, which
    /// the caller must check.
    pub fn endpoints(&mut self, object: &Endpoints) -> Converted<Vec<object::Slice>> {
        let mut refusals = RefusalCollector::new(ResourceKind::Endpoints, &object.metadata);
        let result = if is_mirrored(object) { self.mirror(object, &mut refusals) } else { Err(Unserved::Skipped) };
        refusals.finish(result)
    }

    /// Like `endpoints`, for the edge cache, which delivers no slices: Endpoints apply also if their Service has a
    /// selector, or if they are labelled as not to be mirrored.
    #[cfg(feature = "outside")]
    pub(crate) fn cached_endpoints(&mut self, object: &Endpoints) -> Converted<Vec<object::Slice>> {
        let mut refusals = RefusalCollector::new(ResourceKind::Endpoints, &object.metadata);
        // DNS needs the Endpoints of headless Services too.
        let is_used = is_plain(object) || self.filter.dns_names && !is_leader_lock(object);
        let result = if is_used { self.mirror(object, &mut refusals) } else { Err(Unserved::Skipped) };
        refusals.finish(result)
    }

    fn mirror(&mut self, object: &Endpoints, refusals: &mut RefusalCollector) -> Result<Vec<object::Slice>, Unserved> {
        let service = refusals.service_name(self)?;
        let mut groups = SliceGroups::default();
        for (i, subset) in object.subsets.iter().flatten().enumerate() {
            self.mirror_subset(&format!("subsets[{i}]"), subset, &mut groups, refusals);
        }
        Ok(groups.list.into_iter().enumerate().map(|(i, group)| self.mirrored_slice(&service, i, group)).collect())
    }

    fn mirror_subset(
        &mut self,
        field: &str,
        subset: &EndpointSubset,
        groups: &mut SliceGroups,
        refusals: &mut RefusalCollector,
    ) {
        let listed = subset.ports.iter().flatten();
        let ports = listed.filter_map(|port| refusals.accept(RefusalReason::BadPort, field, self.subset_port(port)));
        let mut ports: Vec<SlicePort> = ports.collect();
        ports.sort_by(|a, b| (&a.name, a.protocol, a.port).cmp(&(&b.name, b.protocol, b.port)));
        let ready = subset.addresses.iter().flatten().map(|address| (address, true));
        let unready = subset.not_ready_addresses.iter().flatten().map(|address| (address, false));
        let kept = ready.chain(unready).filter_map(|(entry, ready)| {
            let endpoint = refusals.accept(RefusalReason::BadEndpoint, field, self.subset_endpoint(entry, ready))?;
            Some(HostEndpoint { endpoint, hostname: self.hostname(field, entry.hostname.as_deref(), refusals) })
        });
        let mut endpoints: Vec<HostEndpoint> = kept.collect();
        if endpoints.len() > MAX_SUBSET_ADDRESSES {
            let more = endpoints.split_off(MAX_SUBSET_ADDRESSES).len();
            let message = format!("{field}: {more} addresses beyond the first {MAX_SUBSET_ADDRESSES} are not mirrored");
            refusals.refuse(RefusalReason::TooManyAddresses, message);
        }
        let (v4, v6) =
            endpoints.into_iter().partition(|one: &HostEndpoint| one.endpoint.address.family() == Family::V4);
        groups.add(Family::V4, &ports, v4);
        groups.add(Family::V6, &ports, v6);
    }

    fn subset_port(&mut self, port: &EndpointPort) -> Result<SlicePort, String> {
        let name = port::parse_name(port.name.as_deref().unwrap_or_default())?;
        let protocol = port::parse_protocol(port.protocol.as_deref())?;
        Ok(SlicePort { name: self.names.intern(name), protocol, port: port::parse_number(port.port)? })
    }

    /// The mirroring controller sets only `ready`. An absent `serving` reads as true and an absent `terminating` as
    /// false.
    fn subset_endpoint(&mut self, entry: &EndpointAddress, ready: bool) -> Result<Endpoint, String> {
        let address = address::parse_plain(&entry.ip)?;
        let node = self.node_name(entry.node_name.as_deref())?;
        Ok(Endpoint { address, ready, serving: true, terminating: false, node, hints: None })
    }

    /// The name of a mirrored slice contains `:`, which the API allows in no name, so that it never equals the name of
    /// a slice in a manifest.
    fn mirrored_slice(&mut self, service: &ServiceName, number: usize, group: SliceGroup) -> object::Slice {
        let name = SliceName {
            cluster: self.cluster.clone(),
            namespace: self.names.intern(service.namespace()),
            name: format!("{}:{}:{number}", service.name(), group.family).into(),
        };
        let (endpoints, hostnames) = split_hostnames(group.endpoints);
        object::Slice { name, service: service.clone(), family: group.family, ports: group.ports, endpoints, hostnames }
    }
}

fn is_mirrored(object: &Endpoints) -> bool {
    label(&object.metadata, SKIP_MIRROR) != Some("true") && is_plain(object)
}

/// Neither a leader election lock nor the Endpoints of a headless Service: the controller copies labels to the slices,
/// and a slice with the headless label is not served.
fn is_plain(object: &Endpoints) -> bool {
    !is_leader_lock(object) && label(&object.metadata, HEADLESS).is_none()
}

fn is_leader_lock(object: &Endpoints) -> bool {
    entry(&object.metadata.annotations, LEADER).is_some()
}

/// The endpoints of one slice: those of all subsets with the same ports.
struct SliceGroup {
    family: Family,
    ports: Box<[SlicePort]>,
    endpoints: Vec<HostEndpoint>,
}

struct HostEndpoint {
    endpoint: Endpoint,
    hostname: Option<Name>,
}

fn split_hostnames(all: Vec<HostEndpoint>) -> (Box<[Endpoint]>, Option<Box<Hostnames>>) {
    let hostnames = all.iter().enumerate().filter_map(|(i, one)| Some((i, one.hostname.clone()?)));
    let hostnames: Hostnames = hostnames.collect();
    let hostnames = (!hostnames.is_empty()).then(|| Box::new(hostnames));
    (all.into_iter().map(|one| one.endpoint).collect(), hostnames)
}

#[derive(Default)]
struct SliceGroups {
    list: Vec<SliceGroup>,
    /// Positions in `list` by family and ports: a linear search would be slow for thousands of subsets.
    positions: HashMap<String, usize>,
}

impl SliceGroups {
    fn add(&mut self, family: Family, ports: &[SlicePort], endpoints: Vec<HostEndpoint>) {
        if endpoints.is_empty() {
            return;
        }
        let next = self.list.len();
        let position = *self.positions.entry(format!("{family} {ports:?}")).or_insert(next);
        if position == next {
            self.list.push(SliceGroup { family, ports: ports.into(), endpoints: Vec::new() });
        }
        self.list[position].endpoints.extend(endpoints);
    }
}
