//! The chart as a user installs it: a DaemonSet with only the capabilities it needs, which adopts the maps of the
//! agents before it, and an uninstallation that detaches the hooks on every node.

use kit::{NodeId, chart};
use serde_json::{Value, json};

use crate::controller;
use crate::fixture::{ClusterFixture, assert_servers, client, host_port, server, service};
use crate::load::LoadGenerator;
use crate::plugin;

fn for_each_node(fixture: &ClusterFixture, work: impl Fn(NodeId)) {
    fixture.cluster.nodes().into_iter().for_each(work);
}

#[test]
fn the_chart_adopts_running_agents_and_uninstalls_without_traces() {
    let fixture = ClusterFixture::new("chart");
    fixture.apply(&[server("web-1", 1), server("web-2", 2), client("client", 1), service("web", json!({}))]);
    fixture.apply(&[controller::selected_pod()]);
    fixture.wait_ready(&["web-1", "web-2", "client", "selected-3"]);
    fixture.wait_for_endpoints("web", 2);
    let [ip, _] = fixture.cluster_ips("web");
    let load = LoadGenerator::start(&fixture, "client", &[host_port(&ip, 80)]);
    for_each_node(&fixture, |node| kit::agent::component(node).unwrap().stop().unwrap());
    plugin::reports_a_missing_agent(&fixture);
    plugin::reports_an_agent_that_does_not_run(&fixture);

    chart::import_image(&fixture.cluster, &kit::agent::binary(None).unwrap()).unwrap();
    let mut values = chart::values(false).unwrap();
    values["clearStartupTaint"] = true.into();
    values["options"] = json!({ "report-interval": "2s" });
    chart::install(&fixture.cluster, &values).unwrap();
    let arguments = ["-n", chart::NAMESPACE, "exec", "daemonset/beeline", "--", "beeline", "status", "-o", "json"];
    let status: Value = serde_json::from_str(&fixture.cluster.kubectl(&arguments).unwrap()).unwrap();
    assert_eq!(
        (&status["kernel"]["start"], &status["kernel"]["selfTest"]),
        (&json!("adopted"), &json!("passed")),
        "{status}"
    );
    assert_eq!(status["source"]["synced"], true, "{status}");
    let both = ["web-1", "web-2"];
    assert_servers(&fixture.dial("client", &host_port(&ip, 80), 16), &both, "with the chart's agents");
    load.stop().assert_no_failures("agents replaced by the chart's");
    plugin::queries_the_agent_of_a_node(&fixture, &ip);
    controller::serves_policies(&fixture, &ip);

    chart::uninstall(&fixture.cluster).unwrap();
    for node in [1, 2, 3] {
        let pins = fixture.on_node(node, &["ls", "/sys/fs/bpf"]);
        assert!(!pins.lines().any(|name| name == "beeline"), "pins are left on n{node}: {pins}");
    }
    let servers = fixture.dial("client", &host_port(&ip, 80), 1);
    assert!(!both.iter().any(|name| servers.contains_key(*name)), "the hooks are still attached: {servers:?}");
    for_each_node(&fixture, |node| {
        kit::agent::component(node).unwrap().start().unwrap();
        kit::agent::wait_until_ready(node, false).unwrap();
    });
    assert_servers(&fixture.dial("client", &host_port(&ip, 80), 16), &both, "with the restarted agents");
}

/// All nodes share the machine's cgroup2 hierarchy, so the shipped manifests would attach to the machine's root cgroup.
#[test]
fn the_shipped_manifests_are_refused_because_they_use_the_root_cgroup() {
    let fixture = ClusterFixture::new("root-cgroup");
    let manifests = chart::source_dir().join("deploy/manifests").display().to_string();
    let error = fixture.cluster.kubectl(&["apply", "--server-side", "--dry-run=server", "-f", &manifests]).unwrap_err();
    assert!(format!("{error:#}").contains("would attach to the machine's root cgroup"), "{error:#}");
}

#[test]
fn an_agent_pod_is_admitted_only_with_a_cgroup_of_the_kit() {
    let fixture = ClusterFixture::new("agent-cgroup");
    let agent_pod = |arguments: &[&str]| {
        let mut pod = crate::fixture::pod("agent", 1, arguments);
        let volume = json!({ "name": "cgroup", "hostPath": { "path": "/sys/fs/cgroup" } });
        pod["spec"]["volumes"] = json!([volume]);
        pod["spec"]["containers"][0]["volumeMounts"] = json!([{ "name": "cgroup", "mountPath": "/sys/fs/cgroup" }]);
        pod
    };
    assert!(fixture.try_apply(&[agent_pod(&["agent"])]).is_err());
    assert!(fixture.try_apply(&[agent_pod(&["agent", "--cgroup=/sys/fs/cgroup/unified"])]).is_err());
    let node_cgroup = format!("--cgroup={}", kit::CgroupTree::find().unwrap().path("n1").display());
    fixture.try_apply(&[agent_pod(&["agent", &node_cgroup])]).unwrap();
}
