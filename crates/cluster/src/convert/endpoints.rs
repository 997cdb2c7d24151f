//! v1 Endpoints, mirrored into slices as Kubernetes' endpointslicemirroring controller does it: one slice per family and
//! set of ports. Where an API server is the source that controller has run already; a folder has only us.

use super::{Convert, Converted, HEADLESS, Report, Unserved, address, entry, label, port};
use beeline_model::fact::{self, Endpoint, Hostnames, SliceName, SlicePort};
use beeline_model::{Family, Name, OwnerName};
use k8s_openapi::api::core::v1::{EndpointAddress, EndpointPort, EndpointSubset, Endpoints};
use std::collections::HashMap;

const SKIP_MIRROR: &str = "endpointslice.kubernetes.io/skip-mirror";
pub(crate) const LEADER: &str = "control-plane.alpha.kubernetes.io/leader";
/// The controller's own limit.
const SUBSET_LIMIT: usize = 1000;

impl Convert {
    /// The slices that these Endpoints become if the Service of their name exists and has no selector, which only the
    /// caller can know.
    pub fn endpoints(&mut self, object: &Endpoints) -> Converted<Vec<fact::Slice>> {
        let mut report = Report::new("Endpoints", &object.metadata);
        let fact = if is_mirrored(object) { self.mirror(object, &mut report) } else { Err(Unserved::Skipped) };
        report.close(fact)
    }

    /// The same where slices cannot be read at all, so that Endpoints count whoever made them and whoever mirrors them.
    pub(crate) fn cached_endpoints(&mut self, object: &Endpoints) -> Converted<Vec<fact::Slice>> {
        let mut report = Report::new("Endpoints", &object.metadata);
        // Where names are answered, those of headless Services are of use, too.
        let meant = is_plain(object) || self.claim.names && !is_lock(object);
        let fact = if meant { self.mirror(object, &mut report) } else { Err(Unserved::Skipped) };
        report.close(fact)
    }

    fn mirror(&mut self, object: &Endpoints, report: &mut Report) -> Result<Vec<fact::Slice>, Unserved> {
        let service = report.service_name(self)?;
        let mut groups = Groups::default();
        for (i, subset) in object.subsets.iter().flatten().enumerate() {
            self.mirror_subset(&format!("subsets[{i}]"), subset, &mut groups, report);
        }
        Ok(groups.list.into_iter().enumerate().map(|(i, group)| self.mirrored(&service, i, group)).collect())
    }

    fn mirror_subset(&mut self, field: &str, subset: &EndpointSubset, groups: &mut Groups, report: &mut Report) {
        let listed = subset.ports.iter().flatten();
        let ports = listed.filter_map(|port| report.keep("badPort", field, self.subset_port(port)));
        let mut ports: Vec<SlicePort> = ports.collect();
        ports.sort_by(|a, b| (&a.name, a.protocol, a.port).cmp(&(&b.name, b.protocol, b.port)));
        let ready = subset.addresses.iter().flatten().map(|address| (address, true));
        let unready = subset.not_ready_addresses.iter().flatten().map(|address| (address, false));
        let kept = ready.chain(unready).filter_map(|(entry, ready)| {
            let endpoint = report.keep("badEndpoint", field, self.subset_endpoint(entry, ready))?;
            Some(Named { endpoint, hostname: self.hostname(field, entry.hostname.as_deref(), report) })
        });
        let mut endpoints: Vec<Named> = kept.collect();
        if endpoints.len() > SUBSET_LIMIT {
            let more = endpoints.split_off(SUBSET_LIMIT).len();
            let why = format!("{field}: {more} addresses beyond the first {SUBSET_LIMIT} are not mirrored");
            report.refuse("tooManyAddresses", why);
        }
        let (v4, v6) = endpoints.into_iter().partition(|named: &Named| named.endpoint.address.family() == Family::V4);
        groups.add(Family::V4, &ports, v4);
        groups.add(Family::V6, &ports, v6);
    }

    fn subset_port(&mut self, port: &EndpointPort) -> Result<SlicePort, String> {
        let name = port::parse_name(port.name.as_deref().unwrap_or_default())?;
        let protocol = port::parse_protocol(port.protocol.as_deref())?;
        Ok(SlicePort { name: self.names.word(name), protocol, port: port::parse_number(port.port)? })
    }

    /// The controller sets nothing but `ready`; absent, `serving` reads as true and `terminating` as false.
    fn subset_endpoint(&mut self, entry: &EndpointAddress, ready: bool) -> Result<Endpoint, String> {
        let address = address::parse_plain(&entry.ip)?;
        let node = self.node_name(entry.node_name.as_deref())?;
        Ok(Endpoint { address, ready, serving: true, terminating: false, node, hints: None })
    }

    /// `:` occurs in no name that the API accepts, so a mirrored slice never meets a written one.
    fn mirrored(&mut self, service: &OwnerName, number: usize, group: Group) -> fact::Slice {
        let name = SliceName {
            cluster: self.cluster.clone(),
            namespace: self.names.word(service.namespace()),
            name: format!("{}:{}:{number}", service.name(), group.family).into(),
        };
        let (endpoints, hostnames) = part(group.endpoints);
        fact::Slice { name, service: service.clone(), family: group.family, ports: group.ports, endpoints, hostnames }
    }
}

fn is_mirrored(object: &Endpoints) -> bool {
    label(&object.metadata, SKIP_MIRROR) != Some("true") && is_plain(object)
}

/// Neither somebody's lock nor a headless Service's: labels are copied to the slices, and a slice with the headless label
/// is not for us.
fn is_plain(object: &Endpoints) -> bool {
    !is_lock(object) && label(&object.metadata, HEADLESS).is_none()
}

fn is_lock(object: &Endpoints) -> bool {
    entry(&object.metadata.annotations, LEADER).is_some()
}

/// What becomes one slice: subsets with the same ports join.
struct Group {
    family: Family,
    ports: Box<[SlicePort]>,
    endpoints: Vec<Named>,
}

struct Named {
    endpoint: Endpoint,
    hostname: Option<Name>,
}

fn part(all: Vec<Named>) -> (Box<[Endpoint]>, Option<Box<Hostnames>>) {
    let named = all.iter().enumerate().filter_map(|(place, named)| Some((place, named.hostname.clone()?)));
    let hostnames: Hostnames = named.collect();
    let hostnames = (!hostnames.is_empty()).then(|| Box::new(hostnames));
    (all.into_iter().map(|named| named.endpoint).collect(), hostnames)
}

#[derive(Default)]
struct Groups {
    list: Vec<Group>,
    /// By family and ports, so that thousands of subsets do not search each other.
    places: HashMap<String, usize>,
}

impl Groups {
    fn add(&mut self, family: Family, ports: &[SlicePort], endpoints: Vec<Named>) {
        if endpoints.is_empty() {
            return;
        }
        let next = self.list.len();
        let place = *self.places.entry(format!("{family} {ports:?}")).or_insert(next);
        if place == next {
            self.list.push(Group { family, ports: ports.into(), endpoints: Vec::new() });
        }
        self.list[place].endpoints.extend(endpoints);
    }
}
