//! Invalid snapshots on the host's disk while no API server answers: only valid snapshots are used.

use std::{fs, path::PathBuf};

use super::{
    clients::Clients,
    clusters::{MultiClusterHost, NAMES, dial_for},
};
use crate::fixture::{host_port, wait_until};

pub fn invalid_snapshots_are_ignored(host: &MultiClusterHost, clients: Clients) {
    for name in NAMES {
        wait_until("the snapshot is on disk", || file(host, name).exists());
    }
    let servers = host.clusters.api_servers();
    servers.iter().for_each(|server| server.kill().unwrap());
    host.agent.stop().unwrap();
    // Each snapshot gets a previous generation.
    for name in NAMES {
        fs::copy(file(host, name), previous_file(host, name)).unwrap();
    }
    change_node_address(host, "green");
    truncate(host, "red");
    fs::copy(file(host, "red"), previous_file(host, "red")).unwrap();
    host.agent.start().unwrap();
    wait_for_rejection(host, "green", "checksum");
    wait_for_rejection(host, "red", "truncated");
    assert!(host.cluster("green")["snapshotTime"].is_string(), "the previous generation is used");
    assert!(host.cluster("red")["snapshotTime"].is_null(), "no valid generation is left");
    dial_for(1);
    clients.assert_no_failures("a forged and two truncated snapshots: the maps and the previous generation are used");
    drop(clients);
    foreign_snapshots_after_a_reboot(host);
    servers.iter().for_each(|server| server.start().unwrap());
    host.clusters.wait_for_api_servers();
    host.wait_until_synced(&NAMES);
    wait_until("red answers again", || {
        host.clusters.cluster_of(&host.dial(&host_port(&host.clusters.red_ips[0], 80))) == "red"
    });
    let clients = Clients::start(host);
    dial_for(1);
    clients.assert_no_failures("the API servers are up again");
}

/// Without maps, snapshots of other clusters are not used.
fn foreign_snapshots_after_a_reboot(host: &MultiClusterHost) {
    host.agent.shut_down().unwrap();
    let uid = host.agent.state_dir().join("clusters/red/uid");
    let original = fs::read(&uid).unwrap();
    // Green's snapshot under red's name, and red's own with another UID.
    fs::copy(previous_file(host, "green"), file(host, "red")).unwrap();
    fs::copy(host.agent.state_dir().join("kept"), previous_file(host, "red")).unwrap();
    fs::write(&uid, "11111111-2222-4333-8444-555555555555\n").unwrap();
    host.agent.start().unwrap();
    wait_for_rejection(host, "red", "belongs to cluster \"green\"");
    wait_for_rejection(host, "red", "another cluster of this name");
    let clients = Clients::start_for(host, &["blue", "green"]);
    let answer = host.dial(&host_port(&host.clusters.red_ips[0], 80));
    assert!(answer.starts_with("failed"), "{answer} answers for red");
    dial_for(1);
    clients.assert_no_failures("after a reboot with foreign snapshots of red");
    drop(clients);
    host.agent.stop().unwrap();
    fs::write(&uid, original).unwrap();
    host.agent.start().unwrap();
}

fn wait_for_rejection(host: &MultiClusterHost, name: &str, reason: &str) {
    wait_until(&format!("{name}'s snapshot: {reason}"), || {
        host.cluster(name)["snapshot"]["rejected"].to_string().replace("\\\"", "\"").contains(reason)
    });
}

fn file(host: &MultiClusterHost, name: &str) -> PathBuf {
    host.agent.state_dir().join("snapshot").join(format!("{name}.snapshot"))
}

fn previous_file(host: &MultiClusterHost, name: &str) -> PathBuf {
    file(host, name).with_extension("snapshot.previous")
}

/// Changes the node address in a snapshot, so that its checksum does not match.
fn change_node_address(host: &MultiClusterHost, name: &str) {
    let text = fs::read_to_string(file(host, name)).unwrap();
    let forged = text.replace(&host.clusters.nodes()[1], &host.clusters.nodes()[2]);
    assert_ne!(text, forged);
    fs::write(file(host, name), forged).unwrap();
}

fn truncate(host: &MultiClusterHost, name: &str) {
    fs::copy(file(host, name), host.agent.state_dir().join("kept")).unwrap();
    let file = fs::File::options().write(true).open(file(host, name)).unwrap();
    file.set_len(file.metadata().unwrap().len() / 2).unwrap();
}
