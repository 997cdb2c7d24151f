//! Packets that nobody should send.

use beeline_dns::check;
use fastrand::Rng;
use hickory_proto::op::{Edns, Message, Query};
use hickory_proto::rr::rdata::opt::EdnsOption;
use hickory_proto::rr::{DNSClass, Name, RecordType};

const NAMES: [&str; 8] = [
    "web.x.svc.cluster.local.",
    "WEB.X.svc.Cluster.LOCAL.",
    "out.x.svc.cluster.local.",
    "none.x.svc.local.beeline.",
    "1.0.96.10.in-addr.arpa.",
    "cluster.local.",
    "example.org.",
    ".",
];

fn question(rng: &mut Rng) -> Vec<u8> {
    let mut message = Message::query();
    let kind =
        *rng.choice(&[RecordType::A, RecordType::AAAA, RecordType::ANY, RecordType::SOA, RecordType::AXFR]).unwrap();
    let mut query = Query::query(Name::from_ascii(rng.choice(NAMES).unwrap()).unwrap(), kind);
    if rng.u8(..8) == 0 {
        query.set_query_class(DNSClass::CH);
    }
    message.add_query(query);
    if rng.bool() {
        let mut edns = Edns::new();
        edns.set_max_payload(rng.u16(..));
        edns.set_version(rng.u8(..2));
        edns.options_mut().insert(EdnsOption::Unknown(rng.u16(..), vec![7; rng.usize(..40)]));
        message.set_edns(edns);
    }
    message.to_vec().unwrap()
}

/// Bytes changed, cut off, doubled; what is left is often nearly right.
fn spoil(rng: &mut Rng, bytes: &mut Vec<u8>) {
    for _ in 0..rng.usize(..6) {
        let at = rng.usize(..bytes.len().max(1));
        match rng.u8(..5) {
            0 => bytes.truncate(at),
            1 => bytes.extend_from_within(at.min(bytes.len())..),
            2 => bytes.extend((0..rng.usize(..20)).map(|_| rng.u8(..))),
            // Pointers, and where they lead.
            3 if at < bytes.len() => bytes[at] |= 0xc0,
            _ if at < bytes.len() => bytes[at] = rng.u8(..),
            _ => {}
        }
    }
}

#[test]
fn whatever_comes_in_what_goes_out_is_an_answer_that_fits() {
    let mut rng = Rng::with_seed(1);
    for _ in 0..60_000 {
        let mut bytes = question(&mut rng);
        check(&bytes);
        spoil(&mut rng, &mut bytes);
        check(&bytes);
        let noise: Vec<u8> = (0..rng.usize(..64)).map(|_| rng.u8(..)).collect();
        check(&noise);
    }
}

/// Names that point at themselves, counts that promise what is not there.
#[test]
fn what_is_made_to_cost_much_costs_nothing() {
    let header = |questions: u16, more: u16| {
        let counts = [questions, more, more, more].map(u16::to_be_bytes).concat();
        [&[0x12, 0x34, 1, 0][..], &counts].concat()
    };
    check(&[header(1, 0), vec![0xc0, 12, 0, 1, 0, 1]].concat());
    check(&[header(1, 0), vec![63; 4000]].concat());
    check(&[header(u16::MAX, u16::MAX), [3, b'w', b'e', b'b', 0, 0, 1, 0, 1].repeat(400)].concat());
    let chain: Vec<u8> = (0..2000u16).flat_map(|i| [0xc0 | (i >> 8) as u8, i as u8]).collect();
    check(&[header(1, 1), chain].concat());
    (0..40).for_each(|size| check(&vec![0; size]));
}
