//! The ground itself: it stands quickly, everyone reaches everyone, and nothing of it remains.

use std::{fs, path::Path, process::Command, time::Duration, time::Instant};

use beeline_harness::{Dial, Kind, Lab, Place, cgroup_mount};

#[test]
fn stands_in_a_second_and_leaves_nothing() {
    // The best of three: other tests share the machine.
    let build = |_| {
        let start = Instant::now();
        (Lab::with_nodes(&[4, 2]).unwrap(), start.elapsed())
    };
    let (lab, took) = (0..3).map(build).min_by_key(|(_, took)| *took).unwrap();
    eprintln!("two nodes, six pods: {took:?}");
    assert!(took < Duration::from_secs(1), "took {took:?}");
    let client = lab.pod(0).client().unwrap();
    let (pid, cgroup) = (client.pid(), lab.root.path().to_owned());
    let names: Vec<_> =
        lab.pods().chain([lab.node(), &lab.outside]).map(|place| place.namespace.name().to_owned()).collect();
    assert!(names.iter().all(|name| Path::new("/run/netns").join(name).exists()));
    assert_eq!(lab.pod(0).cgroup.procs(), [pid]);
    drop(client);
    drop(lab);
    assert!(!cgroup.exists() && !Path::new(&format!("/proc/{pid}")).exists());
    assert!(names.iter().all(|name| !Path::new("/run/netns").join(name).exists()));
}

#[test]
fn everyone_reaches_everyone() {
    let lab = Lab::with_nodes(&[2, 1]).unwrap();
    let pods: Vec<&Place> = lab.pods().collect();
    let _servers: Vec<_> = pods.iter().map(|pod| pod.serve(80).unwrap()).collect();
    let hosts = lab.nodes.iter().map(|node| &node.host);
    for from in hosts.chain(pods.iter().copied()) {
        let client = from.client().unwrap();
        for pod in &pods {
            for to in [pod.v4(80), pod.v6(80)] {
                for kind in [Kind::Tcp, Kind::UdpSendTo] {
                    let outcome = client.dial(&Dial::new(kind, to)).unwrap();
                    assert_eq!(outcome.name(), pod.name, "{} to {to} {kind:?}: {outcome:?}", from.name);
                }
            }
        }
    }
}

#[test]
fn hosts_reach_each_other_and_the_outside() {
    let lab = Lab::with_nodes(&[0, 0]).unwrap();
    let _servers = [lab.outside.serve(80).unwrap(), lab.nodes[1].host.serve(80).unwrap()];
    let client = lab.node().client().unwrap();
    for place in [&lab.outside, &lab.nodes[1].host] {
        for to in [place.v4(80), place.v6(80)] {
            assert_eq!(client.dial(&Dial::new(Kind::Tcp, to)).unwrap().name(), place.name);
        }
    }
}

#[test]
fn a_panic_leaves_nothing() {
    let mut path = None;
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let lab = Lab::new(1).unwrap();
        let _client = lab.node().client().unwrap();
        path = Some(lab.root.path().to_owned());
        std::panic::resume_unwind(Box::new("on purpose"));
    }));
    assert!(result.is_err() && !path.unwrap().exists());
}

#[test]
fn a_cgroup_that_is_dropped_takes_its_processes_along() {
    let lab = Lab::new(0).unwrap();
    let cgroup = lab.root.child("extra").unwrap();
    let mut child = Command::new("sleep").arg("60").spawn().unwrap();
    cgroup.join(child.id()).unwrap();
    assert_eq!(cgroup.procs(), [child.id()]);
    let reaper = std::thread::spawn(move || child.wait().unwrap());
    drop(cgroup);
    assert!(!reaper.join().unwrap().success());
}

#[test]
fn names_lead_nowhere_but_below() {
    let lab = Lab::new(0).unwrap();
    for name in ["", "..", "a/../../..", "/", "a//b"] {
        assert!(lab.root.child(name).is_err(), "{name:?}");
    }
    assert!(lab.root.path() != cgroup_mount().unwrap() && lab.cgroup().id().unwrap() > 1);
    assert!(fs::metadata(cgroup_mount().unwrap()).is_ok());
}

#[test]
fn one_pod_can_have_many_addresses() {
    let lab = Lab::new(1).unwrap();
    let more = (100..104).map(|last| std::net::IpAddr::from([10, 244, 1, last]));
    lab.pod(0).add_addresses(more.clone()).unwrap();
    let service = beeline_harness::Service::new("many", more.clone().map(|ip| (ip, 80).into()));
    let _server = service.start(&lab.pod(0).namespace).unwrap();
    let client = lab.node().client().unwrap();
    for ip in more {
        // A datagram may be lost while the neighbour is still being found.
        let dial = || client.dial(&Dial::new(Kind::UdpSendTo, (ip, 80).into())).unwrap().at();
        assert_eq!((0..5).find_map(|_| dial()), Some((ip, 80).into()));
    }
}
