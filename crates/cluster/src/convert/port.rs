//! Parses port numbers, protocols and port names of Services, EndpointSlices and Endpoints.

use super::name::is_label;
use beeline_model::Protocol;

pub(super) fn parse_number(port: i32) -> Result<u16, String> {
    match u16::try_from(port) {
        Ok(port) if port > 0 => Ok(port),
        _ => Err(format!("{port} is not a port: 1 to 65535")),
    }
}

/// 0 means no port.
pub(super) fn parse_optional(port: Option<i32>) -> Result<u16, String> {
    match port {
        None | Some(0) => Ok(0),
        Some(port) => parse_number(port),
    }
}

pub(super) fn parse_protocol(text: Option<&str>) -> Result<Protocol, String> {
    match text.unwrap_or_default() {
        "TCP" => Ok(Protocol::Tcp),
        "UDP" => Ok(Protocol::Udp),
        "SCTP" => Ok(Protocol::Sctp),
        other => Err(format!("{other:?} is not a protocol: TCP, UDP or SCTP")),
    }
}

/// An empty name is valid: a single port needs none.
pub(super) fn parse_name(text: &str) -> Result<&str, String> {
    if text.is_empty() || is_label(text) { Ok(text) } else { Err(format!("{text:?} is not a DNS-1123 label")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn port_numbers_outside_1_to_65535_are_invalid() {
        assert_eq!((parse_number(1), parse_number(65535)), (Ok(1), Ok(65535)));
        for bad in [0, -1, 65536, 70000, i32::MAX, i32::MIN] {
            assert!(parse_number(bad).is_err(), "{bad}");
        }
        assert_eq!((parse_optional(None), parse_optional(Some(0)), parse_optional(Some(80))), (Ok(0), Ok(0), Ok(80)));
    }

    #[test]
    fn protocols_and_port_names_are_checked() {
        assert_eq!(parse_protocol(Some("SCTP")), Ok(Protocol::Sctp));
        assert!(parse_protocol(Some("tcp")).is_err() && parse_protocol(None).is_err());
        assert!(parse_name("").is_ok() && parse_name("http").is_ok() && parse_name("a/b").is_err());
    }
}
