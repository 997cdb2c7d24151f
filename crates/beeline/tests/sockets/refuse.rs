//! What is refused, what is left alone, and who may dial at all.

use crate::ground::{Ground, Object};
use crate::kind::{TRANSPORTS, reach, ways};
use beeline_harness::{Client, Dial, Errno, Kind, Lab, Service};
use serde_json::json;
use std::net::SocketAddr;

fn refused(client: &Client, to: SocketAddr, why: &str) {
    for kind in TRANSPORTS {
        let outcome = client.dial(&Dial::new(kind, to)).unwrap();
        let step = if kind == Kind::UdpSendTo { "send" } else { "connect" };
        assert_eq!(outcome.error, Some((step, Errno::ECONNREFUSED)), "{why}: {kind:?} {to}: {outcome:?}");
    }
}

/// Somebody who really has that address answers.
pub fn untouched(client: &Client, to: SocketAddr, by: &str) {
    for kind in TRANSPORTS {
        let outcome = client.dial(&Dial::new(kind, to)).unwrap();
        assert_eq!((outcome.errno(), outcome.name()), (None, by), "{kind:?} {to}: {outcome:?}");
    }
}

fn local_services(lab: &Lab) -> [Object; 2] {
    let at = [(lab.pod(0), "node-1")];
    let elsewhere = [(lab.pod(2), "node-2")];
    [
        Object::service("external", 12)
            .external(30082, &["203.0.113.3", "2001:db8::3"], &[])
            .spec(json!({ "externalTrafficPolicy": "Local" }))
            .at(&at),
        Object::service("internal", 13).spec(json!({ "internalTrafficPolicy": "Local" })).at(&elsewhere),
    ]
}

/// The v4 and v6 twins that an empty Local set stands behind.
fn empty_local() -> Vec<SocketAddr> {
    [ways("10.96.0.13", "fd00:96::13", 80), ways("172.31.0.12", "fd00:31::12", 30082)].concat()
}

#[test]
fn refusals_are_exact() {
    let lab = Lab::with_nodes(&[2, 1]).unwrap();
    let web = Object::service("web", 10).at(&[(lab.pod(0), "node-1")]);
    let none = Object::service("none", 11).external(30090, &["203.0.113.9", "2001:db8::9"], &["198.51.100.9"]);
    let [external, internal] = local_services(&lab);
    let ground = Ground::on(lab, &[web, none, external, internal], &[]);
    let client = ground.lab.node().client().unwrap();
    let free = ways("10.96.0.99", "fd00:96::99", 80);
    let _outside = ground.outside(&free[..2]);
    for (why, v4, v6, port) in [
        ("no endpoint", "10.96.0.11", "fd00:96::11", 80),
        ("no endpoint, NodePort", "172.31.0.11", "fd00:31::11", 30090),
        ("no endpoint, other node's NodePort", "172.31.0.12", "fd00:31::12", 30090),
        ("no endpoint, load balancer", "203.0.113.9", "2001:db8::9", 80),
        ("a known ClusterIP without that port", "10.96.0.10", "fd00:96::10", 81),
    ] {
        ways(v4, v6, port).iter().for_each(|to| refused(&client, *to, why));
    }
    empty_local().iter().for_each(|to| refused(&client, *to, "empty Local"));
    free.iter().for_each(|to| untouched(&client, *to, "outside"));
    let counters = ground.counters("default/internal/tcp/TCP");
    assert_eq!((counters.refused, counters.no_local, counters.dials), (3, 3, 0));
}

#[test]
fn an_empty_local_set_may_be_dropped_instead() {
    let lab = Lab::with_nodes(&[2, 1]).unwrap();
    let objects = local_services(&lab);
    let ground = Ground::on(lab, &objects, &["--empty-local=drop"]);
    let client = ground.lab.node().client().unwrap();
    let (at, node) = (ways("10.96.0.13", "fd00:96::13", 80), ways("172.31.0.12", "fd00:31::12", 30082));
    let _outside = ground.outside(&at[..2]);
    let _node = Service::new("node-2", node[..2].to_vec()).start(&ground.lab.nodes[1].host.namespace).unwrap();
    at.iter().for_each(|to| untouched(&client, *to, "outside"));
    node.iter().for_each(|to| untouched(&client, *to, "node-2"));
    assert_eq!(ground.json(&["explain", "10.96.0.13:80"])["verdict"], "untouched", "as the kernel does");
    let beside = ground.json(&["explain", "10.96.0.13:80", "--from", &std::process::id().to_string()]);
    assert!(beside["because"].as_str().is_some_and(|why| why.contains("is not below")), "{beside}");
    // No endpoint anywhere is refused all the same.
    ground.apply(&Object::service("internal", 13).spec(json!({ "internalTrafficPolicy": "Local" })));
    at.iter().for_each(|to| refused(&client, *to, "none at all"));
}

#[test]
fn localhost_node_ports_are_the_hosts_alone() {
    let lab = Lab::with_nodes(&[2, 1]).unwrap();
    let web = Object::service("web", 10).external(30080, &[], &[]).at(&[(lab.pod(0), "node-1")]);
    let ground = Ground::on(lab, &[web], &["--node-port-addresses=localhost"]);
    let lab = &ground.lab;
    let _server = lab.pod(0).serve(8080).unwrap();
    let loopback = ways("127.0.0.1", "::1", 30080);
    let host = lab.node().client().unwrap();
    let pod = lab.pod(1).client().unwrap();
    let _own = Service::new("own", loopback[..2].to_vec()).start(&lab.pod(1).namespace).unwrap();
    for to in loopback.into_iter().chain(ways("127.0.0.9", "::1", 30080)) {
        TRANSPORTS.iter().for_each(|kind| drop(reach(&host, &Dial::new(*kind, to), &["pod-a"])));
    }
    loopback.iter().for_each(|to| untouched(&pod, *to, "own"));
    // 0.0.0.0 and :: mean loopback.
    for to in ways("0.0.0.0", "::", 30080) {
        for kind in TRANSPORTS {
            assert_eq!(host.dial(&Dial::new(kind, to)).unwrap().name(), "pod-a", "{kind:?} {to}");
            assert_eq!(pod.dial(&Dial::new(kind, to)).unwrap().name(), "own", "{kind:?} {to}");
        }
    }
}

#[test]
fn source_ranges_hold_at_the_load_balancer_address() {
    let lab = Lab::with_nodes(&[2, 1]).unwrap();
    let ranges = json!({ "loadBalancerSourceRanges": ["172.31.0.11/32 ", " fd00:31::11/128", "10.244.1.3/32"] });
    let web = Object::service("web", 10).external(30080, &["203.0.113.1", "2001:db8::1"], &[]).spec(ranges);
    let web = web.at(&[(lab.pod(0), "node-1")]);
    let ground = Ground::on(lab, &[web], &[]);
    let lab = &ground.lab;
    let _server = lab.pod(0).serve(8080).unwrap();
    let at = ways("203.0.113.1", "2001:db8::1", 80);
    let _outside = ground.outside(&at[..2]);
    let (host, pod) = (lab.node().client().unwrap(), lab.pod(1).client().unwrap());
    for kind in TRANSPORTS {
        at.iter().for_each(|to| drop(reach(&host, &Dial::new(kind, *to), &["pod-a"])));
        let bound = |to: SocketAddr, ip: &str| Dial::new(kind, to).bound(SocketAddr::new(ip.parse().unwrap(), 0));
        reach(&pod, &bound(at[0], "10.244.1.3"), &["pod-a"]);
        reach(&pod, &bound(at[2], "::ffff:10.244.1.3"), &["pod-a"]);
        for (client, to, ip) in [
            (&host, at[0], "10.244.1.1"),
            (&host, at[1], "fd00:244::1:1"),
            (&host, at[2], "::ffff:10.244.1.1"),
            (&pod, at[1], "fd00:244::1:3"),
        ] {
            let outcome = client.dial(&bound(to, ip)).unwrap();
            assert_eq!(outcome.errno(), Some(Errno::ECONNREFUSED), "{kind:?} {to} from {ip}: {outcome:?}");
        }
    }
    // The address of a pod is not known at its unbound socket: the packet path decides.
    let before = ground.stat("source_unknown");
    at.iter().for_each(|to| untouched(&pod, *to, "outside"));
    assert_eq!(ground.stat("source_unknown") - before, 9);
    // Only that address is restricted.
    for to in ways("172.31.0.11", "fd00:31::11", 30080) {
        reach(&pod, &Dial::new(Kind::Tcp, to), &["pod-a"]);
    }
    let counters = ground.counters("default/web/tcp/TCP");
    assert_eq!((counters.source_denied, counters.refused), (4, 4));
}

/// ::/1 covers the form in which IPv4 addresses are kept, and no IPv4 address.
#[test]
fn a_v6_range_lets_no_v4_address_in() {
    let lab = Lab::new(1).unwrap();
    let ranges = json!({ "loadBalancerSourceRanges": ["192.0.2.0/24", "::/1", "8000::/1"] });
    let web = Object::service("web", 10).external(30080, &["203.0.113.1", "2001:db8::1"], &[]).spec(ranges);
    let web = web.at(&[(lab.pod(0), "node-1")]);
    let ground = Ground::on(lab, &[web], &[]);
    let _server = ground.lab.pod(0).serve(8080).unwrap();
    let client = ground.lab.node().client().unwrap();
    let [v4, v6, mapped] = ways("203.0.113.1", "2001:db8::1", 80);
    [v4, mapped].iter().for_each(|to| refused(&client, *to, "172.31.0.11 is in no range"));
    TRANSPORTS.iter().for_each(|kind| drop(reach(&client, &Dial::new(*kind, v6), &["pod-a"])));
}
