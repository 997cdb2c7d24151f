//! Netlink attributes: a type, a length and a value, padded to four bytes. Values may consist of attributes.
//!
//! Numbers in attributes of netfilter are in network byte order. Attributes with attributes inside are written without
//! the flag NLA_F_NESTED: nf_tables does not require it and does not set it in its answers, so the bytes that were
//! written can be compared with the bytes that the kernel returns.

const HEADER: usize = 4;
/// Without the flags NLA_F_NESTED and NLA_F_NET_BYTEORDER.
const TYPE_MASK: u16 = 0x3fff;

fn padded(length: usize) -> usize {
    length.next_multiple_of(4)
}

/// Attributes that are being written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct AttributeWriter(Vec<u8>);

impl AttributeWriter {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn bytes(mut self, kind: u16, value: &[u8]) -> Self {
        let length = u16::try_from(HEADER + value.len()).expect("attributes of this crate are short");
        self.0.extend_from_slice(&length.to_ne_bytes());
        self.0.extend_from_slice(&kind.to_ne_bytes());
        self.0.extend_from_slice(value);
        self.0.resize(padded(self.0.len()), 0);
        self
    }

    pub fn u8(self, kind: u16, value: u8) -> Self {
        self.bytes(kind, &[value])
    }

    pub fn u16(self, kind: u16, value: u16) -> Self {
        self.bytes(kind, &value.to_be_bytes())
    }

    pub fn u32(self, kind: u16, value: u32) -> Self {
        self.bytes(kind, &value.to_be_bytes())
    }

    pub fn text(self, kind: u16, value: &str) -> Self {
        self.bytes(kind, &[value.as_bytes(), &[0]].concat())
    }

    pub fn nested(self, kind: u16, inner: AttributeWriter) -> Self {
        self.bytes(kind, &inner.0)
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    pub fn reader(&self) -> Attributes<'_> {
        Attributes(&self.0)
    }
}

/// Attributes of a message. What follows a malformed attribute is ignored.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attributes<'a>(pub &'a [u8]);

impl<'a> Attributes<'a> {
    pub fn iter(self) -> impl Iterator<Item = (u16, &'a [u8])> {
        let mut rest = self.0;
        std::iter::from_fn(move || {
            let length = usize::from(u16::from_ne_bytes([*rest.first()?, *rest.get(1)?]));
            let kind = u16::from_ne_bytes([*rest.get(2)?, *rest.get(3)?]) & TYPE_MASK;
            let value = rest.get(HEADER..length)?;
            rest = rest.get(padded(length)..).unwrap_or_default();
            Some((kind, value))
        })
    }

    pub fn get(self, kind: u16) -> Option<&'a [u8]> {
        self.iter().find(|(found, _)| *found == kind).map(|(_, value)| value)
    }

    pub fn nested(self, kind: u16) -> Option<Attributes<'a>> {
        self.get(kind).map(Attributes)
    }

    pub fn u8(self, kind: u16) -> Option<u8> {
        self.get(kind)?.first().copied()
    }

    pub fn u16(self, kind: u16) -> Option<u16> {
        Some(u16::from_be_bytes(self.get(kind)?.try_into().ok()?))
    }

    pub fn u32(self, kind: u16) -> Option<u32> {
        Some(u32::from_be_bytes(self.get(kind)?.try_into().ok()?))
    }

    pub fn u64(self, kind: u16) -> Option<u64> {
        Some(u64::from_be_bytes(self.get(kind)?.try_into().ok()?))
    }

    pub fn text(self, kind: u16) -> Option<&'a str> {
        let value = self.get(kind)?;
        std::str::from_utf8(value.strip_suffix(&[0]).unwrap_or(value)).ok()
    }

    /// Whether every one of `expected` is present with the same value. The kernel may add attributes, such as handles.
    pub fn contain(self, expected: Attributes<'_>) -> bool {
        expected.iter().all(|(kind, value)| self.get(kind) == Some(value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_read_as_they_were_written() {
        let inner = AttributeWriter::new().u8(1, 7).text(2, "name");
        let written = AttributeWriter::new().u32(1, 0x0102_0304).nested(2, inner);
        let read = written.reader();
        assert_eq!((read.u32(1), read.get(3)), (Some(0x0102_0304), None));
        let inner = read.nested(2).unwrap();
        assert_eq!((inner.get(1), inner.text(2)), (Some(&[7][..]), Some("name")));
    }

    #[test]
    fn a_malformed_attribute_ends_the_list() {
        let mut bytes = AttributeWriter::new().u32(1, 1).u32(2, 2).as_bytes().to_vec();
        for (length, found) in [(2u16, false), (3, false), (9, false), (8, true)] {
            bytes[8..10].copy_from_slice(&length.to_ne_bytes());
            assert_eq!((Attributes(&bytes).u32(1), Attributes(&bytes).u32(2).is_some()), (Some(1), found), "{length}");
        }
        assert_eq!(Attributes(&bytes[..11]).iter().count(), 1);
    }

    #[test]
    fn flags_of_the_type_are_ignored() {
        let written = AttributeWriter::new().u32(1 | 0x8000, 1);
        assert_eq!(written.reader().u32(1), Some(1));
    }

    #[test]
    fn additional_attributes_are_accepted_and_different_values_are_not() {
        let expected = AttributeWriter::new().u32(1, 1);
        let more = AttributeWriter::new().u32(5, 5).u32(1, 1);
        let different = AttributeWriter::new().u32(1, 2);
        assert!(more.reader().contain(expected.reader()));
        assert!(!different.reader().contain(expected.reader()) && !expected.reader().contain(more.reader()));
    }
}
