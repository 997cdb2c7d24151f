//! The index, compared with a reference model that lists every record: after any sequence of changes the answers are
//! those of the current objects.

use beeline_dns::{Answer, AnswerCode, NameChange, NameIndex, Zone};
use beeline_harness::test_seed;
use beeline_model::change::{Change, ObjectKey};
use beeline_model::cluster::order::{ClusterOrder, Ranges};
use beeline_model::cluster::{ClusterRules, PodAccess};
use beeline_model::object::{
    Endpoint, Hostnames, NamedService, Object, Published, Service, ServicePort, Slice, SliceName, SlicePort,
};
use beeline_model::reach::{PodGroup, Reach, Reachability};
use beeline_model::rules::HostRole;
use beeline_model::{Address, Family, Protocol, ServiceName};
use fastrand::Rng;
use hickory_proto::rr::{Name, RecordType};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

const CLUSTERS: [&str; 2] = ["one", "two"];
const SPACES: [&str; 2] = ["x", "y"];
const SERVICES: [&str; 2] = ["s", "t"];
const HOSTS: [&str; 2] = ["h-0", "h-1"];
const PORTS: [(&str, Protocol, u16); 3] =
    [("http", Protocol::Tcp, 80), ("dns", Protocol::Udp, 53), ("", Protocol::Tcp, 7)];
const ADDRESSES: [&str; 6] = ["10.0.0.1", "10.0.0.2", "10.0.0.3", "fd00::1", "fd00::2", "fd00::3"];
const ALIASES: [&str; 2] = ["example.org", "s.x.svc.cluster.local"];

fn address(text: &str) -> Address {
    Address::from(text.parse::<IpAddr>().unwrap())
}

/// Random changes, also of kinds that a real cluster does not make.
struct ObjectGenerator {
    rng: Rng,
}

impl ObjectGenerator {
    fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.rng.usize(..from.len())]
    }

    fn service_name(&mut self) -> ServiceName {
        let (cluster, space, name) = (*self.pick(&CLUSTERS), *self.pick(&SPACES), *self.pick(&SERVICES));
        ServiceName::new(cluster, space, name)
    }

    fn addresses(&mut self) -> Box<[Address]> {
        let (v4, v6) = (self.rng.usize(..3), self.rng.usize(3..6));
        let both = [address(ADDRESSES[v4]), address(ADDRESSES[v6])];
        match self.rng.u8(..3) {
            0 => both[..1].into(),
            1 => both[1..].into(),
            _ => both.into(),
        }
    }

    fn ports(&mut self) -> Box<[ServicePort]> {
        let chosen: Vec<_> = PORTS.iter().filter(|_| self.rng.bool()).collect();
        let port = |(name, protocol, port): &(&str, Protocol, u16)| ServicePort {
            name: (*name).into(),
            protocol: *protocol,
            port: *port,
            node_port: 0,
        };
        chosen.into_iter().map(port).collect()
    }

    fn service(&mut self) -> Service {
        Service { cluster_ips: self.addresses(), ports: self.ports(), ..Service::named(self.service_name()) }
    }

    fn named(&mut self) -> NamedService {
        let published = match self.rng.u8(..4) {
            0 => Published::Alias((*self.pick(&ALIASES)).into()),
            1 => Published::Addresses(self.addresses()),
            _ => Published::Headless { unready: self.rng.bool() },
        };
        NamedService { name: self.service_name(), published, ports: self.ports() }
    }

    fn slice(&mut self) -> Slice {
        let service = self.service_name();
        let family = *self.pick(&Family::BOTH);
        let pool = if family == Family::V4 { &ADDRESSES[..3] } else { &ADDRESSES[3..] };
        let mut hostnames = Hostnames::new();
        let mut endpoints = Vec::new();
        for place in 0..self.rng.usize(..4) {
            if self.rng.bool() {
                hostnames.insert(place, (*self.pick(&HOSTS)).into());
            }
            let (ip, ready) = (address(self.pick::<&str>(pool)), self.rng.u8(..3) > 0);
            endpoints.push(Endpoint {
                address: ip,
                ready,
                serving: ready,
                terminating: false,
                node: None,
                hints: None,
            });
        }
        let ports = self.ports();
        let port =
            |port: &ServicePort| SlicePort { name: port.name.clone(), protocol: port.protocol, port: port.port + 8000 };
        Slice {
            name: self.slice_name(&service),
            service,
            family,
            ports: ports.iter().map(port).collect(),
            endpoints: endpoints.into(),
            hostnames: (!hostnames.is_empty()).then(|| Box::new(hostnames)),
        }
    }

    fn slice_name(&mut self, service: &ServiceName) -> SliceName {
        let name = *self.pick(&["1", "2", "3"]);
        SliceName { cluster: service.cluster().into(), namespace: service.namespace().into(), name: name.into() }
    }

    fn change(&mut self) -> Change {
        match self.rng.u8(..12) {
            0..2 => Change::Upsert(Object::Service(self.service())),
            2..5 => Change::Upsert(Object::NamedService(self.named())),
            5 => Change::Delete(ObjectKey::Service(self.service_name())),
            6..9 => Change::Upsert(Object::Slice(self.slice())),
            9..11 => Change::Upsert(Object::NamedSlice(self.slice())),
            _ => {
                let service = self.service_name();
                Change::Delete(ObjectKey::Slice(self.slice_name(&service)))
            }
        }
    }
}

/// The current objects.
#[derive(Default)]
struct Objects {
    services: BTreeMap<ServiceName, NamedService>,
    slices: BTreeMap<SliceName, Slice>,
}

impl Objects {
    fn apply(&mut self, change: &Change) {
        match change {
            Change::Upsert(Object::Service(service)) => {
                let published = Published::Addresses(service.cluster_ips.clone());
                let named = NamedService { name: service.name.clone(), published, ports: service.ports.clone() };
                self.services.insert(service.name.clone(), named);
            }
            Change::Upsert(Object::NamedService(named)) => {
                drop(self.services.insert(named.name.clone(), named.clone()))
            }
            Change::Delete(ObjectKey::Service(name)) => drop(self.services.remove(name)),
            Change::Upsert(Object::Slice(slice) | Object::NamedSlice(slice)) => {
                self.slices.insert(slice.name.clone(), slice.clone());
            }
            Change::Delete(ObjectKey::Slice(name)) => drop(self.slices.remove(name)),
            other => panic!("{other:?}"),
        }
    }

    fn changes(&self) -> impl Iterator<Item = Change> {
        // Slices come first, because in the random changes they mostly come later.
        let slices = self.slices.values().cloned().map(Object::Slice).map(Change::Upsert);
        slices.chain(self.services.values().cloned().map(Object::NamedService).map(Change::Upsert))
    }
}

type Records = BTreeMap<String, BTreeSet<(String, String)>>;

/// Every record of a cluster below a domain, by the text of the DNS specification, and the names without records.
fn reference_records(objects: &Objects, cluster: &str, domain: &str) -> Records {
    let mut all = Records::new();
    let mut add = |name: String, kind: &str, data: String| {
        let at = all.entry(name).or_default();
        if !kind.is_empty() {
            at.insert((kind.to_owned(), data));
        }
    };
    add(format!("svc.{domain}"), "", String::new());
    add(format!("dns.{domain}"), "", String::new());
    add(format!("ns.dns.{domain}"), "A", "127.0.0.55".into());
    add(format!("dns-version.{domain}"), "TXT", "1.1.0".into());
    for service in objects.services.values().filter(|service| service.name.cluster() == cluster) {
        let space = format!("{}.svc.{domain}", service.name.namespace());
        let base = format!("{}.{space}", service.name.name());
        add(space, "", String::new());
        match &service.published {
            // A target in the cluster's own domain is moved into the domain of the query.
            Published::Alias(target) => add(base, "CNAME", format!("{}.", target.replace("cluster.local", domain))),
            Published::Addresses(addresses) => {
                addresses.iter().for_each(|ip| add(base.clone(), kind_of(*ip), ip.to_string()));
                for port in service.ports.iter().filter(|port| !port.name.is_empty()) {
                    let protocol = format!("_{}.{base}", port.protocol.to_string().to_lowercase());
                    add(protocol.clone(), "", String::new());
                    add(format!("_{}.{protocol}", port.name), "SRV", format!("{} {base}.", port.port));
                }
            }
            Published::Headless { unready } => {
                for slice in objects.slices.values().filter(|slice| slice.service == service.name) {
                    for (place, endpoint) in slice.endpoints.iter().enumerate().filter(|(_, e)| e.ready || *unready) {
                        let ip = endpoint.address;
                        let host = format!("{}.{base}", label(slice, place));
                        add(base.clone(), kind_of(ip), ip.to_string());
                        add(host.clone(), kind_of(ip), ip.to_string());
                        for port in slice.ports.iter().filter(|port| !port.name.is_empty()) {
                            let protocol = format!("_{}.{base}", port.protocol.to_string().to_lowercase());
                            add(protocol.clone(), "", String::new());
                            add(format!("_{}.{protocol}", port.name), "SRV", format!("{} {host}.", port.port));
                        }
                    }
                }
            }
        }
    }
    all
}

fn kind_of(ip: Address) -> &'static str {
    if ip.family() == Family::V4 { "A" } else { "AAAA" }
}

fn label(slice: &Slice, place: usize) -> String {
    let dashed = || slice.endpoints[place].address.to_string().replace(['.', ':'], "-");
    slice.hostname(place).map_or_else(dashed, ToString::to_string)
}

/// The names of addresses, as targets of PTR records in the domain of this cluster.
fn reverse(objects: &Objects, cluster: &str, domain: &str) -> BTreeMap<Address, BTreeSet<String>> {
    let mut all: BTreeMap<Address, BTreeSet<String>> = BTreeMap::new();
    for service in objects.services.values().filter(|service| service.name.cluster() == cluster) {
        let base = format!("{}.{}.svc.{domain}.", service.name.name(), service.name.namespace());
        match &service.published {
            Published::Addresses(ips) => ips.iter().for_each(|ip| _ = all.entry(*ip).or_default().insert(base.clone())),
            Published::Headless { unready } => {
                for slice in objects.slices.values().filter(|slice| slice.service == service.name) {
                    for (place, endpoint) in slice.endpoints.iter().enumerate().filter(|(_, e)| e.ready || *unready) {
                        all.entry(endpoint.address).or_default().insert(format!("{}.{base}", label(slice, place)));
                    }
                }
            }
            Published::Alias(_) => {}
        }
    }
    all
}

/// Every name that is queried.
fn candidates(domain: &str) -> Vec<String> {
    let mut all = ["svc", "dns", "ns.dns", "dns-version", "other"].map(|label| format!("{label}.{domain}")).to_vec();
    for space in SPACES.iter().chain(&["z"]) {
        all.push(format!("{space}.svc.{domain}"));
        for service in SERVICES.iter().chain(&["u"]) {
            let base = format!("{service}.{space}.svc.{domain}");
            let dashed = ADDRESSES.map(|ip| ip.replace(['.', ':'], "-"));
            let below = HOSTS.iter().map(ToString::to_string).chain(dashed).chain(["_tcp".into(), "_udp".into()]);
            all.extend(below.map(|label| format!("{label}.{base}")));
            all.extend(["_http._tcp", "_dns._udp", "_http._udp", "http.tcp"].map(|port| format!("{port}.{base}")));
            all.push(base);
        }
    }
    all
}

fn answered(answer: &Answer) -> BTreeSet<(String, String)> {
    let data = |text: String| match text.split(' ').collect::<Vec<_>>()[..] {
        // Priority and weight are not compared.
        [_, _, port, target] => format!("{port} {target}"),
        _ => text.trim_matches('"').to_owned(),
    };
    answer.records.iter().map(|r| (r.record_type().to_string(), data(r.data.to_string()))).collect()
}

fn query(index: &NameIndex, name: &str, kind: RecordType) -> Answer {
    index.answer(0, &Name::from_ascii(format!("{name}.")).unwrap(), kind)
}

/// Compares the answers to all names and types with those of the reference model.
fn compare(index: &NameIndex, objects: &Objects, cluster: &str, domain: &str) -> usize {
    let written = reference_records(objects, cluster, domain);
    let mut compared = 0;
    for name in candidates(domain) {
        let here = written.get(&name);
        let alias = here.is_some_and(|here| here.iter().any(|(kind, _)| kind == "CNAME"));
        for kind in [RecordType::A, RecordType::AAAA, RecordType::SRV, RecordType::TXT, RecordType::CNAME] {
            let mut answer = query(index, &name, kind);
            let wanted: BTreeSet<_> = here.into_iter().flatten().cloned().collect();
            if alias {
                // The target of the alias is queried by its own name.
                answer.records.truncate(1);
                assert_eq!(answered(&answer), wanted, "{name} {kind}");
                continue;
            }
            let wanted: BTreeSet<_> = wanted.into_iter().filter(|(has, _)| *has == kind.to_string()).collect();
            assert_eq!(
                answer.code,
                if here.is_some() { AnswerCode::Exists } else { AnswerCode::NotFound },
                "{name} {kind}"
            );
            assert_eq!(answered(&answer), wanted, "{name} {kind}");
            assert_eq!(answer.authority.is_some(), wanted.is_empty(), "{name} {kind}: SOA of a negative answer");
            compared += 1;
        }
    }
    compared
}

fn compare_reverse(index: &NameIndex, objects: &Objects) {
    // Both clusters have the same domain, and the first one gets it. Their ranges differ.
    let [first, second] = [("one", "cluster.local"), ("two", "two.beeline")].map(|(c, d)| reverse(objects, c, d));
    for text in ADDRESSES {
        let name = Name::from(text.parse::<IpAddr>().unwrap());
        let answer = index.answer(0, &name, RecordType::PTR);
        match first.get(&address(text)).or_else(|| second.get(&address(text))) {
            None => assert_eq!(answer.code, AnswerCode::OutOfZone, "{text}"),
            Some(targets) => {
                let found: BTreeSet<String> = answered(&answer).into_iter().map(|(_, target)| target).collect();
                assert_eq!(found, *targets, "{text}");
            }
        }
    }
}

fn zones() -> Vec<Zone> {
    CLUSTERS.map(|cluster| Zone::new(cluster, "cluster.local").unwrap()).into()
}

fn apply(index: &mut NameIndex, change: &Change) {
    index.apply(NameChange::from_change(change).expect("the change concerns a name"));
}

/// The cluster order of a host outside, with these service ranges. The second cluster has a view.
fn order(pod_access: PodAccess, ranges: [Option<&str>; 2]) -> ClusterOrder {
    let rules = CLUSTERS.map(|name| ClusterRules { pod_access, ..ClusterRules::named(name) });
    let read = |range: Option<&str>| range.map(|range| vec![range.parse().unwrap()]);
    let known = CLUSTERS.into_iter().map(Into::into).zip(ranges.map(read));
    let ranges: Ranges = known.filter_map(|(name, range)| Some((name, range?))).collect();
    ClusterOrder::new(HostRole::Outside, &rules, &ranges, &["two".into()].into())
}

/// Ranges that do not overlap.
const DISJOINT: [Option<&str>; 2] = [Some("10.1.0.0/16"), Some("10.2.0.0/16")];

/// An index without objects, in which both clusters have synced.
fn empty() -> NameIndex {
    let mut index = NameIndex::new(zones(), vec!["two".into()]);
    index.set_server_address(IpAddr::from([127, 0, 0, 55]));
    CLUSTERS.iter().for_each(|cluster| index.set_synced(cluster));
    index.set_order(order(PodAccess::Direct, DISJOINT));
    index
}

#[test]
fn answers_match_the_current_objects() {
    let first_seed = test_seed(0);
    let mut compared = 0;
    for seed in (0..40).map(|n| first_seed.wrapping_add(n)) {
        let mut generator = ObjectGenerator { rng: Rng::with_seed(seed) };
        let (mut index, mut objects) = (empty(), Objects::default());
        for step in 0..120 {
            let change = generator.change();
            apply(&mut index, &change);
            objects.apply(&change);
            if step % 6 != 0 {
                continue;
            }
            let mut fresh = empty();
            objects.changes().for_each(|change| apply(&mut fresh, &change));
            for index in [&index, &fresh] {
                compared += compare(index, &objects, "one", "cluster.local");
                compared += compare(index, &objects, "one", "one.beeline");
                compared += compare(index, &objects, "two", "two.beeline");
                compare_reverse(index, &objects);
            }
        }
    }
    assert!(compared > 100_000, "{compared}");
}

fn headless(name: &str, addresses: &[&str]) -> [Change; 2] {
    let owner = ServiceName::new("one", "x", name);
    let endpoint = |text: &&str| Endpoint::ready(address(text));
    let published = Published::Headless { unready: false };
    let slice = Slice {
        name: SliceName { cluster: "one".into(), namespace: "x".into(), name: name.into() },
        service: owner.clone(),
        family: Family::V4,
        ports: [SlicePort { name: "http".into(), protocol: Protocol::Tcp, port: 80 }].into(),
        endpoints: addresses.iter().map(endpoint).collect(),
        hostnames: None,
    };
    [
        Change::Upsert(Object::NamedService(NamedService { name: owner, published, ports: [].into() })),
        Change::Upsert(Object::NamedSlice(slice)),
    ]
}

#[test]
fn no_name_is_denied_before_its_cluster_has_synced() {
    let mut index = NameIndex::new(zones(), Vec::new());
    index.set_order(order(PodAccess::Direct, DISJOINT));
    index.set_synced("two");
    assert_eq!(query(&index, "s.x.svc.cluster.local", RecordType::A).code, AnswerCode::NotReady);
    assert_eq!(query(&index, "s.x.svc.two.beeline", RecordType::A).code, AnswerCode::NotFound);
    index.set_synced("one");
    assert_eq!(query(&index, "s.x.svc.cluster.local", RecordType::A).code, AnswerCode::NotFound);
    assert_eq!(query(&index, "s.x.svc.three.beeline", RecordType::A).code, AnswerCode::NotFound);
    assert_eq!(query(&index, "example.org", RecordType::A).code, AnswerCode::OutOfZone);
}

/// The result of the reachability probes.
fn reach(found: Reachability) -> Reach {
    let group = PodGroup::of("one".into(), None, address("10.0.0.1"));
    Reach { found: [(group, found)].into(), ..Reach::default() }
}

const HEADLESS_NAMES: [&str; 3] =
    ["s.x.svc.cluster.local", "10-0-0-1.s.x.svc.cluster.local", "_http._tcp.s.x.svc.cluster.local"];

/// Whether each name of a headless Service has records, and whether the reverse lookup of its address has.
fn has_records(index: &NameIndex) -> ([bool; 3], bool) {
    let kinds = [RecordType::A, RecordType::A, RecordType::SRV];
    let mut queries = HEADLESS_NAMES.into_iter().zip(kinds);
    let forward = std::array::from_fn(|_| {
        let (name, kind) = queries.next().unwrap();
        let answer = query(index, name, kind);
        assert_eq!(answer.code, AnswerCode::Exists, "{name}");
        assert_eq!(answer.records.is_empty(), answer.reason.is_some(), "{name}: {answer:?}");
        !answer.records.is_empty()
    });
    let reverse = index.answer(0, &Name::from(IpAddr::from([10, 0, 0, 1])), RecordType::PTR);
    (forward, reverse.code == AnswerCode::Exists)
}

#[test]
fn names_of_unreachable_pods_exist_without_an_address() {
    let mut index = empty();
    headless("s", &["10.0.0.1"]).iter().for_each(|change| apply(&mut index, change));
    let (all, none) = (([true; 3], true), ([false; 3], false));
    for (pods, found, wanted) in [
        (PodAccess::Direct, Reachability::Node, all),
        (PodAccess::Node, Reachability::Direct, none),
        (PodAccess::Auto, Reachability::Direct, all),
        (PodAccess::Auto, Reachability::Node, none),
        // DNS has no nodePort to fall back to.
        (PodAccess::Auto, Reachability::Unknown, all),
    ] {
        index.set_order(order(pods, DISJOINT));
        index.set_reach(reach(found));
        assert_eq!(has_records(&index), wanted, "{pods:?} {found:?}");
    }
    let range = vec!["10.0.0.0/28".parse().unwrap()];
    let rules = ClusterRules { pod_access: PodAccess::Node, direct: range, ..ClusterRules::named("one") };
    index.set_order(ClusterOrder::new(HostRole::Outside, &[rules], &Ranges::new(), &BTreeSet::new()));
    assert_eq!(has_records(&index), all, "--direct-pod-cidrs");
    index.set_own("".into(), [address("10.0.0.1")]);
    assert_eq!(has_records(&index), none, "a remote cluster cannot have an address of this host");
    index.set_order(ClusterOrder::new(HostRole::Node, &[], &Ranges::new(), &BTreeSet::new()));
    assert_eq!(has_records(&index), all, "the own cluster can, and a node reaches pods");
}

#[test]
fn host_network_pods_are_reachable_and_an_edge_node_reaches_its_own_pods() {
    let mut index = empty();
    let [service, slice] = headless("s", &["10.0.0.1"]);
    let Change::Upsert(Object::NamedSlice(mut slice)) = slice else { panic!() };
    slice.endpoints[0].node = Some("n".into());
    [service, Change::Upsert(Object::NamedSlice(slice))].iter().for_each(|change| apply(&mut index, change));
    let (all, none) = (([true; 3], true), ([false; 3], false));
    index.set_order(order(PodAccess::Node, DISJOINT));
    assert_eq!(has_records(&index), none);
    let mut node = beeline_model::object::Node::named("one", "n");
    node.addresses.push((beeline_model::object::AddressType::Internal, address("10.0.0.1")));
    apply(&mut index, &Change::Upsert(Object::Node(node)));
    assert_eq!(has_records(&index), all, "hostNetwork");
    apply(&mut index, &Change::Delete(ObjectKey::Node { cluster: "one".into(), name: "n".into() }));
    assert_eq!(has_records(&index), none);
    let edge = ClusterRules::for_role("one", HostRole::Edge);
    index.set_order(ClusterOrder::new(HostRole::Edge, &[edge], &Ranges::new(), &BTreeSet::new()));
    for (own, wanted) in [("n", all), ("other", none)] {
        index.set_own(own.into(), []);
        assert_eq!(has_records(&index), wanted, "on {own}");
    }
}

fn cluster_ip_service(cluster: &str, ips: &[&str]) -> Change {
    let addresses = ips.iter().map(|ip| address(ip)).collect();
    let published = Published::Addresses(addresses);
    Change::Upsert(Object::NamedService(NamedService {
        name: ServiceName::new(cluster, "x", "web"),
        published,
        ports: [].into(),
    }))
}

fn ips(answer: &Answer) -> Vec<String> {
    answer.records.iter().map(|record| record.data.to_string()).collect()
}

/// Addresses in a cluster's service ranges are not looked up upstream.
#[test]
fn an_unnamed_address_in_a_service_range_does_not_exist() {
    let reverse =
        |index: &NameIndex, ip: &str| index.answer(0, &Name::from(ip.parse::<IpAddr>().unwrap()), RecordType::PTR).code;
    let mut index = empty();
    index.set_order(order(PodAccess::Auto, [Some("10.96.0.0/16"), Some("10.97.0.0/16")]));
    apply(&mut index, &cluster_ip_service("one", &["10.96.0.1"]));
    assert_eq!(reverse(&index, "10.96.0.1"), AnswerCode::Exists);
    assert_eq!(reverse(&index, "10.96.0.77"), AnswerCode::NotFound);
    assert_eq!(reverse(&index, "192.0.2.1"), AnswerCode::OutOfZone);
    let mut unsynced = NameIndex::new(vec![Zone::new("one", "cluster.local").unwrap()], Vec::new());
    unsynced.set_order(order(PodAccess::Auto, [Some("10.96.0.0/16"), Some("10.97.0.0/16")]));
    assert_eq!(reverse(&unsynced, "10.96.0.77"), AnswerCode::NotReady);
    assert_eq!(reverse(&unsynced, "10.97.0.77"), AnswerCode::OutOfZone, "not a zone of this index");
}

/// A dial to these addresses reaches this host or its cloud, so a remote cluster must not claim them.
#[test]
fn reserved_addresses_of_a_remote_cluster_are_not_returned() {
    let mut index = empty();
    index.set_order(order(PodAccess::Direct, DISJOINT));
    index.set_own("".into(), [address("192.0.2.1")]);
    let name = Name::from_ascii("web.x.svc.cluster.local.").unwrap();
    let answer_for = |index: &mut NameIndex, ip: &str| {
        apply(index, &cluster_ip_service("one", &[ip]));
        index.answer(0, &name, if ip.contains(':') { RecordType::AAAA } else { RecordType::A })
    };
    let special = ["169.254.169.254", "fe80::1", "127.0.0.1", "::1", "0.0.0.0", "255.255.255.255", "224.0.0.1"];
    let metadata = ["168.63.129.16", "100.100.100.200", "fd00:ec2::254", "192.0.2.1"];
    for ip in special.into_iter().chain(metadata) {
        let answer = answer_for(&mut index, ip);
        assert!(answer.records.is_empty() && answer.reason.is_some(), "{ip}: {answer:?}");
        let reverse = index.answer(0, &Name::from(ip.parse::<IpAddr>().unwrap()), RecordType::PTR);
        assert!(reverse.records.is_empty(), "{ip}: {reverse:?}");
    }
    assert_eq!(ips(&answer_for(&mut index, "10.96.0.1")), ["10.96.0.1"]);
    index.set_order(ClusterOrder::new(HostRole::Node, &[], &Ranges::new(), &BTreeSet::new()));
    assert_eq!(ips(&answer_for(&mut index, "169.254.20.10")), ["169.254.20.10"], "the node's own cluster can have it");
}

#[test]
fn pods_at_reserved_addresses_of_a_remote_cluster_are_not_returned() {
    for ip in ["169.254.169.254", "168.63.129.16", "255.255.255.255"] {
        let mut index = empty();
        headless("s", &[ip]).iter().for_each(|change| apply(&mut index, change));
        index.set_order(order(PodAccess::Direct, DISJOINT));
        let answer = query(&index, HEADLESS_NAMES[0], RecordType::A);
        assert!(answer.records.is_empty() && answer.reason.is_some(), "{ip}: {answer:?}");
    }
}

/// An address is returned only if dialling it reaches the cluster of the name.
#[test]
fn with_equal_ranges_only_the_first_cluster_of_a_view_is_returned() {
    let mut index = empty();
    index.set_order(order(PodAccess::Auto, [Some("10.96.0.0/16"); 2]));
    apply(&mut index, &cluster_ip_service("one", &["10.96.0.1"]));
    apply(&mut index, &cluster_ip_service("two", &["10.96.0.2"]));
    let answer_in = |index: &NameIndex, view, name: &str| {
        let name = Name::from_ascii(name).unwrap();
        index.answer(view, &name, RecordType::A)
    };
    assert_eq!(ips(&answer_in(&index, 0, "web.x.svc.cluster.local.")), ["10.96.0.1"]);
    assert_eq!(ips(&answer_in(&index, 0, "web.x.svc.one.beeline.")), ["10.96.0.1"]);
    let withheld = answer_in(&index, 0, "web.x.svc.two.beeline.");
    assert_eq!((withheld.code, ips(&withheld).len(), withheld.authority.is_some()), (AnswerCode::Exists, 0, true));
    assert!(withheld.reason.unwrap().contains("10.96.0.2 belongs to cluster one"));
    // The view of the second cluster reverses the order, also of the domain.
    assert_eq!(ips(&answer_in(&index, 1, "web.x.svc.cluster.local.")), ["10.96.0.2"]);
    assert_eq!(ips(&answer_in(&index, 1, "web.x.svc.two.beeline.")), ["10.96.0.2"]);
    assert!(ips(&answer_in(&index, 1, "web.x.svc.one.beeline.")).is_empty());
    for (view, last, wanted) in [
        (0, 1, AnswerCode::Exists),
        (0, 2, AnswerCode::NotFound),
        (1, 1, AnswerCode::NotFound),
        (1, 2, AnswerCode::Exists),
    ] {
        let name = Name::from(IpAddr::from([10, 96, 0, last]));
        assert_eq!(index.answer(view, &name, RecordType::PTR).code, wanted, "view {view}, 10.96.0.{last}");
    }
    // Only the address that collides is withheld.
    apply(&mut index, &cluster_ip_service("two", &["10.96.0.2", "fd00:96::2"]));
    assert_eq!(query(&index, "web.x.svc.two.beeline", RecordType::AAAA).records.len(), 1);
}

#[test]
fn no_address_is_returned_while_the_range_of_an_earlier_cluster_is_unknown() {
    let mut index = empty();
    apply(&mut index, &cluster_ip_service("two", &["10.96.0.2"]));
    let answer_of = |index: &NameIndex| query(index, "web.x.svc.two.beeline", RecordType::A);
    assert_eq!(ips(&answer_of(&index)), ["10.96.0.2"]);
    index.set_order(order(PodAccess::Auto, [None, DISJOINT[1]]));
    let answer = answer_of(&index);
    assert_eq!(answer.code, AnswerCode::NotReady);
    assert!(answer.reason.unwrap().contains("cluster one"));
    let name = Name::from(IpAddr::from([10, 96, 0, 2]));
    assert_eq!(index.answer(0, &name, RecordType::PTR).code, AnswerCode::OutOfZone);
    assert_eq!(
        index.answer(1, &name, RecordType::PTR).code,
        AnswerCode::Exists,
        "the cluster is first in its own view"
    );
}

#[test]
fn removing_a_cluster_removes_its_names() {
    let mut index = empty();
    CLUSTERS.iter().for_each(|cluster| apply(&mut index, &cluster_ip_service(cluster, &["10.0.0.9"])));
    index.set_zones(vec![Zone::new("two", "cluster.local").unwrap()]);
    assert_eq!(ips(&query(&index, "web.x.svc.cluster.local", RecordType::A)), ["10.0.0.9"], "the domain is free");
    assert_eq!(query(&index, "web.x.svc.one.beeline", RecordType::A).code, AnswerCode::NotFound);
    index.set_zones(zones());
    assert_eq!(
        query(&index, "web.x.svc.one.beeline", RecordType::A).code,
        AnswerCode::NotReady,
        "the cluster must sync again"
    );
    let statuses: Vec<(bool, usize)> =
        index.zone_statuses().iter().map(|status| (status.synced, status.services)).collect();
    assert_eq!(statuses, [(false, 0), (true, 1)]);
}

/// `cluster.local` in a target means the own cluster, also if another cluster has that domain here.
#[test]
fn an_alias_never_leads_into_another_cluster() {
    let mut index = empty();
    apply(&mut index, &cluster_ip_service("one", &["10.1.0.1"]));
    apply(&mut index, &cluster_ip_service("two", &["10.2.0.2"]));
    let published = Published::Alias("web.x.svc.cluster.local".into());
    let name = ServiceName::new("two", "x", "a");
    apply(&mut index, &Change::Upsert(Object::NamedService(NamedService { name, published, ports: [].into() })));
    let answer = query(&index, "a.x.svc.two.beeline", RecordType::A);
    assert_eq!(ips(&answer), ["web.x.svc.two.beeline.", "10.2.0.2"]);
}

#[test]
fn an_answer_examines_a_limited_number_of_endpoints() {
    let mut index = empty();
    let all: Vec<String> = (0..10_000).map(|i| format!("10.{}.{}.{}", 100 + i / 40_000, i / 200, i % 200)).collect();
    headless("s", &all.iter().map(String::as_str).collect::<Vec<_>>())
        .iter()
        .for_each(|change| apply(&mut index, change));
    assert_eq!(query(&index, HEADLESS_NAMES[0], RecordType::A).records.len(), 4096);
    assert_eq!(query(&index, HEADLESS_NAMES[2], RecordType::SRV).records.len(), 4096);
}

#[test]
fn an_alias_is_followed_to_its_end() {
    let alias = |name: &str, target: &str| {
        let published = Published::Alias(target.into());
        Change::Upsert(Object::NamedService(NamedService {
            name: ServiceName::new("one", "x", name),
            published,
            ports: [].into(),
        }))
    };
    let mut index = empty();
    headless("s", &["10.0.0.1"]).iter().for_each(|change| apply(&mut index, change));
    apply(&mut index, &alias("a", "b.x.svc.cluster.local"));
    apply(&mut index, &alias("b", "s.x.svc.cluster.local"));
    apply(&mut index, &alias("out", "example.org"));
    apply(&mut index, &alias("dangling", "gone.x.svc.cluster.local"));
    apply(&mut index, &alias("loop", "loop.x.svc.cluster.local"));
    let kinds = |answer: &Answer| answer.records.iter().map(|r| r.record_type()).collect::<Vec<_>>();
    let found = query(&index, "a.x.svc.cluster.local", RecordType::A);
    assert_eq!(kinds(&found), [RecordType::CNAME, RecordType::CNAME, RecordType::A]);
    assert_eq!((found.code, found.external_alias), (AnswerCode::Exists, None));
    let none = query(&index, "a.x.svc.cluster.local", RecordType::AAAA);
    assert_eq!((kinds(&none).len(), none.code, none.authority.is_some()), (2, AnswerCode::Exists, true));
    let out = query(&index, "out.x.svc.cluster.local", RecordType::A);
    assert_eq!(out.external_alias.map(|name| name.to_ascii()).as_deref(), Some("example.org."));
    let dangling = query(&index, "dangling.x.svc.cluster.local", RecordType::A);
    assert_eq!((kinds(&dangling).len(), dangling.code), (1, AnswerCode::NotFound));
    let looped = query(&index, "loop.x.svc.cluster.local", RecordType::A);
    assert_eq!((kinds(&looped)[0], looped.code, looped.external_alias), (RecordType::CNAME, AnswerCode::Exists, None));
}
