//! The node addresses to which the wildcard row of a NodePort applies. The row itself has no address: it applies to
//! every address in the node table that has no row of its own.

use crate::address::Family;
use crate::event::Action;
use crate::resolve::verdict_if_empty;
use crate::row::{FrontendKey, NodeRow, Rows};
use crate::rules::NoLocalEndpointAction;
use std::net::IpAddr;

/// Node addresses as text, by what a dial to the nodePort gets there. 127.0.0.0/8 means all IPv4 loopback addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodePortAddresses {
    /// The addresses that lead to the set of the row.
    pub served: Vec<String>,
    /// Addresses of other nodes that refuse, because the Service has externalTrafficPolicy Local and no endpoint there.
    pub refused: Vec<String>,
    /// The same addresses where `--no-local-endpoint-action` leaves such dials unchanged.
    pub untouched: Vec<String>,
}

impl NodePortAddresses {
    /// `None` if the key is not a wildcard row of the rows.
    pub fn of(
        rows: &Rows,
        key: &FrontendKey,
        no_local_endpoint_action: NoLocalEndpointAction,
    ) -> Option<NodePortAddresses> {
        let row = rows.frontends.get(key).filter(|_| key.is_node_port_row())?;
        let set = rows.sets.get(row.set)?;
        let mut found = NodePortAddresses::default();
        for (address, node) in rows.nodes.iter().filter(|(_, node)| u32::from(node.cluster) == key.view) {
            let exact = FrontendKey { address: *address, view: 0, ..*key };
            if address.family() != key.address.family() || rows.frontends.contains_key(&exact) {
                continue;
            }
            let list = match verdict_if_empty(set, no_local_endpoint_action).0 {
                _ if node.own || !set.header.own_node => &mut found.served,
                Action::Untouched => &mut found.untouched,
                Action::Refused | Action::Resolved => &mut found.refused,
            };
            list.push(text(address.ip(), node));
        }
        Some(found)
    }
}

fn text(ip: IpAddr, node: &NodeRow) -> String {
    let is_block = node.loopback && !node.exact_loopback && Family::of(ip) == Family::V4;
    if is_block { "127.0.0.0/8".into() } else { ip.to_string() }
}
