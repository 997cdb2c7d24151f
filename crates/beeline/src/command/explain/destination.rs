//! The destination of `explain`: an address, or the name of a service.

use super::super::NotFound;
use crate::live_tables::LiveTables;
use crate::views::ViewNames;
use anyhow::anyhow;
use beeline_model::address::parse_ip;
use beeline_model::name::LOCAL_CLUSTER;
use beeline_model::resolve::Dial;
use beeline_model::row::{FrontendKey, FrontendKind};
use beeline_model::{Address, Family, PortName, Protocol};
use std::collections::BTreeMap;
use std::str::FromStr;

#[derive(Clone, Debug, PartialEq)]
pub enum Destination {
    Address { text: String, address: Address, port: u16, protocol: Protocol },
    Service(ServiceDestination),
}

/// `[CLUSTER:]NAMESPACE/NAME[:PORT][/PROTOCOL]`
#[derive(Clone, Debug, PartialEq)]
pub struct ServiceDestination {
    text: String,
    cluster: Option<String>,
    namespace: String,
    name: String,
    /// The name or the number of a port.
    port: Option<String>,
    protocol: Option<Protocol>,
}

impl FromStr for Destination {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Destination> {
        let (target, protocol) = match text.rsplit_once('/') {
            Some((target, word)) => match word.parse::<Protocol>() {
                Ok(protocol) => (target, Some(protocol)),
                // An address is never followed by anything but a protocol.
                Err(error) if socket_address(target).is_some() => return Err(anyhow!("{text:?}: {error}")),
                Err(_) => (text, None),
            },
            None => (text, None),
        };
        if let Some((address, port)) = socket_address(target) {
            let protocol = protocol.unwrap_or(Protocol::Tcp);
            return Ok(Destination::Address { text: text.to_owned(), address, port, protocol });
        }
        let service = service(text, target, protocol);
        service.map(Destination::Service).ok_or_else(|| {
            anyhow!(
                "{text:?} is not a destination: give ADDRESS:PORT[/PROTOCOL], such as 10.96.0.10:53/UDP or [fd00::1]:80, or a \
                 service as NAMESPACE/NAME[:PORT], such as default/web:http"
            )
        })
    }
}

fn socket_address(text: &str) -> Option<(Address, u16)> {
    let (address, port) = text.rsplit_once(':')?;
    let address = address.strip_prefix('[').and_then(|a| a.strip_suffix(']')).unwrap_or(address);
    Some((Address::from(parse_ip(address).ok()?), port.parse().ok()?))
}

fn service(text: &str, target: &str, protocol: Option<Protocol>) -> Option<ServiceDestination> {
    let (namespace, rest) = target.split_once('/')?;
    let (cluster, namespace) = match namespace.split_once(':') {
        Some((cluster, namespace)) => (Some(cluster.to_owned()), namespace),
        None => (None, namespace),
    };
    let (name, port) = match rest.split_once(':') {
        Some((name, port)) => (name, Some(port.to_owned())),
        None => (rest, None),
    };
    let is_name = |text: &str| !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || "-.".contains(c));
    let valid = is_name(namespace) && is_name(name) && port.as_deref().is_none_or(is_name);
    let (namespace, name) = (namespace.to_owned(), name.to_owned());
    valid.then(|| ServiceDestination { text: text.to_owned(), cluster, namespace, name, port, protocol })
}

impl Destination {
    /// The dials to explain, each with its text. A service has one for each port that was meant: to its ClusterIP, the IPv4
    /// one where it has both.
    pub fn dials(&self, tables: &LiveTables, view: u32, views: &ViewNames) -> anyhow::Result<Vec<(String, Dial)>> {
        match self {
            Destination::Address { text, address, port, protocol } => {
                Ok(vec![(text.clone(), Dial::to(*address, *port, *protocol))])
            }
            Destination::Service(service) => service.dials(tables, view, views),
        }
    }
}

impl ServiceDestination {
    fn dials(&self, tables: &LiveTables, view: u32, views: &ViewNames) -> anyhow::Result<Vec<(String, Dial)>> {
        let frontends = self.frontends(tables);
        let mut by_port: BTreeMap<(u16, Protocol), FrontendKey> = BTreeMap::new();
        for (key, protocol) in frontends.iter().filter(|(key, _)| key.view == view) {
            let chosen = by_port.entry((key.port, *protocol)).or_insert(**key);
            if key.address.family() == Family::V4 {
                *chosen = **key;
            }
        }
        if by_port.is_empty() {
            return Err(NotFound(self.missing(frontends.iter().map(|(key, _)| key.view), views)).into());
        }
        let dial = |((port, protocol), key): (&(u16, Protocol), &FrontendKey)| {
            let at = std::net::SocketAddr::new(key.address.ip(), *port);
            (format!("{at}/{protocol}"), Dial::to(key.address, *port, *protocol))
        };
        Ok(by_port.iter().map(dial).collect())
    }

    /// Dialled addresses of this service, in all views.
    fn frontends<'a>(&self, tables: &'a LiveTables) -> Vec<(&'a FrontendKey, Protocol)> {
        let is_named = |key: &FrontendKey, set: u32| {
            let names = tables.chain(set).filter_map(|set| tables.port_name(set.owner));
            names.into_iter().any(|name| self.matches(&name, key.port))
        };
        let frontends = tables.rows.frontends.iter().filter(|(_, row)| row.kind == FrontendKind::ClusterIp);
        let frontends = frontends.filter_map(|(key, row)| Some((key, key.protocol?, row.set)));
        frontends.filter(|(key, _, set)| is_named(key, *set)).map(|(key, protocol, _)| (key, protocol)).collect()
    }

    fn matches(&self, name: &PortName, port: u16) -> bool {
        let service = &name.service;
        let cluster = self.cluster.as_deref();
        service.policy_kind().is_none()
            && service.namespace() == self.namespace
            && service.name() == self.name
            && cluster.is_none_or(|cluster| service.cluster() == cluster)
            && self.port.as_ref().is_none_or(|wanted| *wanted == *name.port || *wanted == port.to_string())
            && self.protocol.is_none_or(|protocol| name.protocol == protocol)
    }

    /// `seen`: views in which the service has frontends.
    fn missing(&self, seen: impl Iterator<Item = u32>, views: &ViewNames) -> String {
        let mut seen: Vec<String> =
            seen.map(|view| views.label(view).unwrap_or_else(|| LOCAL_CLUSTER.into())).collect();
        seen.sort();
        seen.dedup();
        match seen.is_empty() {
            true => format!(
                "no ClusterIP of service {} is programmed: `beeline services` lists the services, `beeline status` what is \
                 refused",
                self.text
            ),
            false => format!("service {} has frontends in other views only: --view {}", self.text, seen.join(", ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Destination {
        text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn an_address_is_a_destination() {
        for (text, ip, expected) in [
            ("10.96.0.10:80", "10.96.0.10", Protocol::Tcp),
            ("10.96.0.10:80/UDP", "10.96.0.10", Protocol::Udp),
            ("10.96.0.10:80/udp", "10.96.0.10", Protocol::Udp),
            ("[fd00::1]:80/TCP", "fd00::1", Protocol::Tcp),
        ] {
            let Destination::Address { address, port, protocol, .. } = parse(text) else { panic!("{text}") };
            assert_eq!((address.ip().to_string().as_str(), port, protocol), (ip, 80, expected), "{text}");
        }
    }

    #[test]
    fn a_service_is_a_destination() {
        let service = |text: &str| {
            let Destination::Service(service) = parse(text) else { panic!("{text}") };
            let ServiceDestination { cluster, namespace, name, port, protocol, .. } = service;
            (cluster, format!("{namespace}/{name}"), port, protocol)
        };
        let web = "default/web".to_owned();
        assert_eq!(service("default/web"), (None, web.clone(), None, None));
        assert_eq!(service("default/web:http"), (None, web.clone(), Some("http".into()), None));
        assert_eq!(service("default/web:80/UDP"), (None, web.clone(), Some("80".into()), Some(Protocol::Udp)));
        assert_eq!(service("default/web/TCP"), (None, web.clone(), None, Some(Protocol::Tcp)));
        assert_eq!(service("green:default/web:http/TCP").0, Some("green".into()));
    }

    #[test]
    fn a_text_that_is_neither_address_nor_service_is_refused_with_examples() {
        for text in ["web", "10.96.0.10", "10.96.0.10:http", "a/b/c/d", "", "default/", "10.96.0.10:80/FTP"] {
            let error = text.parse::<Destination>().unwrap_err().to_string();
            assert!(error.contains("default/web:http") || error.contains("FTP"), "{text}: {error}");
        }
    }
}
