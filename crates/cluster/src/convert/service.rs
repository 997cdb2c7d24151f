//! v1 Service to fact.

use super::{Convert, Converted, Report, Unserved, address, port};
use beeline_model::fact::{self, Policy};
use beeline_model::{Address, Family, Name, Protocol};
use ipnet::IpNet;
use k8s_openapi::api::core::v1::{LoadBalancerIngress, Service, ServicePort, ServiceSpec};
use std::collections::HashSet;

/// What the API sets when ClientIP affinity names no time.
pub(crate) const AFFINITY_SECONDS: i32 = 10_800;
const AFFINITY_LIMIT: i32 = 86_400;

impl Convert {
    pub fn service(&mut self, object: &Service) -> Converted<fact::Service> {
        let mut report = Report::new("Service", &object.metadata);
        let fact = self.serve(object, &mut report);
        report.close(fact)
    }

    fn serve(&mut self, object: &Service, report: &mut Report) -> Result<fact::Service, Unserved> {
        let spec = object.spec.as_ref().ok_or(Unserved::Skipped)?;
        if !self.claim.holds(&object.metadata) || !has_cluster_ip(spec) {
            return Err(Unserved::Skipped);
        }
        let name = report.service_name(self)?;
        let cluster_ips = cluster_ips(spec, report)?;
        let (source_ranges, load_balancer_ips) = load_balancer(object, spec, report);
        Ok(fact::Service {
            name,
            // A manifest without a creation time would be created now: younger than all that have one. Among equals
            // the name decides.
            created: object.metadata.creation_timestamp.as_ref().map_or(i64::MAX, |time| time.0.as_second()),
            cluster_ips,
            load_balancer_ips,
            external_ips: external_ips(spec, report),
            source_ranges,
            has_node_ports: has_node_ports(spec),
            internal: policy("internalTrafficPolicy", spec.internal_traffic_policy.as_deref(), report),
            external: policy("externalTrafficPolicy", spec.external_traffic_policy.as_deref(), report),
            affinity: affinity(spec, report),
            health_check_node_port: health_check_node_port(spec, report),
            ports: self.service_ports(spec, report),
        })
    }

    pub(super) fn service_ports(&mut self, spec: &ServiceSpec, report: &mut Report) -> Box<[fact::ServicePort]> {
        let ports = spec.ports.as_deref().unwrap_or_default();
        if ports.is_empty() {
            report.refuse("noPorts", "spec.ports is empty: every dial to its ClusterIP is refused");
        }
        let mut taken = Taken { several: ports.len() > 1, ..Taken::default() };
        let kept = ports.iter().enumerate().filter_map(|(i, port)| {
            let parsed = self.service_port(port, spec, &mut taken);
            let (port, node_port) = report.keep("badPort", &format!("spec.ports[{i}]"), parsed)?;
            let node_port = report.keep("badNodePort", &format!("spec.ports[{i}].nodePort"), node_port).unwrap_or(0);
            Some(fact::ServicePort { node_port, ..port })
        });
        kept.collect()
    }

    /// The port, and apart from it its nodePort: a bad one costs only itself.
    fn service_port(
        &mut self,
        port: &ServicePort,
        spec: &ServiceSpec,
        taken: &mut Taken,
    ) -> Result<(fact::ServicePort, Result<u16, String>), String> {
        let name = port::parse_name(port.name.as_deref().unwrap_or_default())?;
        let protocol = port::parse_protocol(port.protocol.as_deref())?;
        let number = port::parse_number(port.port)?;
        let name = self.names.word(name);
        taken.take(&name, protocol, number)?;
        Ok((fact::ServicePort { name, protocol, port: number, node_port: 0 }, node_port(port, spec)))
    }
}

/// What the API demands of a Service's ports together; the first of two that clash is kept.
#[derive(Default)]
struct Taken {
    several: bool,
    names: HashSet<Name>,
    numbers: HashSet<(Protocol, u16)>,
}

impl Taken {
    fn take(&mut self, name: &Name, protocol: Protocol, number: u16) -> Result<(), String> {
        match () {
            () if self.several && name.is_empty() => Err("has no name, but there are several ports".into()),
            () if self.names.contains(name) => Err(format!("{name:?} is the name of an earlier port")),
            () if !self.numbers.insert((protocol, number)) => Err(format!("{number}/{protocol} is listed before")),
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

/// A malformed ClusterIP refuses the whole Service: what is left would answer at some of its addresses only.
pub(super) fn cluster_ips(spec: &ServiceSpec, report: &mut Report) -> Result<Box<[Address]>, Unserved> {
    let ips = parse_cluster_ips(spec).map_err(|why| report.stop("badClusterIP", why))?;
    if ips.is_empty() { Err(Unserved::Skipped) } else { Ok(ips.into()) }
}

fn parse_cluster_ips(spec: &ServiceSpec) -> Result<Vec<Address>, String> {
    let first = address::parse_frontend(spec.cluster_ip.as_deref().unwrap_or_default())
        .map_err(|why| format!("spec.clusterIP: {why}"))?;
    let families = spec.ip_families.as_deref().unwrap_or_default();
    let texts = spec.cluster_ips.as_deref().unwrap_or_default();
    // The API keeps the two equal; `ipFamilies` is empty only where it is too old to know more than one address.
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
        () if ip.family() != family => Err(format!("{text} is not {family}, as spec.ipFamilies says")),
        () if earlier.iter().any(|e| e.family() == family) => Err(format!("{text} is a second {family} address")),
        () => Ok(ip),
    }
}

fn external_ips(spec: &ServiceSpec, report: &mut Report) -> Box<[Address]> {
    let texts = spec.external_ips.iter().flatten().filter(|text| !text.trim().is_empty());
    let kept = texts.filter_map(|text| report.keep("badExternalIP", "spec.externalIPs", address::parse_plain(text)));
    unique(kept)
}

/// Who may dial the load balancer's addresses, and those addresses.
///
/// Ranges hold per family, as in kube-proxy: it takes the ranges of the family and filters only if there are any. So a
/// family for which none is listed is open to everybody, whatever is listed for the other family, and so is one with a
/// /0. Downstream reads it the same way: a family without a range is not filtered.
///
/// kube-proxy also drops a malformed range and may be left with none, which opens what was meant to be closed. Here a
/// malformed range closes: where no good range of the family is left beside it, the family's addresses are not served.
fn load_balancer(object: &Service, spec: &ServiceSpec, report: &mut Report) -> (Box<[IpNet]>, Box<[Address]>) {
    let texts = spec.load_balancer_source_ranges.iter().flatten().map(|text| text.trim());
    let parsed: Vec<Result<IpNet, String>> = texts.filter(|text| !text.is_empty()).map(address::parse_range).collect();
    let malformed = parsed.iter().any(Result::is_err);
    let keep = |range| report.keep("badSourceRange", "spec.loadBalancerSourceRanges", range);
    let ranges: Vec<IpNet> = parsed.into_iter().filter_map(keep).collect();
    let listed = |family| ranges.iter().any(|range| Family::of(range.addr()) == family);
    let ips = load_balancer_ips(object, report);
    let served = |ip: &Address| !malformed || listed(ip.family());
    for ip in ips.iter().filter(|ip| !served(ip)) {
        report.refuse("badSourceRange", format!("{ip} is not served: no good range says who may dial it"));
    }
    (filters(&ranges), ips.into_iter().filter(served).collect())
}

fn filters(ranges: &[IpNet]) -> Box<[IpNet]> {
    let open = |range: &IpNet| {
        let family = Family::of(range.addr());
        ranges.iter().any(|other| other.prefix_len() == 0 && Family::of(other.addr()) == family)
    };
    unique(ranges.iter().filter(|range| !open(range)).copied())
}

fn load_balancer_ips(object: &Service, report: &mut Report) -> Vec<Address> {
    let status = object.status.as_ref().and_then(|status| status.load_balancer.as_ref());
    let ingress = status.and_then(|status| status.ingress.as_deref()).unwrap_or_default();
    let texts = ingress.iter().filter(|entry| is_vip(entry)).filter_map(|entry| entry.ip.as_deref());
    let parsed = texts.filter(|text| !text.is_empty()).map(address::parse_frontend);
    let keep = |ip| report.keep("badLoadBalancerIP", "status.loadBalancer.ingress", ip);
    unique(parsed.filter_map(keep)).into_vec()
}

/// `Proxy` wants the connection to pass through the load balancer itself.
fn is_vip(entry: &LoadBalancerIngress) -> bool {
    entry.ip_mode.as_deref().is_none_or(|mode| mode == "VIP")
}

fn policy(field: &str, text: Option<&str>, report: &mut Report) -> Policy {
    match text.unwrap_or_default() {
        "Local" => Policy::Local,
        "" | "Cluster" => Policy::Cluster,
        other => {
            report
                .refuse("badPolicy", format!("spec.{field}: {other:?} is neither Cluster nor Local; read as Cluster"));
            Policy::Cluster
        }
    }
}

fn affinity(spec: &ServiceSpec, report: &mut Report) -> Option<u32> {
    match spec.session_affinity.as_deref().unwrap_or_default() {
        "ClientIP" => Some(affinity_seconds(spec, report)),
        "" | "None" => None,
        other => {
            report.refuse("badAffinity", format!("spec.sessionAffinity: {other:?} is neither None nor ClientIP"));
            None
        }
    }
}

fn affinity_seconds(spec: &ServiceSpec, report: &mut Report) -> u32 {
    let config = spec.session_affinity_config.as_ref().and_then(|config| config.client_ip.as_ref());
    let seconds = config.and_then(|config| config.timeout_seconds).unwrap_or(AFFINITY_SECONDS);
    if (1..=AFFINITY_LIMIT).contains(&seconds) {
        return seconds.unsigned_abs();
    }
    let field = "spec.sessionAffinityConfig.clientIP.timeoutSeconds";
    report
        .refuse("badAffinity", format!("{field}: {seconds} is not 1 to {AFFINITY_LIMIT}; read as {AFFINITY_SECONDS}"));
    AFFINITY_SECONDS.unsigned_abs()
}

/// Only a LoadBalancer with external Local is probed.
fn health_check_node_port(spec: &ServiceSpec, report: &mut Report) -> u16 {
    let probed =
        spec.type_.as_deref() == Some("LoadBalancer") && spec.external_traffic_policy.as_deref() == Some("Local");
    let port = port::parse_optional(spec.health_check_node_port.filter(|_| probed));
    report.keep("badNodePort", "spec.healthCheckNodePort", port).unwrap_or(0)
}

/// In the order of the object, each once: naming an address twice is no conflict.
fn unique<T: Copy + Eq + std::hash::Hash>(values: impl Iterator<Item = T>) -> Box<[T]> {
    let mut seen = HashSet::new();
    values.filter(|value| seen.insert(*value)).collect()
}
