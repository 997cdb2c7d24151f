//! Converts the ports of a policy and pairs the ports of the frontend with those of the backend.

use super::{Checked, invalid};
use crate::convert::Converter;
use crate::convert::name::is_label;
use crate::policy::{AddressPort, EndpointPort, FrontendPort, MAX_PORTS, Transport};
use beeline_model::policy::{BackendPort, DialledPort, Matcher, PortChoice, Target};
use beeline_model::refusal::RefusalReason;
use beeline_model::{Name, Protocol};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use std::collections::HashSet;

impl Converter {
    pub(super) fn dialled_ports(&mut self, at: &str, ports: &[FrontendPort]) -> Checked<Box<[DialledPort]>> {
        let names = self.names_of(at, ports.iter().map(|port| port.name.as_deref()))?;
        let mut used = HashSet::new();
        let mut dialled = Vec::with_capacity(ports.len());
        for (i, (port, name)) in ports.iter().zip(names).enumerate() {
            let (at, protocol) = (format!("{at}[{i}]"), protocol(port.protocol));
            let port = number(&at, port.port)?;
            if !used.insert((port, protocol)) {
                return invalid(
                    RefusalReason::BadPort,
                    format!("{at}: {port}/{protocol} is listed twice: write it once"),
                );
            }
            dialled.push(DialledPort { name, port, protocol });
        }
        Ok(dialled.into())
    }

    pub(super) fn endpoint_ports(&mut self, at: &str, ports: &[EndpointPort]) -> Checked<Box<[BackendPort]>> {
        let names = self.names_of(at, ports.iter().map(|port| port.name.as_deref()))?;
        let typed = ports.iter().zip(names).enumerate().map(|(i, (port, name))| {
            let choice = match &port.port {
                IntOrString::Int(port) => PortChoice::Number(number(&format!("{at}[{i}]"), *port)?),
                IntOrString::String(text) if is_port_name(text) => PortChoice::Name(self.names.intern(text)),
                IntOrString::String(text) => {
                    return invalid(RefusalReason::BadPort, format!("{at}[{i}].port: {}", wrong_text(text)));
                }
            };
            Ok(BackendPort { name, port: choice, protocol: protocol(port.protocol) })
        });
        typed.collect()
    }

    pub(super) fn address_ports(&mut self, at: &str, ports: &[AddressPort]) -> Checked<Box<[BackendPort]>> {
        let names = self.names_of(at, ports.iter().map(|port| port.name.as_deref()))?;
        let typed = ports.iter().zip(names).enumerate().map(|(i, (port, name))| {
            let choice = PortChoice::Number(number(&format!("{at}[{i}]"), port.port)?);
            Ok(BackendPort { name, port: choice, protocol: protocol(port.protocol) })
        });
        typed.collect()
    }

    /// The names of one list of ports. A single port needs no name.
    fn names_of<'a>(&mut self, at: &str, names: impl ExactSizeIterator<Item = Option<&'a str>>) -> Checked<Vec<Name>> {
        let count = names.len();
        if count == 0 || count > MAX_PORTS {
            return invalid(RefusalReason::BadPort, format!("{at}: write 1 to {MAX_PORTS} ports"));
        }
        let mut found: Vec<Name> = Vec::with_capacity(count);
        for (i, name) in names.enumerate() {
            match name {
                None if count > 1 => {
                    return invalid(RefusalReason::BadPort, format!("{at}[{i}]: more than one port: give each a name"));
                }
                Some(name) if !is_label(name) => {
                    return invalid(
                        RefusalReason::BadPort,
                        format!("{at}[{i}].name: {name:?} is not a DNS-1123 label"),
                    );
                }
                Some(name) if found.iter().any(|other| **other == *name) => {
                    return invalid(
                        RefusalReason::BadPort,
                        format!("{at}[{i}].name: {name:?} is the name of an earlier port"),
                    );
                }
                name => found.push(self.names.intern(name.unwrap_or_default())),
            }
        }
        Ok(found)
    }
}

/// Pairs the ports by name. In a single pair one side may omit the name; it then gets the name of the other side.
pub(super) fn pair(matcher: &mut Matcher, target: &mut Target) -> Checked<()> {
    let (Target::LocalPods { ports: back, .. }
    | Target::Pods { ports: back, .. }
    | Target::Addresses { ports: back, .. }) = target;
    let front = match matcher {
        Matcher::Service { ports: None, .. } => return Ok(()),
        Matcher::Service { ports: Some(ports), .. } | Matcher::Address { ports, .. } => ports,
    };
    if front.len() != back.len() {
        let counts = format!("the frontend has {} ports and the backend {}", front.len(), back.len());
        return invalid(
            RefusalReason::UnpairedPort,
            format!("toPorts: {counts}: they are paired, so write the same number"),
        );
    }
    if let ([front], [back]) = (&mut **front, &mut **back) {
        share_name(&mut front.name, &mut back.name);
    }
    front.iter().try_for_each(|front| match back.iter().find(|back| back.name == front.name) {
        None => {
            invalid(RefusalReason::UnpairedPort, format!("toPorts: no port of the backend is named {:?}", &*front.name))
        }
        Some(back) if back.protocol != front.protocol => {
            let both = format!("{:?} is {} and {}", &*front.name, front.protocol, back.protocol);
            invalid(RefusalReason::UnpairedPort, format!("toPorts: {both}: ports that are paired have one protocol"))
        }
        Some(_) => Ok(()),
    })
}

fn share_name(front: &mut Name, back: &mut Name) {
    match (front.is_empty(), back.is_empty()) {
        (true, false) => *front = back.clone(),
        (false, true) => *back = front.clone(),
        _ => {}
    }
}

fn number(at: &str, port: i32) -> Checked<u16> {
    crate::convert::port::parse_number(port).or_else(|why| invalid(RefusalReason::BadPort, format!("{at}.port: {why}")))
}

fn protocol(transport: Transport) -> Protocol {
    match transport {
        Transport::Tcp => Protocol::Tcp,
        Transport::Udp => Protocol::Udp,
    }
}

/// The earlier system wrote every port as a text.
fn wrong_text(text: &str) -> String {
    match text.parse::<u16>() {
        Ok(number) => format!("{text:?} is a number in quotes: write {number}"),
        Err(_) => format!("{text:?} is neither a number nor a container port's name"),
    }
}

/// The API's rule for names of container ports: at most 15 of a-z, 0-9 and single '-', with at least one letter.
fn is_port_name(text: &str) -> bool {
    text.len() <= 15 && is_label(text) && !text.contains("--") && text.bytes().any(|byte| byte.is_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_in_quotes_has_a_message_of_its_own() {
        assert_eq!(wrong_text("9090"), "\"9090\" is a number in quotes: write 9090");
        assert_eq!(wrong_text("99999"), "\"99999\" is neither a number nor a container port's name");
        assert_eq!(wrong_text("Http"), "\"Http\" is neither a number nor a container port's name");
    }

    #[test]
    fn names_of_container_ports_are_checked() {
        for good in ["http", "p8080", "8080-tcp", "a", "a-b-c"] {
            assert!(is_port_name(good), "{good}");
        }
        for bad in ["", "8080", "80-80", "a--b", "-a", "a-", "Http", "a_b", "sixteen-letters-"] {
            assert!(!is_port_name(bad), "{bad}");
        }
    }
}
