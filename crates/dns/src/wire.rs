//! Parses queries and encodes responses. Invalid packets are rejected by their header, before any name is decoded, and a
//! response never exceeds the size that the transport and the client accept.

use hickory_proto::ProtoError;
use hickory_proto::op::{Edns, Message, ResponseCode};
use hickory_proto::rr::Record;
use hickory_proto::rr::rdata::opt::EdnsOption;
use hickory_proto::serialize::binary::{BinEncodable, BinEncoder};

const HEADER_BYTES: usize = 12;
/// Largest UDP response to a client without EDNS.
const MIN_PAYLOAD: u16 = 512;
/// Largest query that is accepted, and largest UDP response on loopback, where packets are not fragmented.
pub(crate) const MAX_PAYLOAD: u16 = 4096;
/// Largest UDP response on other interfaces: it passes every path without fragmentation.
pub(crate) const MAX_UNFRAGMENTED_PAYLOAD: u16 = 1232;
/// Limit of records in a query. A normal query has only an EDNS record.
const MAX_QUERY_RECORDS: u16 = 4;
/// The EDNS option "extended DNS error" (RFC 8914) and its codes.
const EXTENDED_ERROR: u16 = 15;
pub(crate) const OTHER: u16 = 0;
pub(crate) const NOT_READY: u16 = 14;
pub(crate) const NOT_AUTHORITATIVE: u16 = 20;
pub(crate) const NO_REACHABLE_AUTHORITY: u16 = 22;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DnsTransport {
    /// UDP, with the largest size of a response.
    Udp(u16),
    Tcp,
}

pub(crate) enum ParsedPacket {
    Query(Box<Message>),
    /// The packet is malformed or not supported; this is the response to it.
    Invalid(Vec<u8>),
    /// The packet is a response, or shorter than a header. Answering it could create a loop.
    Ignore,
}

pub(crate) fn parse(bytes: &[u8]) -> ParsedPacket {
    let Some((header, _)) = bytes.split_at_checked(HEADER_BYTES) else { return ParsedPacket::Ignore };
    let count = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
    if header[2] & 0x80 != 0 {
        return ParsedPacket::Ignore;
    }
    if header[2] & 0x78 != 0 {
        return ParsedPacket::Invalid(header_only(header, ResponseCode::NotImp));
    }
    let records = [6, 8, 10].into_iter().fold(0u16, |sum, at| sum.saturating_add(count(at)));
    if count(4) != 1 || records > MAX_QUERY_RECORDS {
        return ParsedPacket::Invalid(header_only(header, ResponseCode::FormErr));
    }
    match Message::from_vec(bytes) {
        Ok(message) => ParsedPacket::Query(Box::new(message)),
        Err(_) => ParsedPacket::Invalid(header_only(header, ResponseCode::FormErr)),
    }
}

/// A response without the query, which could not be parsed.
fn header_only(header: &[u8], code: ResponseCode) -> Vec<u8> {
    // The id, the opcode, the flag RD and the flag QR (response).
    let mut response = vec![header[0], header[1], header[2] & 0x79 | 0x80, code.low()];
    response.resize(HEADER_BYTES, 0);
    response
}

/// The EDNS record of a response to a query with EDNS. `error` is the extended DNS error: its code and its text.
pub(crate) fn response_edns(client: &Edns, code: ResponseCode, error: Option<(u16, &str)>) -> Edns {
    let mut edns = Edns::new();
    edns.set_max_payload(MAX_PAYLOAD);
    edns.set_version(0);
    edns.set_dnssec_ok(client.flags().dnssec_ok);
    edns.set_rcode_high(code.high());
    if let Some((code, text)) = error {
        let option = [&code.to_be_bytes()[..], text.as_bytes()].concat();
        edns.options_mut().insert(EdnsOption::Unknown(EXTENDED_ERROR, option));
    }
    edns
}

/// Encodes as much of the message as fits. The EDNS record always fits. Additional records are dropped before the message
/// is marked as truncated (RFC 2181, section 9). Over TCP nothing is marked, because the client has no larger transport.
pub(crate) fn encode(
    message: &mut Message,
    client: Option<&Edns>,
    transport: DnsTransport,
) -> Result<Vec<u8>, ProtoError> {
    let edns = message.edns.take().map(|edns| Record::from(&edns).to_bytes()).transpose()?.unwrap_or_default();
    let limit = size_limit(client, transport).saturating_sub(edns.len() as u16);
    let (mut bytes, mut truncated) = encode_within(message, limit)?;
    if truncated && !message.additionals.is_empty() {
        message.additionals.clear();
        (bytes, truncated) = encode_within(message, limit)?;
    }
    if truncated && transport == DnsTransport::Tcp {
        bytes[2] &= !0x02;
    }
    if !edns.is_empty() {
        let additional = u16::from_be_bytes([bytes[10], bytes[11]]) + 1;
        bytes[10..HEADER_BYTES].copy_from_slice(&additional.to_be_bytes());
        bytes.extend(edns);
    }
    Ok(bytes)
}

fn size_limit(client: Option<&Edns>, transport: DnsTransport) -> u16 {
    match transport {
        DnsTransport::Udp(max) => client.map_or(MIN_PAYLOAD, |edns| edns.max_payload().clamp(MIN_PAYLOAD, max)),
        DnsTransport::Tcp => u16::MAX,
    }
}

/// The encoded message, and whether it is truncated.
fn encode_within(message: &Message, limit: u16) -> Result<(Vec<u8>, bool), ProtoError> {
    let mut bytes = Vec::with_capacity(usize::from(MIN_PAYLOAD));
    let mut encoder = BinEncoder::new(&mut bytes);
    encoder.set_max_size(limit);
    message.emit(&mut encoder)?;
    // The encoder rolls its offset back for a record that does not fit, but leaves the bytes in the buffer.
    let end = encoder.offset();
    bytes.truncate(end);
    let truncated = bytes[2] & 0x02 != 0;
    Ok((bytes, truncated))
}
