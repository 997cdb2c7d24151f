//! Reads the session affinity rows that the BPF programs write.

use crate::mapped::{MappedArray, from_bytes};
use crate::object::MapSet;
use crate::{Context, Result, abi, wire};
use beeline_model::Address;
use beeline_model::row::OwnerId;
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use serde::Serialize;

/// What identifies a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum AffinityClient {
    /// The cookie of the network namespace of a socket.
    Netns(u64),
    /// The source address of packets.
    Address(Address),
}

impl AffinityClient {
    fn read(key: &abi::affinity_key) -> AffinityClient {
        let [low, high, ..] = key.client.word;
        match key.family & abi::affinity_family::AFFINITY_BY_ADDRESS.0 {
            0 => AffinityClient::Netns(u64::from(high) << 32 | u64::from(low)),
            _ => AffinityClient::Address(wire::read_address(&key.client)),
        }
    }
}

impl std::fmt::Display for AffinityClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            AffinityClient::Netns(cookie) => write!(f, "{cookie}"),
            AffinityClient::Address(address) => write!(f, "{address}"),
        }
    }
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AffinityRow {
    pub client: AffinityClient,
    #[serde(skip)]
    pub owner: OwnerId,
    pub address: Address,
    pub port: u16,
    /// Time of the last use: nanoseconds of the monotonic clock.
    pub used: u64,
}

pub struct AffinityTable {
    map: MapHandle,
    backends: MappedArray<abi::backend>,
}

impl AffinityTable {
    pub fn new(maps: &MapSet) -> Result<AffinityTable> {
        Ok(AffinityTable { map: maps.handle("affinity")?, backends: maps.mapped("backend")? })
    }

    /// The rows whose backend still exists.
    pub fn rows(&self) -> Result<Vec<AffinityRow>> {
        let mut rows = Vec::new();
        for key in self.map.keys() {
            let value = self.map.lookup(&key, MapFlags::ANY).context(|| "cannot read the affinity table".into())?;
            let (key, value) =
                (from_bytes::<abi::affinity_key>(&key), value.and_then(|v| from_bytes::<abi::affinity>(&v)));
            let (Some(key), Some(value)) = (key, value) else { continue };
            if value.backend >= self.backends.len() {
                continue;
            }
            let backend = self.backends.read(value.backend);
            if backend.owner != key.owner || backend.state >> 8 != value.generation {
                continue;
            }
            rows.push(AffinityRow {
                client: AffinityClient::read(&key),
                owner: key.owner,
                address: wire::read_address(&backend.address),
                port: u16::from_be(backend.port),
                used: value.used,
            });
        }
        Ok(rows)
    }
}
