//! Whose an address is: in the order of the file, in views, at nodePorts; and that all that is shown says so.

use super::trio::{GREEN, NAMES, NODE_PORT, Stage};
use crate::field::{at, eventually};
use serde_json::Value;

pub fn the_first_has_an_address(stage: &Stage) {
    let trio = stage.trio;
    for address in &trio.same {
        assert_eq!(trio.cluster_of(&stage.dial(&at(address, 80))), "blue", "{address}");
    }
    for address in &trio.own {
        assert_eq!(trio.cluster_of(&stage.dial(&at(address, 80))), "red", "{address}: nobody else has that range");
    }
    for (name, node) in NAMES.into_iter().zip(trio.nodes()) {
        assert_eq!(trio.cluster_of(&stage.dial(&at(&node, NODE_PORT))), name, "the nodePort at {node}");
    }
    let owned = stage.wait_for_refusal("rangeOwned", &["10.97.0.0/16"]);
    assert!(owned.contains("blue"), "{owned}");
}

pub fn others_are_seen_in_their_views(stage: &Stage) {
    let trio = stage.trio;
    for (view, same) in [("blue", "blue"), ("green", "green"), ("red", "blue")] {
        for address in &trio.same {
            assert_eq!(trio.cluster_of(&stage.dial_in(view, &at(address, 80))), same, "{address} in view {view}");
        }
        assert_eq!(trio.cluster_of(&stage.dial_in(view, &at(&trio.own[0], 80))), "red", "in view {view}");
        for (name, node) in NAMES.into_iter().zip(trio.nodes()) {
            assert_eq!(trio.cluster_of(&stage.dial_in(view, &at(&node, NODE_PORT))), name, "{node} in view {view}");
        }
    }
    let said = stage.dial_in("yellow", &at(&trio.same[0], 80));
    assert!(said.contains("no view yellow") && said.contains("blue, green, red"), "{said}");
}

/// explain, services, status and metrics.
pub fn everything_says_which_cluster(stage: &Stage) {
    let target = at(&stage.trio.same[0], 80);
    let explain = |more: &[&str]| stage.resolver.ask_json(&[&["explain", &target], more].concat()).unwrap();
    for (more, cluster) in [(&[][..], "blue"), (&["--view", "green"], "green"), (&["--view", "red"], "blue")] {
        assert_eq!(explain(more)["cluster"], cluster, "explain {more:?}");
    }
    let cgroup = stage.trio.outside.cgroup().unwrap().join(GREEN);
    let from = cgroup.display().to_string();
    eventually("the cgroup's view", || explain(&["--from", &from])["view"] == "green");
    assert_eq!(explain(&["--from", &from])["cluster"], "green");
    let rows = stage.resolver.ask_json(&["services"]).unwrap();
    let has = |cluster: &str, address: &str| {
        let is = |row: &Value| row["cluster"] == cluster && row["address"] == address && row["service"].is_string();
        rows.as_array().unwrap().iter().any(is)
    };
    let trio = stage.trio;
    assert!(has("blue", &trio.same[0]) && has("green", &trio.same[0]) && has("red", &trio.own[0]), "{rows}");
    assert!(!has("red", &trio.same[0]) && !has("green", &trio.own[0]), "{rows}");
    let metrics = stage.resolver.metrics().unwrap();
    for name in NAMES {
        let said = stage.cluster(name);
        assert_eq!((&said["view"], &said["rangesFrom"]), (&name.into(), &"ServiceCIDR".into()), "{said}");
        assert!(metrics.contains(&format!("beeline_source_synced{{cluster=\"{name}\"}} 1")), "{metrics}");
    }
}
