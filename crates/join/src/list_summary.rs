//! The number of objects of a kind without reading all of them, and the addresses of the nodes.

use crate::request::{self, RequestError};
use kube::Client;
use serde_json::Value;
use std::collections::BTreeSet;

#[derive(Debug, Default)]
pub struct ListSummary {
    pub count: u64,
    /// Addresses of the first 500 nodes, which are enough to tell a pod from a node. Empty for other kinds.
    pub(crate) addresses: BTreeSet<String>,
}

fn items(list: &Value) -> &[Value] {
    list["items"].as_array().map(Vec::as_slice).unwrap_or_default()
}

fn size(list: &Value) -> u64 {
    items(list).len() as u64 + list.pointer("/metadata/remainingItemCount").and_then(Value::as_u64).unwrap_or(0)
}

pub(crate) async fn count(client: &Client, path: &str) -> Result<ListSummary, RequestError> {
    let list = request::get(client, &format!("{path}?limit=1")).await?;
    Ok(ListSummary { count: size(&list), addresses: BTreeSet::new() })
}

pub(crate) async fn nodes(client: &Client) -> Result<ListSummary, RequestError> {
    let list = request::get(client, "/api/v1/nodes?limit=500").await?;
    let addresses_of =
        |node: &Value| node.pointer("/status/addresses").and_then(Value::as_array).cloned().unwrap_or_default();
    let address = |entry: Value| entry["address"].as_str().map(str::to_owned);
    let addresses = items(&list).iter().flat_map(addresses_of).filter_map(address).collect();
    Ok(ListSummary { count: size(&list), addresses })
}
