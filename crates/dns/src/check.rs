//! Random input for the desk, for tests and for the fuzzer: whatever comes in, nothing breaks, and what goes out is an
//! answer to it that fits.

use crate::desk::{Desk, Step};
use crate::wire::By;
use crate::{Names, Told, Zone};
use beeline_model::fact::{Fact, NamedService, Published};
use beeline_model::{Address, OwnerName};
use hickory_proto::op::{Message, MessageType};
use std::net::IpAddr;
use std::sync::{Arc, OnceLock};

#[doc(hidden)]
pub fn check(input: &[u8]) {
    static DESK: OnceLock<Desk> = OnceLock::new();
    let desk = DESK.get_or_init(desk);
    for (by, most) in [(By::Datagram(4096), 4096), (By::Datagram(1232), 1232), (By::Connection, 65_535)] {
        if let Step::Say(said) = desk.take(input, by) {
            assert!(said.len() <= most, "{} bytes", said.len());
            check_answer(input, &said);
        }
    }
}

fn check_answer(input: &[u8], said: &[u8]) {
    let answer = Message::from_vec(said).expect("an answer can be read");
    assert_eq!(answer.metadata.message_type, MessageType::Response);
    assert_eq!(said[..2], input[..2], "the id");
    assert_eq!(input[2] & 0x80, 0, "answers are not answered");
    if let Some(asked) = Message::from_vec(input).ok().filter(|_| !answer.queries.is_empty()) {
        assert_eq!(answer.queries, asked.queries);
        assert_eq!(answer.edns.is_some(), asked.edns.is_some(), "EDNS to whoever speaks it");
    }
}

fn desk() -> Desk {
    let names = Names::new(vec![Zone::new("local", "cluster.local").expect("a domain")], Vec::new());
    let addresses = [IpAddr::from([10, 96, 0, 1]), "fd00:96::1".parse().expect("an address")].map(Address::from);
    let service = |name: &str, published| {
        let service = NamedService { name: OwnerName::new("local", "x", name), published, ports: [].into() };
        Told::of(&Fact::NamedService(service)).expect("a name")
    };
    let all = vec![
        service("web", Published::Addresses(addresses.into())),
        service("out", Published::Alias("example.org".into())),
        service("none", Published::Headless { unready: false }),
    ];
    names.tell(all, ["local"]);
    Desk::new(Arc::new(names), 0, None)
}
