//! This host's own addresses, as the interfaces show them: no loopback, no link-local; those of the interface with the
//! default route first, as that is what a folder without a Node object calls the node's address.

use beeline_model::Address;
use std::net::IpAddr;

pub fn own_addresses() -> Vec<Address> {
    let Ok(output) = std::process::Command::new("ip").args(["-j", "address", "show", "up"]).output() else {
        return Vec::new();
    };
    let first = default_interface();
    let mut links: Vec<serde_json::Value> = serde_json::from_slice(&output.stdout).unwrap_or_default();
    links.sort_by_key(|link| link["ifname"].as_str().map(str::to_owned) != first);
    links.iter().flat_map(addresses_of).collect()
}

fn addresses_of(link: &serde_json::Value) -> Vec<Address> {
    let all = link["addr_info"].as_array().into_iter().flatten();
    let ips = all.filter_map(|a| a["local"].as_str()?.parse::<IpAddr>().ok());
    ips.map(Address::from).filter(|a| !a.is_loopback() && !a.is_link_local()).collect()
}

fn default_interface() -> Option<String> {
    let output = std::process::Command::new("ip").args(["-j", "route", "show", "default"]).output().ok()?;
    let routes: Vec<serde_json::Value> = serde_json::from_slice(&output.stdout).ok()?;
    routes.first()?["dev"].as_str().map(str::to_owned)
}
