//! Verifies which cluster a server belongs to, before any of its answers is used. A cluster is identified by the UID of
//! its namespace kube-system. The caller of this crate decides whether that UID is the expected one.

use kube::Client;
use std::fmt;
use std::sync::Arc;

const PATH: &str = "/api/v1/namespaces/kube-system";

/// Decides by its UID whether a cluster is the expected one. The error says why not, and what to do.
#[derive(Clone)]
pub struct ClusterIdCheck(Arc<UidCheck>);

type UidCheck = dyn Fn(&str) -> Result<(), String> + Send + Sync;

impl ClusterIdCheck {
    pub fn new(check: impl Fn(&str) -> Result<(), String> + Send + Sync + 'static) -> ClusterIdCheck {
        ClusterIdCheck(Arc::new(check))
    }
}

impl fmt::Debug for ClusterIdCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClusterIdCheck")
    }
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum ClusterIdError {
    #[error("cannot read the cluster's identity, the UID of namespace kube-system: {} ({}){}", .0.message, .0.code, advice(.0.code))]
    Refused(Box<kube::core::Status>),
    #[error(transparent)]
    Request(kube::Error),
    #[error("namespace kube-system has no UID: this is not a Kubernetes API server")]
    NoUid,
    #[error("{0}")]
    WrongCluster(String),
}

fn advice(code: u16) -> &'static str {
    match code {
        401 => "; check that the token or certificate is still valid (it is read again at every retry)",
        403 => "; grant the account `get` on namespace kube-system",
        _ => "",
    }
}

impl ClusterIdCheck {
    /// Returns the accepted UID and the size of the response in bytes.
    pub(crate) async fn verify(&self, client: &Client) -> Result<(String, usize), ClusterIdError> {
        let (uid, bytes) = read_uid(client).await?;
        (self.0)(&uid).map_err(ClusterIdError::WrongCluster)?;
        Ok((uid, bytes))
    }
}

async fn read_uid(client: &Client) -> Result<(String, usize), ClusterIdError> {
    #[derive(serde::Deserialize)]
    struct Namespace {
        metadata: Meta,
    }
    #[derive(serde::Deserialize)]
    struct Meta {
        uid: Option<String>,
    }
    // Building the request fails only for a malformed path, and PATH is a constant.
    let request = http::Request::get(PATH).body(Vec::new()).map_err(|_| ClusterIdError::NoUid)?;
    let text = client.request_text(request).await.map_err(|error| match error {
        kube::Error::Api(status) => ClusterIdError::Refused(status),
        other => ClusterIdError::Request(other),
    })?;
    let namespace: Namespace = serde_json::from_str(&text).map_err(|_| ClusterIdError::NoUid)?;
    let uid = namespace.metadata.uid.filter(|uid| !uid.is_empty()).ok_or(ClusterIdError::NoUid)?;
    Ok((uid, text.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_names_the_status_code_and_the_next_step() {
        let message = |code, message: &str| {
            let status = kube::core::Status { code, message: message.into(), ..Default::default() };
            ClusterIdError::Refused(Box::new(status)).to_string()
        };
        let expired = message(401, "Unauthorized");
        assert!(expired.contains("Unauthorized (401); check that the token"), "{expired}");
        assert!(message(403, "no").ends_with("no (403); grant the account `get` on namespace kube-system"));
        assert!(message(503, "apiserver is shutting down").ends_with("apiserver is shutting down (503)"));
    }
}
