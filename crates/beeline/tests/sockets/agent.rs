//! The agent around the sockets: its lock, its end, what it tells of dials, and whom it leaves alone.

use crate::ground::{BEELINE, Ground, Object, PATIENCE, eventually};
use crate::kind::{reach, ways};
use crate::refuse::untouched;
use beeline_harness::{Dial, Kind, Lab};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

pub fn web() -> [SocketAddr; 3] {
    ways("10.96.0.10", "fd00:96::10", 80)
}

fn one(args: &[&str]) -> Ground {
    let lab = Lab::new(2).unwrap();
    let objects = [Object::service("web", 10).at(&[(lab.pod(0), "node-1")]), Object::service("none", 11)];
    Ground::on(lab, &objects, args)
}

#[test]
fn a_second_agent_on_the_same_pins_says_so() {
    let mut ground = one(&[]);
    let second = || ground.lab.node().program(BEELINE).unwrap().args(["agent"]).args(ground.agent_args());
    let output = second().run().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(output.stderr.contains("another agent holds") && output.stderr.contains("--pin-dir"), "{output:?}");
    // The first has not lost its socket to it, nor the pins.
    assert!(ground.json(&["status"])["pid"].as_u64() == Some(u64::from(ground.agent().pid())));
    let output = ground.beeline(&["cleanup"]);
    assert!(!output.status.success() && output.stderr.contains("another agent holds"), "{output:?}");
    let _server = ground.lab.pod(0).serve(8080).unwrap();
    reach(&ground.lab.node().client().unwrap(), &Dial::new(Kind::Tcp, web()[0]), &["pod-a"]);
}

#[test]
fn who_detaches_us_is_noticed() {
    let mut ground = one(&["--sync-period", "1s"]);
    let _server = ground.lab.pod(0).serve(8080).unwrap();
    let client = ground.lab.node().client().unwrap();
    let dial = Dial::new(Kind::Tcp, web()[0]);
    reach(&client, &dial, &["pod-a"]);
    for hook in ["connect4", "connect6"] {
        libbpf_rs::Link::open(ground.link(hook)).unwrap().detach().unwrap();
    }
    let lost = client.dial(&dial);
    assert!(lost.as_ref().map_or(true, |answer| answer.name() != "pod-a"), "{lost:?}");
    ground.agent().wait_for("attached again", PATIENCE).unwrap();
    reach(&client, &dial, &["pod-a"]);
    web().iter().for_each(|to| drop(reach(&client, &Dial::new(Kind::Tcp, *to), &["pod-a"])));
}

#[test]
fn cleanup_takes_only_what_is_ours() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("precious"), "kept").unwrap();
    let path = dir.path().display().to_string();
    let output = std::process::Command::new(BEELINE).args(["cleanup", "--pin-dir", &path]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("--pin-dir"), "{output:?}");
    assert!(dir.path().join("precious").exists());
}

#[test]
fn without_an_agent_dials_are_left_alone_after_a_while() {
    let mut ground = one(&["--orphan", "passthrough:2s"]);
    let _server = ground.lab.pod(0).serve(8080).unwrap();
    let _outside = ground.outside(&web()[..2]);
    let client = ground.lab.node().client().unwrap();
    // Longer than the rule, with an agent: its sign of life is what counts.
    std::thread::sleep(Duration::from_millis(2500));
    reach(&client, &Dial::new(Kind::Tcp, web()[0]), &["pod-a"]);
    ground.kill_agent();
    let killed = Instant::now();
    let name = |to| client.dial(&Dial::new(Kind::Tcp, to)).unwrap().name().to_owned();
    let at_once = name(web()[0]);
    assert!(at_once == "pod-a" || killed.elapsed() > Duration::from_millis(1500), "too early: {at_once}");
    eventually("dials are left alone", || name(web()[0]) == "outside");
    assert!(killed.elapsed() >= Duration::from_millis(1500), "after {:?}", killed.elapsed());
    web().iter().for_each(|to| untouched(&client, *to, "outside"));
    assert!(ground.stat("orphaned") >= 9);
    ground.start();
    web().iter().for_each(|to| drop(reach(&client, &Dial::new(Kind::UdpSendTo, *to), &["pod-a"])));
}

/// The program reads its clock first, so an agent's sign of life may be a moment younger than that.
#[test]
fn a_sign_of_life_from_the_future_is_one() {
    let mut ground = one(&["--orphan", "passthrough:20s"]);
    let _server = ground.lab.pod(0).serve(8080).unwrap();
    let client = ground.lab.node().client().unwrap();
    ground.kill_agent();
    ground.beat_in(Duration::from_secs(60));
    web().iter().for_each(|to| drop(reach(&client, &Dial::new(Kind::Tcp, *to), &["pod-a"])));
    assert_eq!(ground.stat("orphaned"), 0);
}

#[test]
fn without_an_agent_dials_go_on() {
    let mut ground = one(&[]);
    let _server = ground.lab.pod(0).serve(8080).unwrap();
    let client = ground.lab.node().client().unwrap();
    ground.kill_agent();
    for _ in 0..3 {
        std::thread::sleep(Duration::from_secs(1));
        for kind in [Kind::Tcp, Kind::UdpConnected, Kind::UdpSendTo] {
            web().iter().for_each(|to| drop(reach(&client, &Dial::new(kind, *to), &["pod-a"])));
        }
    }
}

#[test]
fn a_cgroup_may_be_left_alone() {
    let lab = Lab::new(2).unwrap();
    let web_service = Object::service("web", 10).at(&[(lab.pod(0), "node-1")]);
    let pod = lab.pod(1).cgroup.path().display().to_string();
    let ground = Ground::on(lab, &[web_service], &["--untouched-cgroup", &pod]);
    let _server = ground.lab.pod(0).serve(8080).unwrap();
    let _outside = ground.outside(&web()[..2]);
    let nested = ground.lab.pod(1).cgroup.child("container").unwrap();
    let inner = beeline_harness::Client::start(Some(&ground.lab.pod(1).namespace), Some(&nested)).unwrap();
    let (host, mesh) = (ground.lab.node().client().unwrap(), ground.lab.pod(1).client().unwrap());
    for to in web() {
        reach(&host, &Dial::new(Kind::Tcp, to), &["pod-a"]);
        untouched(&mesh, to, "outside");
        untouched(&inner, to, "outside");
    }
    assert!(ground.stat("opted_out") >= 18);
}

/// `beeline monitor` for this many events while `work` runs.
pub fn monitor(ground: &Ground, args: &[&str], count: usize, work: impl Fn()) -> Vec<Value> {
    let count = count.to_string();
    let args = [&["monitor", "-o", "json", "--count", &count], args].concat();
    let running = ground.command(&args).spawn().unwrap();
    // It has nothing to say before the first event, so that is made again until it has seen enough.
    let running = std::cell::RefCell::new(running);
    eventually("the monitor has seen enough", || {
        work();
        let seen = running.borrow().stdout().lines().count();
        seen >= count.parse().unwrap()
    });
    let output = running.into_inner().finish(PATIENCE).unwrap();
    assert!(output.status.success(), "{output:?}");
    output.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn events_tell_who_dialled_what() {
    let ground = one(&[]);
    let _server = ground.lab.pod(0).serve(8080).unwrap();
    let node = ground.lab.node();
    let script = "import os, socket, sys, threading\n\
        def dial():\n\
        \x20   s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.connect(('10.96.0.10', 80))\n\
        \x20   assert threading.get_native_id() != os.getpid()\n\
        print(os.getpid(), flush=True)\n\
        for line in sys.stdin:\n\
        \x20   t = threading.Thread(target=dial); t.start(); t.join()\n";
    let path = ground.socket().with_file_name("dial.py");
    std::fs::write(&path, script).unwrap();
    let pids = std::cell::RefCell::new(Vec::new());
    let from_a_thread = || {
        let output = node.program("python3").unwrap().args([&path]).input("go\n").run().unwrap();
        assert!(output.status.success(), "{output:?}");
        pids.borrow_mut().push(output.stdout.trim().parse::<u64>().unwrap());
    };
    // Failures only, unless told otherwise: the resolved dial is not among them.
    let client = node.client().unwrap();
    let none = ways("10.96.0.11", "fd00:96::11", 80);
    let events = monitor(&ground, &[], 2, || {
        reach(&client, &Dial::new(Kind::Tcp, web()[0]), &["pod-a"]);
        client.dial(&Dial::new(Kind::Tcp, none[1])).unwrap();
        client.dial(&Dial::new(Kind::UdpSendTo, "10.96.0.10:81".parse().unwrap())).unwrap();
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

    // All of them, changed while running.
    let output = ground.beeline(&["events", "all"]);
    assert!(output.status.success() && output.stdout.contains("all"), "{output:?}");
    assert_eq!(ground.json(&["status"])["events"], "all");
    let events = monitor(&ground, &["--service", "default/web", "--verdict", "resolved"], 1, from_a_thread);
    let event = &events[0];
    let cookie = node.run_in(|| beeline_datapath::netns::own_cookie().unwrap()).unwrap();
    let expected = json!({
        "action": "resolved", "reason": "none", "kind": "clusterIP", "rule": "service", "protocol": "UDP",
        "hook": "connect", "dialled": "10.96.0.10", "dialledPort": 80, "chosen": ["10.244.1.2", 8080],
        "cgroup": node.cgroup.id().unwrap(), "netns": cookie, "process": "python3", "affinity": false,
    });
    expected.as_object().unwrap().iter().for_each(|(k, v)| assert_eq!(event[k], *v, "{k} of {event}"));
    assert!(pids.borrow().contains(&event["pid"].as_u64().unwrap()), "a process id, not a thread's: {event}");
    assert!(event["service"].as_str().unwrap().starts_with("default/web"), "{event}");
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos() as u64;
    assert!(now.abs_diff(event["time"].as_u64().unwrap()) < 60_000_000_000, "{event}");

    // And off: nothing comes, though dials do.
    assert!(ground.beeline(&["events", "off"]).status.success());
    let mut silent = ground.command(&["monitor", "-o", "json", "--count", "1"]).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(500));
    (0..5).for_each(|_| drop(client.dial(&Dial::new(Kind::Tcp, none[0])).unwrap()));
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(silent.stdout(), "");
    silent.kill().unwrap();
    let output = ground.beeline(&["events", "loud"]);
    assert!(!output.status.success() && output.stderr.contains("loud"), "{output:?}");
}

#[test]
fn picks_sum_up_to_dials() {
    let lab = Lab::new(3).unwrap();
    let at: Vec<_> = (0..3).map(|n| (lab.pod(n), "node-1")).collect();
    let web_service = Object::service("web", 10).external(30080, &["203.0.113.1"], &[]).at(&at);
    let ground = Ground::on(lab, &[web_service, Object::service("none", 11)], &[]);
    let _servers: Vec<_> = (0..3).map(|n| ground.lab.pod(n).serve(8080).unwrap()).collect();
    let client = ground.lab.node().client().unwrap();
    let pods = ["pod-a", "pod-b", "pod-c"];
    let mut answered = std::collections::BTreeMap::<String, u64>::new();
    for n in 0..30 {
        let to = [web()[0], web()[2], "172.31.0.11:30080".parse().unwrap(), "203.0.113.1:80".parse().unwrap()][n % 4];
        let outcome = reach(&client, &Dial::new(Kind::Tcp, to), &pods);
        *answered.entry(outcome.at().unwrap().ip().to_string()).or_default() += 1;
    }
    let none = "10.96.0.11:80".parse().unwrap();
    (0..5).for_each(|_| drop(client.dial(&Dial::new(Kind::Tcp, none)).unwrap()));
    let services = ground.json(&["services"]);
    let of = |service: &str| -> Vec<&Value> {
        let all = services.as_array().unwrap().iter();
        all.filter(|s| s["service"] == service && s["protocol"] == "TCP" && s["address"] != "::").collect()
    };
    let web_rows = of("default/web");
    assert!(web_rows.len() >= 3 && web_rows.iter().all(|s| s["dials"] == 30 && s["refused"] == 0), "{services}");
    assert!(of("default/none").iter().all(|s| s["dials"] == 0 && s["refused"] == 5), "{services}");
    let backends = ground.json(&["backends"]);
    let picks = backends.as_array().unwrap().iter().filter(|b| b["service"].as_str().unwrap().ends_with("TCP"));
    let picks: std::collections::BTreeMap<String, u64> = picks
        .filter(|b| b["picks"] != 0)
        .map(|b| (b["address"].as_str().unwrap().to_owned(), b["picks"].as_u64().unwrap()))
        .collect();
    assert_eq!(picks, answered);
    assert_eq!(picks.values().sum::<u64>(), 30);
}
