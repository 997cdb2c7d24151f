//! One conntrack entry and its attributes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::attribute::{AttributeWriter, Attributes};

const TUPLE_ORIGINAL: u16 = 1; // CTA_TUPLE_ORIG
const TUPLE_REPLY: u16 = 2; // CTA_TUPLE_REPLY
const STATUS: u16 = 3; // CTA_STATUS
const TIMEOUT: u16 = 7; // CTA_TIMEOUT
const ID: u16 = 12; // CTA_ID
const ZONE: u16 = 18; // CTA_ZONE
const TUPLE_IP: u16 = 1; // CTA_TUPLE_IP
const TUPLE_PROTOCOL: u16 = 2; // CTA_TUPLE_PROTO
const IPV4_SOURCE: u16 = 1; // CTA_IP_V4_SRC
const IPV4_DESTINATION: u16 = 2; // CTA_IP_V4_DST
const IPV6_SOURCE: u16 = 3; // CTA_IP_V6_SRC
const IPV6_DESTINATION: u16 = 4; // CTA_IP_V6_DST
const PROTOCOL_NUMBER: u16 = 1; // CTA_PROTO_NUM
const SOURCE_PORT: u16 = 2; // CTA_PROTO_SRC_PORT
const DESTINATION_PORT: u16 = 3; // CTA_PROTO_DST_PORT

/// A protocol number of IP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct IpProtocol(pub u8);

impl IpProtocol {
    pub const TCP: IpProtocol = IpProtocol(libc::IPPROTO_TCP as u8);
    pub const UDP: IpProtocol = IpProtocol(libc::IPPROTO_UDP as u8);
}

/// Source and destination of the packets of one direction. Ports are 0 for protocols without ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FlowTuple {
    pub source: SocketAddr,
    pub destination: SocketAddr,
}

/// The status bits of an entry (`enum ip_conntrack_status`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConntrackStatus(pub u32);

impl ConntrackStatus {
    pub fn has_reply(self) -> bool {
        self.0 & (1 << 1) != 0 // IPS_SEEN_REPLY
    }

    pub fn translates_source(self) -> bool {
        self.0 & (1 << 4) != 0 // IPS_SRC_NAT
    }

    pub fn translates_destination(self) -> bool {
        self.0 & (1 << 5) != 0 // IPS_DST_NAT
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConntrackEntry {
    pub protocol: IpProtocol,
    /// As the first packet was sent. Its destination is what the client dialled.
    pub original: FlowTuple,
    /// As answers are sent. With NAT, its source is the backend, and its destination the source that the backend sees.
    pub reply: FlowTuple,
    pub status: ConntrackStatus,
    /// Seconds until the entry ends without further packets. `None` for offloaded entries.
    pub timeout_seconds: Option<u32>,
    zone: Option<u16>,
    id: u32,
}

impl ConntrackEntry {
    /// `None` if the message is no complete entry.
    pub(crate) fn parse(attributes: Attributes<'_>) -> Option<Self> {
        let original = attributes.nested(TUPLE_ORIGINAL)?;
        Some(ConntrackEntry {
            protocol: IpProtocol(original.nested(TUPLE_PROTOCOL)?.u8(PROTOCOL_NUMBER)?),
            original: parse_tuple(original)?,
            reply: parse_tuple(attributes.nested(TUPLE_REPLY)?)?,
            status: ConntrackStatus(attributes.u32(STATUS)?),
            timeout_seconds: attributes.u32(TIMEOUT),
            zone: attributes.u16(ZONE),
            id: attributes.u32(ID)?,
        })
    }

    pub(crate) fn family(&self) -> i32 {
        if self.original.source.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 }
    }

    /// Attributes that identify this entry. A request to delete without a tuple would delete all entries.
    pub(crate) fn identify(&self) -> AttributeWriter {
        let ports = AttributeWriter::new()
            .u8(PROTOCOL_NUMBER, self.protocol.0)
            .u16(SOURCE_PORT, self.original.source.port())
            .u16(DESTINATION_PORT, self.original.destination.port());
        let tuple = AttributeWriter::new().nested(TUPLE_IP, addresses(&self.original)).nested(TUPLE_PROTOCOL, ports);
        let attributes = AttributeWriter::new().nested(TUPLE_ORIGINAL, tuple).u32(ID, self.id);
        self.zone.into_iter().fold(attributes, |attributes, zone| attributes.u16(ZONE, zone))
    }
}

/// An original tuple of which only the protocol is set, for filters.
pub(crate) fn protocol_tuple(protocol: IpProtocol) -> AttributeWriter {
    let number = AttributeWriter::new().u8(PROTOCOL_NUMBER, protocol.0);
    AttributeWriter::new().nested(TUPLE_ORIGINAL, AttributeWriter::new().nested(TUPLE_PROTOCOL, number))
}

fn addresses(tuple: &FlowTuple) -> AttributeWriter {
    let writer = AttributeWriter::new();
    match (tuple.source.ip(), tuple.destination.ip()) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            writer.bytes(IPV4_SOURCE, &source.octets()).bytes(IPV4_DESTINATION, &destination.octets())
        }
        (source, destination) => {
            writer.bytes(IPV6_SOURCE, &v6_octets(source)).bytes(IPV6_DESTINATION, &v6_octets(destination))
        }
    }
}

fn v6_octets(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

fn parse_tuple(tuple: Attributes<'_>) -> Option<FlowTuple> {
    let (addresses, ports) = (tuple.nested(TUPLE_IP)?, tuple.nested(TUPLE_PROTOCOL)?);
    let address = |v4: u16, v6: u16, port: u16| {
        let ip = parse_v4(addresses, v4).or_else(|| parse_v6(addresses, v6))?;
        Some(SocketAddr::new(ip, ports.u16(port).unwrap_or(0)))
    };
    Some(FlowTuple {
        source: address(IPV4_SOURCE, IPV6_SOURCE, SOURCE_PORT)?,
        destination: address(IPV4_DESTINATION, IPV6_DESTINATION, DESTINATION_PORT)?,
    })
}

fn parse_v4(addresses: Attributes<'_>, kind: u16) -> Option<IpAddr> {
    Some(Ipv4Addr::from(<[u8; 4]>::try_from(addresses.get(kind)?).ok()?).into())
}

fn parse_v6(addresses: Attributes<'_>, kind: u16) -> Option<IpAddr> {
    Some(Ipv6Addr::from(<[u8; 16]>::try_from(addresses.get(kind)?).ok()?).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(source: &str, destination: &str) -> ConntrackEntry {
        let original = FlowTuple { source: source.parse().unwrap(), destination: destination.parse().unwrap() };
        let reply = FlowTuple { source: original.destination, destination: original.source };
        let status = ConntrackStatus(1 << 1 | 1 << 4);
        let (protocol, timeout_seconds) = (IpProtocol::UDP, Some(30));
        ConntrackEntry { protocol, original, reply, status, timeout_seconds, zone: Some(7), id: 9 }
    }

    /// ctnetlink deletes the entries of all flows if a request to delete has no tuple.
    #[test]
    fn a_request_to_delete_names_the_flow() {
        for (source, destination) in [("10.0.0.1:4000", "10.96.0.1:53"), ("[fd00::1]:4000", "[fd00::2]:53")] {
            let entry = entry(source, destination);
            let written = entry.identify();
            let tuple = written.reader().nested(TUPLE_ORIGINAL).unwrap();
            assert_eq!(parse_tuple(tuple), Some(entry.original));
            assert_eq!(tuple.nested(TUPLE_PROTOCOL).unwrap().u8(PROTOCOL_NUMBER), Some(17));
            assert_eq!((written.reader().u32(ID), written.reader().u16(ZONE)), (Some(9), Some(7)));
        }
    }

    #[test]
    fn an_incomplete_message_is_no_entry() {
        let written = entry("10.0.0.1:4000", "10.96.0.1:53").identify();
        assert_eq!(ConntrackEntry::parse(written.reader()), None);
        let status = entry("10.0.0.1:4000", "10.96.0.1:53").status;
        assert!(status.has_reply() && status.translates_source() && !status.translates_destination());
    }
}
