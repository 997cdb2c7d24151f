//! The addresses that a policy may use as virtual addresses. A process that answers at a cloud's metadata address can
//! hand out node credentials. Therefore no policy and no Service may use a metadata address, unless an administrator
//! lists exactly that address; a wider range that contains it is not enough.

use crate::address::Address;
use crate::metadata_address;
use ipnet::IpNet;

const DEFAULT: [&str; 2] = ["169.254.0.0/16", "fd00:bee::/48"];

fn parse(ranges: &[&str]) -> Vec<IpNet> {
    ranges.iter().filter_map(|text| text.parse().ok()).collect()
}

pub fn default_ranges() -> Vec<IpNet> {
    parse(&DEFAULT)
}

/// Why an address must not be a virtual address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VirtualAddressError {
    #[error("it is an unspecified, loopback or multicast address")]
    Special,
    #[error("it is outside the allowed ranges {} (--virtual-address-cidrs)", list(allowed))]
    Outside { allowed: Vec<IpNet> },
    #[error("it is a cloud's metadata address, which is allowed only if --virtual-address-cidrs lists it explicitly")]
    Metadata,
}

fn list(ranges: &[IpNet]) -> String {
    let texts: Vec<String> = ranges.iter().map(ToString::to_string).collect();
    if texts.is_empty() { "(none)".into() } else { texts.join(", ") }
}

/// True for a metadata address that no range lists explicitly.
pub fn is_reserved(ranges: &[IpNet], address: Address) -> bool {
    let lists = |metadata: &IpNet| ranges.iter().any(|net| net.contains(&address.ip()) && metadata.contains(net));
    metadata_address::range_of(address).is_some_and(|metadata| !lists(&metadata))
}

pub fn check(ranges: &[IpNet], address: Address) -> Result<(), VirtualAddressError> {
    let ip = address.ip();
    if ip.is_unspecified() || ip.is_loopback() || ip.is_multicast() {
        return Err(VirtualAddressError::Special);
    }
    if !ranges.iter().any(|net| net.contains(&ip)) {
        return Err(VirtualAddressError::Outside { allowed: ranges.to_vec() });
    }
    if is_reserved(ranges, address) { Err(VirtualAddressError::Metadata) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::parse_ip;

    fn verdict(ranges: &[IpNet], text: &str) -> Result<(), VirtualAddressError> {
        check(ranges, Address::from(parse_ip(text).unwrap()))
    }

    #[test]
    fn metadata_addresses_are_refused_unless_listed_explicitly() {
        let usual = default_ranges();
        for free in ["169.254.20.10", "169.254.0.90", "fd00:bee::1"] {
            assert_eq!(verdict(&usual, free), Ok(()), "{free}");
        }
        for metadata in ["169.254.169.254", "169.254.170.2", "169.254.0.2", "169.254.0.5"] {
            assert_eq!(verdict(&usual, metadata), Err(VirtualAddressError::Metadata));
        }
        for outside in ["168.63.129.16", "fd00:ec2::254", "10.0.0.1", "fd00:beef::1", "fd00:bee:1::1"] {
            assert_eq!(verdict(&usual, outside), Err(VirtualAddressError::Outside { allowed: usual.clone() }));
        }
        let all = parse(&["0.0.0.0/0", "::/0"]);
        let clouds = ["168.63.129.16", "fd00:ec2::254", "169.254.169.254", "fd20:ce::254", "fd00:c1::a9fe:a9fe"];
        for metadata in clouds.into_iter().chain(["100.100.100.200", "169.254.0.3", "169.254.0.4"]) {
            assert_eq!(
                verdict(&all, metadata),
                Err(VirtualAddressError::Metadata),
                "{metadata} with all addresses allowed"
            );
        }
        let listed = parse(&["169.254.0.0/16", "169.254.169.254/32"]);
        assert_eq!(verdict(&listed, "169.254.169.254"), Ok(()));
        assert_eq!(verdict(&listed, "169.254.169.253"), Err(VirtualAddressError::Metadata));
    }

    #[test]
    fn the_message_for_an_address_outside_names_the_ranges() {
        let message = verdict(&default_ranges(), "10.0.0.1").unwrap_err().to_string();
        let ranges = "169.254.0.0/16, fd00:bee::/48";
        assert_eq!(message, format!("it is outside the allowed ranges {ranges} (--virtual-address-cidrs)"));
    }

    #[test]
    fn unspecified_loopback_and_multicast_addresses_are_refused() {
        let all = parse(&["0.0.0.0/0", "::/0"]);
        for special in ["0.0.0.0", "::", "127.0.0.1", "::1", "224.0.0.1", "ff02::1"] {
            assert_eq!(verdict(&all, special), Err(VirtualAddressError::Special), "{special}");
        }
    }
}
