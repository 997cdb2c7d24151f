//! `grant` creates the account of a host and its join code. `revoke` deletes the account.

use crate::admin_client::AdminClient;
use crate::host_name::HostName;
use crate::host_object::{self, HostObject, LABEL, RBAC, is_ours};
use crate::join_code::JoinCode;
use crate::request::{self, RequestError, apply, delete, get, post};
use crate::token::{Token, TokenError};
use serde_json::{Value, json};
use std::time::Duration;

/// The namespace of the hosts' accounts.
pub const DEFAULT_NAMESPACE: &str = "beeline-hosts";
/// The shortest token lifetime that an API server issues.
pub const MIN_TOKEN_LIFETIME: Duration = Duration::from_secs(600);

/// Lifetimes of what `grant` issues.
#[derive(Clone, Copy, Debug)]
pub struct GrantLifetimes {
    /// Lifetime of the join code.
    pub code: Duration,
    /// Lifetime of each of the host's own tokens, which are renewed at half of it.
    pub token: Duration,
}

#[derive(Debug, thiserror::Error)]
pub enum GrantError {
    #[error("request for {what} failed: {source}{}", advice(source))]
    Request { what: String, source: RequestError },
    #[error("the API server issued an unusable token: {0}")]
    Token(#[from] TokenError),
    #[error("{0} must be at least 10m, the shortest lifetime that an API server issues")]
    LifetimeTooShort(&'static str),
    #[error("{0} exists and was not created by `beeline grant`: choose another host name or another --namespace")]
    Foreign(String),
}

fn advice(error: &RequestError) -> &'static str {
    match error.code() {
        Some(401) => {
            "; the API server does not accept the credentials of the kubeconfig: check them with `kubectl auth whoami`"
        }
        Some(403) => {
            "; the kubeconfig needs the rights to create namespaces, service accounts and roles, such as cluster-admin"
        }
        _ => "",
    }
}

/// Idempotent: existing objects are updated, and each call returns a new code.
pub async fn grant(
    admin: &AdminClient,
    host: &HostName,
    namespace: &str,
    lifetimes: GrantLifetimes,
) -> Result<JoinCode, GrantError> {
    for (option, time) in [("--code-lifetime", lifetimes.code), ("--token-lifetime", lifetimes.token)] {
        if time < MIN_TOKEN_LIFETIME {
            return Err(GrantError::LifetimeTooShort(option));
        }
    }
    let uid = admin.cluster_uid().await.map_err(about("the cluster's UID"))?;
    apply_objects(admin, host, namespace).await?;
    let token = request_token(&admin.client, namespace, host.as_str(), lifetimes.code).await;
    Ok(JoinCode {
        cluster: admin.cluster.clone(),
        uid,
        servers: admin.servers.clone(),
        server_name: admin.server_name.clone(),
        authorities: admin.authorities.clone(),
        token: token.map_err(|error| error.into_grant(host))?,
        lifetime: lifetimes.token,
    })
}

/// Checks all objects before it changes any: objects of these names that `grant` did not create are not changed.
async fn apply_objects(admin: &AdminClient, host: &HostName, namespace: &str) -> Result<(), GrantError> {
    let objects: Vec<HostObject> =
        host_object::host_objects(host, namespace).into_iter().chain([host_object::reader_role()]).collect();
    for object in &objects {
        exists(admin, object).await?;
    }
    ensure_namespace(admin, namespace).await?;
    for HostObject { path, content } in &objects {
        apply(&admin.client, path, content).await.map_err(about(path))?;
    }
    Ok(())
}

/// Deletes the objects of a host and returns their paths. The namespace stays, because it may hold other objects.
pub async fn revoke(admin: &AdminClient, host: &HostName, namespace: &str) -> Result<Vec<String>, GrantError> {
    let mut removed = Vec::new();
    // The account is deleted first, which invalidates its tokens.
    for object in host_object::host_objects(host, namespace) {
        removed.extend(remove(admin, object).await?);
    }
    if !removed.is_empty() && was_last_host(admin).await? {
        removed.extend(remove(admin, host_object::reader_role()).await?);
    }
    Ok(removed)
}

async fn exists(admin: &AdminClient, object: &HostObject) -> Result<bool, GrantError> {
    match get(&admin.client, &object.path).await {
        Ok(found) if is_ours(&found) => Ok(true),
        Ok(_) => Err(GrantError::Foreign(object.path.clone())),
        Err(error) if error.code() == Some(404) => Ok(false),
        Err(error) => Err(about(&object.path)(error)),
    }
}

async fn remove(admin: &AdminClient, object: HostObject) -> Result<Option<String>, GrantError> {
    if !exists(admin, &object).await? {
        return Ok(None);
    }
    match delete(&admin.client, &object.path).await {
        Ok(_) => Ok(Some(object.path)),
        Err(error) if error.code() == Some(404) => Ok(None),
        Err(error) => Err(about(&object.path)(error)),
    }
}

async fn was_last_host(admin: &AdminClient) -> Result<bool, GrantError> {
    let path = format!("{RBAC}/clusterrolebindings?labelSelector={LABEL}%3Dtrue&limit=1");
    let left = get(&admin.client, &path).await.map_err(about(&path))?;
    Ok(left["items"].as_array().is_none_or(Vec::is_empty))
}

fn about(what: &str) -> impl FnOnce(RequestError) -> GrantError {
    let what = what.to_owned();
    move |source| GrantError::Request { what, source }
}

/// Creates the namespace only if it is missing. An existing namespace is not labelled.
async fn ensure_namespace(admin: &AdminClient, namespace: &str) -> Result<(), GrantError> {
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
    #[error("the API server issued an unusable token: {0}")]
    Token(#[from] TokenError),
}

impl TokenRequestError {
    fn into_grant(self, host: &HostName) -> GrantError {
        match self {
            TokenRequestError::Request(source) => {
                GrantError::Request { what: format!("a token of the host {host}"), source }
            }
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
        "spec": { "expirationSeconds": lifetime.max(MIN_TOKEN_LIFETIME).as_secs() },
    });
    let response = request::post(client, &path, &body).await?;
    Ok(Token::parse(response.pointer("/status/token").and_then(Value::as_str).unwrap_or_default())?)
}
