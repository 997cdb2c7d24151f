//! Which packets come from pods: the address ranges of pods, and the devices with the packet program.

use crate::mapped::{bytes_of, from_bytes};
use crate::object::MapSet;
use crate::{Context, Result, abi, wire};
use beeline_model::Address;
use ipnet::IpNet;
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use std::collections::{BTreeMap, BTreeSet};

/// The map `pod_range`.
pub struct PodRangeTable {
    map: MapHandle,
}

impl PodRangeTable {
    pub fn new(maps: &MapSet) -> Result<PodRangeTable> {
        Ok(PodRangeTable { map: maps.handle("pod_range")? })
    }

    /// Whether one of the ranges contains the address.
    pub fn contains(&self, address: Address) -> Result<bool> {
        let key = wire::address_key(address);
        let found =
            self.map.lookup(bytes_of(&key), MapFlags::ANY).context(|| "cannot read the map pod_range".into())?;
        Ok(found.is_some())
    }

    /// Writes exactly these ranges. New ranges are written before old ones are deleted.
    pub fn set(&self, ranges: &BTreeSet<IpNet>) -> Result<()> {
        let wanted: Vec<Vec<u8>> = ranges.iter().map(|net| bytes_of(&wire::pod_range_key(net)).to_vec()).collect();
        let stored: Vec<Vec<u8>> = self.map.keys().collect();
        for key in wanted.iter().filter(|key| !stored.contains(key)) {
            let written = self.map.update(key, &1u32.to_ne_bytes(), MapFlags::ANY);
            written.context(|| "cannot write the map pod_range".into())?;
        }
        for key in stored.iter().filter(|key| !wanted.contains(key)) {
            self.map.delete(key).context(|| "cannot delete from the map pod_range".into())?;
        }
        Ok(())
    }
}

/// A device with the packet program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PacketDevice {
    /// All its packets come from a pod.
    pub is_pod: bool,
    pub is_bridge_port: bool,
}

/// The map `device`.
pub struct DeviceTable {
    map: MapHandle,
}

impl DeviceTable {
    pub fn new(maps: &MapSet) -> Result<DeviceTable> {
        Ok(DeviceTable { map: maps.handle("device")? })
    }

    /// Writes exactly these devices, by interface index.
    pub fn set(&self, devices: &BTreeMap<u32, PacketDevice>) -> Result<()> {
        for (index, device) in devices {
            let row = wire::device(device);
            let written = self.map.update(&index.to_ne_bytes(), bytes_of(&row), MapFlags::ANY);
            written.context(|| "cannot write the map device".into())?;
        }
        let is_stale = |key: &Vec<u8>| from_bytes::<u32>(key).is_none_or(|index| !devices.contains_key(&index));
        for key in self.map.keys().filter(is_stale).collect::<Vec<_>>() {
            self.map.delete(&key).context(|| "cannot delete from the map device".into())?;
        }
        Ok(())
    }
}

impl PacketDevice {
    pub(crate) fn flags(self) -> u32 {
        let flag = |on, flag: abi::device_flag| if on { flag.0 } else { 0 };
        flag(self.is_pod, abi::device_flag::DEVICE_POD)
            | flag(self.is_bridge_port, abi::device_flag::DEVICE_BRIDGE_PORT)
    }
}
