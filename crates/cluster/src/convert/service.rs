//! Converts v1 Services.

use super::{Converted, Converter, RefusalCollector, Unserved, address, port};
use crate::kind::ResourceKind;
use beeline_model::object::{self, TrafficPolicy};
use beeline_model::refusal::RefusalReason;
use beeline_model::{Address, Family, Name, Protocol};
use ipnet::IpNet;
use k8s_openapi::api::core::v1::{LoadBalancerIngress, Service, ServicePort, ServiceSpec};
use std::collections::HashSet;

/// The API's default of `sessionAffinityConfig.clientIP.timeoutSeconds`.
pub(crate) const DEFAULT_AFFINITY_SECONDS: i32 = 10_800;
const MAX_AFFINITY_SECONDS: i32 = 86_400;

impl Converter {
    pub fn service(&mut self, object: &Service) -> Converted<object::Service> {
        let mut refusals = RefusalCollector::new(ResourceKind::Service, &object.metadata);
        let result = self.parse_service(object, &mut refusals);
        refusals.finish(result)
    }

    fn parse_service(
        &mut self,
        object: &Service,
        refusals: &mut RefusalCollector,
    ) -> Result<object::Service, Unserved> {
        let spec = object.spec.as_ref().ok_or(Unserved::Skipped)?;
        if !self.filter.selects(&object.metadata) || !has_cluster_ip(spec) {
            return Err(Unserved::Skipped);
        }
        let name = refusals.service_name(self)?;
        let cluster_ips = cluster_ips(spec, refusals)?;
        let (source_ranges, load_balancer_ips) = load_balancer(object, spec, refusals);
        let ports = self.service_ports(spec, refusals);
        if !ports.is_empty() && ports.iter().all(|port| !port.protocol.has_hook()) {
            let message = "all ports use SCTP, which is not supported: dials of the Service are not redirected";
            refusals.refuse(RefusalReason::UnsupportedProtocol, message);
        }
        Ok(object::Service {
            name,
            // A manifest without a creation time counts as created now: younger than every object that has one. The
            // name decides among objects of the same age.
            created: object.metadata.creation_timestamp.as_ref().map_or(i64::MAX, |time| time.0.as_second()),
            cluster_ips,
            load_balancer_ips,
            external_ips: external_ips(spec, refusals),
            source_ranges,
            has_node_ports: has_node_ports(spec),
            internal: traffic_policy("internalTrafficPolicy", spec.internal_traffic_policy.as_deref(), refusals),
            external: traffic_policy("externalTrafficPolicy", spec.external_traffic_policy.as_deref(), refusals),
            affinity: affinity(spec, refusals),
            health_check_node_port: health_check_node_port(spec, refusals),
            ports,
        })
    }

    pub(super) fn service_ports(
        &mut self,
        spec: &ServiceSpec,
        refusals: &mut RefusalCollector,
    ) -> Box<[object::ServicePort]> {
        let ports = spec.ports.as_deref().unwrap_or_default();
        if ports.is_empty() {
            refusals.refuse(RefusalReason::NoPorts, "spec.ports is empty: every dial to its ClusterIP is refused");
        }
        let mut used = UsedPorts { several: ports.len() > 1, ..UsedPorts::default() };
        let kept = ports.iter().enumerate().filter_map(|(i, port)| {
            let parsed = self.service_port(port, spec, &mut used);
            let (port, node_port) = refusals.accept(RefusalReason::BadPort, &format!("spec.ports[{i}]"), parsed)?;
            let node_port = refusals
                .accept(RefusalReason::BadNodePort, &format!("spec.ports[{i}].nodePort"), node_port)
                .unwrap_or(0);
            Some(object::ServicePort { node_port, ..port })
        });
        kept.collect()
    }

    /// The port and its nodePort. They are separate results, because an invalid nodePort leaves the port usable.
    fn service_port(
        &mut self,
        port: &ServicePort,
        spec: &ServiceSpec,
        used: &mut UsedPorts,
    ) -> Result<(object::ServicePort, Result<u16, String>), String> {
        let name = port::parse_name(port.name.as_deref().unwrap_or_default())?;
        let protocol = port::parse_protocol(port.protocol.as_deref())?;
        let number = port::parse_number(port.port)?;
        let name = self.names.intern(name);
        used.insert(&name, protocol, number)?;
        Ok((object::ServicePort { name, protocol, port: number, node_port: 0 }, node_port(port, spec)))
    }
}

/// Checks that the ports of a Service differ, as the API demands. The first of two conflicting ports is kept.
#[derive(Default)]
struct UsedPorts {
    several: bool,
    names: HashSet<Name>,
    numbers: HashSet<(Protocol, u16)>,
}

impl UsedPorts {
    fn insert(&mut self, name: &Name, protocol: Protocol, number: u16) -> Result<(), String> {
        match () {
            () if self.several && name.is_empty() => Err("it has no name, but there are several ports".into()),
            () if self.names.contains(name) => Err(format!("{name:?} is the name of an earlier port")),
            () if !self.numbers.insert((protocol, number)) => {
                Err(format!("{number}/{protocol} is the number of an earlier port"))
            }
            () => {
                self.names.insert(name.clone());
                Ok(())
            }
        }
    }
}

fn has_cluster_ip(spec: &ServiceSpec) -> bool {
    let ip = spec.cluster_ip.as_deref().unwrap_or_default();
    !ip.is_empty() && ip != "None" && spec.type_.as_deref() != Some("ExternalName")
}

fn has_node_ports(spec: &ServiceSpec) -> bool {
    matches!(spec.type_.as_deref(), Some("NodePort" | "LoadBalancer"))
}

fn node_port(port: &ServicePort, spec: &ServiceSpec) -> Result<u16, String> {
    match port::parse_optional(port.node_port)? {
        number if number > 0 && !has_node_ports(spec) => Err(format!("{number} needs type NodePort or LoadBalancer")),
        number => Ok(number),
    }
}

/// A malformed ClusterIP refuses the whole Service: otherwise it would answer at some of its addresses only.
pub(super) fn cluster_ips(spec: &ServiceSpec, refusals: &mut RefusalCollector) -> Result<Box<[Address]>, Unserved> {
    let ips = parse_cluster_ips(spec).map_err(|why| refusals.refuse_all(RefusalReason::BadClusterIp, why))?;
    if ips.is_empty() { Err(Unserved::Skipped) } else { Ok(ips.into()) }
}

fn parse_cluster_ips(spec: &ServiceSpec) -> Result<Vec<Address>, String> {
    let first = address::parse_frontend(spec.cluster_ip.as_deref().unwrap_or_default())
        .map_err(|why| format!("spec.clusterIP: {why}"))?;
    let families = spec.ip_families.as_deref().unwrap_or_default();
    let texts = spec.cluster_ips.as_deref().unwrap_or_default();
    // The API keeps `ipFamilies` and `clusterIPs` equally long. `ipFamilies` is empty only on servers that are too old
    // for more than one address.
    if families.is_empty() {
        return Ok(vec![first]);
    }
    let mut ips = Vec::new();
    for (i, (family, text)) in families.iter().zip(texts).enumerate() {
        let ip = cluster_ip(family, text, &ips).map_err(|why| format!("spec.clusterIPs[{i}]: {why}"))?;
        ips.push(ip);
    }
    match ips.first() {
        Some(ip) if *ip != first => Err(format!("spec.clusterIPs[0]: {ip} is not spec.clusterIP, {first}")),
        _ => Ok(ips),
    }
}

fn cluster_ip(family: &str, text: &str, earlier: &[Address]) -> Result<Address, String> {
    let family = address::parse_family(family)?;
    let ip = address::parse_frontend(text)?;
    match () {
        () if ip.family() != family => {
            Err(format!("{text} is not an {family} address, which spec.ipFamilies requires"))
        }
        () if earlier.iter().any(|e| e.family() == family) => Err(format!("{text} is a second {family} address")),
        () => Ok(ip),
    }
}

fn external_ips(spec: &ServiceSpec, refusals: &mut RefusalCollector) -> Box<[Address]> {
    let texts = spec.external_ips.iter().flatten().filter(|text| !text.trim().is_empty());
    let kept = texts.filter_map(|text| {
        refusals.accept(RefusalReason::BadExternalIp, "spec.externalIPs", address::parse_plain(text))
    });
    unique(kept)
}

/// The source ranges that may dial the load balancer addresses, and those addresses.
///
/// Source ranges apply per family, as in kube-proxy: a family without a range is not filtered, whatever is listed for
/// the other family, and neither is a family with a /0. The planner reads the ranges in the same way.
///
/// kube-proxy drops a malformed range. If no other range is left, every client may dial an address that was meant to
/// be restricted. Here a malformed range restricts: if a family has no valid range, its addresses are not served.
fn load_balancer(
    object: &Service,
    spec: &ServiceSpec,
    refusals: &mut RefusalCollector,
) -> (Box<[IpNet]>, Box<[Address]>) {
    let texts = spec.load_balancer_source_ranges.iter().flatten().map(|text| text.trim());
    let parsed: Vec<Result<IpNet, String>> = texts.filter(|text| !text.is_empty()).map(address::parse_range).collect();
    let malformed = parsed.iter().any(Result::is_err);
    let keep = |range| refusals.accept(RefusalReason::BadSourceRange, "spec.loadBalancerSourceRanges", range);
    let ranges: Vec<IpNet> = parsed.into_iter().filter_map(keep).collect();
    let has_range = |family| ranges.iter().any(|range| Family::of(range.addr()) == family);
    let ips = load_balancer_ips(object, refusals);
    let served = |ip: &Address| !malformed || has_range(ip.family());
    for ip in ips.iter().filter(|ip| !served(ip)) {
        refusals.refuse(
            RefusalReason::BadSourceRange,
            format!("{ip} is not served: no valid range of its family lists the allowed clients"),
        );
    }
    (restricting_ranges(&ranges), ips.into_iter().filter(served).collect())
}

/// Drops all ranges of a family that has a /0, because every client of that family is allowed.
fn restricting_ranges(ranges: &[IpNet]) -> Box<[IpNet]> {
    let open = |range: &IpNet| {
        let family = Family::of(range.addr());
        ranges.iter().any(|other| other.prefix_len() == 0 && Family::of(other.addr()) == family)
    };
    unique(ranges.iter().filter(|range| !open(range)).copied())
}

fn load_balancer_ips(object: &Service, refusals: &mut RefusalCollector) -> Vec<Address> {
    let status = object.status.as_ref().and_then(|status| status.load_balancer.as_ref());
    let ingress = status.and_then(|status| status.ingress.as_deref()).unwrap_or_default();
    let texts = ingress.iter().filter(|entry| is_vip(entry)).filter_map(|entry| entry.ip.as_deref());
    let parsed = texts.filter(|text| !text.is_empty()).map(address::parse_frontend);
    let keep = |ip| refusals.accept(RefusalReason::BadLoadBalancerIp, "status.loadBalancer.ingress", ip);
    unique(parsed.filter_map(keep)).into_vec()
}

/// With `ipMode: Proxy` connections must pass through the load balancer itself.
fn is_vip(entry: &LoadBalancerIngress) -> bool {
    entry.ip_mode.as_deref().is_none_or(|mode| mode == "VIP")
}

fn traffic_policy(field: &str, text: Option<&str>, refusals: &mut RefusalCollector) -> TrafficPolicy {
    match text.unwrap_or_default() {
        "Local" => TrafficPolicy::Local,
        "" | "Cluster" => TrafficPolicy::Cluster,
        other => {
            refusals.refuse(
                RefusalReason::BadPolicy,
                format!("spec.{field}: {other:?} is neither Cluster nor Local; read as Cluster"),
            );
            TrafficPolicy::Cluster
        }
    }
}

fn affinity(spec: &ServiceSpec, refusals: &mut RefusalCollector) -> Option<u32> {
    match spec.session_affinity.as_deref().unwrap_or_default() {
        "ClientIP" => Some(affinity_seconds(spec, refusals)),
        "" | "None" => None,
        other => {
            refusals.refuse(
                RefusalReason::BadAffinity,
                format!("spec.sessionAffinity: {other:?} is neither None nor ClientIP"),
            );
            None
        }
    }
}

fn affinity_seconds(spec: &ServiceSpec, refusals: &mut RefusalCollector) -> u32 {
    let config = spec.session_affinity_config.as_ref().and_then(|config| config.client_ip.as_ref());
    let seconds = config.and_then(|config| config.timeout_seconds).unwrap_or(DEFAULT_AFFINITY_SECONDS);
    if (1..=MAX_AFFINITY_SECONDS).contains(&seconds) {
        return seconds.unsigned_abs();
    }
    let field = "spec.sessionAffinityConfig.clientIP.timeoutSeconds";
    refusals.refuse(
        RefusalReason::BadAffinity,
        format!("{field}: {seconds} is not 1 to {MAX_AFFINITY_SECONDS}; read as {DEFAULT_AFFINITY_SECONDS}"),
    );
    DEFAULT_AFFINITY_SECONDS.unsigned_abs()
}

/// 0 means no health check: only a LoadBalancer with externalTrafficPolicy Local has one.
fn health_check_node_port(spec: &ServiceSpec, refusals: &mut RefusalCollector) -> u16 {
    let probed =
        spec.type_.as_deref() == Some("LoadBalancer") && spec.external_traffic_policy.as_deref() == Some("Local");
    let port = port::parse_optional(spec.health_check_node_port.filter(|_| probed));
    refusals.accept(RefusalReason::BadNodePort, "spec.healthCheckNodePort", port).unwrap_or(0)
}

/// The distinct values in their original order: an address that is listed twice is not a conflict.
fn unique<T: Copy + Eq + std::hash::Hash>(values: impl Iterator<Item = T>) -> Box<[T]> {
    let mut seen = HashSet::new();
    values.filter(|value| seen.insert(*value)).collect()
}
