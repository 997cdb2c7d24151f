//! Chooses the devices that get the packet program: those on which packets of clients arrive that no socket hook sees.
//!
//! By default these are all devices with an address of their own outside the pod ranges. A bridge is never chosen: frames
//! between its ports would be seen too, and frames that it forwards to the host have lost their port. Its ports are chosen
//! instead, except those of containers, which the socket hooks serve.

use beeline_datapath::packet::PacketDevice;
use ipnet::IpNet;
use std::collections::BTreeMap;
use std::net::IpAddr;

/// A network device, as netlink describes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Device {
    pub index: u32,
    pub name: String,
    /// The type of a virtual device, such as `bridge` or `veth`. `None` for hardware.
    pub kind: Option<String>,
    pub is_up: bool,
    pub is_loopback: bool,
    /// The bridge, bond or VRF that the device belongs to.
    pub controller: Option<u32>,
    pub addresses: Vec<IpAddr>,
}

/// One word of `--packet-devices`: a name that may end in `*`, or its exclusion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DevicePattern {
    pub excluded: bool,
    pub name: String,
}

impl DevicePattern {
    pub fn parse(word: &str) -> DevicePattern {
        let (excluded, name) = word.strip_prefix('!').map_or((false, word), |name| (true, name));
        DevicePattern { excluded, name: name.to_owned() }
    }

    fn matches(&self, name: &str) -> bool {
        match self.name.strip_suffix('*') {
            Some(prefix) => name.starts_with(prefix),
            None => name == self.name,
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceRules {
    /// `--packet-devices`. Without a name that is not excluded, devices are chosen by their addresses.
    pub patterns: Vec<DevicePattern>,
    /// `--pod-interface-name-prefix`: packets of these devices come from pods.
    pub pod_prefix: Option<String>,
    /// `--pod-bridge-interface`: packets of the ports of this bridge come from pods.
    pub pod_bridge: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChosenDevice {
    pub name: String,
    pub device: PacketDevice,
}

/// The kinds that carry no packets of clients at their ingress: a dummy has none, and a VRF sees those of its members.
const NEVER: [&str; 3] = ["bridge", "dummy", "vrf"];
/// The kinds of the host ends of containers.
const CONTAINER: [&str; 2] = ["veth", "netkit"];

impl Device {
    fn is(&self, kinds: &[&str]) -> bool {
        self.kind.as_deref().is_some_and(|kind| kinds.contains(&kind))
    }
}

/// The devices that get the packet program, by interface index.
pub fn choose(devices: &[Device], rules: &DeviceRules, pod_ranges: &[IpNet]) -> BTreeMap<u32, ChosenDevice> {
    let by_index: BTreeMap<u32, &Device> = devices.iter().map(|device| (device.index, device)).collect();
    let names: Vec<&DevicePattern> = rules.patterns.iter().filter(|pattern| !pattern.excluded).collect();
    let bridge_of = |device: &Device| {
        let controller = device.controller.and_then(|index| by_index.get(&index).copied());
        controller.filter(|controller| controller.is(&["bridge"]))
    };
    let is_chosen = |device: &Device| match (names.is_empty(), bridge_of(device)) {
        (true, Some(bridge)) => has_own_address(bridge, pod_ranges) && !device.is(&CONTAINER),
        (true, None) => has_own_address(device, pod_ranges),
        (false, bridge) => {
            let listed = |name: &str| names.iter().any(|pattern| pattern.matches(name));
            listed(&device.name) || bridge.is_some_and(|bridge| listed(&bridge.name))
        }
    };
    let is_excluded = |device: &Device| rules.patterns.iter().any(|p| p.excluded && p.matches(&device.name));
    let chosen = devices.iter().filter(|device| {
        device.is_up && !device.is_loopback && !device.is(&NEVER) && is_chosen(device) && !is_excluded(device)
    });
    let of_pods = |device: &Device| {
        let has_prefix = |prefix: &String| device.name.starts_with(prefix.as_str());
        let is_port = |name: &String| bridge_of(device).is_some_and(|bridge| bridge.name == *name);
        rules.pod_prefix.as_ref().is_some_and(has_prefix) || rules.pod_bridge.as_ref().is_some_and(is_port)
    };
    let describe = |device: &Device| {
        let flags = PacketDevice { is_pod: of_pods(device), is_bridge_port: bridge_of(device).is_some() };
        (device.index, ChosenDevice { name: device.name.clone(), device: flags })
    };
    chosen.map(describe).collect()
}

/// Whether the device has an address by which clients may reach this host. The addresses of a CNI's devices are in the pod
/// ranges.
fn has_own_address(device: &Device, pod_ranges: &[IpNet]) -> bool {
    device.addresses.iter().any(|address| is_global(*address) && !pod_ranges.iter().any(|net| net.contains(address)))
}

fn is_global(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => !v4.is_loopback() && !v4.is_link_local(),
        IpAddr::V6(v6) => !v6.is_loopback() && !v6.is_unicast_link_local(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(index: u32, name: &str, kind: &str, addresses: &[&str]) -> Device {
        Device {
            index,
            name: name.into(),
            kind: Some(kind.to_owned()).filter(|kind| !kind.is_empty()),
            is_up: true,
            addresses: addresses.iter().map(|text| text.parse().unwrap()).collect(),
            ..Device::default()
        }
    }

    fn port(of: u32, device: Device) -> Device {
        Device { controller: Some(of), ..device }
    }

    fn names(devices: &[Device], rules: &DeviceRules) -> Vec<String> {
        let pods = ["10.244.1.0/24".parse().unwrap(), "fd00:10:244::/64".parse().unwrap()];
        choose(devices, rules, &pods).into_values().map(|chosen| chosen.name).collect()
    }

    #[test]
    fn devices_with_an_address_outside_the_pod_ranges_are_chosen() {
        let devices = [
            Device { is_loopback: true, ..device(1, "lo", "", &["127.0.0.1"]) },
            device(2, "eth0", "", &["192.0.2.1", "fe80::1"]),
            Device { is_up: false, ..device(3, "eth1", "", &["198.51.100.1"]) },
            device(4, "eth2", "", &["fe80::2"]),
            device(5, "eth0.100", "vlan", &["2001:db8::1"]),
            device(6, "bond0", "bond", &["203.0.113.1"]),
            port(6, device(7, "eth3", "", &[])),
            device(8, "wg0", "wireguard", &["10.9.0.1"]),
            device(9, "flannel.1", "vxlan", &["10.244.1.0"]),
            device(10, "vethabc", "veth", &["fd00:10:244::1"]),
            device(11, "nodelocaldns", "dummy", &["169.254.20.10", "10.0.0.9"]),
            device(12, "red", "vrf", &["10.8.0.1"]),
            port(12, device(13, "eth4", "", &["10.8.0.2"])),
        ];
        assert_eq!(names(&devices, &DeviceRules::default()), ["eth0", "eth0.100", "bond0", "wg0", "eth4"]);
    }

    #[test]
    fn the_ports_of_a_bridge_are_chosen_in_its_place() {
        let devices = [
            device(1, "br0", "bridge", &["192.0.2.1"]),
            port(1, device(2, "eth0", "", &[])),
            port(1, device(3, "vnet0", "tun", &[])),
            port(1, device(4, "veth1", "veth", &[])),
            device(5, "cni0", "bridge", &["10.244.1.1"]),
            port(5, device(6, "tap0", "tun", &[])),
        ];
        assert_eq!(names(&devices, &DeviceRules::default()), ["eth0", "vnet0"]);
        let chosen = choose(&devices, &DeviceRules::default(), &[]);
        assert!(chosen[&2].device.is_bridge_port, "{chosen:?}");
    }

    #[test]
    fn a_list_replaces_the_choice_and_an_exclusion_narrows_it() {
        let devices = [
            device(1, "eth0", "", &["192.0.2.1"]),
            device(2, "eth1", "", &[]),
            device(3, "br0", "bridge", &[]),
            port(3, device(4, "ens5", "", &[])),
        ];
        let rules = |words: &[&str]| DeviceRules {
            patterns: words.iter().map(|word| DevicePattern::parse(word)).collect(),
            ..DeviceRules::default()
        };
        assert_eq!(names(&devices, &rules(&["eth*"])), ["eth0", "eth1"]);
        assert_eq!(names(&devices, &rules(&["eth*", "!eth1"])), ["eth0"]);
        assert_eq!(names(&devices, &rules(&["br0"])), ["ens5"], "never the bridge itself");
        assert!(names(&devices, &rules(&["!eth0"])).is_empty());
    }

    #[test]
    fn the_name_or_the_bridge_of_a_device_shows_that_its_packets_come_from_pods() {
        let devices =
            [device(1, "br7", "bridge", &[]), port(1, device(2, "tap0", "tun", &[])), device(3, "kata1", "", &[])];
        let rules = DeviceRules {
            patterns: vec![DevicePattern::parse("*")],
            pod_prefix: Some("kata".into()),
            pod_bridge: Some("br7".into()),
        };
        let chosen = choose(&devices, &rules, &[]);
        assert!(chosen[&2].device.is_pod && chosen[&3].device.is_pod, "{chosen:?}");
    }
}
