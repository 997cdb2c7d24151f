//! A UDP datagram that is sent as IP fragments in a chosen order, by a raw socket.

use std::{
    io::ErrorKind,
    net::{IpAddr, SocketAddr, UdpSocket},
    time::Duration,
};

use anyhow::{Context, Result, bail};
use socket2::{Domain, Protocol, Socket, Type};

use super::transfer;
use crate::netns::NetworkNamespace;

const UDP: u8 = 17;
const IPV6_FRAGMENT: u8 = 44;
/// Bytes of payload per fragment; a multiple of 8.
const PART: usize = 1000;
const TIMEOUT: Duration = Duration::from_secs(2);
const HOP_LIMIT: u8 = 64;

/// A request to a [`super::TransferServer`] for an answer of `answer` bytes, in three fragments.
#[derive(Clone, Debug)]
pub struct FragmentedDatagram {
    pub source: IpAddr,
    pub to: SocketAddr,
    /// Number of bytes of the answer. More than the MTU makes the server send fragments too.
    pub answer: usize,
    /// Identification of the fragments. It must differ between datagrams of one source that are on their way.
    pub id: u16,
}

impl FragmentedDatagram {
    pub const FRAGMENTS: usize = 3;
    /// Bytes of the request after its header, so that header, UDP header and payload fill three fragments.
    const EXTRA: usize = PART * Self::FRAGMENTS - 16;

    /// Sends the fragments in this order and returns the number of bytes of the answer; None without an answer.
    pub fn exchange(&self, from: &NetworkNamespace, order: &[usize]) -> Result<Option<usize>> {
        let (raw, receiver) = from.run_in(|| (self.raw_socket(), UdpSocket::bind((self.source, 0))))?;
        let (raw, receiver) = (raw.context("cannot open a raw socket")?, receiver?);
        receiver.connect(self.to)?;
        receiver.set_read_timeout(Some(TIMEOUT))?;
        let fragments = self.fragments(receiver.local_addr()?.port());
        // The port of an IPv6 destination of a raw socket must be 0.
        let to = SocketAddr::new(self.to.ip(), 0).into();
        for &index in order {
            raw.send_to(&fragments[index], &to).with_context(|| format!("cannot send a fragment to {}", self.to))?;
        }
        let mut answer = vec![0; 65536];
        match receiver.recv(&mut answer) {
            Ok(count) => Ok(Some(count)),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => Ok(None),
            Err(error) => bail!("no answer to fragments to {}: {error}", self.to),
        }
    }

    /// IPPROTO_RAW: the packets contain their IP header.
    fn raw_socket(&self) -> std::io::Result<Socket> {
        Socket::new(Domain::for_address(self.to), Type::RAW, Some(Protocol::from(libc::IPPROTO_RAW)))
    }

    /// The packets, from their IP header on.
    fn fragments(&self, port: u16) -> Vec<Vec<u8>> {
        let datagram = self.datagram(port);
        let parts: Vec<&[u8]> = datagram.chunks(PART).collect();
        let packet = |(index, part): (usize, &&[u8])| self.packet(index * PART, index + 1 < parts.len(), part);
        parts.iter().enumerate().map(packet).collect()
    }

    /// UDP header and payload.
    fn datagram(&self, port: u16) -> Vec<u8> {
        let payload = transfer::request(Self::EXTRA, self.answer);
        let length = (payload.len() + 8) as u16;
        let header = [port, self.to.port(), length, 0].map(u16::to_be_bytes).concat();
        let mut datagram = [header, payload].concat();
        let pseudo = [octets(self.source), octets(self.to.ip()), vec![0, UDP], length.to_be_bytes().to_vec()].concat();
        let sum = checksum(&[pseudo, datagram.clone()].concat());
        datagram[6..8].copy_from_slice(&sum.to_be_bytes());
        datagram
    }

    fn packet(&self, offset: usize, more: bool, part: &[u8]) -> Vec<u8> {
        let (source, to) = (octets(self.source), octets(self.to.ip()));
        if self.to.is_ipv4() {
            let place = (offset / 8) as u16 | if more { 0x2000 } else { 0 };
            let words = [0x4500, (part.len() + 20) as u16, self.id, place].map(u16::to_be_bytes).concat();
            // The kernel fills in the checksum of the header.
            return [words, vec![HOP_LIMIT, UDP, 0, 0], source, to, part.to_vec()].concat();
        }
        let place = offset as u16 | u16::from(more);
        let ip =
            [vec![0x60, 0, 0, 0], ((part.len() + 8) as u16).to_be_bytes().to_vec(), vec![IPV6_FRAGMENT, HOP_LIMIT]];
        let fragment = [vec![UDP, 0], place.to_be_bytes().to_vec(), u32::from(self.id).to_be_bytes().to_vec()];
        [ip.concat(), source, to, fragment.concat(), part.to_vec()].concat()
    }
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    }
}

/// The Internet checksum. Zero is sent as all ones, because zero means "none" in UDP.
fn checksum(bytes: &[u8]) -> u16 {
    let word = |pair: &[u8]| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
    let mut sum: u32 = bytes.chunks(2).map(word).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    match !(sum as u16) {
        0 => 0xffff,
        sum => sum,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_matches_the_example_of_rfc_1071() {
        assert_eq!(checksum(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]), !0xddf2);
    }

    #[test]
    fn three_fragments_contain_the_datagram() {
        for (source, to) in [("192.0.2.1", "198.51.100.1:80"), ("fd00::1", "[fd00::2]:80")] {
            let datagram =
                FragmentedDatagram { source: source.parse().unwrap(), to: to.parse().unwrap(), answer: 1, id: 7 };
            let fragments = datagram.fragments(4000);
            assert_eq!(fragments.len(), FragmentedDatagram::FRAGMENTS);
            let header = if datagram.to.is_ipv4() { 20 } else { 48 };
            let joined: Vec<u8> = fragments.iter().flat_map(|fragment| fragment[header..].to_vec()).collect();
            assert_eq!(joined, datagram.datagram(4000));
        }
    }
}
