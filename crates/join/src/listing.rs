//! How much there is of a kind, without reading it all; and the addresses of the nodes.

use crate::request::{self, RequestError};
use kube::Client;
use serde_json::Value;
use std::collections::BTreeSet;

#[derive(Debug, Default)]
pub struct Listing {
    pub count: u64,
    /// Of the nodes among the first 500: more are not needed to tell a pod from a node.
    pub(crate) addresses: BTreeSet<String>,
}

fn items(list: &Value) -> &[Value] {
    list["items"].as_array().map(Vec::as_slice).unwrap_or_default()
}

fn size(list: &Value) -> u64 {
    items(list).len() as u64 + list.pointer("/metadata/remainingItemCount").and_then(Value::as_u64).unwrap_or(0)
}

pub(crate) async fn count(client: &Client, path: &str) -> Result<Listing, RequestError> {
    let list = request::get(client, &format!("{path}?limit=1")).await?;
    Ok(Listing { count: size(&list), addresses: BTreeSet::new() })
}

pub(crate) async fn nodes(client: &Client) -> Result<Listing, RequestError> {
    let list = request::get(client, "/api/v1/nodes?limit=500").await?;
    let of = |node: &Value| node.pointer("/status/addresses").and_then(Value::as_array).cloned().unwrap_or_default();
    let address = |one: Value| one["address"].as_str().map(str::to_owned);
    let addresses = items(&list).iter().flat_map(of).filter_map(address).collect();
    Ok(Listing { count: size(&list), addresses })
}
