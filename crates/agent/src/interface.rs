//! Reads this host's addresses from its interfaces, without loopback and link-local addresses. The addresses of the
//! interface with the default route come first: without a Node object the first one is the node's address.

use beeline_model::Address;
use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;
use std::collections::HashSet;
use std::net::IpAddr;

/// On an error the caller keeps the addresses that it read before.
pub fn own_addresses() -> std::io::Result<Vec<Address>> {
    let first = default_interface();
    let mut found: Vec<(bool, Address)> = getifaddrs()?
        .filter(|i| i.flags.contains(InterfaceFlags::IFF_UP))
        .filter_map(|i| Some((Some(&i.interface_name) != first.as_ref(), address_of(&i.address?)?)))
        .filter(|(_, a)| !a.is_loopback() && !a.is_link_local())
        .collect();
    // The sort is stable: within each half the interfaces keep the kernel's order.
    found.sort_by_key(|(other, _)| *other);
    // Some CNI plugins assign the same address to the node's end of every pod's link.
    let mut seen = HashSet::new();
    Ok(found.into_iter().map(|(_, address)| address).filter(|address| seen.insert(*address)).collect())
}

fn address_of(storage: &nix::sys::socket::SockaddrStorage) -> Option<Address> {
    let v4 = storage.as_sockaddr_in().map(|a| IpAddr::V4(a.ip()));
    let v6 = || storage.as_sockaddr_in6().map(|a| IpAddr::V6(a.ip()));
    v4.or_else(v6).map(Address::from)
}

/// The interface of the first IPv4 default route, else of the first IPv6 one.
fn default_interface() -> Option<String> {
    let v4 = std::fs::read_to_string("/proc/net/route").unwrap_or_default();
    let mut rows = v4.lines().skip(1).map(|l| l.split_whitespace().collect::<Vec<_>>());
    let of_v4 = rows.find(|r| r.get(1) == Some(&"00000000") && r.get(7) == Some(&"00000000"));
    if let Some(row) = of_v4 {
        return row.first().map(|name| (*name).to_owned());
    }
    let v6 = std::fs::read_to_string("/proc/net/ipv6_route").unwrap_or_default();
    let mut rows = v6.lines().map(|l| l.split_whitespace().collect::<Vec<_>>());
    let is_default = |r: &Vec<&str>| r.get(1) == Some(&"00") && r.last() != Some(&"lo");
    rows.find(is_default)?.last().map(|name| (*name).to_owned())
}
