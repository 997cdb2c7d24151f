//! The agent's DNS server, queried with dig and getent in a node's network namespace. The objects come from a folder.

mod fixture;

use beeline_dns::{DnsSocket, NameChange, NameStore, QueryHandler, Zone};
use beeline_harness::{DialKind, DialRequest, TestHost, test_seed};
use beeline_model::change::Change;
use beeline_model::object::{Endpoint, NamedService, Object, Published, Slice, SliceName};
use beeline_model::{Address, Family, ServiceName};
use fixture::{AgentFixture, BEELINE, PORT, StopOnDrop, TIMEOUT, TestService, wait_until};
use hickory_proto::op::{Edns, Message, Query};
use hickory_proto::rr::{Name, RecordType};
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
metadata: {name: other, namespace: shop, labels: {service.kubernetes.io/service-proxy-name: other-proxy}}
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
metadata: {name: empty, namespace: shop}
spec: {clusterIP: None}
";

/// An agent with a DNS server and these manifests.
fn start_dns_agent(files: &[(&str, &str)], more: &[&str]) -> AgentFixture {
    let mut fixture = AgentFixture::new();
    files.iter().for_each(|(name, text)| fixture.write_file(name, text));
    fixture.start(&[&SERVE[..], more].concat());
    fixture
}

/// The output of dig, with single spaces.
fn dig(place: &TestHost, args: &[&str]) -> String {
    let at = format!("@{AT}");
    let program = place.program("dig").unwrap().args([at.as_str(), "+time=5", "+tries=3", "+nocookie"]).args(args);
    let output = program.limit(TIMEOUT).run().unwrap();
    let line = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ") + "\n";
    output.stdout.lines().map(line).collect()
}

/// The answer records, sorted.
fn answers(place: &TestHost, name: &str, kind: &str) -> Vec<String> {
    let output = dig(place, &["+short", name, kind]);
    let mut lines: Vec<String> = output.lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

/// The response code, such as `NOERROR` or `NXDOMAIN`.
fn code(text: &str) -> &str {
    text.split("status: ").nth(1).and_then(|rest| rest.split(',').next()).unwrap_or("no answer")
}

fn query(place: &TestHost, name: &str, kind: &str) -> (String, String) {
    let text = dig(place, &[name, kind]);
    (code(&text).to_owned(), text)
}

#[test]
fn services_resolve_by_name_and_by_address() {
    let fixture = start_dns_agent(&[("web.yaml", WEB)], &[]);
    let node = fixture.network.node();
    assert_eq!(answers(node, "web.shop.svc.cluster.local", "A"), ["10.96.0.10"]);
    assert_eq!(answers(node, "web.shop.svc.cluster.local", "AAAA"), ["fd00:96::10"]);
    assert_eq!(answers(node, "WEB.Shop.SVC.cluster.LOCAL", "A"), ["10.96.0.10"]);
    assert_eq!(answers(node, "web.shop.svc.local.beeline", "A"), ["10.96.0.10"]);
    assert_eq!(
        answers(node, "other.shop.svc.cluster.local", "A"),
        ["10.96.0.12"],
        "a Service of another proxy has a name too"
    );
    assert_eq!(answers(node, "dns-version.cluster.local", "TXT"), ["\"1.1.0\""]);
    let srv = dig(node, &["_http._tcp.web.shop.svc.cluster.local", "SRV"]);
    assert!(srv.contains(" SRV 0 100 80 web.shop.svc.cluster.local."), "{srv}");
    assert!(srv.contains("web.shop.svc.cluster.local. 5 IN A 10.96.0.10"), "additional record: {srv}");
    assert_eq!(answers(node, "_dns._udp.web.shop.svc.local.beeline", "SRV"), ["0 100 53 web.shop.svc.local.beeline."]);
    for reverse in ["10.96.0.10", "fd00:96::10"] {
        let output = dig(node, &["+short", "-x", reverse]);
        assert_eq!(output, "web.shop.svc.cluster.local.\n", "{reverse}");
    }
}

#[test]
fn negative_answers_follow_the_specification() {
    let fixture = start_dns_agent(&[("web.yaml", WEB)], &[]);
    let node = fixture.network.node();
    let existing = [
        ("plain.shop.svc.cluster.local", "AAAA"),
        ("web.shop.svc.cluster.local", "MX"),
        ("_tcp.web.shop.svc.cluster.local", "SRV"),
        ("shop.svc.cluster.local", "A"),
        ("svc.cluster.local", "A"),
        ("beeline", "A"),
    ];
    for (name, kind) in existing {
        let (code, text) = query(node, name, kind);
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
        let (code, text) = query(node, name, "A");
        assert_eq!(code, "NXDOMAIN", "{name}: {text}");
        // The last number is the TTL of the negative answer.
        assert!(text.lines().any(|line| line.contains(" SOA ") && line.ends_with(" 5")), "{text}");
    }
    let (_, top) = query(node, "cluster.local", "NS");
    assert!(top.contains("cluster.local. 5 IN NS ns.dns.cluster.local."), "{top}");
    assert_eq!(answers(node, "ns.dns.cluster.local", "A"), [AT]);
    for (name, kind) in [("example.org", "A"), ("1.2.0.192.in-addr.arpa", "PTR"), ("local", "A"), (".", "NS")] {
        assert_eq!(query(node, name, kind).0, "REFUSED", "{name}");
    }
    assert_eq!(code(&dig(node, &["web.shop.svc.cluster.local", "CH", "TXT"])), "REFUSED");
    assert!(dig(node, &["cluster.local", "AXFR"]).contains("Transfer failed"));
    assert_eq!(code(&dig(node, &["+opcode=NOTIFY", "cluster.local", "SOA"])), "NOTIMP");
    assert_eq!(code(&dig(node, &["+edns=1", "+noednsnegotiation", "cluster.local", "SOA"])), "BADVERS");
}

#[test]
fn headless_services_resolve_to_their_ready_pods() {
    let fixture = start_dns_agent(&[("pets.yaml", PETS)], &[]);
    let node = fixture.network.node();
    let pets = "pets.shop.svc.cluster.local";
    assert_eq!(answers(node, pets, "A"), ["10.244.1.2", "10.244.1.4"]);
    assert_eq!(answers(node, &format!("pet-0.{pets}"), "A"), ["10.244.1.2"]);
    assert_eq!(answers(node, &format!("10-244-1-4.{pets}"), "A"), ["10.244.1.4"]);
    assert_eq!(query(node, &format!("pet-1.{pets}"), "A").0, "NXDOMAIN", "the pod is not ready");
    let wanted = [format!("0 50 15432 10-244-1-4.{pets}."), format!("0 50 15432 pet-0.{pets}.")];
    assert_eq!(answers(node, &format!("_db._tcp.{pets}"), "SRV"), wanted);
    assert_eq!(dig(node, &["+short", "-x", "10.244.1.2"]), format!("pet-0.{pets}.\n"));
    assert_eq!(
        answers(node, "bird.early.shop.svc.cluster.local", "AAAA"),
        ["fd00:244::1:9"],
        "publishNotReadyAddresses"
    );
    assert_eq!(query(node, "empty.shop.svc.cluster.local", "A").0, "NXDOMAIN", "no ready endpoint");
    // Changes in the folder apply. The kernel's tables have no rows for headless Services.
    fixture.write_file("pets.yaml", PETS.replace("hostname: pet-1, conditions: {ready: false}", "hostname: pet-1"));
    wait_until("the pod that became ready resolves", || {
        answers(node, pets, "A") == ["10.244.1.2", "10.244.1.3", "10.244.1.4"]
    });
    fixture.remove_file("pets.yaml");
    wait_until("the deleted Service does not resolve", || query(node, pets, "A").0 == "NXDOMAIN");
    assert!(fixture.rows().frontends.is_empty(), "a headless Service has no frontend");
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

/// The number of records in the output of `dig +short`, without its note about TCP.
fn record_count(output: &str) -> usize {
    output.lines().filter(|line| !line.starts_with(';')).count()
}

#[test]
fn truncated_responses_are_retried_over_tcp() {
    let fixture = start_dns_agent(&[("crowd.yaml", &crowd(600))], &[]);
    let (node, name) = (fixture.network.node(), "crowd.shop.svc.cluster.local");
    for size in [&["+noedns"][..], &["+bufsize=1232"], &["+bufsize=4096"]] {
        let truncated = dig(node, &[size, &["+ignore", name, "A"]].concat());
        assert!(truncated.contains("flags: qr aa tc rd;"), "{size:?}: {truncated}");
        let complete = dig(node, &[size, &["+short", name, "A"]].concat());
        assert_eq!(record_count(&complete), 600, "{size:?}");
    }
    assert_eq!(dig(node, &["+tcp", "+short", name, "A"]).lines().count(), 600);
}

#[test]
fn the_system_resolver_uses_the_search_list() {
    let fixture = start_dns_agent(&[("web.yaml", WEB), ("pets.yaml", PETS)], &[]);
    let resolv = format!("nameserver {AT}\nsearch shop.svc.cluster.local svc.cluster.local\noptions ndots:5\n");
    let getent = |args: &[&str]| {
        let program = fixture
            .network
            .node()
            .program("getent")
            .unwrap()
            .args(["-s", "dns"])
            .args(args)
            .resolv_conf(&resolv)
            .unwrap();
        program.run().unwrap().stdout
    };
    assert!(getent(&["ahostsv4", "web.shop.svc.cluster.local"]).starts_with("10.96.0.10 "));
    assert!(getent(&["ahostsv6", "web"]).starts_with("fd00:96::10 "), "by the first domain of the search list");
    assert!(getent(&["ahostsv4", "plain.shop"]).starts_with("10.96.0.11 "), "by the second domain");
    assert!(getent(&["hosts", "10.96.0.10"]).contains("web.shop.svc.cluster.local"));
    assert!(getent(&["hosts", "10.244.1.2"]).contains("pet-0.pets.shop.svc.cluster.local"));
    assert_eq!(getent(&["hosts", "none.shop.svc.cluster.local"]), "");
}

/// An upstream name server in this network namespace. `crowd.x.svc.example.org` has more records than fit a datagram. The
/// server ends when the value is dropped.
fn upstream(place: &TestHost, port: u16) -> Upstream {
    let names = Arc::new(NameStore::new(vec![Zone::new("else", "example.org").unwrap()], Vec::new()));
    let owner = ServiceName::new("else", "x", "crowd");
    let endpoint = |last: u8| Endpoint::ready(Address::from(IpAddr::from([192, 0, 2, last])));
    let published = Published::Headless { unready: false };
    let changes = [
        Change::Upsert(Object::NamedService(NamedService { name: owner.clone(), published, ports: [].into() })),
        Change::Upsert(Object::NamedSlice(Slice {
            name: SliceName { cluster: "else".into(), namespace: "x".into(), name: "c".into() },
            service: owner,
            family: Family::V4,
            ports: [].into(),
            endpoints: (1..=200).map(endpoint).collect(),
            hostnames: None,
        })),
    ];
    names.apply(changes.iter().filter_map(NameChange::from_change).collect(), ["else"]);
    let at = (Ipv4Addr::new(127, 0, 0, 77), port).into();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    // The sockets are created in the namespace and stay in it.
    let socket = place.run_in(|| runtime.block_on(DnsSocket::bind(at, &[])).unwrap()).unwrap();
    runtime.spawn(socket.serve(QueryHandler::new(names.clone(), 0, None)));
    Upstream { names, _runtime: runtime }
}

struct Upstream {
    names: Arc<NameStore>,
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
fn other_domains_are_forwarded_if_configured() {
    // The first upstream server does not exist, so the second one is used.
    let mut fixture = AgentFixture::new();
    [("web.yaml", WEB), ("aliases.yaml", ALIASES)].iter().for_each(|(name, text)| fixture.write_file(name, text));
    fixture.start(&[&SERVE[..], &["--dns-forward", "127.0.0.78,127.0.0.77:5300"]].concat());
    let node = fixture.network.node();
    assert_eq!(query(node, "crowd.x.svc.example.org", "A").0, "SERVFAIL", "no upstream server answers yet");
    let upstream = upstream(node, 5300);
    let complete = dig(node, &["+short", "crowd.x.svc.example.org", "A"]);
    assert_eq!(record_count(&complete), 200, "by TCP on both sides: {complete}");
    assert_eq!(query(node, "none.x.svc.example.org", "A").0, "NXDOMAIN", "the upstream server's answer");
    let (_, text) = query(node, "192-0-2-9.crowd.x.svc.example.org", "A");
    assert!(text.contains("192.0.2.9") && text.contains("flags: qr rd ra;"), "{text}");
    let alias = dig(node, &["+short", "out.shop.svc.cluster.local", "A"]);
    assert_eq!(record_count(&alias), 201, "the alias and the records of its target: {alias}");
    assert!(alias.lines().any(|line| line == "crowd.x.svc.example.org."), "{alias}");
    assert_eq!(query(node, "none.shop.svc.cluster.local", "A").0, "NXDOMAIN");
    assert!(upstream.names.counts.all().all(|(kind, ..)| kind == "A"), "the clusters' names are never forwarded");
}

#[test]
fn an_alias_is_followed_within_the_clusters_domains() {
    let fixture = start_dns_agent(&[("web.yaml", WEB), ("aliases.yaml", ALIASES)], &[]);
    let node = fixture.network.node();
    let found = dig(node, &["+short", "in.shop.svc.cluster.local", "A"]);
    assert_eq!(found, "web.shop.svc.cluster.local.\n10.96.0.10\n");
    assert_eq!(answers(node, "out.shop.svc.cluster.local", "A"), ["crowd.x.svc.example.org."]);
    assert_eq!(answers(node, "out.shop.svc.cluster.local", "CNAME"), ["crowd.x.svc.example.org."]);
}

#[test]
fn names_resolve_while_the_source_is_unavailable() {
    let fixture = start_dns_agent(&[("web.yaml", WEB), ("pets.yaml", PETS)], &["--dns-domain", "shop.example"]);
    let node = fixture.network.node();
    let moved = fixture.manifests().path().with_file_name("moved");
    std::fs::rename(fixture.manifests().path(), &moved).unwrap();
    wait_until("the source is unavailable", || !fixture.status()["source"]["error"].is_null());
    assert_eq!(answers(node, "web.shop.svc.shop.example", "A"), ["10.96.0.10"]);
    assert_eq!(answers(node, "pet-0.pets.shop.svc.shop.example", "A"), ["10.244.1.2"]);
    assert_eq!(query(node, "web.shop.svc.cluster.local", "A").0, "REFUSED", "not this cluster's domain");
    assert_eq!(query(node, "x.shop.svc.shop.example", "AAAA").0, "NXDOMAIN");
    for (labels, count) in [("A\",result=\"answered", 2), ("A\",result=\"refused", 1), ("AAAA\",result=\"missing", 1)] {
        let row = format!("beeline_dns_queries_total{{type=\"{labels}\"}}");
        assert_eq!(fixture.metric(&row), count, "{row}");
    }
    let dns = &fixture.status()["dns"];
    assert_eq!((dns["address"].as_str(), dns["answered"].as_u64()), (Some("127.0.0.55:53"), Some(2)));
    assert_eq!(dns["domains"], serde_json::json!(["beeline", "shop.example"]));
    assert_eq!(dns["services"], 6);
}

#[test]
fn an_address_in_use_is_reported() {
    let mut fixture = AgentFixture::new();
    let taken = fixture.network.node().run_in(|| std::net::UdpSocket::bind((AT, 53)).unwrap()).unwrap();
    fixture.spawn(Path::new(BEELINE), &SERVE);
    fixture.running().wait_for("choose another loopback address", TIMEOUT).unwrap();
    drop(taken);
    let output = fixture.kill();
    assert!(output.contains("--dns-address: cannot listen on 127.0.0.55:53 (UDP)"), "{output}");
}

/// On a host with a list of clusters, services work even if the DNS address cannot be bound.
#[test]
fn a_joined_host_serves_while_its_dns_address_cannot_be_bound() {
    let mut two = TwoClusters::new();
    let (config, state) = (two.config(), two.dir.path().join("state").display().to_string());
    // One address is in use, as by a dnsmasq that started first. No interface has the other one yet.
    let node = two.fixture.network.node();
    let taken = node.run_in(|| std::net::UdpSocket::bind((AT, 53)).unwrap()).unwrap();
    let more = ["--dns-view", "green=192.0.2.77:53", "--dns-clients", "192.0.2.0/24", "--state-dir", &state];
    two.fixture.start_with_config(&config, &[&SERVE[..], &more].concat());
    let closed = |two: &TwoClusters| two.fixture.status()["dns"]["bindErrors"].to_string();
    let output = closed(&two);
    assert!(output.contains("127.0.0.55:53") && output.contains("192.0.2.77:53"), "{output}");
    let node = two.fixture.network.node();
    let script = format!("timeout 5 head -c 5 </dev/tcp/10.96.0.10/{PORT}");
    let dialled = node.program("bash").unwrap().args(["-c", &script]).limit(TIMEOUT).run().unwrap();
    assert_eq!(dialled.stdout.trim(), "blue", "{}", dialled.stderr);
    drop(taken);
    wait_until("the address is free", || answers(node, "web.test.svc.cluster.local", "A") == ["10.96.0.10"]);
    let output = closed(&two);
    assert!(!output.contains("127.0.0.55:53") && output.contains("192.0.2.77:53"), "{output}");
    node.program("ip").unwrap().args(["address", "add", "192.0.2.77/32", "dev", "lo"]).limit(TIMEOUT).run().unwrap();
    wait_until("the interface has the address", || closed(&two) == "[]");
}

/// With route_localnet, which kube-proxy and container engines set, packets of other hosts reach loopback.
#[test]
fn another_host_is_not_answered_on_loopback() {
    let fixture = start_dns_agent(&[("web.yaml", WEB)], &[]);
    let (node, pod) = (fixture.network.node(), fixture.network.pod(0));
    let run = |place: &TestHost, script: &str| {
        let output = place.program("bash").unwrap().args(["-c", script]).limit(TIMEOUT).run().unwrap();
        output.stdout + &output.stderr
    };
    let enable = "for all in /proc/sys/net/ipv4/conf/*/route_localnet; do echo 1 >$all; done";
    run(node, enable);
    let route = "set -- $(ip -4 route show default); ip route add 127.0.0.0/24 via $3 dev $5 table local";
    assert_eq!(run(pod, &format!("{enable}; {route}")), "");
    // The route works: a socket without a filter receives packets of the other host.
    let received = node.run_in(|| UdpSocket::bind("127.0.0.66:5300").unwrap()).unwrap();
    received.set_read_timeout(Some(TIMEOUT)).unwrap();
    run(pod, "echo hello >/dev/udp/127.0.0.66/5300");
    let (_, from) = received.recv_from(&mut [0; 8]).expect("a packet of the other host");
    assert!(!from.ip().is_loopback(), "{from}");
    for more in ["+notcp", "+tcp"] {
        let output = run(pod, &format!("dig @{AT} +time=2 +tries=1 {more} web.shop.svc.cluster.local"));
        assert!(!output.contains("10.96.0.10") && !output.contains("status:"), "{more}: {output}");
    }
    assert_eq!(answers(node, "web.shop.svc.cluster.local", "A"), ["10.96.0.10"]);
}

#[test]
fn invalid_dns_options_are_refused() {
    for (args, why) in [
        (&["--dns-address", "0.0.0.0:53"][..], "not the unspecified one"),
        (&["--dns-address", "192.0.2.1:53"], "list the clients by"),
        (&["--dns-address", "192.0.2.1:53", "--dns-clients", "x"], "an address or a CIDR"),
        (
            &["--dns-address", "192.0.2.1:53", "--dns-clients", "0.0.0.0/0", "--dns-forward", "192.0.2.2"],
            "makes an open resolver",
        ),
        (&["--dns-address", "127.0.0.55:53", "--dns-domain", "x.beeline"], "is reserved for <cluster>.beeline"),
        (&["--dns-address", "127.0.0.55"], "ADDRESS:PORT"),
        (&["--dns-domain", "cluster.local"], "needs --dns-address"),
        (&["--dns-address", "127.0.0.55:53", "--dns-domain", "a b"], "is not a domain such as cluster.local"),
        (&["--dns-address", "127.0.0.55:53", "--dns-forward", "127.0.0.55"], "queries would loop"),
        (&["--dns-address", "127.0.0.55:53", "--dns-forward", "dns.example"], "ADDRESS or ADDRESS:PORT"),
    ] {
        let common = ["agent", "--node-name", "n", "--manifests", "/nonexistent", "--cgroup", "/nonexistent"];
        let output = Command::new(BEELINE).args(common).args(args).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && error.contains(why), "{args:?}: {error}");
    }
}

#[test]
fn dns_route_writes_the_resolved_configuration() {
    let fixture = start_dns_agent(&[("web.yaml", WEB)], &[]);
    let place = fixture.location_args();
    let socket = place.iter().position(|word| word == "--socket").map(|at| place[at + 1].clone()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let (conf, dir) = (folder.path().join("d/beeline.conf"), folder.path().join("d"));
    let route = |args: &[&str]| {
        let mut command = Command::new(BEELINE);
        command.args(["dns", "route", "--socket", &socket, "--resolved-dir"]).arg(&dir).args(args);
        let output = command.output().unwrap();
        (output.status.success(), String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
    };
    let (done, output) = route(&["--dry-run"]);
    assert!(done && output.contains("DNS=127.0.0.55\nDomains=~beeline ~cluster.local"), "{output}");
    assert!(!dir.exists(), "nothing is written");
    assert!(route(&[]).0);
    let text = std::fs::read_to_string(&conf).unwrap();
    assert!(text.ends_with("[Resolve]\nDNS=127.0.0.55\nDomains=~beeline ~cluster.local\n"), "{text}");
    assert!(route(&[]).1.contains("is up to date"));
    assert!(route(&["--address", "127.0.0.56:5353", "--domains", "a.example"]).0);
    assert!(std::fs::read_to_string(&conf).unwrap().contains("DNS=127.0.0.56:5353\nDomains=~a.example\n"));
    assert!(route(&["--remove", "--dry-run"]).1.contains("would remove") && conf.exists());
    assert!(route(&["--remove"]).0 && !conf.exists());
    assert!(route(&["--remove"]).1.contains("nothing to remove"));
    std::fs::write(&conf, "[Resolve]\nDNS=192.0.2.1\n").unwrap();
    let (done, output) = route(&["--remove"]);
    assert!(!done && output.contains("was not written by `beeline dns route`"), "{output}");
    assert_eq!(std::fs::read_to_string(&conf).unwrap(), "[Resolve]\nDNS=192.0.2.1\n");
}

// ---- raw packets ----

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

/// A client socket in this network namespace, with a timeout of one second.
fn client_socket(place: &TestHost) -> UdpSocket {
    let socket = place.run_in(|| UdpSocket::bind("127.0.0.1:0").unwrap()).unwrap();
    socket.connect((AT, 53)).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
    socket
}

/// Sends a query and returns its response. The query is repeated if there is none.
fn exchange(socket: &UdpSocket, query: &[u8]) -> Message {
    let mut buffer = [0; 4096];
    for _ in 0..30 {
        socket.send(query).unwrap();
        while let Ok(size) = socket.recv(&mut buffer) {
            if buffer[..2] == query[..2] {
                return Message::from_vec(&buffer[..size]).unwrap();
            }
        }
    }
    panic!("no response");
}

fn addresses(message: &Message) -> BTreeSet<String> {
    message.answers.iter().map(|record| record.data.to_string()).collect()
}

#[test]
fn edns_is_answered_and_only_truncated_responses_are_marked() {
    let fixture = start_dns_agent(&[("web.yaml", WEB), ("crowd.yaml", &crowd(60))], &[]);
    let socket = client_socket(fixture.network.node());
    let mixed = "wEb.ShOp.sVc.ClUsTeR.lOcAl.";
    for (payload, max) in [(None, 512), (Some(0), 512), (Some(600), 600), (Some(4096), 4096), (Some(u16::MAX), 4096)] {
        let message = exchange(&socket, &packet(mixed, RecordType::A, payload));
        assert_eq!(message.queries[0].name().to_ascii(), mixed, "the case of the query is preserved");
        assert_eq!(message.answers[0].name.to_ascii(), mixed);
        let edns = message.edns.as_ref().map(|edns| (edns.max_payload(), edns.version(), edns.flags().dnssec_ok));
        assert_eq!(edns, payload.map(|_| (4096, 0, true)));
        let response = exchange(&socket, &packet("crowd.shop.svc.cluster.local.", RecordType::A, payload));
        let size = response.to_vec().unwrap().len();
        assert!(size <= max && response.metadata.truncation == (max < 1000), "{payload:?}: {size}");
        assert_eq!(response.edns.is_some(), payload.is_some(), "also if it is truncated");
    }
}

/// Some threads send queries without pause, others send malformed packets and hold connections.
#[test]
fn a_query_load_is_answered_with_a_bounded_number_of_descriptors() {
    let mut fixture = start_dns_agent(&[("web.yaml", WEB), ("pets.yaml", PETS), ("crowd.yaml", &crowd(600))], &[]);
    let pid = fixture.running().pid();
    let node = fixture.network.node();
    let descriptors = || std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count();
    let before = descriptors();
    let held: Vec<TcpStream> =
        node.run_in(|| (0..200).map(|_| TcpStream::connect((AT, 53)).unwrap()).collect()).unwrap();
    let sockets: Vec<UdpSocket> = (0..6).map(|_| client_socket(node)).collect();
    let noise = client_socket(node);
    let stop = AtomicBool::new(false);
    let wanted = [
        ("web.shop.svc.cluster.local.", RecordType::A, 1),
        ("web.shop.svc.local.beeline.", RecordType::AAAA, 1),
        ("pets.shop.svc.cluster.local.", RecordType::A, 2),
        ("none.shop.svc.cluster.local.", RecordType::A, 0),
        ("example.org.", RecordType::A, 0),
    ];
    let (queries, max) = std::thread::scope(|scope| {
        let _stop = StopOnDrop(&stop);
        scope.spawn(|| send_malformed(&noise, &stop));
        let send_queries = |socket: &UdpSocket| {
            for turn in 0..1500 {
                let (name, kind, count) = wanted[turn % wanted.len()];
                let message = exchange(socket, &packet(name, kind, Some(1232)));
                assert_eq!(message.answers.len(), count, "{name}");
            }
            1500u32
        };
        let clients: Vec<_> = sockets.iter().map(|socket| scope.spawn(move || send_queries(socket))).collect();
        let max = descriptors();
        (clients.into_iter().map(|client| client.join().unwrap()).sum::<u32>(), max)
    });
    println!("{queries} queries answered; {before} descriptors before, {max} with 200 connections");
    assert!(queries == 9000 && max <= before + 70, "{before} before, {max}");
    drop(held);
    assert_eq!(dig(node, &["+tcp", "+short", "crowd.shop.svc.cluster.local", "A"]).lines().count(), 600);
    assert!(fixture.metric("beeline_dns_queries_total{type=\"other\",result=\"malformed\"}") > 0);
}

fn send_malformed(socket: &UdpSocket, stop: &AtomicBool) {
    let mut rng = fastrand::Rng::with_seed(test_seed(7));
    while !stop.load(Ordering::Relaxed) {
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

/// The folder changes all the time. Every answer matches one state of it, and no name is ever denied.
#[test]
fn answers_are_consistent_while_objects_change() {
    let fixture = start_dns_agent(&[("web.yaml", WEB), ("pets.yaml", PETS)], &[]);
    let (web, pets) = (WEB.replace("10.96.0.10", "10.96.0.20"), PETS.replace("10.244.1.", "10.244.2."));
    let sockets = [client_socket(fixture.network.node()), client_socket(fixture.network.node())];
    let stop = AtomicBool::new(false);
    let web_states = [["10.96.0.10"], ["10.96.0.20"]].map(|all| BTreeSet::from(all.map(str::to_owned)));
    let pets_states =
        [["10.244.1.2", "10.244.1.4"], ["10.244.2.2", "10.244.2.4"]].map(|all| BTreeSet::from(all.map(str::to_owned)));
    let collect = |socket: &UdpSocket, name: &str, states: &[BTreeSet<String>]| {
        let mut seen = BTreeSet::new();
        while !stop.load(Ordering::Relaxed) {
            let found = addresses(&exchange(socket, &packet(name, RecordType::A, None)));
            assert!(states.contains(&found), "{name}: {found:?}");
            seen.insert(found);
        }
        seen
    };
    let seen: [BTreeSet<BTreeSet<String>>; 2] = std::thread::scope(|scope| {
        let _stop = StopOnDrop(&stop);
        let clients = [
            scope.spawn(|| collect(&sockets[0], "web.shop.svc.cluster.local.", &web_states)),
            scope.spawn(|| collect(&sockets[1], "pets.shop.svc.cluster.local.", &pets_states)),
        ];
        for turn in 0..40 {
            fixture.write_file("web.yaml", if turn % 2 == 0 { &web } else { WEB });
            fixture.write_file("pets.yaml", if turn % 2 == 0 { &pets } else { PETS });
            std::thread::sleep(Duration::from_millis(100));
        }
        stop.store(true, Ordering::Relaxed);
        clients.map(|client| client.join().unwrap())
    });
    assert_eq!(seen.map(|seen| seen.len()), [2, 2], "both states were seen");
}

/// A name resolves only once its Service can be dialled.
#[test]
fn a_resolved_name_can_be_dialled_at_once() {
    let mut fixture = AgentFixture::new();
    let endpoints = fixture.start_backends("late", 10, 2);
    fixture.start(&SERVE);
    let (socket, client) = (client_socket(fixture.network.node()), fixture.network.node().client().unwrap());
    for last in 30..50 {
        let target = TestService::new("late", last);
        fixture.write_file("late.yaml", target.manifest(&endpoints));
        let query = packet("late.test.svc.cluster.local.", RecordType::A, None);
        let wanted = BTreeSet::from([target.address.to_string()]);
        while addresses(&exchange(&socket, &query)) != wanted {}
        let dialled = client.dial(&DialRequest::new(DialKind::Tcp, (target.address, PORT).into())).unwrap();
        assert_eq!(dialled.name(), "late", "{}", target.address);
    }
}

#[test]
fn only_listed_clients_are_answered_on_other_addresses() {
    let mut fixture = AgentFixture::new();
    fixture.write_file("web.yaml", WEB);
    let (address, client) = (fixture.network.node().v4, fixture.network.pod(0).v4);
    fixture.start(&["--dns-address", &format!("{address}:53"), "--dns-clients", &format!("{client}")]);
    let query = |place: &TestHost, more: &[&str]| {
        let args = [format!("@{address}"), "+time=1".into(), "+tries=1".into(), "web.shop.svc.cluster.local".into()];
        let program = place.program("dig").unwrap().args(args).args(more);
        program.limit(TIMEOUT).run().unwrap().stdout
    };
    wait_until("a client is answered", || query(fixture.network.pod(0), &[]).contains("10.96.0.10"));
    assert!(query(fixture.network.node(), &[]).contains("10.96.0.10"), "the host itself");
    assert!(query(fixture.network.pod(0), &["+tcp"]).contains("10.96.0.10"));
    for more in [&[][..], &["+tcp"]] {
        assert!(!query(fixture.network.pod(1), more).contains("status:"), "other clients get no response");
    }
}

// ---- several clusters ----

/// Two clusters with the same service range and domain, as K3s has by default. A view puts the second one first.
struct TwoClusters {
    fixture: AgentFixture,
    dir: tempfile::TempDir,
}

const SECOND: &str = "127.0.0.56";

impl TwoClusters {
    fn new() -> TwoClusters {
        let (mut fixture, dir) = (AgentFixture::new(), tempfile::tempdir().unwrap());
        for (name, first) in [("blue", 10), ("green", 20)] {
            let endpoints = fixture.start_backends(name, first, 2);
            let folder = dir.path().join(name);
            std::fs::create_dir(&folder).unwrap();
            let target = TestService::new(name, 10);
            let web = target.manifest(&endpoints).replace(&format!("{name}-1"), "web-1");
            let web = web.replace(&format!("name: {name},"), "name: web,");
            let web = web.replace(&format!("service-name: {name}"), "service-name: web");
            std::fs::write(folder.join("web.yaml"), web).unwrap();
            std::fs::write(folder.join("pets.yaml"), PETS).unwrap();
        }
        let two = TwoClusters { fixture, dir };
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
                "- {{ name: {name}, manifests: {folder}, serviceCIDRs: [10.96.0.0/16], podAccess: {pods}, view: {name} }}\n"
            )
        };
        let entries: String = names.iter().map(entry).collect();
        let direct = entries.replace("podAccess: node", "podAccess: node, directPodCIDRs: [10.244.1.16/28]");
        let aside = self.dir.path().join("aside");
        std::fs::write(&aside, format!("host-role: outside\nclusters:\n{direct}")).unwrap();
        std::fs::rename(aside, self.config()).unwrap();
    }

    /// Resolves a name with a DNS server and dials it in a view. Returns the backend's answer.
    fn dial(&self, view: Option<&str>, server: &str, name: &str) -> String {
        let script = format!(
            "at=$(getent -s dns ahostsv4 {name} | head -n 1 | cut -d ' ' -f 1); timeout 5 head -c 5 </dev/tcp/$at/{PORT}"
        );
        let node = self.fixture.network.node();
        let place = self.fixture.location_args();
        let socket: Vec<&String> = place.iter().skip_while(|word| *word != "--socket").take(2).collect();
        let program = match view {
            None => node.program("bash").unwrap(),
            Some(view) => {
                node.program(BEELINE).unwrap().args(["run", "--view", view]).args(socket).args(["--", "bash"])
            }
        };
        let program = program.args(["-c", &script]).resolv_conf(&format!("nameserver {server}\n")).unwrap();
        let output = program.limit(TIMEOUT).run().unwrap();
        output.stdout.split_whitespace().next().unwrap_or(&output.stderr).to_owned()
    }
}

#[test]
fn with_two_clusters_each_name_resolves_to_its_own_cluster() {
    let mut two = TwoClusters::new();
    let (config, state) = (two.config(), two.dir.path().join("state").display().to_string());
    let views = format!("green={SECOND}:53");
    two.fixture.start_with_config(&config, &[&SERVE[..], &["--dns-view", &views, "--state-dir", &state]].concat());
    let node = two.fixture.network.node();
    let web = "web.test.svc.cluster.local";
    wait_until("both clusters have synced", || query(node, "web.test.svc.green.beeline", "A").0 == "NOERROR");
    // In the default view the first cluster has the range and the domain.
    assert_eq!(answers(node, web, "A"), ["10.96.0.10"]);
    assert_eq!(answers(node, "web.test.svc.blue.beeline", "A"), ["10.96.0.10"]);
    assert_eq!(two.dial(None, AT, web), "blue");
    let (code, output) = query(node, "web.test.svc.green.beeline", "A");
    assert!(code == "NOERROR" && output.contains("ANSWER: 0, AUTHORITY: 1"), "{output}");
    assert!(output.contains("10.96.0.10 belongs to cluster blue"), "dig shows the reason: {output}");
    assert_eq!(dig(node, &["+short", "-x", "10.96.0.10"]), "web.test.svc.cluster.local.\n");
    // The view of the second cluster reverses the order.
    for name in [web, "web.test.svc.green.beeline"] {
        assert_eq!(two.dial(Some("green"), SECOND, name), "green", "{name}");
    }
    let second = |args: &[&str]| {
        let program = node.program("dig").unwrap().args([format!("@{SECOND}"), "+short".into()]).args(args);
        program.limit(TIMEOUT).run().unwrap().stdout
    };
    assert_eq!(second(&["-x", "10.96.0.10"]), "web.test.svc.cluster.local.\n");
    assert_eq!(second(&["web.test.svc.blue.beeline"]), "", "the address belongs to green");
    // All pods of the first cluster are reachable, and none of these pods of the second.
    assert_eq!(answers(node, "pets.shop.svc.blue.beeline", "A"), ["10.244.1.2", "10.244.1.4"]);
    let (code, output) = query(node, "pets.shop.svc.green.beeline", "A");
    assert!(code == "NOERROR" && output.contains("are not reachable from this host"), "{output}");
    let status = two.fixture.status();
    let clusters = status["dns"]["clusters"].as_array().unwrap();
    let shown: Vec<String> =
        clusters.iter().map(|c| format!("{} {} {}", c["name"], c["domains"], c["synced"])).collect();
    assert_eq!(shown, [r#""blue" ["blue.beeline","cluster.local"] true"#, r#""green" ["green.beeline"] true"#]);
    // Removing a cluster removes its names and frees its range.
    two.list(&["green"]);
    wait_until("a removed cluster has no names", || query(node, "web.test.svc.blue.beeline", "A").0 == "NXDOMAIN");
    wait_until("the domain is free", || two.dial(None, AT, web) == "green");
}
