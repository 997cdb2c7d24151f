//! Which cluster owns an address: by the order of the file, in views, and at nodePorts. All commands show the cluster.

use super::clusters::{GREEN, MultiClusterHost, NAMES, NODE_PORT};
use crate::fixture::{host_port, wait_until};
use serde_json::Value;

pub fn the_first_cluster_owns_an_address(host: &MultiClusterHost) {
    let clusters = host.clusters;
    for address in &clusters.shared_ips {
        assert_eq!(clusters.cluster_of(&host.dial(&host_port(address, 80))), "blue", "{address}");
    }
    for address in &clusters.red_ips {
        assert_eq!(
            clusters.cluster_of(&host.dial(&host_port(address, 80))),
            "red",
            "{address}: only red has that range"
        );
    }
    for (name, node) in NAMES.into_iter().zip(clusters.nodes()) {
        assert_eq!(clusters.cluster_of(&host.dial(&host_port(&node, NODE_PORT))), name, "the nodePort at {node}");
    }
    let owned = host.wait_for_refusal("rangeOwned", &["10.97.0.0/16"]);
    assert!(owned.contains("blue"), "{owned}");
}

pub fn views_select_other_clusters(host: &MultiClusterHost) {
    let clusters = host.clusters;
    for (view, same) in [("blue", "blue"), ("green", "green"), ("red", "blue")] {
        for address in &clusters.shared_ips {
            assert_eq!(
                clusters.cluster_of(&host.dial_in_view(view, &host_port(address, 80))),
                same,
                "{address} in view {view}"
            );
        }
        assert_eq!(
            clusters.cluster_of(&host.dial_in_view(view, &host_port(&clusters.red_ips[0], 80))),
            "red",
            "in view {view}"
        );
        for (name, node) in NAMES.into_iter().zip(clusters.nodes()) {
            assert_eq!(
                clusters.cluster_of(&host.dial_in_view(view, &host_port(&node, NODE_PORT))),
                name,
                "{node} in view {view}"
            );
        }
    }
    let output = host.dial_in_view("yellow", &host_port(&clusters.shared_ips[0], 80));
    assert!(output.contains("no view yellow") && output.contains("blue, green, red"), "{output}");
}

/// Checks explain, services, status and metrics.
pub fn all_commands_show_the_cluster(host: &MultiClusterHost) {
    let target = host_port(&host.clusters.shared_ips[0], 80);
    let explain = |more: &[&str]| host.agent.run_json(&[&["explain", &target], more].concat()).unwrap();
    for (more, cluster) in [(&[][..], "blue"), (&["--view", "green"], "green"), (&["--view", "red"], "blue")] {
        assert_eq!(explain(more)["cluster"], cluster, "explain {more:?}");
    }
    let cgroup = host.clusters.outside.cgroup().unwrap().join(GREEN);
    let from = cgroup.display().to_string();
    wait_until("the cgroup has its view", || explain(&["--from", &from])["view"] == "green");
    assert_eq!(explain(&["--from", &from])["cluster"], "green");
    let rows = host.agent.run_json(&["services"]).unwrap();
    let has = |cluster: &str, address: &str| {
        let is = |row: &Value| row["cluster"] == cluster && row["address"] == address && row["service"].is_string();
        rows.as_array().unwrap().iter().any(is)
    };
    let clusters = host.clusters;
    assert!(
        has("blue", &clusters.shared_ips[0])
            && has("green", &clusters.shared_ips[0])
            && has("red", &clusters.red_ips[0]),
        "{rows}"
    );
    assert!(!has("red", &clusters.shared_ips[0]) && !has("green", &clusters.red_ips[0]), "{rows}");
    let metrics = host.agent.metrics().unwrap();
    for name in NAMES {
        let status = host.cluster(name);
        assert_eq!((&status["view"], &status["rangesFrom"]), (&name.into(), &"ServiceCIDR".into()), "{status}");
        assert!(metrics.contains(&format!("beeline_source_synced{{cluster=\"{name}\"}} 1")), "{metrics}");
    }
}
