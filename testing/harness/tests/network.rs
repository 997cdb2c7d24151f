//! Tests of the test network itself: it is created quickly, all hosts reach each other, and nothing is left behind.

use std::{fs, path::Path, process::Command, time::Duration, time::Instant};

use beeline_harness::{DialKind, DialRequest, TestHost, TestNetwork, cgroup_mount};

#[test]
fn a_network_is_created_within_a_second_and_removed_completely() {
    // The best of three attempts, because other tests share the machine.
    let build = |_| {
        let start = Instant::now();
        (TestNetwork::with_nodes(&[4, 2]).unwrap(), start.elapsed())
    };
    let (network, took) = (0..3).map(build).min_by_key(|(_, took)| *took).unwrap();
    eprintln!("two nodes, six pods: {took:?}");
    assert!(took < Duration::from_secs(1), "took {took:?}");
    let client = network.pod(0).client().unwrap();
    let (pid, cgroup) = (client.pid(), network.root.path().to_owned());
    let names: Vec<_> =
        network.pods().chain([network.node(), &network.outside]).map(|host| host.namespace.name().to_owned()).collect();
    assert!(names.iter().all(|name| Path::new("/run/netns").join(name).exists()));
    assert_eq!(network.pod(0).cgroup.procs(), [pid]);
    drop(client);
    drop(network);
    assert!(!cgroup.exists() && !Path::new(&format!("/proc/{pid}")).exists());
    assert!(names.iter().all(|name| !Path::new("/run/netns").join(name).exists()));
}

#[test]
fn nodes_and_pods_reach_all_pods() {
    let network = TestNetwork::with_nodes(&[2, 1]).unwrap();
    let pods: Vec<&TestHost> = network.pods().collect();
    let _servers: Vec<_> = pods.iter().map(|pod| pod.serve(80).unwrap()).collect();
    let hosts = network.nodes.iter().map(|node| &node.host);
    for from in hosts.chain(pods.iter().copied()) {
        let client = from.client().unwrap();
        for pod in &pods {
            for to in [pod.v4(80), pod.v6(80)] {
                for kind in [DialKind::Tcp, DialKind::UdpSendTo] {
                    let outcome = client.dial(&DialRequest::new(kind, to)).unwrap();
                    assert_eq!(outcome.name(), pod.name, "{} to {to} {kind:?}: {outcome:?}", from.name);
                }
            }
        }
    }
}

#[test]
fn nodes_reach_each_other_and_the_outside_host() {
    let network = TestNetwork::with_nodes(&[0, 0]).unwrap();
    let _servers = [network.outside.serve(80).unwrap(), network.nodes[1].host.serve(80).unwrap()];
    let client = network.node().client().unwrap();
    for host in [&network.outside, &network.nodes[1].host] {
        for to in [host.v4(80), host.v6(80)] {
            assert_eq!(client.dial(&DialRequest::new(DialKind::Tcp, to)).unwrap().name(), host.name);
        }
    }
}

#[test]
fn a_panic_leaves_nothing_behind() {
    let mut path = None;
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let network = TestNetwork::new(1).unwrap();
        let _client = network.node().client().unwrap();
        path = Some(network.root.path().to_owned());
        std::panic::resume_unwind(Box::new("on purpose"));
    }));
    assert!(result.is_err() && !path.unwrap().exists());
}

#[test]
fn dropping_a_cgroup_kills_its_processes() {
    let network = TestNetwork::new(0).unwrap();
    let cgroup = network.root.child("extra").unwrap();
    let mut child = Command::new("sleep").arg("60").spawn().unwrap();
    cgroup.join(child.id()).unwrap();
    assert_eq!(cgroup.procs(), [child.id()]);
    let reaper = std::thread::spawn(move || child.wait().unwrap());
    drop(cgroup);
    assert!(!reaper.join().unwrap().success());
}

#[test]
fn cgroup_names_cannot_leave_the_parent() {
    let network = TestNetwork::new(0).unwrap();
    for name in ["", "..", "a/../../..", "/", "a//b"] {
        assert!(network.root.child(name).is_err(), "{name:?}");
    }
    assert!(network.root.path() != cgroup_mount().unwrap() && network.cgroup().id().unwrap() > 1);
    assert!(fs::metadata(cgroup_mount().unwrap()).is_ok());
}

#[test]
fn a_pod_can_have_many_addresses() {
    let network = TestNetwork::new(1).unwrap();
    let more = (100..104).map(|last| std::net::IpAddr::from([10, 244, 1, last]));
    network.pod(0).add_addresses(more.clone()).unwrap();
    let service = beeline_harness::EchoService::new("many", more.clone().map(|ip| (ip, 80).into()));
    let _server = service.start(&network.pod(0).namespace).unwrap();
    let client = network.node().client().unwrap();
    for ip in more {
        // A datagram may be lost during neighbour discovery.
        let dial = || client.dial(&DialRequest::new(DialKind::UdpSendTo, (ip, 80).into())).unwrap().server_address();
        assert_eq!((0..5).find_map(|_| dial()), Some((ip, 80).into()));
    }
}
