//! The agent: its lock, dials after its end, events, and processes that are excluded from resolution.

use crate::address_kinds::{address_forms, assert_resolved};
use crate::fixture::{AgentFixture, BEELINE, ManifestFile, TIMEOUT, wait_until};
use crate::refusal::assert_untouched;
use beeline_harness::{DialKind, DialRequest, TestNetwork};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

pub fn web() -> [SocketAddr; 3] {
    address_forms("10.96.0.10", "fd00:96::10", 80)
}

fn fixture_with_services(args: &[&str]) -> AgentFixture {
    let network = TestNetwork::new(2).unwrap();
    let objects =
        [ManifestFile::service("web", 10).backed_by(&[(network.pod(0), "node-1")]), ManifestFile::service("none", 11)];
    AgentFixture::with_manifests(network, &objects, args)
}

#[test]
fn a_second_agent_with_the_same_pin_dir_fails() {
    let mut fixture = fixture_with_services(&[]);
    let second = || fixture.network.node().program(BEELINE).unwrap().args(["agent"]).args(fixture.agent_args());
    let output = second().run().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(output.stderr.contains("another agent holds") && output.stderr.contains("--pin-dir"), "{output:?}");
    // The first agent still has its socket and its pins.
    assert!(fixture.json(&["status"])["pid"].as_u64() == Some(u64::from(fixture.running().pid())));
    let output = fixture.beeline(&["cleanup"]);
    assert!(!output.status.success() && output.stderr.contains("another agent holds"), "{output:?}");
    let _server = fixture.network.pod(0).serve(8080).unwrap();
    assert_resolved(&fixture.network.node().client().unwrap(), &DialRequest::new(DialKind::Tcp, web()[0]), &["pod-a"]);
}

#[test]
fn detached_hooks_are_attached_again() {
    let mut fixture = fixture_with_services(&["--sync-period", "1s"]);
    let _server = fixture.network.pod(0).serve(8080).unwrap();
    let client = fixture.network.node().client().unwrap();
    let dial = DialRequest::new(DialKind::Tcp, web()[0]);
    assert_resolved(&client, &dial, &["pod-a"]);
    for hook in ["connect4", "connect6"] {
        libbpf_rs::Link::open(fixture.link(hook)).unwrap().detach().unwrap();
    }
    let untouched = client.dial(&dial);
    assert!(untouched.as_ref().map_or(true, |answer| answer.name() != "pod-a"), "{untouched:?}");
    fixture.running().wait_for("re-attached", TIMEOUT).unwrap();
    assert_resolved(&client, &dial, &["pod-a"]);
    web().iter().for_each(|to| drop(assert_resolved(&client, &DialRequest::new(DialKind::Tcp, *to), &["pod-a"])));
}

#[test]
fn cleanup_removes_only_pins_of_an_agent() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("other-file"), "kept").unwrap();
    let path = dir.path().display().to_string();
    let output = std::process::Command::new(BEELINE).args(["cleanup", "--pin-dir", &path]).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && error.contains("--pin-dir"), "{output:?}");
    assert!(dir.path().join("other-file").exists());
}

#[test]
fn passthrough_leaves_dials_untouched_some_time_after_the_agent_ended() {
    let mut fixture = fixture_with_services(&["--agent-down-action", "passthrough:2s"]);
    let _server = fixture.network.pod(0).serve(8080).unwrap();
    let _outside = fixture.serve_outside(&web()[..2]);
    let client = fixture.network.node().client().unwrap();
    // While an agent runs, its heartbeat keeps dials resolved for longer than the configured time.
    std::thread::sleep(Duration::from_millis(2500));
    assert_resolved(&client, &DialRequest::new(DialKind::Tcp, web()[0]), &["pod-a"]);
    fixture.kill();
    let killed = Instant::now();
    let name = |to| client.dial(&DialRequest::new(DialKind::Tcp, to)).unwrap().name().to_owned();
    let at_once = name(web()[0]);
    assert!(at_once == "pod-a" || killed.elapsed() > Duration::from_millis(1500), "too early: {at_once}");
    wait_until("dials are left untouched", || name(web()[0]) == "outside");
    assert!(killed.elapsed() >= Duration::from_millis(1500), "after {:?}", killed.elapsed());
    web().iter().for_each(|to| assert_untouched(&client, *to, "outside"));
    assert!(fixture.stat("dials_agent_down") >= 9);
    fixture.start_again();
    web().iter().for_each(|to| drop(assert_resolved(&client, &DialRequest::new(DialKind::UdpSendTo, *to), &["pod-a"])));
}

/// A BPF program reads the clock first, so the heartbeat of the agent may be later than the program's time.
#[test]
fn a_heartbeat_in_the_future_counts() {
    let mut fixture = fixture_with_services(&["--agent-down-action", "passthrough:20s"]);
    let _server = fixture.network.pod(0).serve(8080).unwrap();
    let client = fixture.network.node().client().unwrap();
    fixture.kill();
    fixture.set_heartbeat_ahead(Duration::from_secs(60));
    web().iter().for_each(|to| drop(assert_resolved(&client, &DialRequest::new(DialKind::Tcp, *to), &["pod-a"])));
    assert_eq!(fixture.stat("dials_agent_down"), 0);
}

#[test]
fn dials_are_resolved_without_an_agent() {
    let mut fixture = fixture_with_services(&[]);
    let _server = fixture.network.pod(0).serve(8080).unwrap();
    let client = fixture.network.node().client().unwrap();
    fixture.kill();
    for _ in 0..3 {
        std::thread::sleep(Duration::from_secs(1));
        for kind in [DialKind::Tcp, DialKind::UdpConnected, DialKind::UdpSendTo] {
            web().iter().for_each(|to| drop(assert_resolved(&client, &DialRequest::new(kind, *to), &["pod-a"])));
        }
    }
}

#[test]
fn an_excluded_cgroup_is_not_resolved() {
    let network = TestNetwork::new(2).unwrap();
    let web_service = ManifestFile::service("web", 10).backed_by(&[(network.pod(0), "node-1")]);
    let pod = network.pod(1).cgroup.path().display().to_string();
    let fixture = AgentFixture::with_manifests(network, &[web_service], &["--exclude-cgroup", &pod]);
    let _server = fixture.network.pod(0).serve(8080).unwrap();
    let _outside = fixture.serve_outside(&web()[..2]);
    let nested = fixture.network.pod(1).cgroup.child("container").unwrap();
    let inner = beeline_harness::Client::start(Some(&fixture.network.pod(1).namespace), Some(&nested)).unwrap();
    let (host, excluded) = (fixture.network.node().client().unwrap(), fixture.network.pod(1).client().unwrap());
    for to in web() {
        assert_resolved(&host, &DialRequest::new(DialKind::Tcp, to), &["pod-a"]);
        assert_untouched(&excluded, to, "outside");
        assert_untouched(&inner, to, "outside");
    }
    assert!(fixture.stat("dials_excluded") >= 18);
}

/// Runs `beeline monitor` until it has printed this many events, and `work` to cause them.
pub fn monitor(fixture: &AgentFixture, args: &[&str], count: usize, work: impl Fn()) -> Vec<Value> {
    let count = count.to_string();
    let args = [&["monitor", "-o", "json", "--count", &count], args].concat();
    let running = fixture.command(&args).spawn().unwrap();
    // The monitor prints nothing before the first event, so `work` is repeated until it has printed enough.
    let running = std::cell::RefCell::new(running);
    wait_until("the monitor has printed enough events", || {
        work();
        let seen = running.borrow().stdout().lines().count();
        seen >= count.parse().unwrap()
    });
    let output = running.into_inner().finish(TIMEOUT).unwrap();
    assert!(output.status.success(), "{output:?}");
    output.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn events_name_process_service_and_verdict() {
    let fixture = fixture_with_services(&[]);
    let _server = fixture.network.pod(0).serve(8080).unwrap();
    let node = fixture.network.node();
    let script = "import os, socket, sys, threading\n\
        def dial():\n\
        \x20   s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.connect(('10.96.0.10', 80))\n\
        \x20   assert threading.get_native_id() != os.getpid()\n\
        print(os.getpid(), flush=True)\n\
        for line in sys.stdin:\n\
        \x20   t = threading.Thread(target=dial); t.start(); t.join()\n";
    let path = fixture.socket().with_file_name("dial.py");
    std::fs::write(&path, script).unwrap();
    let pids = std::cell::RefCell::new(Vec::new());
    let from_a_thread = || {
        let output = node.program("python3").unwrap().args([&path]).input("go\n").run().unwrap();
        assert!(output.status.success(), "{output:?}");
        pids.borrow_mut().push(output.stdout.trim().parse::<u64>().unwrap());
    };
    // The default event level is `failures`, so the resolved dial causes no event.
    let client = node.client().unwrap();
    let none = address_forms("10.96.0.11", "fd00:96::11", 80);
    let events = monitor(&fixture, &[], 2, || {
        assert_resolved(&client, &DialRequest::new(DialKind::Tcp, web()[0]), &["pod-a"]);
        client.dial(&DialRequest::new(DialKind::Tcp, none[1])).unwrap();
        client.dial(&DialRequest::new(DialKind::UdpSendTo, "10.96.0.10:81".parse().unwrap())).unwrap();
    });
    let of = |port: u64| events.iter().find(|e| e["dialledPort"] == port).unwrap();
    let (refused, closed) = (of(80), of(81));
    assert_eq!(refused["service"], "default/none:tcp/TCP", "{refused}");
    let expected = json!({
        "action": "refused", "reason": "noEndpoint", "kind": "clusterIP", "rule": "service", "protocol": "TCP",
        "hook": "connect", "dialled": "fd00:96::11", "chosen": null, "pid": client.pid(), "affinity": false,
    });
    expected.as_object().unwrap().iter().for_each(|(k, v)| assert_eq!(refused[k], *v, "{k} of {refused}"));
    assert_eq!((&closed["reason"], &closed["hook"]), (&json!("noPort"), &json!("send")), "{closed}");

    // The event level `all`, set at run time.
    let output = fixture.beeline(&["events", "all"]);
    assert!(output.status.success() && output.stdout.contains("all"), "{output:?}");
    assert_eq!(fixture.json(&["status"])["events"], "all");
    let events = monitor(&fixture, &["--service", "default/web", "--verdict", "resolved"], 1, from_a_thread);
    let event = &events[0];
    let cookie = node.run_in(|| beeline_datapath::netns::own_cookie().unwrap()).unwrap();
    let expected = json!({
        "action": "resolved", "reason": "none", "kind": "clusterIP", "rule": "service", "protocol": "UDP",
        "hook": "connect", "dialled": "10.96.0.10", "dialledPort": 80, "chosen": ["10.244.1.2", 8080],
        "cgroup": node.cgroup.id().unwrap(), "netns": cookie, "process": "python3", "affinity": false,
    });
    expected.as_object().unwrap().iter().for_each(|(k, v)| assert_eq!(event[k], *v, "{k} of {event}"));
    assert!(
        pids.borrow().contains(&event["pid"].as_u64().unwrap()),
        "the id of the process, not of the thread: {event}"
    );
    assert!(event["service"].as_str().unwrap().starts_with("default/web"), "{event}");
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos() as u64;
    assert!(now.abs_diff(event["time"].as_u64().unwrap()) < 60_000_000_000, "{event}");

    // The event level `off`: dials cause no events. Events of other dials before and after show that the monitor reads.
    let mut silent = fixture.command(&["monitor", "-o", "json"]).spawn().unwrap();
    let dial = |kind, to| drop(client.dial(&DialRequest::new(kind, to)).unwrap());
    wait_until("the monitor prints events", || {
        dial(DialKind::Tcp, none[1]);
        !silent.stdout().is_empty()
    });
    assert!(fixture.beeline(&["events", "off"]).status.success());
    (0..5).for_each(|_| dial(DialKind::Tcp, none[0]));
    assert!(fixture.beeline(&["events", "failures"]).status.success());
    wait_until("the monitor prints later events", || {
        dial(DialKind::UdpSendTo, "10.96.0.10:81".parse().unwrap());
        silent.stdout().contains("\"dialledPort\":81")
    });
    assert!(!silent.stdout().contains("\"10.96.0.11\""), "{}", silent.stdout());
    silent.kill().unwrap();
    let output = fixture.beeline(&["events", "loud"]);
    assert!(!output.status.success() && output.stderr.contains("loud"), "{output:?}");
}

#[test]
fn picks_of_backends_add_up_to_dials_of_the_service() {
    let network = TestNetwork::new(3).unwrap();
    let at: Vec<_> = (0..3).map(|n| (network.pod(n), "node-1")).collect();
    let web_service = ManifestFile::service("web", 10).with_external(30080, &["203.0.113.1"], &[]).backed_by(&at);
    let fixture = AgentFixture::with_manifests(network, &[web_service, ManifestFile::service("none", 11)], &[]);
    let _servers: Vec<_> = (0..3).map(|n| fixture.network.pod(n).serve(8080).unwrap()).collect();
    let client = fixture.network.node().client().unwrap();
    let pods = ["pod-a", "pod-b", "pod-c"];
    let mut answered = std::collections::BTreeMap::<String, u64>::new();
    for n in 0..30 {
        let to = [web()[0], web()[2], "172.31.0.11:30080".parse().unwrap(), "203.0.113.1:80".parse().unwrap()][n % 4];
        let outcome = assert_resolved(&client, &DialRequest::new(DialKind::Tcp, to), &pods);
        *answered.entry(outcome.server_address().unwrap().ip().to_string()).or_default() += 1;
    }
    let none = "10.96.0.11:80".parse().unwrap();
    (0..5).for_each(|_| drop(client.dial(&DialRequest::new(DialKind::Tcp, none)).unwrap()));
    let services = fixture.json(&["services"]);
    let of = |service: &str| -> Vec<&Value> {
        let all = services.as_array().unwrap().iter();
        all.filter(|s| s["service"] == service && s["protocol"] == "TCP" && s["address"] != "::").collect()
    };
    let web_rows = of("default/web");
    assert!(web_rows.len() >= 3 && web_rows.iter().all(|s| s["dials"] == 30 && s["refused"] == 0), "{services}");
    assert!(of("default/none").iter().all(|s| s["dials"] == 0 && s["refused"] == 5), "{services}");
    let backends = fixture.json(&["backends"]);
    let picks = backends.as_array().unwrap().iter().filter(|b| b["service"].as_str().unwrap().ends_with("TCP"));
    let picks: std::collections::BTreeMap<String, u64> = picks
        .filter(|b| b["picks"] != 0)
        .map(|b| (b["address"].as_str().unwrap().to_owned(), b["picks"].as_u64().unwrap()))
        .collect();
    assert_eq!(picks, answered);
    assert_eq!(picks.values().sum::<u64>(), 30);
}
