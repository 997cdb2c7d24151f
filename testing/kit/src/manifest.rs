//! Objects that a new cluster starts with: the nodes, with their pod ranges and zones, and the rights of the agents.

use serde_json::{Value, json};

use crate::{
    kubeconfig::{AGENT_GROUP, HOST_GROUP},
    plan::Node,
    state::Shape,
};

/// What a host outside may read: the role that is shipped for it.
pub const HOST_ROLE: &str = include_str!("../../../deploy/outside/role.yaml");

const RBAC: &str = "rbac.authorization.k8s.io";

pub fn list(nodes: &[Node], shape: &Shape) -> Value {
    let nodes = nodes.iter().map(|node| self::node(*node, shape.zones));
    let items: Vec<Value> = nodes.chain(bindings()).collect();
    json!({"apiVersion": "v1", "kind": "List", "items": items})
}

/// What an agent may do, without any node.
pub fn rights() -> Value {
    json!({"apiVersion": "v1", "kind": "List", "items": bindings()})
}

fn bindings() -> [Value; 3] {
    [agent_role(), binding("beeline-agent", AGENT_GROUP), binding("beeline-outside", HOST_GROUP)]
}

/// The kubelet finds its node there and fills in the rest.
fn node(node: Node, zones: bool) -> Value {
    let labels = match zones {
        true => json!({"topology.kubernetes.io/zone": node.zone()}),
        false => json!({}),
    };
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": node.name(), "labels": labels},
        "spec": {"podCIDR": node.pods()[0], "podCIDRs": node.pods()},
    })
}

/// The least that an agent can live with.
fn agent_role() -> Value {
    json!({
        "apiVersion": format!("{RBAC}/v1"),
        "kind": "ClusterRole",
        "metadata": {"name": "beeline-agent"},
        "rules": [
            {"apiGroups": [""], "resources": ["services", "nodes", "pods", "namespaces"], "verbs": ["get", "list", "watch"]},
            {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["get", "list", "watch"]},
            {
                "apiGroups": ["beeline.dev"],
                "resources": ["localredirectpolicies", "balancingpolicies"],
                "verbs": ["get", "list", "watch"],
            },
            {"apiGroups": [""], "resources": ["nodes"], "verbs": ["patch"]},
            {"apiGroups": ["", "events.k8s.io"], "resources": ["events"], "verbs": ["create", "patch"]},
        ],
    })
}

fn binding(role: &str, group: &str) -> Value {
    json!({
        "apiVersion": format!("{RBAC}/v1"),
        "kind": "ClusterRoleBinding",
        "metadata": {"name": role},
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": role},
        "subjects": [{"kind": "Group", "apiGroup": RBAC, "name": group}],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_have_their_pods_and_zones() {
        let nodes = Node::first(2).unwrap();
        let list = list(&nodes, &Shape { nodes: 2, zones: true, proxy: None });
        let second = &list["items"][1];
        assert_eq!(second["metadata"]["labels"]["topology.kubernetes.io/zone"], "z2");
        assert_eq!(second["spec"]["podCIDRs"], json!(["10.245.2.0/24", "fd00:10:245:2::/64"]));
    }

    #[test]
    fn an_agent_may_change_nothing_but_nodes_and_events() {
        for rule in agent_role()["rules"].as_array().unwrap() {
            let verbs: Vec<&str> =
                rule["verbs"].as_array().unwrap().iter().map(|verb| verb.as_str().unwrap()).collect();
            let writes = verbs.iter().any(|verb| !["get", "list", "watch"].contains(verb));
            let resources = &rule["resources"];
            assert!(!writes || resources == &json!(["nodes"]) || resources == &json!(["events"]), "{rule}");
        }
    }
}
