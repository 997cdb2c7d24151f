//! Reads the network devices of this host by netlink, and waits for changes of devices and addresses.

use super::device::Device;
use crate::netlink::NetlinkConnection;
use futures::{FutureExt, StreamExt, TryStreamExt};
use rtnetlink::MulticastGroup;
use rtnetlink::packet_core::{NetlinkMessage, NetlinkPayload};
use rtnetlink::packet_route::RouteNetlinkMessage;
use rtnetlink::packet_route::address::{AddressAttribute, AddressMessage};
use rtnetlink::packet_route::link::{LinkAttribute, LinkFlags, LinkInfo, LinkMessage};
use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;

const GROUPS: [MulticastGroup; 3] = [MulticastGroup::Link, MulticastGroup::Ipv4Ifaddr, MulticastGroup::Ipv6Ifaddr];

pub struct DeviceReader {
    netlink: NetlinkConnection,
}

impl DeviceReader {
    /// Opens sockets in the network namespace of this thread.
    pub fn open() -> io::Result<DeviceReader> {
        Ok(DeviceReader { netlink: NetlinkConnection::open(&GROUPS)? })
    }

    /// Waits for the next change and consumes all that are queued. `false` means that the socket was closed.
    pub async fn changed(&mut self) -> bool {
        loop {
            let Some((message, _)) = self.netlink.notifications.next().await else { return false };
            let mut relevant = is_relevant(&message);
            while let Some(Some((message, _))) = self.netlink.notifications.next().now_or_never() {
                relevant |= is_relevant(&message);
            }
            if relevant {
                return true;
            }
        }
    }

    pub async fn devices(&self) -> Result<Vec<Device>, rtnetlink::Error> {
        let mut addresses: BTreeMap<u32, Vec<IpAddr>> = BTreeMap::new();
        let mut stream = self.netlink.handle.address().get().execute();
        while let Some(message) = stream.try_next().await? {
            addresses.entry(message.header.index).or_default().extend(address_of(&message));
        }
        let mut devices = Vec::new();
        let mut stream = self.netlink.handle.link().get().execute();
        while let Some(message) = stream.try_next().await? {
            let addresses = addresses.remove(&message.header.index).unwrap_or_default();
            devices.push(Device { addresses, ..device_of(&message) });
        }
        Ok(devices)
    }
}

/// Lost notifications count as a change.
fn is_relevant(message: &NetlinkMessage<RouteNetlinkMessage>) -> bool {
    matches!(message.payload, NetlinkPayload::InnerMessage(_) | NetlinkPayload::Overrun(_))
}

/// The local address. Point-to-point devices have another one, that of the peer.
fn address_of(message: &AddressMessage) -> Option<IpAddr> {
    let find = |local: bool| {
        message.attributes.iter().find_map(|attribute| match attribute {
            AddressAttribute::Local(address) if local => Some(*address),
            AddressAttribute::Address(address) if !local => Some(*address),
            _ => None,
        })
    };
    find(true).or_else(|| find(false))
}

fn device_of(message: &LinkMessage) -> Device {
    let flags = message.header.flags;
    let mut device = Device {
        index: message.header.index,
        is_up: flags.contains(LinkFlags::Up),
        is_loopback: flags.contains(LinkFlags::Loopback),
        ..Device::default()
    };
    for attribute in &message.attributes {
        match attribute {
            LinkAttribute::IfName(name) => device.name = name.clone(),
            LinkAttribute::Controller(index) => device.controller = Some(*index).filter(|index| *index != 0),
            LinkAttribute::LinkInfo(infos) => {
                device.kind = infos.iter().find_map(|info| match info {
                    LinkInfo::Kind(kind) => Some(kind.to_string()),
                    _ => None,
                });
            }
            _ => {}
        }
    }
    device
}
