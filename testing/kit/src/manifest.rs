//! Objects of a new cluster: the nodes with their pod ranges and zones, the agents' roles, and an admission policy that
//! keeps agents off the machine's root cgroup.

use serde_json::{Value, json};

use crate::{
    address_plan::{NAME, NodeId},
    kubeconfig::{AGENT_GROUP, HOST_GROUP},
    state::SavedConfig,
};

/// CRDs of Beeline's policies.
pub const CRDS: [&str; 2] = [
    include_str!("../../../deploy/chart/definitions/balancingpolicies.yaml"),
    include_str!("../../../deploy/chart/definitions/localredirectpolicies.yaml"),
];
/// The shipped role of hosts outside.
pub const HOST_ROLE: &str = include_str!("../../../deploy/outside/role.yaml");

const RBAC: &str = "rbac.authorization.k8s.io";

pub fn list(nodes: &[NodeId], config: &SavedConfig) -> Value {
    let nodes = nodes.iter().map(|node| self::node(*node, config.zones));
    let items: Vec<Value> = nodes.chain(bindings()).chain(cgroup_guard()).collect();
    json!({"apiVersion": "v1", "kind": "List", "items": items})
}

/// The agents' roles without nodes.
pub fn roles() -> Value {
    json!({"apiVersion": "v1", "kind": "List", "items": bindings()})
}

fn bindings() -> [Value; 3] {
    [agent_role(), binding("beeline-agent", AGENT_GROUP), binding("beeline-outside", HOST_GROUP)]
}

/// A Node with its pod range. The kubelet fills in the rest.
fn node(node: NodeId, zones: bool) -> Value {
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

/// The minimal role of an agent.
fn agent_role() -> Value {
    json!({
        "apiVersion": format!("{RBAC}/v1"),
        "kind": "ClusterRole",
        "metadata": {"name": "beeline-agent"},
        "rules": [
            {"apiGroups": [""], "resources": ["services", "nodes", "pods", "namespaces"], "verbs": ["get", "list", "watch"]},
            {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["get", "list", "watch"]},
            {"apiGroups": ["networking.k8s.io"], "resources": ["servicecidrs"], "verbs": ["get", "list", "watch"]},
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

/// Refuses agents that would attach to the machine's root cgroup. All nodes share the machine's cgroup2 hierarchy, so
/// an agent pod without `--cgroup` would affect every socket of the machine.
fn cgroup_guard() -> [Value; 2] {
    let name = "kit-agent-cgroup";
    let rule = |group: &str, resources: &[&str]| json!({"apiGroups": [group], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"], "resources": resources});
    let policy = json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": name},
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {"resourceRules": [rule("", &["pods"]), rule("apps", &["daemonsets"])]},
            "variables": [
                {"name": "pod", "expression": "object.kind == 'Pod' ? object.spec : object.spec.template.spec"},
                {"name": "sees_cgroups", "expression": "has(variables.pod.volumes) && variables.pod.volumes.exists(volume, \
                    has(volume.hostPath) && volume.hostPath.path.startsWith('/sys/fs/cgroup'))"},
                {"name": "agents", "expression": "variables.pod.containers.filter(container, \
                    has(container.args) && container.args.exists(argument, argument == 'agent'))"},
            ],
            "validations": [{
                "expression": format!("!variables.sees_cgroups || variables.agents.all(agent, agent.args.exists(argument, \
                    argument.startsWith('--cgroup=') && argument.contains('/{NAME}/')))"),
                "message": format!("this agent would attach to the machine's root cgroup: in the kit set the chart's \
                    value cgroup to a path below /{NAME}/, as `kit up --chart` does"),
            }],
        },
    });
    let binding = json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": name},
        "spec": {"policyName": name, "validationActions": ["Deny"]},
    });
    [policy, binding]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_have_pod_ranges_and_zones() {
        let nodes = NodeId::first(2).unwrap();
        let list = list(&nodes, &SavedConfig { nodes: 2, zones: true, proxy: None });
        let second = &list["items"][1];
        assert_eq!(second["metadata"]["labels"]["topology.kubernetes.io/zone"], "z2");
        assert_eq!(second["spec"]["podCIDRs"], json!(["10.245.2.0/24", "fd00:10:245:2::/64"]));
    }

    #[test]
    fn an_agent_may_write_only_nodes_and_events() {
        for rule in agent_role()["rules"].as_array().unwrap() {
            let verbs: Vec<&str> =
                rule["verbs"].as_array().unwrap().iter().map(|verb| verb.as_str().unwrap()).collect();
            let writes = verbs.iter().any(|verb| !["get", "list", "watch"].contains(verb));
            let resources = &rule["resources"];
            assert!(!writes || resources == &json!(["nodes"]) || resources == &json!(["events"]), "{rule}");
        }
    }
}
