//! A guest whose network card is passt on a node. Nothing of Beeline is in the guest: passt dials for it, from a process of
//! the node, and the node's socket hooks resolve what it dials.

use kit::{Node, guest::Link};
use serde_json::json;

use crate::{
    field::{Field, at, eventually, server, service},
    machine::{boot, dial, send},
};

const DNS: &str = "10.97.0.10";

#[test]
fn a_guest_behind_passt_dials_services_by_its_nodes_hooks() {
    let field = Field::new("passt");
    field.apply(&[server("web-1", 1), server("web-2", 2), service("web", json!({}))]);
    field.wait_ready(&["web-1", "web-2"]);
    field.settle("web", 2);
    let node = Node::new(3).unwrap();
    let guest = boot(Link::Passt(node), vec![]);
    let ips = field.cluster_ips("web");
    for ip in &ips {
        let who: std::collections::BTreeSet<String> = (0..12).map(|_| dial(&guest, &at(ip, 80))).collect();
        assert_eq!(who.iter().map(String::as_str).collect::<Vec<_>>(), ["web-1", "web-2"], "TCP to {ip}");
        assert!(send(&guest, ip, 80).starts_with("web-"), "UDP to {ip}");
    }
    // The cluster's name server is a ClusterIP too.
    let name = format!("web.{}.svc.cluster.local", field.namespace());
    eventually("the guest finds the name", || {
        guest.outcome(&format!("dig +short @{DNS} {name}")).unwrap().out.contains(&ips[0])
    });
    // It was the hooks: without them nobody answers.
    let agent = kit::agent::part(node).unwrap();
    agent.stop().unwrap();
    field.beeline(3, &["cleanup"]);
    assert!(dial(&guest, &at(&ips[0], 80)).starts_with("failed"), "without Beeline on the node");
    agent.start().unwrap();
    eventually("the hooks are back", || dial(&guest, &at(&ips[0], 80)).starts_with("web-"));
}
