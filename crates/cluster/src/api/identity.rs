//! Which cluster it is: known by the UID of its namespace kube-system, and asked before anything else is believed. Whether
//! it is the right one is for whoever gave it its name to say.

use kube::Client;
use std::fmt;
use std::sync::Arc;

const PATH: &str = "/api/v1/namespaces/kube-system";

/// Says whether a cluster is the one that it should be, by its UID; else why not, and what to do.
#[derive(Clone)]
pub struct Passport(Arc<Judge>);

/// Takes a UID, or says why not.
type Judge = dyn Fn(&str) -> Result<(), String> + Send + Sync;

impl Passport {
    pub fn new(check: impl Fn(&str) -> Result<(), String> + Send + Sync + 'static) -> Passport {
        Passport(Arc::new(check))
    }
}

impl fmt::Debug for Passport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Passport")
    }
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum IdentityError {
    #[error("which cluster this is cannot be asked: {} ({}){}", .0.message, .0.code, advice(.0.code))]
    Refused(Box<kube::core::Status>),
    #[error(transparent)]
    NoAnswer(kube::Error),
    #[error("the namespace kube-system has no UID: this is no API server")]
    NoUid,
    #[error("{0}")]
    Stranger(String),
}

fn advice(code: u16) -> &'static str {
    match code {
        401 => "; are token or certificate of ours still valid? They are read again with every try",
        403 => "; give our account get of the namespace kube-system",
        _ => "",
    }
}

impl Passport {
    /// The UID that was accepted, and how many bytes it took to hear it.
    pub(crate) async fn show(&self, client: &Client) -> Result<(String, usize), IdentityError> {
        let (uid, bytes) = uid(client).await?;
        (self.0)(&uid).map_err(IdentityError::Stranger)?;
        Ok((uid, bytes))
    }
}

async fn uid(client: &Client) -> Result<(String, usize), IdentityError> {
    #[derive(serde::Deserialize)]
    struct Namespace {
        metadata: Meta,
    }
    #[derive(serde::Deserialize)]
    struct Meta {
        uid: Option<String>,
    }
    // A path that is written here is one.
    let request = http::Request::get(PATH).body(Vec::new()).map_err(|_| IdentityError::NoUid)?;
    let text = client.request_text(request).await.map_err(|error| match error {
        kube::Error::Api(status) => IdentityError::Refused(status),
        other => IdentityError::NoAnswer(other),
    })?;
    let answer: Namespace = serde_json::from_str(&text).map_err(|_| IdentityError::NoUid)?;
    let uid = answer.metadata.uid.filter(|uid| !uid.is_empty()).ok_or(IdentityError::NoUid)?;
    Ok((uid, text.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_to_do_is_what_helps() {
        let said = |code, message: &str| {
            let status = kube::core::Status { code, message: message.into(), ..Default::default() };
            IdentityError::Refused(Box::new(status)).to_string()
        };
        let expired = said(401, "Unauthorized");
        assert!(expired.contains("Unauthorized (401); are token"), "who reads it looks for the code: {expired}");
        assert!(said(403, "no").ends_with("no (403); give our account get of the namespace kube-system"));
        assert!(said(503, "apiserver is shutting down").ends_with("apiserver is shutting down (503)"));
    }
}
