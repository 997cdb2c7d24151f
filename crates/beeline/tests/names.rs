//! Names, asked with dig and getent of a real agent: in a node's own network namespace, on loopback, from a folder.

mod stage;

use beeline_harness::{Dial, Kind, Place};
use beeline_model::fact::{Endpoint, Fact, NamedService, Published, Slice, SliceName};
use beeline_model::{Address, Family, OwnerName};
use beeline_dns::{Bound, Desk, Names, Told, Zone};
use hickory_proto::op::{Edns, Message, Query};
use hickory_proto::rr::{Name, RecordType};
use stage::{BEELINE, PATIENCE, PORT, Stage, StopOnDrop, Target, wait_until};
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, TcpStream, UdpSocket};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const AT: &str = "127.0.0.55";
const SERVE: [&str; 2] = ["--dns-address", "127.0.0.55:53"];

const WEB: &str = "
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec:
  clusterIP: 10.96.0.10
  clusterIPs: [10.96.0.10, 'fd00:96::10']
  ipFamilies: [IPv4, IPv6]
  ports: [{name: http, port: 80}, {name: dns, port: 53, protocol: UDP}]
---
apiVersion: v1
kind: Service
metadata: {name: plain, namespace: shop}
spec: {clusterIP: 10.96.0.11, ports: [{port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: other, namespace: shop, labels: {service.kubernetes.io/service-proxy-name: somebody}}
spec: {clusterIP: 10.96.0.12, ports: [{port: 80}]}
";

const PETS: &str = "
apiVersion: v1
kind: Service
metadata: {name: pets, namespace: shop}
spec: {clusterIP: None, ports: [{name: db, port: 5432}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: pets-1
  namespace: shop
  labels: {kubernetes.io/service-name: pets, service.kubernetes.io/headless: ''}
addressType: IPv4
ports: [{name: db, port: 15432}]
endpoints:
- {addresses: [10.244.1.2], hostname: pet-0, conditions: {ready: true}}
- {addresses: [10.244.1.3], hostname: pet-1, conditions: {ready: false}}
- {addresses: [10.244.1.4], conditions: {ready: true}}
---
apiVersion: v1
kind: Service
metadata: {name: early, namespace: shop}
spec: {clusterIP: None, publishNotReadyAddresses: true}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: early-1, namespace: shop, labels: {kubernetes.io/service-name: early}}
addressType: IPv6
ports: []
endpoints:
- {addresses: ['fd00:244::1:9'], hostname: bird, conditions: {ready: false}}
---
apiVersion: v1
kind: Service
metadata: {name: nobody, namespace: shop}
spec: {clusterIP: None}
";

/// An agent that answers names, and what it was told.
fn serving(files: &[(&str, &str)], more: &[&str]) -> Stage {
    let mut stage = Stage::new();
    files.iter().for_each(|(name, text)| stage.folder.put(name, text));
    stage.start(&[&SERVE[..], more].concat());
    stage
}

/// What dig prints, with one space where it has several or a tab.
fn dig(place: &Place, args: &[&str]) -> String {
    let at = format!("@{AT}");
    let program = place.program("dig").unwrap().args([at.as_str(), "+time=5", "+tries=3", "+nocookie"]).args(args);
    let output = program.limit(PATIENCE).run().unwrap();
    let line = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ") + "\n";
    output.stdout.lines().map(line).collect()
}

/// The answers alone, in order.
fn short(place: &Place, name: &str, kind: &str) -> Vec<String> {
    let output = dig(place, &["+short", name, kind]);
    let mut lines: Vec<String> = output.lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

/// `NOERROR`, `NXDOMAIN`, ...
fn code(text: &str) -> &str {
    text.split("status: ").nth(1).and_then(|rest| rest.split(',').next()).unwrap_or("no answer")
}

fn ask(place: &Place, name: &str, kind: &str) -> (String, String) {
    let text = dig(place, &[name, kind]);
    (code(&text).to_owned(), text)
}

#[test]
fn services_have_names() {
    let stage = serving(&[("web.yaml", WEB)], &[]);
    let node = stage.lab.node();
    assert_eq!(short(node, "web.shop.svc.cluster.local", "A"), ["10.96.0.10"]);
    assert_eq!(short(node, "web.shop.svc.cluster.local", "AAAA"), ["fd00:96::10"]);
    assert_eq!(short(node, "WEB.Shop.SVC.cluster.LOCAL", "A"), ["10.96.0.10"]);
    assert_eq!(short(node, "web.shop.svc.local.beeline", "A"), ["10.96.0.10"]);
    assert_eq!(short(node, "other.shop.svc.cluster.local", "A"), ["10.96.0.12"], "another proxy's has a name too");
    assert_eq!(short(node, "dns-version.cluster.local", "TXT"), ["\"1.1.0\""]);
    let srv = dig(node, &["_http._tcp.web.shop.svc.cluster.local", "SRV"]);
    assert!(srv.contains(" SRV 0 100 80 web.shop.svc.cluster.local."), "{srv}");
    assert!(srv.contains("web.shop.svc.cluster.local. 5 IN A 10.96.0.10"), "sent along: {srv}");
    assert_eq!(short(node, "_dns._udp.web.shop.svc.local.beeline", "SRV"), ["0 100 53 web.shop.svc.local.beeline."]);
    for reverse in ["10.96.0.10", "fd00:96::10"] {
        let output = dig(node, &["+short", "-x", reverse]);
        assert_eq!(output, "web.shop.svc.cluster.local.\n", "{reverse}");
    }
}

#[test]
fn what_is_not_there_is_denied_rightly() {
    let stage = serving(&[("web.yaml", WEB)], &[]);
    let node = stage.lab.node();
    let there = [
        ("plain.shop.svc.cluster.local", "AAAA"),
        ("web.shop.svc.cluster.local", "MX"),
        ("_tcp.web.shop.svc.cluster.local", "SRV"),
        ("shop.svc.cluster.local", "A"),
        ("svc.cluster.local", "A"),
        ("beeline", "A"),
    ];
    for (name, kind) in there {
        let (code, text) = ask(node, name, kind);
        assert_eq!(code, "NOERROR", "{name} {kind}: {text}");
        assert!(text.contains("ANSWER: 0, AUTHORITY: 1") && text.contains("flags: qr aa rd;"), "{text}");
    }
    for name in [
        "none.shop.svc.cluster.local",
        "web.none.svc.cluster.local",
        "x.web.shop.svc.cluster.local",
        "_http._udp.web.shop.svc.cluster.local",
        "shop.cluster.local",
        "web.shop.svc.unknown.beeline",
    ] {
        let (code, text) = ask(node, name, "A");
        assert_eq!(code, "NXDOMAIN", "{name}: {text}");
        // The last number is how long this holds.
        assert!(text.lines().any(|line| line.contains(" SOA ") && line.ends_with(" 5")), "{text}");
    }
    let (_, top) = ask(node, "cluster.local", "NS");
    assert!(top.contains("cluster.local. 5 IN NS ns.dns.cluster.local."), "{top}");
    assert_eq!(short(node, "ns.dns.cluster.local", "A"), [AT]);
    for (name, kind) in [("example.org", "A"), ("1.2.0.192.in-addr.arpa", "PTR"), ("local", "A"), (".", "NS")] {
        assert_eq!(ask(node, name, kind).0, "REFUSED", "{name}");
    }
    assert_eq!(code(&dig(node, &["web.shop.svc.cluster.local", "CH", "TXT"])), "REFUSED");
    assert!(dig(node, &["cluster.local", "AXFR"]).contains("Transfer failed"));
    assert_eq!(code(&dig(node, &["+opcode=NOTIFY", "cluster.local", "SOA"])), "NOTIMP");
    assert_eq!(code(&dig(node, &["+edns=1", "+noednsnegotiation", "cluster.local", "SOA"])), "BADVERS");
}

#[test]
fn headless_services_lead_to_their_ready_pods() {
    let stage = serving(&[("pets.yaml", PETS)], &[]);
    let node = stage.lab.node();
    let pets = "pets.shop.svc.cluster.local";
    assert_eq!(short(node, pets, "A"), ["10.244.1.2", "10.244.1.4"]);
    assert_eq!(short(node, &format!("pet-0.{pets}"), "A"), ["10.244.1.2"]);
    assert_eq!(short(node, &format!("10-244-1-4.{pets}"), "A"), ["10.244.1.4"]);
    assert_eq!(ask(node, &format!("pet-1.{pets}"), "A").0, "NXDOMAIN", "it is not ready");
    let wanted = [format!("0 50 15432 10-244-1-4.{pets}."), format!("0 50 15432 pet-0.{pets}.")];
    assert_eq!(short(node, &format!("_db._tcp.{pets}"), "SRV"), wanted);
    assert_eq!(dig(node, &["+short", "-x", "10.244.1.2"]), format!("pet-0.{pets}.\n"));
    assert_eq!(short(node, "bird.early.shop.svc.cluster.local", "AAAA"), ["fd00:244::1:9"], "publishNotReadyAddresses");
    assert_eq!(ask(node, "nobody.shop.svc.cluster.local", "A").0, "NXDOMAIN", "no ready endpoint");
    // The folder is followed, and no table of the kernel has anything of it.
    stage.folder.put("pets.yaml", PETS.replace("hostname: pet-1, conditions: {ready: false}", "hostname: pet-1"));
    wait_until("the pod that became ready has a name", || {
        short(node, pets, "A") == ["10.244.1.2", "10.244.1.3", "10.244.1.4"]
    });
    stage.folder.remove("pets.yaml");
    wait_until("what is gone has no name", || ask(node, pets, "A").0 == "NXDOMAIN");
    assert!(stage.rows().frontends.is_empty(), "nobody can dial a headless service");
}

fn crowd(count: usize) -> String {
    let endpoint = |i: usize| format!("- addresses: [10.245.{}.{}]\n", i / 200, i % 200 + 1);
    let endpoints: String = (0..count).map(endpoint).collect();
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: crowd, namespace: shop}}\nspec: {{clusterIP: None}}\n---\n\
         apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {{name: c, namespace: shop, labels: \
         {{kubernetes.io/service-name: crowd}}}}\naddressType: IPv4\nports: []\nendpoints:\n{endpoints}"
    )
}

/// Of `dig +short`, which also says that it asks again over TCP.
fn records(said: &str) -> usize {
    said.lines().filter(|line| !line.starts_with(';')).count()
}

#[test]
fn what_does_not_fit_a_datagram_is_asked_again_over_tcp() {
    let stage = serving(&[("crowd.yaml", &crowd(600))], &[]);
    let (node, name) = (stage.lab.node(), "crowd.shop.svc.cluster.local");
    for size in [&["+noedns"][..], &["+bufsize=1232"], &["+bufsize=4096"]] {
        let cut = dig(node, &[size, &["+ignore", name, "A"]].concat());
        assert!(cut.contains("flags: qr aa tc rd;"), "{size:?}: {cut}");
        let whole = dig(node, &[size, &["+short", name, "A"]].concat());
        assert_eq!(records(&whole), 600, "{size:?}");
    }
    assert_eq!(dig(node, &["+tcp", "+short", name, "A"]).lines().count(), 600);
}

#[test]
fn the_systems_resolver_finds_them() {
    let stage = serving(&[("web.yaml", WEB), ("pets.yaml", PETS)], &[]);
    let resolv = format!("nameserver {AT}\nsearch shop.svc.cluster.local svc.cluster.local\noptions ndots:5\n");
    let getent = |args: &[&str]| {
        let program =
            stage.lab.node().program("getent").unwrap().args(["-s", "dns"]).args(args).resolv_conf(&resolv).unwrap();
        program.run().unwrap().stdout
    };
    assert!(getent(&["ahostsv4", "web.shop.svc.cluster.local"]).starts_with("10.96.0.10 "));
    assert!(getent(&["ahostsv6", "web"]).starts_with("fd00:96::10 "), "the first domain of the search list");
    assert!(getent(&["ahostsv4", "plain.shop"]).starts_with("10.96.0.11 "), "the second");
    assert!(getent(&["hosts", "10.96.0.10"]).contains("web.shop.svc.cluster.local"));
    assert!(getent(&["hosts", "10.244.1.2"]).contains("pet-0.pets.shop.svc.cluster.local"));
    assert_eq!(getent(&["hosts", "none.shop.svc.cluster.local"]), "");
}

/// A name server that somebody else runs, in this place: `crowd.x.svc.example.org` has more than fits a datagram.
/// Ends when the value is dropped.
fn upstream(place: &Place, port: u16) -> Upstream {
    let names = Arc::new(Names::new(vec![Zone::new("else", "example.org").unwrap()], Vec::new()));
    let owner = OwnerName::new("else", "x", "crowd");
    let endpoint = |last: u8| Endpoint {
        address: Address::from(IpAddr::from([192, 0, 2, last])),
        ready: true,
        serving: true,
        terminating: false,
        node: None,
        hints: None,
    };
    let published = Published::Headless { unready: false };
    let facts = [
        Fact::NamedService(NamedService { name: owner.clone(), published, ports: [].into() }),
        Fact::NamedSlice(Slice {
            name: SliceName { cluster: "else".into(), namespace: "x".into(), name: "c".into() },
            service: owner,
            family: Family::V4,
            ports: [].into(),
            endpoints: (1..=200).map(endpoint).collect(),
            hostnames: None,
        }),
    ];
    names.tell(facts.iter().filter_map(Told::of).collect(), ["else"]);
    let at = (Ipv4Addr::new(127, 0, 0, 77), port).into();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    // Its sockets are made in there, and stay in there.
    let bound = place.run_in(|| runtime.block_on(Bound::to(at, &[])).unwrap()).unwrap();
    runtime.spawn(bound.serve(Desk::new(names.clone(), 0, None)));
    Upstream { asked: names, _runtime: runtime }
}

struct Upstream {
    asked: Arc<Names>,
    _runtime: tokio::runtime::Runtime,
}

const ALIASES: &str = "
apiVersion: v1
kind: Service
metadata: {name: out, namespace: shop}
spec: {type: ExternalName, externalName: crowd.x.svc.example.org}
---
apiVersion: v1
kind: Service
metadata: {name: in, namespace: shop}
spec: {type: ExternalName, externalName: web.shop.svc.cluster.local}
";

#[test]
fn others_are_asked_by_choice() {
    // The first server is nobody: the second is asked.
    let mut stage = Stage::new();
    [("web.yaml", WEB), ("aliases.yaml", ALIASES)].iter().for_each(|(name, text)| stage.folder.put(name, text));
    stage.start(&[&SERVE[..], &["--dns-forward", "127.0.0.78,127.0.0.77:5300"]].concat());
    let node = stage.lab.node();
    assert_eq!(ask(node, "crowd.x.svc.example.org", "A").0, "SERVFAIL", "nobody answers there yet");
    let upstream = upstream(node, 5300);
    let whole = dig(node, &["+short", "crowd.x.svc.example.org", "A"]);
    assert_eq!(records(&whole), 200, "by TCP both ways: {whole}");
    assert_eq!(ask(node, "none.x.svc.example.org", "A").0, "NXDOMAIN", "as the other one says");
    let (_, text) = ask(node, "192-0-2-9.crowd.x.svc.example.org", "A");
    assert!(text.contains("192.0.2.9") && text.contains("flags: qr rd ra;"), "{text}");
    let alias = dig(node, &["+short", "out.shop.svc.cluster.local", "A"]);
    assert_eq!(records(&alias), 201, "the alias and where it leads: {alias}");
    assert!(alias.lines().any(|line| line == "crowd.x.svc.example.org."), "{alias}");
    assert_eq!(ask(node, "none.shop.svc.cluster.local", "A").0, "NXDOMAIN");
    assert!(upstream.asked.counts.all().all(|(kind, ..)| kind == "A"), "our own names are never asked of others");
}

#[test]
fn an_alias_is_told_whole_as_far_as_it_is_ours() {
    let stage = serving(&[("web.yaml", WEB), ("aliases.yaml", ALIASES)], &[]);
    let node = stage.lab.node();
    let found = dig(node, &["+short", "in.shop.svc.cluster.local", "A"]);
    assert_eq!(found, "web.shop.svc.cluster.local.\n10.96.0.10\n");
    assert_eq!(short(node, "out.shop.svc.cluster.local", "A"), ["crowd.x.svc.example.org."]);
    assert_eq!(short(node, "out.shop.svc.cluster.local", "CNAME"), ["crowd.x.svc.example.org."]);
}

#[test]
fn names_are_answered_while_the_source_is_away_and_counted() {
    let stage = serving(&[("web.yaml", WEB), ("pets.yaml", PETS)], &["--dns-domain", "shop.example"]);
    let node = stage.lab.node();
    let away = stage.folder.0.with_file_name("away");
    std::fs::rename(&stage.folder.0, &away).unwrap();
    wait_until("the source is away", || !stage.status()["source"]["error"].is_null());
    assert_eq!(short(node, "web.shop.svc.shop.example", "A"), ["10.96.0.10"]);
    assert_eq!(short(node, "pet-0.pets.shop.svc.shop.example", "A"), ["10.244.1.2"]);
    assert_eq!(ask(node, "web.shop.svc.cluster.local", "A").0, "REFUSED", "not this cluster's domain");
    assert_eq!(ask(node, "x.shop.svc.shop.example", "AAAA").0, "NXDOMAIN");
    for (labels, count) in [("A\",result=\"answered", 2), ("A\",result=\"refused", 1), ("AAAA\",result=\"missing", 1)] {
        let row = format!("beeline_dns_queries_total{{type=\"{labels}\"}}");
        assert_eq!(stage.metric(&row), count, "{row}");
    }
    let dns = &stage.status()["dns"];
    assert_eq!((dns["address"].as_str(), dns["answered"].as_u64()), (Some("127.0.0.55:53"), Some(2)));
    assert_eq!(dns["domains"], serde_json::json!(["beeline", "shop.example"]));
    assert_eq!(dns["services"], 6);
}

#[test]
fn an_address_that_is_taken_is_named() {
    let mut stage = Stage::new();
    let taken = stage.lab.node().run_in(|| std::net::UdpSocket::bind((AT, 53)).unwrap()).unwrap();
    stage.spawn(Path::new(BEELINE), &SERVE);
    stage.agent().wait_for("choose another loopback address", PATIENCE).unwrap();
    drop(taken);
    let said = stage.kill();
    assert!(said.contains("--dns-address: cannot listen on 127.0.0.55:53 (UDP)"), "{said}");
}

/// With a list of clusters services are worth more than their names.
#[test]
fn a_joined_host_serves_while_its_address_for_names_is_not_to_be_had() {
    let mut two = Two::new();
    let (config, state) = (two.config(), two.dir.path().join("state").display().to_string());
    // One is taken, as by a dnsmasq that started first; no interface has the other yet, as before docker0 is there.
    let node = two.stage.lab.node();
    let taken = node.run_in(|| std::net::UdpSocket::bind((AT, 53)).unwrap()).unwrap();
    let more = ["--dns-view", "green=192.0.2.77:53", "--dns-clients", "192.0.2.0/24", "--state-dir", &state];
    two.stage.start_by(&config, &[&SERVE[..], &more].concat());
    let closed = |two: &Two| two.stage.status()["dns"]["closed"].to_string();
    let said = closed(&two);
    assert!(said.contains("127.0.0.55:53") && said.contains("192.0.2.77:53"), "{said}");
    let node = two.stage.lab.node();
    let script = format!("timeout 5 head -c 5 </dev/tcp/10.96.0.10/{PORT}");
    let dialled = node.program("bash").unwrap().args(["-c", &script]).limit(PATIENCE).run().unwrap();
    assert_eq!(dialled.stdout.trim(), "blue", "{}", dialled.stderr);
    drop(taken);
    wait_until("it is free", || short(node, "web.stage.svc.cluster.local", "A") == ["10.96.0.10"]);
    let said = closed(&two);
    assert!(!said.contains("127.0.0.55:53") && said.contains("192.0.2.77:53"), "{said}");
    node.program("ip").unwrap().args(["address", "add", "192.0.2.77/32", "dev", "lo"]).limit(PATIENCE).run().unwrap();
    wait_until("the interface has it", || closed(&two) == "[]");
}

/// By route_localnet, which kube-proxy and container engines set, packets of neighbours come to loopback.
#[test]
fn a_neighbour_is_not_answered_at_loopback() {
    let stage = serving(&[("web.yaml", WEB)], &[]);
    let (node, pod) = (stage.lab.node(), stage.lab.pod(0));
    let run = |place: &Place, script: &str| {
        let output = place.program("bash").unwrap().args(["-c", script]).limit(PATIENCE).run().unwrap();
        output.stdout + &output.stderr
    };
    let open = "for all in /proc/sys/net/ipv4/conf/*/route_localnet; do echo 1 >$all; done";
    run(node, open);
    let way = "set -- $(ip -4 route show default); ip route add 127.0.0.0/24 via $3 dev $5 table local";
    assert_eq!(run(pod, &format!("{open}; {way}")), "");
    // There is a way: who listens there and does not look who it is hears the neighbour.
    let heard = node.run_in(|| UdpSocket::bind("127.0.0.66:5300").unwrap()).unwrap();
    heard.set_read_timeout(Some(PATIENCE)).unwrap();
    run(pod, "echo hello >/dev/udp/127.0.0.66/5300");
    let (_, from) = heard.recv_from(&mut [0; 8]).expect("the neighbour is heard");
    assert!(!from.ip().is_loopback(), "{from}");
    for more in ["+notcp", "+tcp"] {
        let said = run(pod, &format!("dig @{AT} +time=2 +tries=1 {more} web.shop.svc.cluster.local"));
        assert!(!said.contains("10.96.0.10") && !said.contains("status:"), "{more}: {said}");
    }
    assert_eq!(short(node, "web.shop.svc.cluster.local", "A"), ["10.96.0.10"]);
}

#[test]
fn options_that_cannot_be_meant_are_refused() {
    for (args, why) in [
        (&["--dns-address", "0.0.0.0:53"][..], "not all of them"),
        (&["--dns-address", "192.0.2.1:53"], "--dns-clients says who may ask"),
        (&["--dns-address", "192.0.2.1:53", "--dns-clients", "x"], "an address or a CIDR"),
        (
            &["--dns-address", "192.0.2.1:53", "--dns-clients", "0.0.0.0/0", "--dns-forward", "192.0.2.2"],
            "anybody could ask us for anything",
        ),
        (&["--dns-address", "127.0.0.55:53", "--dns-domain", "x.beeline"], "given to clusters by their names"),
        (&["--dns-address", "127.0.0.55"], "ADDRESS:PORT"),
        (&["--dns-domain", "cluster.local"], "needs --dns-address"),
        (&["--dns-address", "127.0.0.55:53", "--dns-domain", "a b"], "is not a domain such as cluster.local"),
        (&["--dns-address", "127.0.0.55:53", "--dns-forward", "127.0.0.55"], "round in a circle"),
        (&["--dns-address", "127.0.0.55:53", "--dns-forward", "dns.example"], "ADDRESS or ADDRESS:PORT"),
    ] {
        let common = ["agent", "--node-name", "n", "--manifests", "/nonexistent", "--cgroup", "/nonexistent"];
        let output = Command::new(BEELINE).args(common).args(args).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(why), "{args:?}: {said}");
    }
}

#[test]
fn domains_are_routed_on_request_only() {
    let stage = serving(&[("web.yaml", WEB)], &[]);
    let place = stage.place();
    let socket = place.iter().position(|word| word == "--socket").map(|at| place[at + 1].clone()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let (conf, dir) = (folder.path().join("d/beeline.conf"), folder.path().join("d"));
    let route = |args: &[&str]| {
        let mut command = Command::new(BEELINE);
        command.args(["dns", "route", "--socket", &socket, "--folder"]).arg(&dir).args(args);
        let output = command.output().unwrap();
        (output.status.success(), String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
    };
    let (done, said) = route(&["--dry-run"]);
    assert!(done && said.contains("DNS=127.0.0.55\nDomains=~beeline ~cluster.local"), "{said}");
    assert!(!dir.exists(), "nothing is written");
    assert!(route(&[]).0);
    let text = std::fs::read_to_string(&conf).unwrap();
    assert!(text.ends_with("[Resolve]\nDNS=127.0.0.55\nDomains=~beeline ~cluster.local\n"), "{text}");
    assert!(route(&[]).1.contains("says so already"));
    assert!(route(&["--address", "127.0.0.56:5353", "--domains", "a.example"]).0);
    assert!(std::fs::read_to_string(&conf).unwrap().contains("DNS=127.0.0.56:5353\nDomains=~a.example\n"));
    assert!(route(&["--remove", "--dry-run"]).1.contains("would remove") && conf.exists());
    assert!(route(&["--remove"]).0 && !conf.exists());
    assert!(route(&["--remove"]).1.contains("nothing to remove"));
    std::fs::write(&conf, "[Resolve]\nDNS=192.0.2.1\n").unwrap();
    let (done, said) = route(&["--remove"]);
    assert!(!done && said.contains("was not written by us"), "{said}");
    assert_eq!(std::fs::read_to_string(&conf).unwrap(), "[Resolve]\nDNS=192.0.2.1\n");
}

// ---- packets of our own ----

fn packet(name: &str, kind: RecordType, payload: Option<u16>) -> Vec<u8> {
    let mut message = Message::query();
    message.metadata.recursion_desired = true;
    message.add_query(Query::query(Name::from_ascii(name).unwrap(), kind));
    message.edns = payload.map(|payload| {
        let mut edns = Edns::new();
        edns.set_max_payload(payload).set_dnssec_ok(true);
        edns
    });
    message.to_vec().unwrap()
}

/// A socket in this place, for one who asks; it waits for a second.
fn asker(place: &Place) -> UdpSocket {
    let socket = place.run_in(|| UdpSocket::bind("127.0.0.1:0").unwrap()).unwrap();
    socket.connect((AT, 53)).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
    socket
}

/// As a resolver does it: the answer to this question, asked again when there is none.
fn exchange(socket: &UdpSocket, question: &[u8]) -> Message {
    let mut buffer = [0; 4096];
    for _ in 0..30 {
        socket.send(question).unwrap();
        while let Ok(size) = socket.recv(&mut buffer) {
            if buffer[..2] == question[..2] {
                return Message::from_vec(&buffer[..size]).unwrap();
            }
        }
    }
    panic!("no answer");
}

fn told(message: &Message) -> BTreeSet<String> {
    message.answers.iter().map(|record| record.data.to_string()).collect()
}

#[test]
fn edns_is_spoken_back_and_an_answer_is_marked_only_if_it_is_cut() {
    let stage = serving(&[("web.yaml", WEB), ("crowd.yaml", &crowd(60))], &[]);
    let socket = asker(stage.lab.node());
    let mixed = "wEb.ShOp.sVc.ClUsTeR.lOcAl.";
    for (payload, most) in [(None, 512), (Some(0), 512), (Some(600), 600), (Some(4096), 4096), (Some(u16::MAX), 4096)] {
        let message = exchange(&socket, &packet(mixed, RecordType::A, payload));
        assert_eq!(message.queries[0].name().to_ascii(), mixed, "as it was asked, for those who check");
        assert_eq!(message.answers[0].name.to_ascii(), mixed);
        let edns = message.edns.as_ref().map(|edns| (edns.max_payload(), edns.version(), edns.flags().dnssec_ok));
        assert_eq!(edns, payload.map(|_| (4096, 0, true)));
        let cut = exchange(&socket, &packet("crowd.shop.svc.cluster.local.", RecordType::A, payload));
        let size = cut.to_vec().unwrap().len();
        assert!(size <= most && cut.metadata.truncation == (most < 1000), "{payload:?}: {size}");
        assert_eq!(cut.edns.is_some(), payload.is_some(), "also if it is cut");
    }
}

/// Threads ask for everything without pause, others send garbage, hold connections, and cut questions short.
#[test]
fn a_storm_is_answered_and_costs_a_bounded_number_of_descriptors() {
    let mut stage = serving(&[("web.yaml", WEB), ("pets.yaml", PETS), ("crowd.yaml", &crowd(600))], &[]);
    let pid = stage.agent().pid();
    let node = stage.lab.node();
    let descriptors = || std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count();
    let before = descriptors();
    let held: Vec<TcpStream> =
        node.run_in(|| (0..200).map(|_| TcpStream::connect((AT, 53)).unwrap()).collect()).unwrap();
    let sockets: Vec<UdpSocket> = (0..6).map(|_| asker(node)).collect();
    let noise = asker(node);
    let over = AtomicBool::new(false);
    let wanted = [
        ("web.shop.svc.cluster.local.", RecordType::A, 1),
        ("web.shop.svc.local.beeline.", RecordType::AAAA, 1),
        ("pets.shop.svc.cluster.local.", RecordType::A, 2),
        ("none.shop.svc.cluster.local.", RecordType::A, 0),
        ("example.org.", RecordType::A, 0),
    ];
    let (asked, most) = std::thread::scope(|scope| {
        let _stop = StopOnDrop(&over);
        scope.spawn(|| make_noise(&noise, &over));
        let ask = |socket: &UdpSocket| {
            for turn in 0..1500 {
                let (name, kind, count) = wanted[turn % wanted.len()];
                let message = exchange(socket, &packet(name, kind, Some(1232)));
                assert_eq!(message.answers.len(), count, "{name}");
            }
            1500u32
        };
        let askers: Vec<_> = sockets.iter().map(|socket| scope.spawn(move || ask(socket))).collect();
        let most = descriptors();
        (askers.into_iter().map(|asker| asker.join().unwrap()).sum::<u32>(), most)
    });
    println!("{asked} questions answered; {before} descriptors before, {most} with 200 connections");
    assert!(asked == 9000 && most <= before + 70, "{before} before, {most}");
    drop(held);
    assert_eq!(dig(node, &["+tcp", "+short", "crowd.shop.svc.cluster.local", "A"]).lines().count(), 600);
    assert!(stage.metric("beeline_dns_queries_total{type=\"other\",result=\"malformed\"}") > 0);
}

fn make_noise(socket: &UdpSocket, over: &AtomicBool) {
    let mut rng = fastrand::Rng::with_seed(7);
    while !over.load(Ordering::Relaxed) {
        let mut bytes = packet("web.shop.svc.cluster.local.", RecordType::A, Some(512));
        let at = rng.usize(2..bytes.len());
        bytes[at] = rng.u8(..);
        if rng.bool() {
            bytes.truncate(rng.usize(..bytes.len()));
        }
        let _ = socket.send(&bytes);
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// The folder changes all the time; whatever is answered was true, and nothing is ever said not to exist.
#[test]
fn facts_that_change_while_they_are_asked_for_are_never_answered_wrongly() {
    let stage = serving(&[("web.yaml", WEB), ("pets.yaml", PETS)], &[]);
    let (web, pets) = (WEB.replace("10.96.0.10", "10.96.0.20"), PETS.replace("10.244.1.", "10.244.2."));
    let sockets = [asker(stage.lab.node()), asker(stage.lab.node())];
    let over = AtomicBool::new(false);
    let true_of_web = [["10.96.0.10"], ["10.96.0.20"]].map(|all| BTreeSet::from(all.map(str::to_owned)));
    let true_of_pets =
        [["10.244.1.2", "10.244.1.4"], ["10.244.2.2", "10.244.2.4"]].map(|all| BTreeSet::from(all.map(str::to_owned)));
    let ask = |socket: &UdpSocket, name: &str, truth: &[BTreeSet<String>]| {
        let mut seen = BTreeSet::new();
        while !over.load(Ordering::Relaxed) {
            let found = told(&exchange(socket, &packet(name, RecordType::A, None)));
            assert!(truth.contains(&found), "{name}: {found:?}");
            seen.insert(found);
        }
        seen
    };
    let seen: [BTreeSet<BTreeSet<String>>; 2] = std::thread::scope(|scope| {
        let _stop = StopOnDrop(&over);
        let askers = [
            scope.spawn(|| ask(&sockets[0], "web.shop.svc.cluster.local.", &true_of_web)),
            scope.spawn(|| ask(&sockets[1], "pets.shop.svc.cluster.local.", &true_of_pets)),
        ];
        for turn in 0..40 {
            stage.folder.put("web.yaml", if turn % 2 == 0 { &web } else { WEB });
            stage.folder.put("pets.yaml", if turn % 2 == 0 { &pets } else { PETS });
            std::thread::sleep(Duration::from_millis(100));
        }
        over.store(true, Ordering::Relaxed);
        askers.map(|asker| asker.join().unwrap())
    });
    assert_eq!(seen.map(|seen| seen.len()), [2, 2], "both were seen");
}

/// A name is answered when its service can be dialled, not before.
#[test]
fn what_is_answered_can_be_dialled_at_once() {
    let mut stage = Stage::new();
    let endpoints = stage.serve("late", 10, 2);
    stage.start(&SERVE);
    let (socket, client) = (asker(stage.lab.node()), stage.lab.node().client().unwrap());
    for last in 30..50 {
        let target = Target::new("late", last);
        stage.folder.put("late.yaml", target.manifest(&endpoints));
        let question = packet("late.stage.svc.cluster.local.", RecordType::A, None);
        let wanted = BTreeSet::from([target.address.to_string()]);
        while told(&exchange(&socket, &question)) != wanted {}
        let dialled = client.dial(&Dial::new(Kind::Tcp, (target.address, PORT).into())).unwrap();
        assert_eq!(dialled.name(), "late", "{}", target.address);
    }
}

#[test]
fn elsewhere_only_those_who_may_are_answered() {
    let mut stage = Stage::new();
    stage.folder.put("web.yaml", WEB);
    let (at, friend) = (stage.lab.node().v4, stage.lab.pod(0).v4);
    stage.start(&["--dns-address", &format!("{at}:53"), "--dns-clients", &format!("{friend}")]);
    let ask = |place: &Place, more: &[&str]| {
        let args = [format!("@{at}"), "+time=1".into(), "+tries=1".into(), "web.shop.svc.cluster.local".into()];
        let program = place.program("dig").unwrap().args(args).args(more);
        program.limit(PATIENCE).run().unwrap().stdout
    };
    wait_until("a client is answered", || ask(stage.lab.pod(0), &[]).contains("10.96.0.10"));
    assert!(ask(stage.lab.node(), &[]).contains("10.96.0.10"), "this host itself");
    assert!(ask(stage.lab.pod(0), &["+tcp"]).contains("10.96.0.10"));
    for more in [&[][..], &["+tcp"]] {
        assert!(!ask(stage.lab.pod(1), more).contains("status:"), "a stranger gets nothing");
    }
}

// ---- several clusters ----

/// Two clusters with the same range and the same domain, as every K3s has them; the second can be seen first.
struct Two {
    stage: Stage,
    dir: tempfile::TempDir,
}

const SECOND: &str = "127.0.0.56";

impl Two {
    fn new() -> Two {
        let (mut stage, dir) = (Stage::new(), tempfile::tempdir().unwrap());
        for (name, first) in [("blue", 10), ("green", 20)] {
            let endpoints = stage.serve(name, first, 2);
            let folder = dir.path().join(name);
            std::fs::create_dir(&folder).unwrap();
            let target = Target::new(name, 10);
            let web = target.manifest(&endpoints).replace(&format!("{name}-1"), "web-1");
            let web = web.replace(&format!("name: {name},"), "name: web,");
            let web = web.replace(&format!("service-name: {name}"), "service-name: web");
            std::fs::write(folder.join("web.yaml"), web).unwrap();
            std::fs::write(folder.join("pets.yaml"), PETS).unwrap();
        }
        let two = Two { stage, dir };
        two.list(&["blue", "green"]);
        two
    }

    fn config(&self) -> std::path::PathBuf {
        self.dir.path().join("beeline.yaml")
    }

    fn list(&self, names: &[&str]) {
        let entry = |name: &&str| {
            let pods = if *name == "blue" { "direct" } else { "node" };
            let folder = self.dir.path().join(name).display().to_string();
            format!(
                "- {{ name: {name}, folder: {folder}, serviceCIDRs: [10.96.0.0/16], pods: {pods}, view: {name} }}\n"
            )
        };
        let entries: String = names.iter().map(entry).collect();
        let direct = entries.replace("pods: node", "pods: node, directCIDRs: [10.244.1.16/28]");
        let aside = self.dir.path().join("aside");
        std::fs::write(&aside, format!("stand: outside\nclusters:\n{direct}")).unwrap();
        std::fs::rename(aside, self.config()).unwrap();
    }

    /// Who answers at a name, as somebody in this view finds and dials it.
    fn dial(&self, view: Option<&str>, server: &str, name: &str) -> String {
        let script = format!(
            "at=$(getent -s dns ahostsv4 {name} | head -n 1 | cut -d ' ' -f 1); timeout 5 head -c 5 </dev/tcp/$at/{PORT}"
        );
        let node = self.stage.lab.node();
        let place = self.stage.place();
        let socket: Vec<&String> = place.iter().skip_while(|word| *word != "--socket").take(2).collect();
        let program = match view {
            None => node.program("bash").unwrap(),
            Some(view) => {
                node.program(BEELINE).unwrap().args(["run", "--view", view]).args(socket).args(["--", "bash"])
            }
        };
        let program = program.args(["-c", &script]).resolv_conf(&format!("nameserver {server}\n")).unwrap();
        let output = program.limit(PATIENCE).run().unwrap();
        output.stdout.split_whitespace().next().unwrap_or(&output.stderr).to_owned()
    }
}

#[test]
fn of_several_clusters_each_name_leads_to_its_own() {
    let mut two = Two::new();
    let (config, state) = (two.config(), two.dir.path().join("state").display().to_string());
    let views = format!("green={SECOND}:53");
    two.stage.start_by(&config, &[&SERVE[..], &["--dns-view", &views, "--state-dir", &state]].concat());
    let node = two.stage.lab.node();
    let web = "web.stage.svc.cluster.local";
    wait_until("both are heard", || ask(node, "web.stage.svc.green.beeline", "A").0 == "NOERROR");
    // Seen from everywhere: the first has the range and the domain.
    assert_eq!(short(node, web, "A"), ["10.96.0.10"]);
    assert_eq!(short(node, "web.stage.svc.blue.beeline", "A"), ["10.96.0.10"]);
    assert_eq!(two.dial(None, AT, web), "blue");
    let (code, hidden) = ask(node, "web.stage.svc.green.beeline", "A");
    assert!(code == "NOERROR" && hidden.contains("ANSWER: 0, AUTHORITY: 1"), "{hidden}");
    assert!(hidden.contains("10.96.0.10 is cluster blue's here"), "dig shows why: {hidden}");
    assert_eq!(dig(node, &["+short", "-x", "10.96.0.10"]), "web.stage.svc.cluster.local.\n");
    // Seen from the view of the second it is the other way round.
    for name in [web, "web.stage.svc.green.beeline"] {
        assert_eq!(two.dial(Some("green"), SECOND, name), "green", "{name}");
    }
    let second = |args: &[&str]| {
        let program = node.program("dig").unwrap().args([format!("@{SECOND}"), "+short".into()]).args(args);
        program.limit(PATIENCE).run().unwrap().stdout
    };
    assert_eq!(second(&["-x", "10.96.0.10"]), "web.stage.svc.cluster.local.\n");
    assert_eq!(second(&["web.stage.svc.blue.beeline"]), "", "that would be green's");
    // Pods: of the first all are reached, of the second none of these.
    assert_eq!(short(node, "pets.shop.svc.blue.beeline", "A"), ["10.244.1.2", "10.244.1.4"]);
    let (code, hidden) = ask(node, "pets.shop.svc.green.beeline", "A");
    assert!(code == "NOERROR" && hidden.contains("are not reached from here"), "{hidden}");
    let status = two.stage.status();
    let clusters = status["dns"]["clusters"].as_array().unwrap();
    let shown: Vec<String> =
        clusters.iter().map(|c| format!("{} {} {}", c["name"], c["domains"], c["heard"])).collect();
    assert_eq!(shown, [r#""blue" ["blue.beeline","cluster.local"] true"#, r#""green" ["green.beeline"] true"#]);
    // One goes: its names and its range do, too.
    two.list(&["green"]);
    wait_until("a cluster that is gone has no names", || ask(node, "web.stage.svc.blue.beeline", "A").0 == "NXDOMAIN");
    wait_until("the domain is free", || two.dial(None, AT, web) == "green");
}
