//! Netlink messages of netfilter: a `struct nlmsghdr`, a `struct nfgenmsg`, and attributes.

use crate::attribute::{AttributeWriter, Attributes};

const HEADER: usize = 16;
const NETFILTER_HEADER: usize = 4;

pub(crate) const REQUEST: u16 = libc::NLM_F_REQUEST as u16;
pub(crate) const ACK: u16 = libc::NLM_F_ACK as u16;
pub(crate) const DUMP: u16 = libc::NLM_F_DUMP as u16;
pub(crate) const DUMP_INTERRUPTED: u16 = libc::NLM_F_DUMP_INTR as u16;
pub(crate) const CREATE: u16 = libc::NLM_F_CREATE as u16;
pub(crate) const EXCLUSIVE: u16 = libc::NLM_F_EXCL as u16;
pub(crate) const APPEND: u16 = libc::NLM_F_APPEND as u16;

/// The message type: a subsystem of netfilter and a message of it.
pub(crate) const fn kind(subsystem: i32, message: i32) -> u16 {
    (subsystem as u16) << 8 | message as u16
}

/// A message to the kernel.
#[derive(Clone, Debug)]
pub(crate) struct NetlinkRequest {
    /// What the request does, for error messages: "create the table".
    pub action: &'static str,
    pub kind: u16,
    pub flags: u16,
    pub family: u8,
    pub resource: u16,
    pub attributes: AttributeWriter,
}

impl NetlinkRequest {
    pub fn encode(&self, sequence: u32, flags: u16, buffer: &mut Vec<u8>) {
        let attributes = self.attributes.as_bytes();
        let length = u32::try_from(HEADER + NETFILTER_HEADER + attributes.len()).expect("requests are short");
        buffer.extend_from_slice(&length.to_ne_bytes());
        buffer.extend_from_slice(&self.kind.to_ne_bytes());
        buffer.extend_from_slice(&(self.flags | REQUEST | flags).to_ne_bytes());
        buffer.extend_from_slice(&sequence.to_ne_bytes());
        buffer.extend_from_slice(&0u32.to_ne_bytes());
        buffer.extend_from_slice(&[self.family, 0]);
        buffer.extend_from_slice(&self.resource.to_be_bytes());
        buffer.extend_from_slice(attributes);
    }
}

/// A message from the kernel.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NetlinkMessage<'a> {
    pub kind: u16,
    pub flags: u16,
    pub sequence: u32,
    payload: &'a [u8],
}

impl<'a> NetlinkMessage<'a> {
    pub fn family(&self) -> u8 {
        self.payload.first().copied().unwrap_or_default()
    }

    pub fn attributes(&self) -> Attributes<'a> {
        Attributes(self.payload.get(NETFILTER_HEADER..).unwrap_or_default())
    }

    /// The error number of an NLMSG_ERROR or NLMSG_DONE message; 0 is success. Other messages have none.
    pub fn errno(&self) -> Option<i32> {
        match i32::from(self.kind) {
            libc::NLMSG_ERROR => Some(self.status()?.saturating_neg()),
            libc::NLMSG_DONE => Some(self.status().unwrap_or(0).saturating_neg()),
            _ => None,
        }
    }

    fn status(&self) -> Option<i32> {
        Some(i32::from_ne_bytes(self.payload.get(..4)?.try_into().ok()?))
    }
}

/// The messages of one datagram.
pub(crate) fn messages(datagram: &[u8]) -> impl Iterator<Item = NetlinkMessage<'_>> {
    let mut rest = datagram;
    std::iter::from_fn(move || {
        let word = |at: usize| Some(u32::from_ne_bytes(rest.get(at..at + 4)?.try_into().ok()?));
        let half = |at: usize| Some(u16::from_ne_bytes(rest.get(at..at + 2)?.try_into().ok()?));
        let length = word(0)? as usize;
        let payload = rest.get(HEADER..length)?;
        let message = NetlinkMessage { kind: half(4)?, flags: half(6)?, sequence: word(8)?, payload };
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(message)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(attributes: AttributeWriter) -> NetlinkRequest {
        NetlinkRequest { action: "test", kind: 0x0a01, flags: CREATE, family: 1, resource: 10, attributes }
    }

    #[test]
    fn requests_have_the_layout_of_netlink() {
        let mut bytes = Vec::new();
        request(AttributeWriter::new().text(1, "abc")).encode(7, ACK, &mut bytes);
        request(AttributeWriter::new()).encode(8, 0, &mut bytes);
        assert_eq!(bytes.len(), 16 + 4 + 8 + 16 + 4);
        assert_eq!(bytes[16..20], [1, 0, 0, 10], "family, version, resource in network byte order");
        let read: Vec<_> = messages(&bytes).collect();
        assert_eq!((read[0].kind, read[0].flags, read[0].sequence), (0x0a01, CREATE | REQUEST | ACK, 7));
        assert_eq!((read[0].family(), read[0].attributes().text(1)), (1, Some("abc")));
        assert_eq!((read.len(), read[1].sequence, read[1].errno()), (2, 8, None));
    }

    #[test]
    fn a_message_with_a_wrong_length_ends_the_datagram() {
        let mut bytes = Vec::new();
        request(AttributeWriter::new()).encode(1, 0, &mut bytes);
        for length in [0u32, 15, 21, u32::MAX] {
            bytes[..4].copy_from_slice(&length.to_ne_bytes());
            assert_eq!(messages(&bytes).count(), 0, "{length}");
        }
    }
}
