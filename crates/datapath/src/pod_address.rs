//! The addresses of pods in the kernel, by the cgroup of the pod: the source address of a pod's dials, which restricted
//! load-balancer addresses need.

use crate::exchange::ExchangeCounter;
use crate::mapped::{bytes_of, from_bytes};
use crate::object::MapSet;
use crate::{Context, Result, wire};
use beeline_model::{Address, Family};
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use std::collections::BTreeMap;

/// The first address of a pod in each family.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PodAddresses {
    pub v4: Option<Address>,
    pub v6: Option<Address>,
}

impl PodAddresses {
    pub fn of(addresses: &[Address]) -> PodAddresses {
        let first = |family| addresses.iter().copied().find(|address| address.family() == family);
        PodAddresses { v4: first(Family::V4), v6: first(Family::V6) }
    }
}

pub struct PodAddressMap {
    pods: MapHandle,
    exchange: ExchangeCounter,
}

impl PodAddressMap {
    pub fn new(maps: &MapSet) -> Result<PodAddressMap> {
        Ok(PodAddressMap { pods: maps.handle("pod")?, exchange: ExchangeCounter::new(maps)? })
    }

    /// Writes the rows that differ. With `complete`, rows of other cgroups are deleted. Returns the number of changed rows.
    pub fn set(&self, pods: &BTreeMap<u64, PodAddresses>, complete: bool) -> Result<usize> {
        let mut changed = 0;
        for (cgroup, addresses) in pods {
            let (key, row) = (cgroup.to_ne_bytes(), wire::pod(*cgroup, addresses));
            let stored = self.pods.lookup(&key, MapFlags::ANY).context(|| "cannot read the map pod".into())?;
            if stored.as_deref() != Some(bytes_of(&row)) {
                let write = || self.pods.update(&key, bytes_of(&row), MapFlags::ANY);
                self.exchange.announce(write).context(|| "cannot write the map pod".into())?;
                changed += 1;
            }
        }
        let is_stale = |key: &Vec<u8>| from_bytes::<u64>(key).is_none_or(|cgroup| !pods.contains_key(&cgroup));
        for key in self.pods.keys().filter(|key| complete && is_stale(key)).collect::<Vec<_>>() {
            changed += usize::from(self.pods.delete(&key).is_ok());
        }
        Ok(changed)
    }

    /// Copies the rows of other tables.
    pub fn copy_from(&self, from: &PodAddressMap) -> Result<()> {
        for key in from.pods.keys() {
            let value = from.pods.lookup(&key, MapFlags::ANY).context(|| "cannot read the map pod".into())?;
            let result = value.map_or(Ok(()), |value| self.pods.update(&key, &value, MapFlags::ANY));
            result.context(|| "cannot write the map pod".into())?;
        }
        Ok(())
    }
}
