//! The Kubernetes objects of a joined host: its ServiceAccount, its roles and its role bindings.
//!
//! Each host has its own account, so a single host can be revoked. All hosts share the ClusterRole for reading. The
//! Role for token renewal belongs to one host and names its account.

use crate::host_name::HostName;
use serde_json::{Value, json};

/// The ClusterRole that all hosts share.
pub(crate) const READER: &str = "beeline-host";
pub(crate) const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";
/// Label on the objects that belong to one host.
pub(crate) const LABEL: &str = "beeline.dev/host";
const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
const MANAGER: &str = "beeline";

/// An object and its path on the API server.
pub(crate) struct HostObject {
    pub(crate) path: String,
    pub(crate) content: Value,
}

/// Whether `beeline grant` created the object. Only such objects may be changed or removed.
pub(crate) fn is_ours(object: &Value) -> bool {
    object["metadata"]["labels"][MANAGED_BY] == MANAGER
}

pub(crate) fn reader_role() -> HostObject {
    HostObject { path: format!("{RBAC}/clusterroles/{READER}"), content: reader_role_content() }
}

/// Exactly the objects that an agent outside reads: no pods, no secrets, no write access.
fn reader_role_content() -> Value {
    let list_watch = ["list", "watch"];
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": { "name": READER, "labels": { MANAGED_BY: MANAGER } },
        "rules": [
            rule("", &["services", "nodes"], &list_watch, &[]),
            rule("discovery.k8s.io", &["endpointslices"], &list_watch, &[]),
            rule("networking.k8s.io", &["servicecidrs"], &list_watch, &[]),
            // LocalRedirectPolicies are not read: they select pods of the client's own node, and a host outside has no
            // pods.
            rule("beeline.dev", &["balancingpolicies"], &list_watch, &[]),
            // The UID of this namespace identifies the cluster.
            rule("", &["namespaces"], &["get"], &["kube-system"]),
        ],
    })
}

/// The objects that belong to one host. The account is first, so that `revoke` deletes it before the others.
pub(crate) fn host_objects(host: &HostName, namespace: &str) -> [HostObject; 4] {
    let binding_name = format!("beeline-host:{namespace}:{host}");
    let rbac = format!("{RBAC}/namespaces/{namespace}");
    [
        HostObject {
            path: format!("/api/v1/namespaces/{namespace}/serviceaccounts/{host}"),
            content: json!({
                "apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta(host.as_str(), Some(namespace)),
                "automountServiceAccountToken": false,
            }),
        },
        HostObject {
            content: binding("ClusterRoleBinding", meta(&binding_name, None), ("ClusterRole", READER), host, namespace),
            path: format!("{RBAC}/clusterrolebindings/{binding_name}"),
        },
        HostObject { path: format!("{rbac}/roles/{host}"), content: renewal_role(host, namespace) },
        HostObject {
            path: format!("{rbac}/rolebindings/{host}"),
            content: binding(
                "RoleBinding",
                meta(host.as_str(), Some(namespace)),
                ("Role", host.as_str()),
                host,
                namespace,
            ),
        },
    ]
}

/// Allows the host to request tokens for its own account only.
fn renewal_role(host: &HostName, namespace: &str) -> Value {
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
        "metadata": meta(host.as_str(), Some(namespace)),
        "rules": [rule("", &["serviceaccounts/token"], &["create"], &[host.as_str()])],
    })
}

fn binding(kind: &str, meta: Value, role: (&str, &str), host: &HostName, namespace: &str) -> Value {
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
