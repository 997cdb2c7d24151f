//! The index against a naive one that writes every record down: whatever was told in whatever order, the answers are
//! those of the facts that hold now.

use beeline_model::fact::{
    Endpoint, Fact, Hostnames, NamedService, Policy, Published, Service, ServicePort, Slice, SliceName, SlicePort,
};
use beeline_model::reach::{Found, Group, Reach};
use beeline_model::rules::StandPoint;
use beeline_model::stand::order::{Order, Ranges};
use beeline_model::stand::{ClusterRules, Pods};
use beeline_model::{Address, Family, OwnerName, Protocol};
use beeline_dns::{Answer, Code, Index, Told, Zone};
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

/// A stream of facts in which everything happens, also what no sane cluster does.
struct World {
    rng: Rng,
}

impl World {
    fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.rng.usize(..from.len())]
    }

    fn service_name(&mut self) -> OwnerName {
        let (cluster, space, name) = (*self.pick(&CLUSTERS), *self.pick(&SPACES), *self.pick(&SERVICES));
        OwnerName::new(cluster, space, name)
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
        Service {
            name: self.service_name(),
            created: 0,
            cluster_ips: self.addresses(),
            load_balancer_ips: [].into(),
            external_ips: [].into(),
            source_ranges: [].into(),
            has_node_ports: false,
            internal: Policy::Cluster,
            external: Policy::Cluster,
            affinity: None,
            health_check_node_port: 0,
            ports: self.ports(),
        }
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
            let (at, ready) = (address(self.pick::<&str>(pool)), self.rng.u8(..3) > 0);
            endpoints.push(Endpoint {
                address: at,
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

    fn slice_name(&mut self, service: &OwnerName) -> SliceName {
        let name = *self.pick(&["1", "2", "3"]);
        SliceName { cluster: service.cluster().into(), namespace: service.namespace().into(), name: name.into() }
    }

    fn fact(&mut self) -> Fact {
        match self.rng.u8(..12) {
            0..2 => Fact::Service(self.service()),
            2..5 => Fact::NamedService(self.named()),
            5 => Fact::ServiceGone(self.service_name()),
            6..9 => Fact::Slice(self.slice()),
            9..11 => Fact::NamedSlice(self.slice()),
            _ => {
                let service = self.service_name();
                Fact::SliceGone(self.slice_name(&service))
            }
        }
    }
}

/// What holds now.
#[derive(Default)]
struct Held {
    services: BTreeMap<OwnerName, NamedService>,
    slices: BTreeMap<SliceName, Slice>,
}

impl Held {
    fn apply(&mut self, fact: &Fact) {
        match fact {
            Fact::Service(service) => {
                let published = Published::Addresses(service.cluster_ips.clone());
                let named = NamedService { name: service.name.clone(), published, ports: service.ports.clone() };
                self.services.insert(service.name.clone(), named);
            }
            Fact::NamedService(named) => drop(self.services.insert(named.name.clone(), named.clone())),
            Fact::ServiceGone(name) => drop(self.services.remove(name)),
            Fact::Slice(slice) | Fact::NamedSlice(slice) => {
                self.slices.insert(slice.name.clone(), slice.clone());
            }
            Fact::SliceGone(name) => drop(self.slices.remove(name)),
            other => panic!("{other:?}"),
        }
    }

    fn facts(&self) -> impl Iterator<Item = Fact> {
        // Slices first: the other order is what the stream mostly has.
        let slices = self.slices.values().cloned().map(Fact::Slice);
        slices.chain(self.services.values().cloned().map(Fact::NamedService))
    }
}

type Records = BTreeMap<String, BTreeSet<(String, String)>>;

/// Every record of a cluster below a domain, by the text of the schema; and the names that exist without any.
fn written_down(held: &Held, cluster: &str, domain: &str) -> Records {
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
    for service in held.services.values().filter(|service| service.name.cluster() == cluster) {
        let space = format!("{}.svc.{domain}", service.name.namespace());
        let base = format!("{}.{space}", service.name.name());
        add(space, "", String::new());
        match &service.published {
            // A name of the cluster's own domain stays in the domain that was asked for.
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
                for slice in held.slices.values().filter(|slice| slice.service == service.name) {
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

/// Names of addresses, as targets of PTR records in this cluster's domain.
fn reverse(held: &Held, cluster: &str, domain: &str) -> BTreeMap<Address, BTreeSet<String>> {
    let mut all: BTreeMap<Address, BTreeSet<String>> = BTreeMap::new();
    for service in held.services.values().filter(|service| service.name.cluster() == cluster) {
        let base = format!("{}.{}.svc.{domain}.", service.name.name(), service.name.namespace());
        match &service.published {
            Published::Addresses(ips) => ips.iter().for_each(|ip| _ = all.entry(*ip).or_default().insert(base.clone())),
            Published::Headless { unready } => {
                for slice in held.slices.values().filter(|slice| slice.service == service.name) {
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

/// Every name that could be asked for.
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

fn shown(answer: &Answer) -> BTreeSet<(String, String)> {
    let data = |text: String| match text.split(' ').collect::<Vec<_>>()[..] {
        // Priority and weight are nobody's business.
        [_, _, port, target] => format!("{port} {target}"),
        _ => text.trim_matches('"').to_owned(),
    };
    answer.records.iter().map(|r| (r.record_type().to_string(), data(r.data.to_string()))).collect()
}

fn ask(index: &Index, name: &str, kind: RecordType) -> Answer {
    index.answer(0, &Name::from_ascii(format!("{name}.")).unwrap(), kind)
}

/// The two must agree about every name and type.
fn compare(index: &Index, held: &Held, cluster: &str, domain: &str) -> usize {
    let written = written_down(held, cluster, domain);
    let mut compared = 0;
    for name in candidates(domain) {
        let here = written.get(&name);
        let alias = here.is_some_and(|here| here.iter().any(|(kind, _)| kind == "CNAME"));
        for kind in [RecordType::A, RecordType::AAAA, RecordType::SRV, RecordType::TXT, RecordType::CNAME] {
            let mut answer = ask(index, &name, kind);
            let wanted: BTreeSet<_> = here.into_iter().flatten().cloned().collect();
            if alias {
                // What it leads to is asked by its own name.
                answer.records.truncate(1);
                assert_eq!(shown(&answer), wanted, "{name} {kind}");
                continue;
            }
            let wanted: BTreeSet<_> = wanted.into_iter().filter(|(has, _)| *has == kind.to_string()).collect();
            assert_eq!(answer.code, if here.is_some() { Code::Exists } else { Code::Missing }, "{name} {kind}");
            assert_eq!(shown(&answer), wanted, "{name} {kind}");
            assert_eq!(answer.authority.is_some(), wanted.is_empty(), "{name} {kind}: who says that there is none");
            compared += 1;
        }
    }
    compared
}

fn compare_addresses(index: &Index, held: &Held) {
    // Both clusters have the domain, and the first keeps it. Their ranges are known, and not the same.
    let [first, second] = [("one", "cluster.local"), ("two", "two.beeline")].map(|(c, d)| reverse(held, c, d));
    for text in ADDRESSES {
        let name = Name::from(text.parse::<IpAddr>().unwrap());
        let answer = index.answer(0, &name, RecordType::PTR);
        match first.get(&address(text)).or_else(|| second.get(&address(text))) {
            None => assert_eq!(answer.code, Code::Elsewhere, "{text}"),
            Some(targets) => {
                let found: BTreeSet<String> = shown(&answer).into_iter().map(|(_, target)| target).collect();
                assert_eq!(found, *targets, "{text}");
            }
        }
    }
}

fn zones() -> Vec<Zone> {
    CLUSTERS.map(|cluster| Zone::new(cluster, "cluster.local").unwrap()).into()
}

fn tell(index: &mut Index, fact: &Fact) {
    index.apply(Told::of(fact).expect("names are made of it"));
}

/// Of a host outside, with these ranges; the second cluster has a view.
fn order(pods: Pods, ranges: [Option<&str>; 2]) -> Order {
    let rules = CLUSTERS.map(|name| ClusterRules { pods, ..ClusterRules::named(name) });
    let read = |range: Option<&str>| range.map(|range| vec![range.parse().unwrap()]);
    let known = CLUSTERS.into_iter().map(Into::into).zip(ranges.map(read));
    let ranges: Ranges = known.filter_map(|(name, range)| Some((name, range?))).collect();
    Order::new(StandPoint::Outside, &rules, &ranges, &["two".into()].into())
}

/// Neither is in the other's way.
const APART: [Option<&str>; 2] = [Some("10.1.0.0/16"), Some("10.2.0.0/16")];

/// Both have been heard.
fn empty() -> Index {
    let mut index = Index::new(zones(), vec!["two".into()]);
    index.set_address(IpAddr::from([127, 0, 0, 55]));
    CLUSTERS.iter().for_each(|cluster| index.set_known(cluster));
    index.set_order(order(Pods::Direct, APART));
    index
}

#[test]
fn the_answers_are_those_of_the_facts_that_hold() {
    let mut compared = 0;
    for seed in 0..40 {
        let mut world = World { rng: Rng::with_seed(seed) };
        let (mut index, mut held) = (empty(), Held::default());
        for step in 0..120 {
            let fact = world.fact();
            tell(&mut index, &fact);
            held.apply(&fact);
            if step % 6 != 0 {
                continue;
            }
            let mut fresh = empty();
            held.facts().for_each(|fact| tell(&mut fresh, &fact));
            for index in [&index, &fresh] {
                compared += compare(index, &held, "one", "cluster.local");
                compared += compare(index, &held, "one", "one.beeline");
                compared += compare(index, &held, "two", "two.beeline");
                compare_addresses(index, &held);
            }
        }
    }
    assert!(compared > 100_000, "{compared}");
}

fn headless(name: &str, addresses: &[&str]) -> [Fact; 2] {
    let owner = OwnerName::new("one", "x", name);
    let endpoint = |text: &&str| Endpoint {
        address: address(text),
        ready: true,
        serving: true,
        terminating: false,
        node: None,
        hints: None,
    };
    let published = Published::Headless { unready: false };
    let slice = Slice {
        name: SliceName { cluster: "one".into(), namespace: "x".into(), name: name.into() },
        service: owner.clone(),
        family: Family::V4,
        ports: [SlicePort { name: "http".into(), protocol: Protocol::Tcp, port: 80 }].into(),
        endpoints: addresses.iter().map(endpoint).collect(),
        hostnames: None,
    };
    [Fact::NamedService(NamedService { name: owner, published, ports: [].into() }), Fact::NamedSlice(slice)]
}

#[test]
fn nothing_is_denied_before_the_cluster_was_heard() {
    let mut index = Index::new(zones(), Vec::new());
    index.set_order(order(Pods::Direct, APART));
    index.set_known("two");
    assert_eq!(ask(&index, "s.x.svc.cluster.local", RecordType::A).code, Code::Unheard);
    assert_eq!(ask(&index, "s.x.svc.two.beeline", RecordType::A).code, Code::Missing);
    index.set_known("one");
    assert_eq!(ask(&index, "s.x.svc.cluster.local", RecordType::A).code, Code::Missing);
    assert_eq!(ask(&index, "s.x.svc.three.beeline", RecordType::A).code, Code::Missing);
    assert_eq!(ask(&index, "example.org", RecordType::A).code, Code::Elsewhere);
}

/// As `auto` found it.
fn reach(found: Found) -> Reach {
    let group = Group::of("one".into(), None, address("10.0.0.1"));
    Reach { found: [(group, found)].into(), ..Reach::default() }
}

const PET: [&str; 3] = ["s.x.svc.cluster.local", "10-0-0-1.s.x.svc.cluster.local", "_http._tcp.s.x.svc.cluster.local"];

/// Whether there is an answer, for each of the names of a headless Service; and by its address.
fn pet(index: &Index) -> ([bool; 3], bool) {
    let kinds = [RecordType::A, RecordType::A, RecordType::SRV];
    let mut asked = PET.into_iter().zip(kinds);
    let told = std::array::from_fn(|_| {
        let (name, kind) = asked.next().unwrap();
        let answer = ask(index, name, kind);
        assert_eq!(answer.code, Code::Exists, "{name}");
        assert_eq!(answer.records.is_empty(), answer.why.is_some(), "{name}: {answer:?}");
        !answer.records.is_empty()
    });
    let back = index.answer(0, &Name::from(IpAddr::from([10, 0, 0, 1])), RecordType::PTR);
    (told, back.code == Code::Exists)
}

#[test]
fn pods_that_cannot_be_reached_exist_without_an_address() {
    let mut index = empty();
    headless("s", &["10.0.0.1"]).iter().for_each(|fact| tell(&mut index, fact));
    let (all, none) = (([true; 3], true), ([false; 3], false));
    for (pods, found, wanted) in [
        (Pods::Direct, Found::Node, all),
        (Pods::Node, Found::Direct, none),
        (Pods::Auto, Found::Direct, all),
        (Pods::Auto, Found::Node, none),
        // There is no nodePort to fall back to.
        (Pods::Auto, Found::Unknown, all),
    ] {
        index.set_order(order(pods, APART));
        index.set_reach(reach(found));
        assert_eq!(pet(&index), wanted, "{pods:?} {found:?}");
    }
    let range = vec!["10.0.0.0/28".parse().unwrap()];
    let rules = ClusterRules { pods: Pods::Node, direct: range, ..ClusterRules::named("one") };
    index.set_order(Order::new(StandPoint::Outside, &[rules], &Ranges::new(), &BTreeSet::new()));
    assert_eq!(pet(&index), all, "--direct-cidr");
    index.set_own("".into(), [address("10.0.0.1")]);
    assert_eq!(pet(&index), none, "a cluster does not lead to this host itself");
    index.set_order(Order::new(StandPoint::Node, &[], &Ranges::new(), &BTreeSet::new()));
    assert_eq!(pet(&index), all, "its own does, and a Node reaches pods");
}

#[test]
fn pods_in_their_nodes_network_are_reached_and_an_edge_node_reaches_its_own() {
    let mut index = empty();
    let [service, slice] = headless("s", &["10.0.0.1"]);
    let Fact::NamedSlice(mut slice) = slice else { panic!() };
    slice.endpoints[0].node = Some("n".into());
    [service, Fact::NamedSlice(slice)].iter().for_each(|fact| tell(&mut index, fact));
    let (all, none) = (([true; 3], true), ([false; 3], false));
    index.set_order(order(Pods::Node, APART));
    assert_eq!(pet(&index), none);
    let mut node = beeline_model::fact::Node::named("one", "n");
    node.addresses.push((beeline_model::fact::AddressType::Internal, address("10.0.0.1")));
    tell(&mut index, &Fact::Node(node));
    assert_eq!(pet(&index), all, "hostNetwork");
    tell(&mut index, &Fact::NodeGone { cluster: "one".into(), name: "n".into() });
    assert_eq!(pet(&index), none);
    let edge = ClusterRules::standing("one", StandPoint::Edge);
    index.set_order(Order::new(StandPoint::Edge, &[edge], &Ranges::new(), &BTreeSet::new()));
    for (own, wanted) in [("n", all), ("other", none)] {
        index.set_own(own.into(), []);
        assert_eq!(pet(&index), wanted, "on {own}");
    }
}

fn dialled(cluster: &str, ips: &[&str]) -> Fact {
    let addresses = ips.iter().map(|ip| address(ip)).collect();
    let published = Published::Addresses(addresses);
    Fact::NamedService(NamedService { name: OwnerName::new(cluster, "x", "web"), published, ports: [].into() })
}

fn ips(answer: &Answer) -> Vec<String> {
    answer.records.iter().map(|record| record.data.to_string()).collect()
}

/// Of what lies in a cluster's ranges nobody outside is asked.
#[test]
fn an_address_of_a_cluster_without_a_name_does_not_exist() {
    let back =
        |index: &Index, ip: &str| index.answer(0, &Name::from(ip.parse::<IpAddr>().unwrap()), RecordType::PTR).code;
    let mut index = empty();
    index.set_order(order(Pods::Auto, [Some("10.96.0.0/16"), Some("10.97.0.0/16")]));
    tell(&mut index, &dialled("one", &["10.96.0.1"]));
    assert_eq!(back(&index, "10.96.0.1"), Code::Exists);
    assert_eq!(back(&index, "10.96.0.77"), Code::Missing);
    assert_eq!(back(&index, "192.0.2.1"), Code::Elsewhere);
    let mut silent = Index::new(vec![Zone::new("one", "cluster.local").unwrap()], Vec::new());
    silent.set_order(order(Pods::Auto, [Some("10.96.0.0/16"), Some("10.97.0.0/16")]));
    assert_eq!(back(&silent, "10.96.0.77"), Code::Unheard);
    assert_eq!(back(&silent, "10.97.0.77"), Code::Elsewhere, "it is not answered for");
}

/// Whatever a remote cluster says, a dial of these reaches this host, or its cloud.
#[test]
fn addresses_that_no_remote_cluster_may_hold_are_not_told() {
    let mut index = empty();
    index.set_order(order(Pods::Direct, APART));
    index.set_own("".into(), [address("192.0.2.1")]);
    let name = Name::from_ascii("web.x.svc.cluster.local.").unwrap();
    let told = |index: &mut Index, ip: &str| {
        tell(index, &dialled("one", &[ip]));
        index.answer(0, &name, if ip.contains(':') { RecordType::AAAA } else { RecordType::A })
    };
    let special = ["169.254.169.254", "fe80::1", "127.0.0.1", "::1", "0.0.0.0", "255.255.255.255", "224.0.0.1"];
    let metadata = ["168.63.129.16", "100.100.100.200", "fd00:ec2::254", "192.0.2.1"];
    for ip in special.into_iter().chain(metadata) {
        let answer = told(&mut index, ip);
        assert!(answer.records.is_empty() && answer.why.is_some(), "{ip}: {answer:?}");
        let back = index.answer(0, &Name::from(ip.parse::<IpAddr>().unwrap()), RecordType::PTR);
        assert!(back.records.is_empty(), "{ip}: {back:?}");
    }
    assert_eq!(ips(&told(&mut index, "10.96.0.1")), ["10.96.0.1"]);
    index.set_order(Order::new(StandPoint::Node, &[], &Ranges::new(), &BTreeSet::new()));
    assert_eq!(ips(&told(&mut index, "169.254.20.10")), ["169.254.20.10"], "a Node's own cluster may");
}

#[test]
fn pods_at_addresses_that_no_remote_cluster_may_hold_are_not_told() {
    for ip in ["169.254.169.254", "168.63.129.16", "255.255.255.255"] {
        let mut index = empty();
        headless("s", &[ip]).iter().for_each(|fact| tell(&mut index, fact));
        index.set_order(order(Pods::Direct, APART));
        let answer = ask(&index, PET[0], RecordType::A);
        assert!(answer.records.is_empty() && answer.why.is_some(), "{ip}: {answer:?}");
    }
}

/// An address is told only if a dial of it reaches the cluster that was asked for.
#[test]
fn of_two_clusters_with_one_range_only_the_first_is_told_and_each_in_its_own_view() {
    let mut index = empty();
    index.set_order(order(Pods::Auto, [Some("10.96.0.0/16"); 2]));
    tell(&mut index, &dialled("one", &["10.96.0.1"]));
    tell(&mut index, &dialled("two", &["10.96.0.2"]));
    let told = |index: &Index, view, name: &str| {
        let name = Name::from_ascii(name).unwrap();
        index.answer(view, &name, RecordType::A)
    };
    assert_eq!(ips(&told(&index, 0, "web.x.svc.cluster.local.")), ["10.96.0.1"]);
    assert_eq!(ips(&told(&index, 0, "web.x.svc.one.beeline.")), ["10.96.0.1"]);
    let hidden = told(&index, 0, "web.x.svc.two.beeline.");
    assert_eq!((hidden.code, ips(&hidden).len(), hidden.authority.is_some()), (Code::Exists, 0, true));
    assert!(hidden.why.unwrap().contains("10.96.0.2 is cluster one's here"));
    // In the view of the second it is the other way round, its domain included.
    assert_eq!(ips(&told(&index, 1, "web.x.svc.cluster.local.")), ["10.96.0.2"]);
    assert_eq!(ips(&told(&index, 1, "web.x.svc.two.beeline.")), ["10.96.0.2"]);
    assert!(ips(&told(&index, 1, "web.x.svc.one.beeline.")).is_empty());
    for (view, last, wanted) in
        [(0, 1, Code::Exists), (0, 2, Code::Missing), (1, 1, Code::Missing), (1, 2, Code::Exists)]
    {
        let name = Name::from(IpAddr::from([10, 96, 0, last]));
        assert_eq!(index.answer(view, &name, RecordType::PTR).code, wanted, "view {view}, 10.96.0.{last}");
    }
    // One that collides hides only itself.
    tell(&mut index, &dialled("two", &["10.96.0.2", "fd00:96::2"]));
    assert_eq!(ask(&index, "web.x.svc.two.beeline", RecordType::AAAA).records.len(), 1);
}

#[test]
fn nothing_is_told_while_an_earlier_clusters_range_is_unknown() {
    let mut index = empty();
    tell(&mut index, &dialled("two", &["10.96.0.2"]));
    let asked = |index: &Index| ask(index, "web.x.svc.two.beeline", RecordType::A);
    assert_eq!(ips(&asked(&index)), ["10.96.0.2"]);
    index.set_order(order(Pods::Auto, [None, APART[1]]));
    let unsure = asked(&index);
    assert_eq!(unsure.code, Code::Unheard);
    assert!(unsure.why.unwrap().contains("cluster one"));
    let name = Name::from(IpAddr::from([10, 96, 0, 2]));
    assert_eq!(index.answer(0, &name, RecordType::PTR).code, Code::Elsewhere);
    assert_eq!(index.answer(1, &name, RecordType::PTR).code, Code::Exists, "in its own view it comes first");
}

#[test]
fn a_cluster_that_is_removed_takes_its_names_along() {
    let mut index = empty();
    CLUSTERS.iter().for_each(|cluster| tell(&mut index, &dialled(cluster, &["10.0.0.9"])));
    index.set_zones(vec![Zone::new("two", "cluster.local").unwrap()]);
    assert_eq!(ips(&ask(&index, "web.x.svc.cluster.local", RecordType::A)), ["10.0.0.9"], "the domain is free");
    assert_eq!(ask(&index, "web.x.svc.one.beeline", RecordType::A).code, Code::Missing);
    index.set_zones(zones());
    assert_eq!(ask(&index, "web.x.svc.one.beeline", RecordType::A).code, Code::Unheard, "it has to be heard again");
    let heard: Vec<(bool, usize)> = index.heard().iter().map(|heard| (heard.known, heard.services)).collect();
    assert_eq!(heard, [(false, 0), (true, 1)]);
}

/// The second cluster's author wrote `cluster.local` and meant his own.
#[test]
fn an_alias_never_leads_into_another_cluster() {
    let mut index = empty();
    tell(&mut index, &dialled("one", &["10.1.0.1"]));
    tell(&mut index, &dialled("two", &["10.2.0.2"]));
    let published = Published::Alias("web.x.svc.cluster.local".into());
    let name = OwnerName::new("two", "x", "a");
    tell(&mut index, &Fact::NamedService(NamedService { name, published, ports: [].into() }));
    let answer = ask(&index, "a.x.svc.two.beeline", RecordType::A);
    assert_eq!(ips(&answer), ["web.x.svc.two.beeline.", "10.2.0.2"]);
}

#[test]
fn a_crowd_costs_no_more_than_fits_an_answer() {
    let mut index = empty();
    let all: Vec<String> = (0..10_000).map(|i| format!("10.{}.{}.{}", 100 + i / 40_000, i / 200, i % 200)).collect();
    headless("s", &all.iter().map(String::as_str).collect::<Vec<_>>()).iter().for_each(|fact| tell(&mut index, fact));
    assert_eq!(ask(&index, PET[0], RecordType::A).records.len(), 4096);
    assert_eq!(ask(&index, PET[2], RecordType::SRV).records.len(), 4096);
}

#[test]
fn an_alias_is_followed_to_its_end() {
    let alias = |name: &str, target: &str| {
        let published = Published::Alias(target.into());
        Fact::NamedService(NamedService { name: OwnerName::new("one", "x", name), published, ports: [].into() })
    };
    let mut index = empty();
    headless("s", &["10.0.0.1"]).iter().for_each(|fact| tell(&mut index, fact));
    tell(&mut index, &alias("a", "b.x.svc.cluster.local"));
    tell(&mut index, &alias("b", "s.x.svc.cluster.local"));
    tell(&mut index, &alias("out", "example.org"));
    tell(&mut index, &alias("lost", "gone.x.svc.cluster.local"));
    tell(&mut index, &alias("round", "round.x.svc.cluster.local"));
    let kinds = |answer: &Answer| answer.records.iter().map(|r| r.record_type()).collect::<Vec<_>>();
    let found = ask(&index, "a.x.svc.cluster.local", RecordType::A);
    assert_eq!(kinds(&found), [RecordType::CNAME, RecordType::CNAME, RecordType::A]);
    assert_eq!((found.code, found.onward), (Code::Exists, None));
    let none = ask(&index, "a.x.svc.cluster.local", RecordType::AAAA);
    assert_eq!((kinds(&none).len(), none.code, none.authority.is_some()), (2, Code::Exists, true));
    let out = ask(&index, "out.x.svc.cluster.local", RecordType::A);
    assert_eq!(out.onward.map(|name| name.to_ascii()).as_deref(), Some("example.org."));
    let lost = ask(&index, "lost.x.svc.cluster.local", RecordType::A);
    assert_eq!((kinds(&lost).len(), lost.code), (1, Code::Missing));
    let round = ask(&index, "round.x.svc.cluster.local", RecordType::A);
    assert_eq!((kinds(&round)[0], round.code, round.onward), (RecordType::CNAME, Code::Exists, None));
}
