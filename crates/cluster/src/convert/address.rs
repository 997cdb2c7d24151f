//! Parses addresses and ranges as objects write them.

use beeline_model::address::parse_ip;
use beeline_model::{Address, Family};
use ipnet::IpNet;
use std::net::IpAddr;

pub(super) fn parse(text: &str) -> Result<Address, String> {
    parse_ip(text).map(Address::from).map_err(|error| error.to_string())
}

/// An address that may be a frontend. Programming 0.0.0.0, a loopback or a multicast address would capture dials that
/// have nothing to do with the Service.
pub(super) fn parse_frontend(text: &str) -> Result<Address, String> {
    let address = parse(text)?;
    match () {
        () if address.is_any() => Err(format!("{text} is the unspecified address")),
        () if address.is_loopback() => Err(format!("{text} is a loopback address")),
        () if address.ip().is_multicast() => Err(format!("{text} is a multicast address")),
        () if address.is_broadcast() => Err(format!("{text} is the broadcast address")),
        () => Ok(address),
    }
}

/// An address that the API accepts as externalIP and as endpoint. Link-local addresses are excluded too:
/// 169.254.169.254 is the metadata server of clouds.
pub(super) fn parse_plain(text: &str) -> Result<Address, String> {
    let address = parse_frontend(text)?;
    if address.is_link_local() { Err(format!("{text} is a link-local address")) } else { Ok(address) }
}

pub(super) fn parse_family(text: &str) -> Result<Family, String> {
    match text {
        "IPv4" => Ok(Family::V4),
        "IPv6" => Ok(Family::V6),
        _ => Err(format!("{text:?} is not an IP family: IPv4 or IPv6")),
    }
}

/// Parses a CIDR as Kubernetes does: host bits are dropped, and numbers with leading zeros are decimal.
pub(super) fn parse_range(text: &str) -> Result<IpNet, String> {
    let invalid = || format!("{text:?} is not a CIDR");
    let (ip, length) = text.split_once('/').ok_or_else(invalid)?;
    let ip: IpAddr = parse_ip(ip).map_err(|_| invalid())?;
    let digits = !length.is_empty() && length.bytes().all(|b| b.is_ascii_digit());
    let length = length.parse().ok().filter(|_| digits).ok_or_else(invalid)?;
    IpNet::new(ip, length).map(|net| net.trunc()).map_err(|_| invalid())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_with_a_special_meaning_are_refused() {
        for bad in [
            "0.0.0.0",
            "::",
            "127.0.0.1",
            "127.8.8.8",
            "::1",
            "224.0.0.1",
            "ff02::1",
            "255.255.255.255",
            "x",
            "",
            "fe80::1%eth0",
        ] {
            assert!(parse_frontend(bad).is_err(), "{bad}");
        }
        for link_local in ["169.254.169.254", "fe80::1"] {
            assert!(parse_frontend(link_local).is_ok() && parse_plain(link_local).is_err(), "{link_local}");
        }
        assert_eq!(parse_plain("010.000.000.001").unwrap().to_string(), "10.0.0.1");
        assert_eq!(parse_plain("::ffff:10.0.0.1").unwrap().family(), Family::V4);
    }

    #[test]
    fn ranges_are_truncated_and_malformed_ones_refused() {
        assert_eq!(parse_range("10.1.2.3/8").unwrap().to_string(), "10.0.0.0/8");
        assert_eq!(parse_range("010.0.0.0/08").unwrap().to_string(), "10.0.0.0/8");
        assert_eq!(parse_range("fd00::1/64").unwrap().to_string(), "fd00::/64");
        for bad in ["", "/", "10.0.0.0", "10.0.0.0/33", "10.0.0.0/-1", "10.0.0.0/+8", "10.0.0.0/", "fd00::/129", "x/8"]
        {
            assert!(parse_range(bad).is_err(), "{bad}");
        }
    }
}
