//! One address type for both families: 16 bytes, with IPv4 addresses mapped (`::ffff:a.b.c.d`), as in the BPF maps.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Family {
    V4,
    V6,
}

impl Family {
    pub const BOTH: [Family; 2] = [Family::V4, Family::V6];

    pub fn of(ip: IpAddr) -> Family {
        if ip.is_ipv4() { Family::V4 } else { Family::V6 }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Family::V4 => "IPv4",
            Family::V6 => "IPv6",
        })
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Address(pub [u8; 16]);

impl Address {
    /// The address of NodePort rows: 0.0.0.0, mapped.
    pub const ANY_V4: Address = Address([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0, 0, 0]);
    pub const ANY_V6: Address = Address([0; 16]);

    pub fn any(family: Family) -> Address {
        match family {
            Family::V4 => Address::ANY_V4,
            Family::V6 => Address::ANY_V6,
        }
    }

    pub fn loopback(family: Family) -> Address {
        Address::from(match family {
            Family::V4 => IpAddr::V4(Ipv4Addr::LOCALHOST),
            Family::V6 => IpAddr::V6(Ipv6Addr::LOCALHOST),
        })
    }

    pub fn ip(self) -> IpAddr {
        let v6 = Ipv6Addr::from(self.0);
        v6.to_ipv4_mapped().map_or(IpAddr::V6(v6), IpAddr::V4)
    }

    pub fn family(self) -> Family {
        Family::of(self.ip())
    }

    pub fn is_any(self) -> bool {
        self == Address::ANY_V4 || self == Address::ANY_V6
    }

    pub fn is_loopback(self) -> bool {
        self.ip().is_loopback()
    }

    pub fn is_link_local(self) -> bool {
        match self.ip() {
            IpAddr::V4(v4) => v4.is_link_local(),
            IpAddr::V6(v6) => v6.is_unicast_link_local(),
        }
    }

    pub fn is_broadcast(self) -> bool {
        matches!(self.ip(), IpAddr::V4(v4) if v4.is_broadcast())
    }

    /// True if the address has another meaning on every host, or means many hosts at once. A remote cluster cannot own
    /// such an address.
    pub fn is_special(self) -> bool {
        let here = self.is_any() || self.is_loopback() || self.is_link_local();
        here || self.ip().is_multicast() || self.is_broadcast()
    }
}

impl From<IpAddr> for Address {
    fn from(ip: IpAddr) -> Address {
        match ip {
            IpAddr::V4(v4) => Address(v4.to_ipv6_mapped().octets()),
            IpAddr::V6(v6) => Address(v6.octets()),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.ip().fmt(f)
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.ip().fmt(f)
    }
}

impl Serialize for Address {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Address {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Address, D::Error> {
        let text = String::deserialize(d)?;
        parse_ip(&text).map(Address::from).map_err(serde::de::Error::custom)
    }
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{0:?} is not an IP address")]
pub struct ParseIpError(pub String);

/// Parses an IP address. Leading zeros of IPv4 octets are read as decimal, as Kubernetes reads them in old objects,
/// never as octal.
pub fn parse_ip(text: &str) -> Result<IpAddr, ParseIpError> {
    if let Ok(ip) = IpAddr::from_str(text) {
        return Ok(Address::from(ip).ip());
    }
    let octets: Vec<u8> = text.split('.').map_while(parse_octet).collect();
    match <[u8; 4]>::try_from(octets) {
        Ok(octets) if text.split('.').count() == 4 => Ok(IpAddr::V4(Ipv4Addr::from(octets))),
        _ => Err(ParseIpError(text.to_owned())),
    }
}

fn parse_octet(text: &str) -> Option<u8> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if digits {
        text.trim_start_matches('0').parse().ok().or((text.bytes().all(|b| b == b'0')).then_some(0))
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leading_zeros_are_read_as_decimal() {
        assert_eq!(parse_ip("010.096.000.001").unwrap(), "10.96.0.1".parse::<IpAddr>().unwrap());
        assert_eq!(parse_ip("fd00::1").unwrap(), "fd00::1".parse::<IpAddr>().unwrap());
        for bad in ["", "1.2.3", "1.2.3.4.5", "1.2.3.256", "a.b.c.d", "1.2.3.-4", "1.2.3.4x"] {
            assert_eq!(parse_ip(bad), Err(ParseIpError(bad.into())), "{bad}");
        }
    }

    #[test]
    fn addresses_round_trip_through_the_mapped_form() {
        for text in ["10.1.2.3", "fd00::1", "::", "0.0.0.0", "::1"] {
            assert_eq!(Address::from(parse_ip(text).unwrap()).to_string(), text);
        }
    }
}
