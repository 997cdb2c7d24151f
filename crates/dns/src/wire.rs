//! Questions as they come in and answers as they go out. What cannot be read costs next to nothing, and what is sent fits.

use hickory_proto::ProtoError;
use hickory_proto::op::{Edns, Message, ResponseCode};
use hickory_proto::rr::Record;
use hickory_proto::rr::rdata::opt::EdnsOption;
use hickory_proto::serialize::binary::{BinEncodable, BinEncoder};

const HEADER: usize = 12;
/// What an asker without EDNS takes.
const SMALLEST: u16 = 512;
/// What we take, and the most that is sent by datagram on loopback, where nothing is cut into fragments.
pub(crate) const LARGEST: u16 = 4096;
/// The most that is sent by datagram elsewhere: what every path takes whole.
pub(crate) const PLAIN: u16 = 1232;
/// Records that a question may bring along; a sane one has EDNS and nothing else.
const BROUGHT: u16 = 4;
/// The option of RFC 8914, and its words.
const EXTENDED_ERROR: u16 = 15;
pub(crate) const OTHER: u16 = 0;
pub(crate) const NOT_READY: u16 = 14;
pub(crate) const NOT_AUTHORITATIVE: u16 = 20;
pub(crate) const NO_REACHABLE_AUTHORITY: u16 = 22;

/// How an answer travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    /// No more than this at once.
    Datagram(u16),
    Connection,
}

pub(crate) enum Heard {
    Question(Box<Message>),
    /// What is said to one that cannot be read, or is not for us.
    Odd(Vec<u8>),
    /// An answer, or too short for one to say anything to: saying something could make a circle.
    Nothing,
}

/// Looks at the header before anything is unpacked.
pub(crate) fn read(bytes: &[u8]) -> Heard {
    let Some((header, _)) = bytes.split_at_checked(HEADER) else { return Heard::Nothing };
    let count = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
    if header[2] & 0x80 != 0 {
        return Heard::Nothing;
    }
    if header[2] & 0x78 != 0 {
        return Heard::Odd(bare(header, ResponseCode::NotImp));
    }
    let brought = [6, 8, 10].into_iter().fold(0u16, |sum, at| sum.saturating_add(count(at)));
    if count(4) != 1 || brought > BROUGHT {
        return Heard::Odd(bare(header, ResponseCode::FormErr));
    }
    match Message::from_vec(bytes) {
        Ok(message) => Heard::Question(Box::new(message)),
        Err(_) => Heard::Odd(bare(header, ResponseCode::FormErr)),
    }
}

/// A header alone: what it was about could not be read.
fn bare(header: &[u8], code: ResponseCode) -> Vec<u8> {
    // The id, what was wanted (RD included), and that this is an answer.
    let mut said = vec![header[0], header[1], header[2] & 0x79 | 0x80, code.low()];
    said.resize(HEADER, 0);
    said
}

/// What goes with every answer to somebody who speaks EDNS.
pub(crate) fn edns(asked: &Edns, code: ResponseCode, why: Option<(u16, &str)>) -> Edns {
    let mut edns = Edns::new();
    edns.set_max_payload(LARGEST);
    edns.set_version(0);
    edns.set_dnssec_ok(asked.flags().dnssec_ok);
    edns.set_rcode_high(code.high());
    if let Some((word, text)) = why {
        let said = [&word.to_be_bytes()[..], text.as_bytes()].concat();
        edns.options_mut().insert(EdnsOption::Unknown(EXTENDED_ERROR, said));
    }
    edns
}

/// As much of the answer as fits. EDNS always does; what would only be sent along is left out before anything is marked
/// as cut (RFC 2181, section 9); over a connection there is no other way to ask, so nothing is marked there.
pub(crate) fn write(said: &mut Message, asked: Option<&Edns>, by: By) -> Result<Vec<u8>, ProtoError> {
    let last = said.edns.take().map(|edns| Record::from(&edns).to_bytes()).transpose()?.unwrap_or_default();
    let room = limit(asked, by).saturating_sub(last.len() as u16);
    let (mut bytes, mut cut) = emit(said, room)?;
    if cut && !said.additionals.is_empty() {
        said.additionals.clear();
        (bytes, cut) = emit(said, room)?;
    }
    if cut && by == By::Connection {
        bytes[2] &= !0x02;
    }
    if !last.is_empty() {
        let along = u16::from_be_bytes([bytes[10], bytes[11]]) + 1;
        bytes[10..HEADER].copy_from_slice(&along.to_be_bytes());
        bytes.extend(last);
    }
    Ok(bytes)
}

fn limit(asked: Option<&Edns>, by: By) -> u16 {
    match by {
        By::Datagram(most) => asked.map_or(SMALLEST, |edns| edns.max_payload().clamp(SMALLEST, most)),
        By::Connection => u16::MAX,
    }
}

fn emit(said: &Message, room: u16) -> Result<(Vec<u8>, bool), ProtoError> {
    let mut bytes = Vec::with_capacity(usize::from(SMALLEST));
    let mut encoder = BinEncoder::new(&mut bytes);
    encoder.set_max_size(room);
    said.emit(&mut encoder)?;
    // The encoder takes a record back that did not fit, and leaves its bytes behind.
    let end = encoder.offset();
    bytes.truncate(end);
    let cut = bytes[2] & 0x02 != 0;
    Ok((bytes, cut))
}
