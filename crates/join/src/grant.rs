//! Makes a host known to the cluster, and forgets it again.

use crate::administrator::Administrator;
use crate::code::Code;
use crate::host::HostName;
use crate::object::{self, LABEL, Object, RBAC, is_ours};
use crate::request::{self, RequestError, apply, delete, get, post};
use crate::token::{Token, TokenError};
use serde_json::{Value, json};
use std::time::Duration;

/// Where the accounts of hosts are, unless it is said otherwise.
pub const NAMESPACE: &str = "beeline-hosts";
/// No API server gives a token for less.
pub const LEAST_LIFETIME: Duration = Duration::from_secs(600);

/// How long things hold.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// Until then the code must have been used.
    pub code: Duration,
    /// Each of the host's own tokens, which are renewed at half of it.
    pub token: Duration,
}

#[derive(Debug, thiserror::Error)]
pub enum GrantError {
    #[error("{what}: {source}{}", advice(source))]
    Request { what: String, source: RequestError },
    #[error("the API server's answer to the request for a token: {0}")]
    Token(#[from] TokenError),
    #[error("{0}: at least 10m, which is the least that an API server gives")]
    Short(&'static str),
    #[error(
        "{0} is there and was not made by `beeline grant`: choose another name for the host, or another --namespace"
    )]
    Foreign(String),
}

fn advice(error: &RequestError) -> &'static str {
    match error.code() {
        Some(401) => "; the kubeconfig's own credentials are not accepted: does `kubectl auth whoami` work with it?",
        Some(403) => "; it takes the rights to make namespaces, service accounts and roles (cluster-admin has them)",
        _ => "",
    }
}

/// May be repeated: what is there is brought to what it should be, and the code is a new one each time.
pub async fn grant(admin: &Administrator, host: &HostName, namespace: &str, terms: Terms) -> Result<Code, GrantError> {
    for (option, time) in [("--valid", terms.code), ("--lifetime", terms.token)] {
        if time < LEAST_LIFETIME {
            return Err(GrantError::Short(option));
        }
    }
    let uid = admin.uid().await.map_err(about("the cluster's UID"))?;
    make(admin, host, namespace).await?;
    let token = request_token(&admin.client, namespace, host.as_str(), terms.code).await;
    Ok(Code {
        cluster: admin.cluster.clone(),
        uid,
        servers: admin.servers.clone(),
        server_name: admin.server_name.clone(),
        authorities: admin.authorities.clone(),
        token: token.map_err(|error| error.into_grant(host))?,
        lifetime: terms.token,
    })
}

/// Looks at everything before it changes anything: what others made under these names is not ours to change.
async fn make(admin: &Administrator, host: &HostName, namespace: &str) -> Result<(), GrantError> {
    let objects: Vec<Object> = object::of_host(host, namespace).into_iter().chain([object::reader()]).collect();
    for object in &objects {
        is_there(admin, object).await?;
    }
    ensure_namespace(admin, namespace).await?;
    for Object { path, content } in &objects {
        apply(&admin.client, path, content).await.map_err(about(path))?;
    }
    Ok(())
}

/// What was there and is not any more. The namespace stays: others may have put something into it.
pub async fn revoke(admin: &Administrator, host: &HostName, namespace: &str) -> Result<Vec<String>, GrantError> {
    let mut removed = Vec::new();
    // The account first: from then on its tokens are worth nothing.
    for object in object::of_host(host, namespace) {
        removed.extend(remove(admin, object).await?);
    }
    if !removed.is_empty() && is_last(admin).await? {
        removed.extend(remove(admin, object::reader()).await?);
    }
    Ok(removed)
}

async fn is_there(admin: &Administrator, object: &Object) -> Result<bool, GrantError> {
    match get(&admin.client, &object.path).await {
        Ok(found) if is_ours(&found) => Ok(true),
        Ok(_) => Err(GrantError::Foreign(object.path.clone())),
        Err(error) if error.code() == Some(404) => Ok(false),
        Err(error) => Err(about(&object.path)(error)),
    }
}

async fn remove(admin: &Administrator, object: Object) -> Result<Option<String>, GrantError> {
    if !is_there(admin, &object).await? {
        return Ok(None);
    }
    match delete(&admin.client, &object.path).await {
        Ok(_) => Ok(Some(object.path)),
        Err(error) if error.code() == Some(404) => Ok(None),
        Err(error) => Err(about(&object.path)(error)),
    }
}

async fn is_last(admin: &Administrator) -> Result<bool, GrantError> {
    let path = format!("{RBAC}/clusterrolebindings?labelSelector={LABEL}%3Dtrue&limit=1");
    let left = get(&admin.client, &path).await.map_err(about(&path))?;
    Ok(left["items"].as_array().is_none_or(Vec::is_empty))
}

fn about(what: &str) -> impl FnOnce(RequestError) -> GrantError {
    let what = what.to_owned();
    move |source| GrantError::Request { what, source }
}

/// Made only if it is missing: one that was there before is not ours to label.
async fn ensure_namespace(admin: &Administrator, namespace: &str) -> Result<(), GrantError> {
    let path = format!("/api/v1/namespaces/{namespace}");
    match get(&admin.client, &path).await {
        Err(error) if error.code() == Some(404) => {}
        other => return other.map(drop).map_err(about(&path)),
    }
    let object = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": namespace } });
    match post(&admin.client, "/api/v1/namespaces", &object).await {
        Err(error) if error.code() != Some(409) => Err(about(&path)(error)),
        _ => Ok(()),
    }
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum TokenRequestError {
    #[error(transparent)]
    Request(#[from] RequestError),
    #[error("the API server's answer to the request for a token: {0}")]
    Token(#[from] TokenError),
}

impl TokenRequestError {
    fn into_grant(self, host: &HostName) -> GrantError {
        match self {
            TokenRequestError::Request(source) => GrantError::Request { what: format!("a token for {host}"), source },
            TokenRequestError::Token(error) => GrantError::Token(error),
        }
    }
}

pub(crate) async fn request_token(
    client: &kube::Client,
    namespace: &str,
    account: &str,
    lifetime: Duration,
) -> Result<Token, TokenRequestError> {
    let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token");
    let body = json!({
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": { "expirationSeconds": lifetime.max(LEAST_LIFETIME).as_secs() },
    });
    let answer = request::post(client, &path, &body).await?;
    Ok(Token::parse(answer.pointer("/status/token").and_then(Value::as_str).unwrap_or_default())?)
}
