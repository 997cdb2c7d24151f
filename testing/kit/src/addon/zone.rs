//! DNS zone of the cluster according to Kubernetes' DNS specification, built from all Services and EndpointSlices.

use std::{
    collections::{BTreeMap, HashMap},
    net::IpAddr,
    sync::Arc,
};

use k8s_openapi::api::{
    core::v1::Service,
    discovery::v1::{Endpoint, EndpointPort, EndpointSlice},
};

use crate::address_plan::DOMAIN;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DnsRecord {
    Address(IpAddr),
    Alias(String),
    Port(u16, String),
    Text(String),
}

/// Names are lower case and without the trailing dot.
#[derive(Debug, Default)]
pub struct ClusterZone {
    names: HashMap<String, Vec<DnsRecord>>,
    reverse: HashMap<IpAddr, String>,
}

impl ClusterZone {
    pub fn new(services: &[Arc<Service>], slices: &[Arc<EndpointSlice>]) -> ClusterZone {
        let mut by_service: BTreeMap<(&str, &str), Vec<&EndpointSlice>> = BTreeMap::new();
        for slice in slices {
            let name = slice.metadata.labels.as_ref().and_then(|labels| labels.get("kubernetes.io/service-name"));
            let namespace = slice.metadata.namespace.as_deref().unwrap_or_default();
            by_service.entry((namespace, name.map_or("", String::as_str))).or_default().push(slice);
        }
        let mut zone = ClusterZone::default();
        zone.add(&format!("dns-version.{DOMAIN}"), DnsRecord::Text("1.1.0".into()));
        for service in services {
            let namespace = service.metadata.namespace.as_deref().unwrap_or_default();
            let name = service.metadata.name.as_deref().unwrap_or_default();
            zone.add_service(&format!("{name}.{namespace}.svc.{DOMAIN}"), service, by_service.get(&(namespace, name)));
        }
        zone
    }

    fn add(&mut self, name: &str, record: DnsRecord) {
        let records = self.names.entry(name.to_lowercase()).or_default();
        if !records.contains(&record) {
            records.push(record);
        }
    }

    fn add_service(&mut self, base: &str, service: &Service, slices: Option<&Vec<&EndpointSlice>>) {
        let Some(spec) = &service.spec else { return };
        if let (Some("ExternalName"), Some(target)) = (spec.type_.as_deref(), &spec.external_name) {
            return self.add(base, DnsRecord::Alias(target.trim_end_matches('.').to_owned()));
        }
        let own: Vec<IpAddr> = spec.cluster_ips.iter().flatten().filter_map(|ip| ip.parse().ok()).collect();
        for address in &own {
            self.add(base, DnsRecord::Address(*address));
            self.reverse.insert(*address, base.to_owned());
        }
        if !own.is_empty() {
            for port in spec.ports.iter().flatten() {
                self.add_port(base, port.name.as_deref(), port.protocol.as_deref(), port.port, base);
            }
            return;
        }
        for slice in slices.into_iter().flatten() {
            for endpoint in slice.endpoints.iter().filter(|endpoint| is_published(service, endpoint)) {
                self.add_endpoint(base, endpoint, slice.ports.iter().flatten());
            }
        }
    }

    fn add_endpoint<'a>(
        &mut self,
        base: &str,
        endpoint: &Endpoint,
        ports: impl Iterator<Item = &'a EndpointPort> + Clone,
    ) {
        for text in &endpoint.addresses {
            let Ok(address) = text.parse::<IpAddr>() else { continue };
            let own = endpoint.hostname.clone().unwrap_or_else(|| text.replace(['.', ':'], "-"));
            let name = format!("{own}.{base}");
            self.add(base, DnsRecord::Address(address));
            self.add(&name, DnsRecord::Address(address));
            // A host name is preferred to a name derived from the address.
            match endpoint.hostname.is_some() {
                true => drop(self.reverse.insert(address, name.clone())),
                false => drop(self.reverse.entry(address).or_insert_with(|| name.clone())),
            }
            for port in ports.clone() {
                self.add_port(base, port.name.as_deref(), port.protocol.as_deref(), port.port.unwrap_or(0), &name);
            }
        }
    }

    fn add_port(&mut self, base: &str, name: Option<&str>, protocol: Option<&str>, port: i32, target: &str) {
        let (Some(name), Ok(port)) = (name.filter(|name| !name.is_empty()), u16::try_from(port)) else { return };
        let protocol = protocol.unwrap_or("TCP").to_lowercase();
        self.add(&format!("_{name}._{protocol}.{base}"), DnsRecord::Port(port, target.to_owned()));
    }

    /// All records of a name; None if the name does not exist.
    pub fn records(&self, name: &str) -> Option<Vec<DnsRecord>> {
        let name = name.to_lowercase();
        if let Some(address) = pod_address(&name) {
            return Some(vec![DnsRecord::Address(address)]);
        }
        self.names.get(&name).cloned()
    }

    pub fn name_of(&self, address: IpAddr) -> Option<&str> {
        self.reverse.get(&address).map(String::as_str)
    }
}

fn is_published(service: &Service, endpoint: &Endpoint) -> bool {
    let always = service.spec.as_ref().and_then(|spec| spec.publish_not_ready_addresses).unwrap_or(false);
    always || endpoint.conditions.as_ref().and_then(|conditions| conditions.ready).unwrap_or(true)
}

/// The address in `10-245-1-2.NAMESPACE.pod.cluster.local`.
fn pod_address(name: &str) -> Option<IpAddr> {
    let rest = name.strip_suffix(&format!(".pod.{DOMAIN}"))?;
    let (first, _namespace) = rest.split_once('.').filter(|(_, namespace)| !namespace.contains('.'))?;
    let separator = if first.matches('-').count() == 3 { "." } else { ":" };
    first.replace('-', separator).parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn zone(services: Value, slices: Value) -> ClusterZone {
        ClusterZone::new(
            &serde_json::from_value::<Vec<_>>(services).unwrap(),
            &serde_json::from_value::<Vec<_>>(slices).unwrap(),
        )
    }

    fn address(text: &str) -> DnsRecord {
        DnsRecord::Address(text.parse().unwrap())
    }

    #[test]
    fn a_service_name_has_its_addresses_and_ports() {
        let service = json!([{"metadata": {"name": "web", "namespace": "a"}, "spec": {
            "clusterIPs": ["10.97.0.7", "fd00:10:97::7"], "ports": [{"name": "http", "port": 80}]}}]);
        let zone = zone(service, json!([]));
        let base = "web.a.svc.cluster.local";
        assert_eq!(zone.records("WEB.a.svc.cluster.local"), Some(vec![address("10.97.0.7"), address("fd00:10:97::7")]));
        assert_eq!(zone.records(&format!("_http._tcp.{base}")), Some(vec![DnsRecord::Port(80, base.into())]));
        assert_eq!(zone.name_of("10.97.0.7".parse().unwrap()), Some(base));
        assert_eq!(zone.records("missing.a.svc.cluster.local"), None);
    }

    #[test]
    fn a_headless_service_name_has_its_ready_pods() {
        let service = json!([{"metadata": {"name": "db", "namespace": "a"}, "spec": {"clusterIPs": ["None"]}}]);
        let slice = json!([{"addressType": "IPv4", "ports": [],
            "metadata": {"name": "db-1", "namespace": "a", "labels": {"kubernetes.io/service-name": "db"}},
            "endpoints": [{"addresses": ["10.245.1.2"], "hostname": "db-0"},
                          {"addresses": ["10.245.1.3"], "conditions": {"ready": false}}]}]);
        let zone = zone(service, slice);
        assert_eq!(zone.records("db.a.svc.cluster.local"), Some(vec![address("10.245.1.2")]));
        assert_eq!(zone.records("db-0.db.a.svc.cluster.local"), Some(vec![address("10.245.1.2")]));
        assert_eq!(zone.name_of("10.245.1.2".parse().unwrap()), Some("db-0.db.a.svc.cluster.local"));
    }

    #[test]
    fn external_names_and_pod_names_are_resolved() {
        let service = json!([{"metadata": {"name": "out", "namespace": "a"},
            "spec": {"type": "ExternalName", "externalName": "example.org."}}]);
        let zone = zone(service, json!([]));
        assert_eq!(zone.records("out.a.svc.cluster.local"), Some(vec![DnsRecord::Alias("example.org".into())]));
        assert_eq!(zone.records("10-245-1-2.a.pod.cluster.local"), Some(vec![address("10.245.1.2")]));
        assert_eq!(zone.records("fd00--2.a.pod.cluster.local"), Some(vec![address("fd00::2")]));
        assert_eq!(zone.records("10-245-1.a.pod.cluster.local"), None);
    }
}
