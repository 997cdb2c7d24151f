//! Kubeconfigs, one for each user of the API server. They are written as JSON, which is valid YAML.

use anyhow::Result;
use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::{Value, json};

use crate::{
    address_plan::{self, HostId, NodeId},
    certificate::{CertificateAuthority, CertificatePair},
    state,
};

/// Group with exactly the permissions of Beeline's agent on a node.
pub const AGENT_GROUP: &str = "beeline:agents";
/// Group with exactly the permissions of Beeline's agent on a host outside.
pub const HOST_GROUP: &str = "beeline:hosts";

pub fn agent_user(node: impl std::fmt::Display) -> String {
    format!("beeline-agent-{node}")
}

pub fn make(authority: &CertificateAuthority, nodes: &[NodeId]) -> Result<()> {
    let save = |file: &str, user: &str, group| save(authority, &address_plan::api_url(), file, user, group);
    save("admin", "admin", Some("system:masters"))?;
    for name in ["kube-controller-manager", "kube-scheduler", "kube-proxy"] {
        save(name, &format!("system:{name}"), None)?;
    }
    for node in nodes {
        save(&node.name(), &format!("system:node:{node}"), Some("system:nodes"))?;
        save(&agent_user(node), &agent_user(node), Some(AGENT_GROUP))?;
    }
    for host in HostId::all() {
        save(&agent_user(host), &agent_user(host), Some(HOST_GROUP))?;
    }
    Ok(())
}

/// Writes a kubeconfig for a user of the API server at this URL.
pub fn save(authority: &CertificateAuthority, server: &str, file: &str, user: &str, group: Option<&str>) -> Result<()> {
    let pair = authority.client(user, group)?;
    let text = serde_json::to_vec_pretty(&render(server, user, &authority.pair.certificate, &pair))?;
    state::write(&state::kubeconfig(file), text)
}

fn render(server: &str, user: &str, authority: &str, pair: &CertificatePair) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "kit",
        "clusters": [{"name": "kit", "cluster": {
            "server": server,
            "certificate-authority-data": STANDARD.encode(authority),
        }}],
        "users": [{"name": user, "user": {
            "client-certificate-data": STANDARD.encode(&pair.certificate),
            "client-key-data": STANDARD.encode(&pair.key),
        }}],
        "contexts": [{"name": "kit", "context": {"cluster": "kit", "user": user}}],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kubeconfig_contains_the_server_and_the_key() {
        let pair = CertificatePair { certificate: "CERTIFICATE".into(), key: "KEY".into() };
        let config = render("https://172.31.0.1:6443", "beeline-agent-n1", "AUTHORITY", &pair);
        assert_eq!(config["clusters"][0]["cluster"]["server"], "https://172.31.0.1:6443");
        let user = &config["users"][0];
        assert_eq!(user["name"], config["contexts"][0]["context"]["user"]);
        let decoded = STANDARD.decode(user["user"]["client-key-data"].as_str().unwrap()).unwrap();
        assert_eq!(decoded, b"KEY");
    }
}
