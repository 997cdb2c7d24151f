//! The checks of `beeline join` before it writes anything: the API server is reachable, is the cluster of the code,
//! accepts the code's token, lets the host read what an agent reads, and issues the host's own token.

use crate::admin_client::cluster_uid;
use crate::grant::{TokenRequestError, request_token};
use crate::join_code::JoinCode;
use crate::list_summary::{self, ListSummary};
use crate::pod_reachability::PodReachability;
use crate::request::{self, RequestError};
use crate::token::Token;
use crate::token_state::admin_command;
use jiff::Timestamp;
use kube::{Client, Config};
use std::net::SocketAddr;

#[derive(Debug)]
pub struct Preflight {
    /// The API server that answered first.
    pub server: String,
    pub services: ListSummary,
    pub nodes: ListSummary,
    pub pods: PodReachability,
    /// The host's own token, requested with the token of the code.
    pub token: Token,
}

#[derive(Debug, thiserror::Error)]
pub enum PreflightError {
    #[error(
        "the code expired at {expired}, and this host's clock is at {now}: \
         correct the clock, or run `{grant}` again"
    )]
    Expired { expired: Timestamp, now: Timestamp, grant: String },
    #[error(
        "no API server of the code is reachable: {0}: check the route and the firewall between this host and the API server, \
         or run `beeline grant --api-server URL` to put other addresses into the code"
    )]
    Unreachable(String),
    #[error(
        "the certificate of {server} does not match the CA in the code: {why}. Either the connection is intercepted, or the \
         cluster's CA has changed since the code was created: run `beeline grant` again"
    )]
    Untrusted { server: String, why: String },
    #[error(
        "{server} does not accept the code's token (401): the token was revoked or has expired: run `{grant}` again"
    )]
    Unauthorized { server: String, grant: String },
    #[error(
        "{server} denies {host} the access that an agent needs: {why}: run `{grant}` again, which restores the roles"
    )]
    Forbidden { server: String, host: String, why: String, grant: String },
    #[error(
        "{server} is another cluster (UID {found}) than that of the code (UID {wanted}): check --api-server of `beeline grant`"
    )]
    OtherCluster { server: String, found: String, wanted: String },
    #[error(
        "unexpected response from {server}: {why}: check with `kubectl get --raw /readyz` that it is a healthy API server"
    )]
    Unexpected { server: String, why: String },
}

impl Preflight {
    /// `probe` reports whether something answers at a pod's address.
    pub async fn run<F>(
        code: &JoinCode,
        now: Timestamp,
        probe: impl Fn(SocketAddr) -> F,
    ) -> Result<Preflight, PreflightError>
    where
        F: Future<Output = bool> + Send + 'static,
    {
        if code.token.is_expired(now) {
            let grant = admin_command("grant", &code.token);
            return Err(PreflightError::Expired { expired: code.token.expires, now, grant });
        }
        let (server, client) = connect(code).await?;
        let failed = |error| error_of(&server, code, error);
        let nodes = list_summary::nodes(&client).await.map_err(failed)?;
        let services = list_summary::count(&client, "/api/v1/services").await.map_err(failed)?;
        let pods = PodReachability::probe(&client, &nodes, probe).await.map_err(failed)?;
        let token = request_own_token(&client, &server, code).await?;
        Ok(Preflight { server: server.clone(), services, nodes, pods, token })
    }
}

/// Tries the servers in order. A server that answers with an error ends the search: the cluster is reachable.
async fn connect(code: &JoinCode) -> Result<(String, Client), PreflightError> {
    let mut failures = Vec::new();
    for server in &code.servers {
        let client = client(code, server)?;
        match cluster_uid(&client).await {
            Ok(found) if found == code.uid => return Ok((server.clone(), client)),
            Ok(found) => {
                let wanted = code.uid.clone();
                return Err(PreflightError::OtherCluster { server: server.clone(), found, wanted });
            }
            Err(RequestError::Failed(why)) if why.contains("invalid peer certificate") => {
                return Err(PreflightError::Untrusted { server: server.clone(), why: certificate_error(&why) });
            }
            Err(error @ (RequestError::Failed(_) | RequestError::TimedOut)) => {
                failures.push(format!("{server}: {error}"))
            }
            Err(error) => return Err(error_of(server, code, error)),
        }
    }
    Err(PreflightError::Unreachable(failures.join("; ")))
}

async fn request_own_token(client: &Client, server: &str, code: &JoinCode) -> Result<Token, PreflightError> {
    let issued = request_token(client, &code.token.namespace, &code.token.account, code.lifetime).await;
    issued.map_err(|error| match error {
        TokenRequestError::Request(error) => error_of(server, code, error),
        TokenRequestError::Token(_) => PreflightError::Unexpected { server: server.to_owned(), why: error.to_string() },
    })
}

/// The part of the error chain that is about the certificate.
fn certificate_error(why: &str) -> String {
    why.find("invalid peer certificate").map_or(why, |at| &why[at..]).to_owned()
}

fn error_of(server: &str, code: &JoinCode, error: RequestError) -> PreflightError {
    let (server, grant) = (server.to_owned(), admin_command("grant", &code.token));
    match error.code() {
        Some(401) => PreflightError::Unauthorized { server, grant },
        Some(403) => {
            let host = code.token.account.clone();
            PreflightError::Forbidden { server, host, why: error.to_string(), grant }
        }
        _ => PreflightError::Unexpected { server, why: error.to_string() },
    }
}

fn client(code: &JoinCode, server: &str) -> Result<Client, PreflightError> {
    let unexpected = |why: String| PreflightError::Unexpected { server: server.to_owned(), why };
    let mut config = Config::new(server.parse().map_err(|_| unexpected("not a URL".into()))?);
    config.root_cert = (!code.authorities.is_empty()).then(|| code.authorities.clone());
    config.tls_server_name = code.server_name.clone();
    config.auth_info.token = Some(code.token.text().to_owned().into());
    config.connect_timeout = Some(request::CONNECT_TIMEOUT);
    config.default_retry = false;
    Client::try_from(config).map_err(|error| unexpected(error.to_string()))
}
