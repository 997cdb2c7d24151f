//! What an agent tells of itself: what the plan refuses, and dials that no service port counts.

mod stage;

use beeline_lab::{Dial, Kind};
use stage::{PATIENCE, Stage, Target, wait_until};
use std::net::{Ipv4Addr, SocketAddr};

const CONFLICT: &str = "beeline_refused_objects{reason=\"addressConflict\"}";

/// By its name `a` goes before `b`, at both of its ports.
#[test]
fn a_conflict_is_said_once_when_it_comes_and_once_when_it_goes() {
    let mut stage = Stage::new();
    for target in [Target::new("a", 1), Target::new("b", 2)] {
        stage.folder.put(&format!("{}.yaml", target.name), target.service("  externalIPs: [192.0.2.7]\n"));
    }
    stage.start(&[]);
    stage.agent().wait_for("belongs to Service stage/a", PATIENCE).unwrap();
    assert_eq!(stage.metric(CONFLICT), 2);
    // More is planned, and what was said is not said again.
    stage.folder.put("c.yaml", Target::new("c", 3).service(""));
    wait_until("c is there", || stage.status()["counts"]["services"] == 3);
    std::thread::sleep(std::time::Duration::from_millis(500));
    stage.folder.remove("b.yaml");
    stage.agent().wait_for("no longer refused", PATIENCE).unwrap();
    assert_eq!((stage.metric(CONFLICT), stage.refusals()), (0, Vec::new()));
    let log = stage.stop();
    let lines = |words: [&str; 2]| log.lines().filter(|line| words.iter().all(|word| line.contains(word))).count();
    assert_eq!(lines(["WARN", "addressConflict"]), 2, "{log}");
    assert_eq!(lines(["no longer refused", "addressConflict"]), 2, "{log}");
}

#[test]
fn a_dial_to_a_port_that_the_cluster_ip_does_not_have_is_counted() {
    let mut stage = Stage::new();
    stage.folder.put("a.yaml", Target::new("a", 1).service(""));
    stage.start(&[]);
    let closed = SocketAddr::from((Ipv4Addr::new(10, 96, 0, 1), 81));
    let client = stage.lab.pod(0).client().unwrap();
    for _ in 0..3 {
        client.dial(&Dial::new(Kind::Tcp, closed)).unwrap();
    }
    assert_eq!(stage.metric("beeline_dials_no_port_total"), 3);
    assert_eq!(stage.status()["counts"]["dialsNoPort"], 3);
    stage.kill();
    assert_eq!(stage.status()["counts"]["dialsNoPort"], 3, "without an agent");
}
