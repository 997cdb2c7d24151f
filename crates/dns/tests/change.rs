//! Facts that change while they are asked for: every answer is one that was true.

use beeline_model::fact::{Endpoint, Fact, NamedService, Published, Slice, SliceName};
use beeline_model::{Address, Family, OwnerName};
use beeline_dns::{Code, Names, Told, Zone};
use hickory_proto::rr::{Name, RecordType};
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};

fn service(name: &str, published: Published) -> Fact {
    Fact::NamedService(NamedService { name: OwnerName::new("local", "x", name), published, ports: [].into() })
}

fn ip(third: u8, last: u8) -> Address {
    Address::from(IpAddr::from([10, 0, third, last]))
}

/// All endpoints of one generation; they are told at once, so they are seen at once.
fn slice(generation: u8) -> Fact {
    let endpoint = |last: u8| Endpoint {
        address: ip(generation, last),
        ready: true,
        serving: true,
        terminating: false,
        node: None,
        hints: None,
    };
    Fact::NamedSlice(Slice {
        name: SliceName { cluster: "local".into(), namespace: "x".into(), name: "s".into() },
        service: OwnerName::new("local", "x", "pets"),
        family: Family::V4,
        ports: [].into(),
        endpoints: (1..=20).map(endpoint).collect(),
        hostnames: None,
    })
}

fn told(facts: &[Fact]) -> Vec<Told> {
    facts.iter().filter_map(Told::of).collect()
}

/// Both services are of one generation, whatever it is.
fn generation(names: &Names, generation: u8) {
    let web = service("web", Published::Addresses([ip(generation, 1)].into()));
    names.tell(told(&[web, slice(generation)]), None);
}

#[test]
fn every_answer_was_true() {
    let names = Names::new(vec![Zone::new("local", "cluster.local").unwrap()], Vec::new());
    names.tell(told(&[service("pets", Published::Headless { unready: false })]), ["local"]);
    generation(&names, 0);
    let over = AtomicBool::new(false);
    let ask = |name: &str| {
        let answer = names.answer(0, &Name::from_ascii(name).unwrap(), RecordType::A);
        assert_eq!(answer.code, Code::Exists, "{name} was there all the time");
        answer.records.iter().map(|record| record.data.to_string()).collect::<BTreeSet<String>>()
    };
    let reader = || {
        let mut asked = 0u32;
        while !over.load(Ordering::Relaxed) {
            assert_eq!(ask("web.x.svc.cluster.local.").len(), 1);
            let pets = ask("pets.x.svc.cluster.local.");
            let thirds: BTreeSet<&str> = pets.iter().filter_map(|ip| ip.split('.').nth(2)).collect();
            assert_eq!((pets.len(), thirds.len()), (20, 1), "{pets:?}");
            asked += 1;
        }
        asked
    };
    let asked: u32 = std::thread::scope(|scope| {
        let readers = [scope.spawn(reader), scope.spawn(reader)];
        for turn in 0..20_000u32 {
            generation(&names, (turn % 200) as u8);
        }
        over.store(true, Ordering::Relaxed);
        readers.into_iter().map(|reader| reader.join().unwrap()).sum()
    });
    assert!(asked > 100, "{asked}");
}
