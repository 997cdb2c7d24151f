//! A guest behind passt on a node. The guest has no Beeline: passt is a process of the node, and the node's socket
//! hooks resolve its dials.

use kit::{NodeId, guest::GuestLink};
use serde_json::json;

use crate::{
    fixture::{ClusterFixture, host_port, server, service, wait_until},
    machine::{boot, dial, send},
};

const DNS: &str = "10.97.0.10";

#[test]
fn the_nodes_hooks_resolve_dials_of_a_guest_behind_passt() {
    let fixture = ClusterFixture::new("passt");
    fixture.apply(&[server("web-1", 1), server("web-2", 2), service("web", json!({}))]);
    fixture.wait_ready(&["web-1", "web-2"]);
    fixture.wait_for_endpoints("web", 2);
    let node = NodeId::new(3).unwrap();
    let guest = boot(GuestLink::Passt(node), vec![]);
    let ips = fixture.cluster_ips("web");
    for ip in &ips {
        let servers: std::collections::BTreeSet<String> = (0..12).map(|_| dial(&guest, &host_port(ip, 80))).collect();
        assert_eq!(servers.iter().map(String::as_str).collect::<Vec<_>>(), ["web-1", "web-2"], "TCP to {ip}");
        assert!(send(&guest, ip, 80).starts_with("web-"), "UDP to {ip}");
    }
    // Cluster DNS has a ClusterIP too.
    let name = format!("web.{}.svc.cluster.local", fixture.namespace());
    wait_until("the guest resolves the name", || {
        guest.output(&format!("dig +short @{DNS} {name}")).unwrap().out.contains(&ips[0])
    });
    // Without the hooks no dial succeeds.
    let agent = kit::agent::component(node).unwrap();
    agent.stop().unwrap();
    fixture.beeline(3, &["cleanup"]);
    assert!(dial(&guest, &host_port(&ips[0], 80)).starts_with("failed"), "without Beeline on the node");
    agent.start().unwrap();
    wait_until("the hooks resolve again", || dial(&guest, &host_port(&ips[0], 80)).starts_with("web-"));
}
