//! Random and malicious packets to the query handler.

use beeline_dns::check_packet;
use beeline_harness::test_seed;
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

fn random_query(rng: &mut Rng) -> Vec<u8> {
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

/// Changes, truncates and repeats bytes. The result is often nearly valid.
fn corrupt(rng: &mut Rng, bytes: &mut Vec<u8>) {
    for _ in 0..rng.usize(..6) {
        let at = rng.usize(..bytes.len().max(1));
        match rng.u8(..5) {
            0 => bytes.truncate(at),
            1 => bytes.extend_from_within(at.min(bytes.len())..),
            2 => bytes.extend((0..rng.usize(..20)).map(|_| rng.u8(..))),
            // Turns a byte into a compression pointer.
            3 if at < bytes.len() => bytes[at] |= 0xc0,
            _ if at < bytes.len() => bytes[at] = rng.u8(..),
            _ => {}
        }
    }
}

#[test]
fn any_input_gets_a_valid_response_or_none() {
    let mut rng = Rng::with_seed(test_seed(1));
    for _ in 0..60_000 {
        let mut bytes = random_query(&mut rng);
        check_packet(&bytes);
        corrupt(&mut rng, &mut bytes);
        check_packet(&bytes);
        let noise: Vec<u8> = (0..rng.usize(..64)).map(|_| rng.u8(..)).collect();
        check_packet(&noise);
    }
}

#[test]
fn the_corpus_of_the_fuzzer_passes_the_checks() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/dns_packet");
    let entries = std::fs::read_dir(folder).unwrap_or_else(|error| panic!("{folder}: {error}"));
    let inputs: Vec<Vec<u8>> = entries.map(|entry| std::fs::read(entry.unwrap().path()).unwrap()).collect();
    inputs.iter().for_each(|input| check_packet(input));
    assert!(inputs.len() >= 8, "{}", inputs.len());
}

/// Names that point at themselves, and counts of records that are not there.
#[test]
fn malicious_packets_are_cheap() {
    let header = |queries: u16, records: u16| {
        let counts = [queries, records, records, records].map(u16::to_be_bytes).concat();
        [&[0x12, 0x34, 1, 0][..], &counts].concat()
    };
    check_packet(&[header(1, 0), vec![0xc0, 12, 0, 1, 0, 1]].concat());
    check_packet(&[header(1, 0), vec![63; 4000]].concat());
    check_packet(&[header(u16::MAX, u16::MAX), [3, b'w', b'e', b'b', 0, 0, 1, 0, 1].repeat(400)].concat());
    let chain: Vec<u8> = (0..2000u16).flat_map(|i| [0xc0 | (i >> 8) as u8, i as u8]).collect();
    check_packet(&[header(1, 1), chain].concat());
    (0..40).for_each(|size| check_packet(&vec![0; size]));
}
