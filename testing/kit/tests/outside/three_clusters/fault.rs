//! Faults while clients dial in a loop. Each fault ends with all three clusters synced again.

use std::time::Instant;

use kit::{NodeId, component::Component};
use serde_json::{Value, json};

use super::{
    clients::Clients,
    clusters::{MultiClusterHost, NAMES, dial_for, extra_service},
    dns,
};
use crate::fixture::{host_port, service, wait_until};

pub fn api_servers_are_down(host: &MultiClusterHost, clients: &Clients) {
    let servers = host.clusters.api_servers();
    for (name, server) in NAMES.iter().zip(&servers) {
        server.kill().unwrap();
        wait_until("status reports the error", || host.cluster(name)["error"].is_string());
        dial_for(1);
        server.start().unwrap();
        clients.assert_no_failures(&format!("the API server of {name} down"));
    }
    host.clusters.wait_for_api_servers();
    host.wait_until_synced(&NAMES);
    clients.assert_no_failures("all clusters synced again");
    stop_all(&servers);
    dial_for(2);
    start_all(host, &servers);
    host.wait_until_synced(&NAMES);
    clients.assert_no_failures("all API servers down");
    assert_changes_take_effect(host, "after-outage");
}

fn stop_all(servers: &[Component]) {
    servers.iter().for_each(|server| server.kill().unwrap());
}

fn start_all(host: &MultiClusterHost, servers: &[Component]) {
    servers.iter().for_each(|server| server.start().unwrap());
    host.clusters.wait_for_api_servers();
}

/// A new Service of blue is resolved on the host.
fn assert_changes_take_effect(host: &MultiClusterHost, name: &str) {
    host.clusters.fixture.apply(&[service(name, json!({}))]);
    let target = host_port(&host.clusters.fixture.cluster_ips(name)[0], 80);
    wait_until("the new Service of blue is resolved", || host.clusters.cluster_of(&host.dial(&target)) == "blue");
}

pub fn the_agent_restarts(host: &MultiClusterHost, clients: &Clients) {
    let agent = &host.agent;
    agent.stop().unwrap();
    dial_for(1);
    agent.start().unwrap();
    host.wait_until_synced(&NAMES);
    clients.assert_no_failures("the agent restarted");
    agent.kill().unwrap();
    dial_for(1);
    agent.start().unwrap();
    host.wait_until_synced(&NAMES);
    clients.assert_no_failures("the agent killed with SIGKILL and started");
}

/// The default route leads to pods too, so pods are always reachable.
pub fn routes_change(host: &MultiClusterHost, clients: &Clients) {
    let line = |verb: &str, node: &NodeId| {
        let routes = node.pods().into_iter().zip(node.addresses());
        routes.map(|(pods, gateway)| format!("ip route {verb} {pods} via {gateway}\n")).collect::<String>()
    };
    let script =
        |verb: &str| host.clusters.fixture.cluster.nodes().iter().map(|node| line(verb, node)).collect::<String>();
    let route = |verb: &str| host.clusters.outside.run(&["sh", "-ec", &script(verb)]).map(drop).unwrap();
    let are_routed = |expected: bool| {
        let groups = host.cluster("blue")["reach"].as_array().cloned().unwrap_or_default();
        let mut pods = groups.iter().filter(|group| group["node"].is_string()).peekable();
        let by_route = |group: &Value| group["evidence"].as_str().is_some_and(|evidence| evidence.starts_with("route"));
        pods.peek().is_some() && pods.all(|group| by_route(group) == expected)
    };
    wait_until("pods are reached without a route", || are_routed(false));
    for _ in 0..3 {
        route("add");
        wait_until("the agent uses the routes", || are_routed(true));
        dial_for(1);
        route("del");
        wait_until("the agent does not use the removed routes", || are_routed(false));
    }
    // Faster than the agent can react.
    let flap = format!("for i in $(seq 10); do\n{}{}done", script("add"), script("del"));
    host.clusters.outside.run(&["sh", "-ec", &flap]).unwrap();
    dial_for(1);
    clients.assert_no_failures("routes added and removed");
}

pub fn clusters_are_removed_and_added(host: &MultiClusterHost, clients: &mut Clients) {
    for name in ["red", "green"] {
        clients.assert_no_failures(&format!("before {name} is removed"));
        clients.remove(name);
        let rest: Vec<&str> = NAMES.into_iter().filter(|other| *other != name).collect();
        host.configure(&rest);
        wait_until(&format!("{name} is removed"), || host.cluster(name).is_null());
        dial_for(1);
        host.configure(&NAMES);
        host.wait_until_synced(&NAMES);
        clients.assert_no_failures(&format!("{name} removed from the file and added again"));
        clients.add(name);
        clients.reset();
    }
    change_order(host, clients);
    remove_the_first(host, clients);
    assert_changes_take_effect(host, "after-edits");
}

fn change_order(host: &MultiClusterHost, clients: &Clients) {
    let default_view = || host.clusters.cluster_of(&host.dial(&host_port(&host.clusters.shared_ips[0], 80)));
    host.configure(&["red", "green", "blue"]);
    wait_until("green owns the address", || default_view() == "green");
    dial_for(1);
    clients.assert_no_failures_in_views("another order of the file");
    host.configure(&NAMES);
    wait_until("blue owns the address again", || default_view() == "blue");
    clients.assert_no_failures_in_views("the original order of the file");
}

/// When the first cluster is removed, the next one owns the address.
fn remove_the_first(host: &MultiClusterHost, clients: &mut Clients) {
    let default_view = || host.clusters.cluster_of(&host.dial(&host_port(&host.clusters.shared_ips[0], 80)));
    clients.remove("blue");
    host.configure(&["green", "red"]);
    wait_until("green owns the address", || default_view() == "green");
    dial_for(1);
    host.configure(&NAMES);
    host.wait_until_synced(&NAMES);
    wait_until("blue owns the address again", || default_view() == "blue");
    clients.assert_no_failures("blue removed from the file and added again");
    clients.add("blue");
    clients.reset();
}

/// An API server that accepts connections but does not respond affects neither the other clusters nor its own state.
pub fn an_api_server_hangs(host: &MultiClusterHost, clients: &Clients) {
    host.clusters.green.api_server.freeze().unwrap();
    dial_for(1);
    assert_changes_take_effect(host, "while-green-hangs");
    host.agent.kill().unwrap();
    host.agent.start().unwrap();
    host.wait_until_synced(&["blue", "red"]);
    assert_changes_take_effect(host, "after-a-start");
    host.clusters.green.api_server.thaw().unwrap();
    host.wait_until_synced(&NAMES);
    clients.assert_no_failures("green's API server hangs, and the agent is killed and started meanwhile");
}

/// An empty database at the same address is another cluster. The last known state of green stays in effect.
pub fn a_database_is_lost(host: &MultiClusterHost, clients: &Clients) {
    let (green, proxy) = (&host.clusters.green, &host.clusters.extra_nodes[0].proxy);
    // kube-proxy would follow the empty database. Its rules stay while it is stopped.
    proxy.stop().unwrap();
    green.wipe_database().unwrap();
    let message = host.wait_for_refusal("otherCluster", &["cluster green has the stored UID", "clusters/green/uid"]);
    assert!(message.contains("state of green stays in effect"), "{message}");
    let foreign = extra_service(
        "foreign",
        &["10.97.200.1".into(), "fd00:10:97::2001".into()],
        json!({"type": "ClusterIP", "ports": [{"port": 80}]}),
    );
    green.apply(&foreign).unwrap();
    dial_for(1);
    let explained = host.agent.run_json(&["explain", "10.97.200.1:80", "--view", "green"]).unwrap();
    assert_ne!(explained["verdict"], "resolved", "objects of another cluster are ignored: {explained}");
    assert_changes_take_effect(host, "while-green-is-another");
    clients.assert_no_failures("green's database wiped");
    green.restore_database().unwrap();
    proxy.start().unwrap();
    host.wait_until_synced(&NAMES);
    host.wait_for_none("otherCluster");
    clients.assert_no_failures("green's database restored");
}

/// After a reboot nothing is pinned and no API server answers, so the snapshots are used.
pub fn the_host_reboots_offline(host: &MultiClusterHost, clients: Clients) {
    for name in NAMES {
        wait_until("the snapshot is on disk", || host.cluster(name)["snapshot"]["ageSeconds"].is_u64());
    }
    drop(clients);
    let servers = host.clusters.api_servers();
    stop_all(&servers);
    host.agent.shut_down().unwrap();
    let answer = host.dial(&host_port(&host.clusters.shared_ips[0], 80));
    assert!(answer.starts_with("failed"), "{answer} answers although nothing is attached");
    let start = Instant::now();
    host.agent.start().unwrap();
    // Once the agent reports that it is healthy, all dials are resolved.
    println!("rebooted: the agent is healthy {:.1} s after its start", start.elapsed().as_secs_f32());
    let clients = Clients::start(host);
    for name in NAMES {
        wait_until(&format!("{name} is served from its snapshot"), || host.cluster(name)["snapshotTime"].is_string());
    }
    dns::names_of_each_cluster_resolve(host, "offline after a reboot");
    dial_for(2);
    clients.assert_no_failures("after a reboot, offline, from snapshots");
    let metrics = host.agent.metrics().unwrap();
    for name in NAMES {
        assert!(metrics.contains(&format!("beeline_snapshot_age_seconds{{cluster=\"{name}\"}} ")), "{metrics}");
        assert_eq!(host.cluster(name)["rangesFrom"], "snapshot");
    }
    start_all(host, &servers);
    host.wait_until_synced(&NAMES);
    dial_for(1);
    clients.assert_no_failures("the API servers are up again");
    assert_changes_take_effect(host, "after-a-reboot");
}
