//! Concurrent changes and queries: every answer is consistent with one state of the objects.

use beeline_dns::{AnswerCode, NameChange, NameStore, Zone};
use beeline_model::change::Change;
use beeline_model::object::{Endpoint, NamedService, Object, Published, Slice, SliceName};
use beeline_model::{Address, Family, ServiceName};
use hickory_proto::rr::{Name, RecordType};
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};

fn service(name: &str, published: Published) -> Change {
    Change::Upsert(Object::NamedService(NamedService {
        name: ServiceName::new("local", "x", name),
        published,
        ports: [].into(),
    }))
}

fn ip(third: u8, last: u8) -> Address {
    Address::from(IpAddr::from([10, 0, third, last]))
}

/// The endpoints of one generation. They are applied together, so an answer has all or none of them.
fn slice(generation: u8) -> Change {
    let endpoint = |last: u8| Endpoint::ready(ip(generation, last));
    Change::Upsert(Object::NamedSlice(Slice {
        name: SliceName { cluster: "local".into(), namespace: "x".into(), name: "s".into() },
        service: ServiceName::new("local", "x", "pets"),
        family: Family::V4,
        ports: [].into(),
        endpoints: (1..=20).map(endpoint).collect(),
        hostnames: None,
    }))
}

fn name_changes(changes: &[Change]) -> Vec<NameChange> {
    changes.iter().filter_map(NameChange::from_change).collect()
}

/// Sets both services to one generation.
fn set_generation(names: &NameStore, generation: u8) {
    let web = service("web", Published::Addresses([ip(generation, 1)].into()));
    names.apply(name_changes(&[web, slice(generation)]), None);
}

#[test]
fn every_answer_is_consistent() {
    let names = NameStore::new(vec![Zone::new("local", "cluster.local").unwrap()], Vec::new());
    names.apply(name_changes(&[service("pets", Published::Headless { unready: false })]), ["local"]);
    set_generation(&names, 0);
    let stop = AtomicBool::new(false);
    let query = |name: &str| {
        let answer = names.answer(0, &Name::from_ascii(name).unwrap(), RecordType::A);
        assert_eq!(answer.code, AnswerCode::Exists, "{name} existed all the time");
        answer.records.iter().map(|record| record.data.to_string()).collect::<BTreeSet<String>>()
    };
    let reader = || {
        let mut queries = 0u32;
        while !stop.load(Ordering::Relaxed) {
            assert_eq!(query("web.x.svc.cluster.local.").len(), 1);
            let pets = query("pets.x.svc.cluster.local.");
            let thirds: BTreeSet<&str> = pets.iter().filter_map(|ip| ip.split('.').nth(2)).collect();
            assert_eq!((pets.len(), thirds.len()), (20, 1), "{pets:?}");
            queries += 1;
        }
        queries
    };
    let queries: u32 = std::thread::scope(|scope| {
        let readers = [scope.spawn(reader), scope.spawn(reader)];
        for turn in 0..20_000u32 {
            set_generation(&names, (turn % 200) as u8);
        }
        stop.store(true, Ordering::Relaxed);
        readers.into_iter().map(|reader| reader.join().unwrap()).sum()
    });
    assert!(queries > 100, "{queries}");
}
