//! Names of the cluster, as Kubernetes' specification of DNS has them, made from one look at all Services and slices.

use std::{
    collections::{BTreeMap, HashMap},
    net::IpAddr,
    sync::Arc,
};

use k8s_openapi::api::{
    core::v1::Service,
    discovery::v1::{Endpoint, EndpointPort, EndpointSlice},
};

use crate::plan::DOMAIN;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fact {
    Address(IpAddr),
    Alias(String),
    Port(u16, String),
    Text(String),
}

/// Names are lower case, without the last dot.
#[derive(Debug, Default)]
pub struct Zone {
    names: HashMap<String, Vec<Fact>>,
    reverse: HashMap<IpAddr, String>,
}

impl Zone {
    pub fn new(services: &[Arc<Service>], slices: &[Arc<EndpointSlice>]) -> Zone {
        let mut by_service: BTreeMap<(&str, &str), Vec<&EndpointSlice>> = BTreeMap::new();
        for slice in slices {
            let name = slice.metadata.labels.as_ref().and_then(|labels| labels.get("kubernetes.io/service-name"));
            let space = slice.metadata.namespace.as_deref().unwrap_or_default();
            by_service.entry((space, name.map_or("", String::as_str))).or_default().push(slice);
        }
        let mut zone = Zone::default();
        zone.add(&format!("dns-version.{DOMAIN}"), Fact::Text("1.1.0".into()));
        for service in services {
            let space = service.metadata.namespace.as_deref().unwrap_or_default();
            let name = service.metadata.name.as_deref().unwrap_or_default();
            zone.service(&format!("{name}.{space}.svc.{DOMAIN}"), service, by_service.get(&(space, name)));
        }
        zone
    }

    fn add(&mut self, name: &str, fact: Fact) {
        let facts = self.names.entry(name.to_lowercase()).or_default();
        if !facts.contains(&fact) {
            facts.push(fact);
        }
    }

    fn service(&mut self, base: &str, service: &Service, slices: Option<&Vec<&EndpointSlice>>) {
        let Some(spec) = &service.spec else { return };
        if let (Some("ExternalName"), Some(target)) = (spec.type_.as_deref(), &spec.external_name) {
            return self.add(base, Fact::Alias(target.trim_end_matches('.').to_owned()));
        }
        let own: Vec<IpAddr> = spec.cluster_ips.iter().flatten().filter_map(|ip| ip.parse().ok()).collect();
        for address in &own {
            self.add(base, Fact::Address(*address));
            self.reverse.insert(*address, base.to_owned());
        }
        if !own.is_empty() {
            for port in spec.ports.iter().flatten() {
                self.port(base, port.name.as_deref(), port.protocol.as_deref(), port.port, base);
            }
            return;
        }
        for slice in slices.into_iter().flatten() {
            for endpoint in slice.endpoints.iter().filter(|endpoint| visible(service, endpoint)) {
                self.endpoint(base, endpoint, slice.ports.iter().flatten());
            }
        }
    }

    fn endpoint<'a>(&mut self, base: &str, endpoint: &Endpoint, ports: impl Iterator<Item = &'a EndpointPort> + Clone) {
        for text in &endpoint.addresses {
            let Ok(address) = text.parse::<IpAddr>() else { continue };
            let own = endpoint.hostname.clone().unwrap_or_else(|| text.replace(['.', ':'], "-"));
            let name = format!("{own}.{base}");
            self.add(base, Fact::Address(address));
            self.add(&name, Fact::Address(address));
            // A name that somebody chose is better than one made of numbers.
            match endpoint.hostname.is_some() {
                true => drop(self.reverse.insert(address, name.clone())),
                false => drop(self.reverse.entry(address).or_insert_with(|| name.clone())),
            }
            for port in ports.clone() {
                self.port(base, port.name.as_deref(), port.protocol.as_deref(), port.port.unwrap_or(0), &name);
            }
        }
    }

    fn port(&mut self, base: &str, name: Option<&str>, protocol: Option<&str>, port: i32, target: &str) {
        let (Some(name), Ok(port)) = (name.filter(|name| !name.is_empty()), u16::try_from(port)) else { return };
        let protocol = protocol.unwrap_or("TCP").to_lowercase();
        self.add(&format!("_{name}._{protocol}.{base}"), Fact::Port(port, target.to_owned()));
    }

    /// All facts of a name; none if there is no such name.
    pub fn facts(&self, name: &str) -> Option<Vec<Fact>> {
        let name = name.to_lowercase();
        if let Some(address) = pod_address(&name) {
            return Some(vec![Fact::Address(address)]);
        }
        self.names.get(&name).cloned()
    }

    pub fn name_of(&self, address: IpAddr) -> Option<&str> {
        self.reverse.get(&address).map(String::as_str)
    }
}

fn visible(service: &Service, endpoint: &Endpoint) -> bool {
    let always = service.spec.as_ref().and_then(|spec| spec.publish_not_ready_addresses).unwrap_or(false);
    always || endpoint.conditions.as_ref().and_then(|conditions| conditions.ready).unwrap_or(true)
}

/// The address in `10-245-1-2.NAMESPACE.pod.cluster.local`.
fn pod_address(name: &str) -> Option<IpAddr> {
    let rest = name.strip_suffix(&format!(".pod.{DOMAIN}"))?;
    let (first, _space) = rest.split_once('.').filter(|(_, space)| !space.contains('.'))?;
    let separator = if first.matches('-').count() == 3 { "." } else { ":" };
    first.replace('-', separator).parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn zone(services: Value, slices: Value) -> Zone {
        Zone::new(
            &serde_json::from_value::<Vec<_>>(services).unwrap(),
            &serde_json::from_value::<Vec<_>>(slices).unwrap(),
        )
    }

    fn address(text: &str) -> Fact {
        Fact::Address(text.parse().unwrap())
    }

    #[test]
    fn a_service_has_its_addresses_and_ports() {
        let service = json!([{"metadata": {"name": "web", "namespace": "a"}, "spec": {
            "clusterIPs": ["10.97.0.7", "fd00:10:97::7"], "ports": [{"name": "http", "port": 80}]}}]);
        let zone = zone(service, json!([]));
        let base = "web.a.svc.cluster.local";
        assert_eq!(zone.facts("WEB.a.svc.cluster.local"), Some(vec![address("10.97.0.7"), address("fd00:10:97::7")]));
        assert_eq!(zone.facts(&format!("_http._tcp.{base}")), Some(vec![Fact::Port(80, base.into())]));
        assert_eq!(zone.name_of("10.97.0.7".parse().unwrap()), Some(base));
        assert_eq!(zone.facts("nobody.a.svc.cluster.local"), None);
    }

    #[test]
    fn a_headless_service_has_its_ready_pods() {
        let service = json!([{"metadata": {"name": "db", "namespace": "a"}, "spec": {"clusterIPs": ["None"]}}]);
        let slice = json!([{"addressType": "IPv4", "ports": [],
            "metadata": {"name": "db-1", "namespace": "a", "labels": {"kubernetes.io/service-name": "db"}},
            "endpoints": [{"addresses": ["10.245.1.2"], "hostname": "db-0"},
                          {"addresses": ["10.245.1.3"], "conditions": {"ready": false}}]}]);
        let zone = zone(service, slice);
        assert_eq!(zone.facts("db.a.svc.cluster.local"), Some(vec![address("10.245.1.2")]));
        assert_eq!(zone.facts("db-0.db.a.svc.cluster.local"), Some(vec![address("10.245.1.2")]));
        assert_eq!(zone.name_of("10.245.1.2".parse().unwrap()), Some("db-0.db.a.svc.cluster.local"));
    }

    #[test]
    fn aliases_and_pods_have_names() {
        let service = json!([{"metadata": {"name": "out", "namespace": "a"},
            "spec": {"type": "ExternalName", "externalName": "example.org."}}]);
        let zone = zone(service, json!([]));
        assert_eq!(zone.facts("out.a.svc.cluster.local"), Some(vec![Fact::Alias("example.org".into())]));
        assert_eq!(zone.facts("10-245-1-2.a.pod.cluster.local"), Some(vec![address("10.245.1.2")]));
        assert_eq!(zone.facts("fd00--2.a.pod.cluster.local"), Some(vec![address("fd00::2")]));
        assert_eq!(zone.facts("10-245-1.a.pod.cluster.local"), None);
    }
}
