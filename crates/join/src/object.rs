//! What stands in the cluster for a host, and what it lets the host do.
//!
//! Each host has an account of its own: what is revoked is one host. The role that reads is shared; the one that renews
//! names the one account whose token may be asked for.

use crate::host::HostName;
use serde_json::{Value, json};

/// What all hosts may read.
pub(crate) const READER: &str = "beeline-host";
pub(crate) const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";
/// On what stands for one host.
pub(crate) const LABEL: &str = "beeline.dev/host";
const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
const MANAGER: &str = "beeline";

/// One object, and where it is applied.
pub(crate) struct Object {
    pub(crate) path: String,
    pub(crate) content: Value,
}

/// Made by `beeline grant`, so that it may be changed and removed.
pub(crate) fn is_ours(object: &Value) -> bool {
    object["metadata"]["labels"][MANAGED_BY] == MANAGER
}

pub(crate) fn reader() -> Object {
    Object { path: format!("{RBAC}/clusterroles/{READER}"), content: reading() }
}

/// What an agent outside reads, and no more: no pods, no secrets, nothing to write.
fn reading() -> Value {
    let follow = ["list", "watch"];
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": { "name": READER, "labels": { MANAGED_BY: MANAGER } },
        "rules": [
            rule("", &["services", "nodes"], &follow, &[]),
            rule("discovery.k8s.io", &["endpointslices"], &follow, &[]),
            rule("networking.k8s.io", &["servicecidrs"], &follow, &[]),
            // Not those that redirect to pods of the own node.
            rule("beeline.dev", &["balancingpolicies"], &follow, &[]),
            // Its UID is what the cluster is known by.
            rule("", &["namespaces"], &["get"], &["kube-system"]),
        ],
    })
}

/// What stands for one host alone, the account first.
pub(crate) fn of_host(host: &HostName, namespace: &str) -> [Object; 4] {
    let binding = format!("beeline-host:{namespace}:{host}");
    let own = format!("{RBAC}/namespaces/{namespace}");
    [
        Object {
            path: format!("/api/v1/namespaces/{namespace}/serviceaccounts/{host}"),
            content: json!({
                "apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta(host.as_str(), Some(namespace)),
                "automountServiceAccountToken": false,
            }),
        },
        Object {
            content: bind("ClusterRoleBinding", meta(&binding, None), ("ClusterRole", READER), host, namespace),
            path: format!("{RBAC}/clusterrolebindings/{binding}"),
        },
        Object { path: format!("{own}/roles/{host}"), content: renewing(host, namespace) },
        Object {
            path: format!("{own}/rolebindings/{host}"),
            content: bind(
                "RoleBinding",
                meta(host.as_str(), Some(namespace)),
                ("Role", host.as_str()),
                host,
                namespace,
            ),
        },
    ]
}

/// A token of its own account, no other's.
fn renewing(host: &HostName, namespace: &str) -> Value {
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
        "metadata": meta(host.as_str(), Some(namespace)),
        "rules": [rule("", &["serviceaccounts/token"], &["create"], &[host.as_str()])],
    })
}

fn bind(kind: &str, meta: Value, role: (&str, &str), host: &HostName, namespace: &str) -> Value {
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind, "metadata": meta,
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": role.0, "name": role.1 },
        "subjects": [{ "kind": "ServiceAccount", "name": host.as_str(), "namespace": namespace }],
    })
}

fn rule(group: &str, resources: &[&str], verbs: &[&str], names: &[&str]) -> Value {
    let mut rule = json!({ "apiGroups": [group], "resources": resources, "verbs": verbs });
    if !names.is_empty() {
        rule["resourceNames"] = json!(names);
    }
    rule
}

fn meta(name: &str, namespace: Option<&str>) -> Value {
    let mut meta = json!({ "name": name, "labels": { LABEL: "true", MANAGED_BY: MANAGER } });
    if let Some(namespace) = namespace {
        meta["namespace"] = json!(namespace);
    }
    meta
}
