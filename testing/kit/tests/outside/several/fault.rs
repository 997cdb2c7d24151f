//! What breaks while clients dial. Each of these ends as it began, with all three clusters heard.

use std::time::Instant;

use kit::{Node, part::Part};
use serde_json::{Value, json};

use super::{
    crowd::Crowd,
    name,
    trio::{NAMES, Stage, hold, twin_service},
};
use crate::field::{at, eventually, service};

pub fn api_servers_are_away(stage: &Stage, crowd: &Crowd) {
    let servers = stage.trio.api_servers();
    for (name, server) in NAMES.iter().zip(&servers) {
        server.kill().unwrap();
        eventually("status says so", || stage.cluster(name)["error"].is_string());
        hold(1);
        server.start().unwrap();
        crowd.must_be_content(&format!("the API server of {name} away"));
    }
    stage.trio.wait_for_api_servers();
    stage.wait_until_heard(&NAMES);
    crowd.must_be_content("each is heard again");
    stop_all(&servers);
    hold(2);
    start_all(stage, &servers);
    stage.wait_until_heard(&NAMES);
    crowd.must_be_content("all API servers away");
    changes_are_followed(stage, "after-outage");
}

fn stop_all(servers: &[Part]) {
    servers.iter().for_each(|server| server.kill().unwrap());
}

fn start_all(stage: &Stage, servers: &[Part]) {
    servers.iter().for_each(|server| server.start().unwrap());
    stage.trio.wait_for_api_servers();
}

/// A Service that is new in blue is known on the host.
fn changes_are_followed(stage: &Stage, name: &str) {
    stage.trio.field.apply(&[service(name, json!({}))]);
    let target = at(&stage.trio.field.cluster_ips(name)[0], 80);
    eventually("what is new in blue", || stage.trio.cluster_of(&stage.dial(&target)) == "blue");
}

pub fn the_agent_restarts(stage: &Stage, crowd: &Crowd) {
    let resolver = &stage.resolver;
    resolver.stop().unwrap();
    hold(1);
    resolver.start().unwrap();
    stage.wait_until_heard(&NAMES);
    crowd.must_be_content("the agent restarted");
    resolver.kill().unwrap();
    hold(1);
    resolver.start().unwrap();
    stage.wait_until_heard(&NAMES);
    crowd.must_be_content("the agent killed with SIGKILL and started");
}

/// The default route leads to pods as well: something is always reachable.
pub fn routes_come_and_go(stage: &Stage, crowd: &Crowd) {
    let line = |verb: &str, node: &Node| {
        let ways = node.pods().into_iter().zip(node.addresses());
        ways.map(|(pods, gateway)| format!("ip route {verb} {pods} via {gateway}\n")).collect::<String>()
    };
    let script = |verb: &str| stage.trio.field.cluster.nodes().iter().map(|node| line(verb, node)).collect::<String>();
    let route = |verb: &str| stage.trio.outside.run(&["sh", "-ec", &script(verb)]).map(drop).unwrap();
    let are_routed = |so: bool| {
        let groups = stage.cluster("blue")["reach"].as_array().cloned().unwrap_or_default();
        let mut pods = groups.iter().filter(|group| group["node"].is_string()).peekable();
        let by_route = |group: &Value| group["evidence"].as_str().is_some_and(|why| why.starts_with("route"));
        pods.peek().is_some() && pods.all(|group| by_route(group) == so)
    };
    eventually("pods are found without a route", || are_routed(false));
    for _ in 0..3 {
        route("add");
        eventually("the routes are seen", || are_routed(true));
        hold(1);
        route("del");
        eventually("that they are gone is seen", || are_routed(false));
    }
    // Faster than anybody can follow.
    let flap = format!("for i in $(seq 10); do\n{}{}done", script("add"), script("del"));
    stage.trio.outside.run(&["sh", "-ec", &flap]).unwrap();
    hold(1);
    crowd.must_be_content("routes come and go");
}

pub fn clusters_go_and_come(stage: &Stage, crowd: &mut Crowd) {
    for name in ["red", "green"] {
        crowd.must_be_content(&format!("before {name} goes"));
        crowd.remove(name);
        let rest: Vec<&str> = NAMES.into_iter().filter(|other| *other != name).collect();
        stage.configure(&rest);
        eventually(&format!("{name} is gone"), || stage.cluster(name).is_null());
        hold(1);
        stage.configure(&NAMES);
        stage.wait_until_heard(&NAMES);
        crowd.must_be_content(&format!("{name} removed from the file and added again"));
        crowd.add(name);
        crowd.forget();
    }
    another_order(stage, crowd);
    without_the_first(stage, crowd);
    changes_are_followed(stage, "after-edits");
}

fn another_order(stage: &Stage, crowd: &Crowd) {
    let everybody = || stage.trio.cluster_of(&stage.dial(&at(&stage.trio.same[0], 80)));
    stage.configure(&["red", "green", "blue"]);
    eventually("green has the address", || everybody() == "green");
    hold(1);
    crowd.views_must_be_content("another order, seen in views and in a range of its own");
    stage.configure(&NAMES);
    eventually("blue has it again", || everybody() == "blue");
    crowd.views_must_be_content("the order as it was");
}

/// Who is left has the address: nobody owns it any more.
fn without_the_first(stage: &Stage, crowd: &mut Crowd) {
    let everybody = || stage.trio.cluster_of(&stage.dial(&at(&stage.trio.same[0], 80)));
    crowd.remove("blue");
    stage.configure(&["green", "red"]);
    eventually("green has the address", || everybody() == "green");
    hold(1);
    stage.configure(&NAMES);
    stage.wait_until_heard(&NAMES);
    eventually("blue has it again", || everybody() == "blue");
    crowd.must_be_content("blue removed from the file and added again");
    crowd.add("blue");
    crowd.forget();
}

/// It takes connections and says nothing on them: neither the others nor what is known of it suffer.
pub fn a_server_hangs(stage: &Stage, crowd: &Crowd) {
    stage.trio.green.server.freeze().unwrap();
    hold(1);
    changes_are_followed(stage, "while-green-hangs");
    stage.resolver.kill().unwrap();
    stage.resolver.start().unwrap();
    stage.wait_until_heard(&["blue", "red"]);
    changes_are_followed(stage, "after-a-start");
    stage.trio.green.server.thaw().unwrap();
    stage.wait_until_heard(&NAMES);
    crowd.must_be_content("green's API server hangs, and the agent is killed and started meanwhile");
}

/// An empty database at the same address is another cluster: nothing that was served under the name is lost to it.
pub fn a_database_is_lost(stage: &Stage, crowd: &Crowd) {
    let (green, proxy) = (&stage.trio.green, &stage.trio.members[0].proxy);
    // kube-proxy would believe the empty database; what it has programmed stays.
    proxy.stop().unwrap();
    green.wipe().unwrap();
    let why = stage.wait_for_refusal("otherCluster", &["green was the cluster", "clusters/green/uid"]);
    assert!(why.contains("what was known of green stays"), "{why}");
    let stranger = twin_service(
        "stranger",
        &["10.97.200.1".into(), "fd00:10:97::2001".into()],
        json!({"type": "ClusterIP", "ports": [{"port": 80}]}),
    );
    green.apply(&stranger).unwrap();
    hold(1);
    let explained = stage.resolver.ask_json(&["explain", "10.97.200.1:80", "--view", "green"]).unwrap();
    assert_ne!(explained["verdict"], "resolved", "nothing of a stranger is taken in: {explained}");
    changes_are_followed(stage, "while-green-is-another");
    crowd.must_be_content("green's database wiped");
    green.restore().unwrap();
    proxy.start().unwrap();
    stage.wait_until_heard(&NAMES);
    stage.wait_for_none("otherCluster");
    crowd.must_be_content("green's database is back");
}

/// Nothing is pinned, and no API server answers: the snapshots serve.
pub fn the_host_reboots_offline(stage: &Stage, crowd: Crowd) {
    for name in NAMES {
        eventually("it is on disk", || stage.cluster(name)["snapshot"]["ageSeconds"].is_u64());
    }
    drop(crowd);
    let servers = stage.trio.api_servers();
    stop_all(&servers);
    stage.resolver.shut_down().unwrap();
    let answer = stage.dial(&at(&stage.trio.same[0], 80));
    assert!(answer.starts_with("failed"), "nothing is attached, and {answer} answers");
    let begun = Instant::now();
    stage.resolver.start().unwrap();
    // From its first word that it serves on, everybody is served.
    println!("rebooted: serves {:.1} s after its start", begun.elapsed().as_secs_f32());
    let crowd = Crowd::gather(stage);
    for name in NAMES {
        eventually(&format!("{name} is remembered"), || stage.cluster(name)["remembered"].is_string());
    }
    name::are_answered_for_each_cluster(stage, "offline after a reboot");
    hold(2);
    crowd.must_be_content("after a reboot, offline, from snapshots");
    let metrics = stage.resolver.metrics().unwrap();
    for name in NAMES {
        assert!(metrics.contains(&format!("beeline_snapshot_age_seconds{{cluster=\"{name}\"}} ")), "{metrics}");
        assert_eq!(stage.cluster(name)["rangesFrom"], "snapshot");
    }
    start_all(stage, &servers);
    stage.wait_until_heard(&NAMES);
    hold(1);
    crowd.must_be_content("the API servers come back");
    changes_are_followed(stage, "after-a-reboot");
}
