//! The first word with a cluster, before anything is written: is it reached, is it the one, does it know us, may we read
//! what an agent reads, and does it give us a token of our own for the code's.

use crate::administrator::uid;
use crate::code::Code;
use crate::grant::{TokenRequestError, request_token};
use crate::listing::{self, Listing};
use crate::pods::Pods;
use crate::request::{self, RequestError};
use crate::standing::command;
use crate::token::Token;
use jiff::Timestamp;
use kube::{Client, Config};
use std::net::SocketAddr;

#[derive(Debug)]
pub struct Contact {
    /// The first that answered.
    pub server: String,
    pub services: Listing,
    pub nodes: Listing,
    pub pods: Pods,
    /// The host's own, which the code's was good for.
    pub token: Token,
}

#[derive(Debug, thiserror::Error)]
pub enum ContactError {
    #[error(
        "the code expired at {expired}, and this host's clock says {now}: \
         set the clock, or run `{grant}` again"
    )]
    Expired { expired: Timestamp, now: Timestamp, grant: String },
    #[error(
        "no API server of the code is reached: {0}: is there a route and an open port from this host? \
             `beeline grant --api-server URL` names other addresses"
    )]
    Unreachable(String),
    #[error(
        "{server} is not who the code says: {why}. Somebody stands in between, or the cluster's authority is another \
         one by now: run `beeline grant` again"
    )]
    Untrusted { server: String, why: String },
    #[error("{server} does not accept the code's token (401): it was revoked or is too old: run `{grant}` again")]
    Unauthorized { server: String, grant: String },
    #[error("{server} does not let {host} do what an agent does: {why}: run `{grant}` again, it mends the roles")]
    Forbidden { server: String, host: String, why: String, grant: String },
    #[error(
        "{server} is another cluster (UID {found}) than the one of the code (UID {wanted}): check --api-server of `beeline grant`"
    )]
    OtherCluster { server: String, found: String, wanted: String },
    #[error("{server}: {why}: is it an API server, and is it well? `kubectl get --raw /readyz` tells")]
    Strange { server: String, why: String },
}

impl Contact {
    /// `knock`: whether somebody answers at an address of a pod.
    pub async fn make<F>(code: &Code, now: Timestamp, knock: impl Fn(SocketAddr) -> F) -> Result<Contact, ContactError>
    where
        F: Future<Output = bool> + Send + 'static,
    {
        if code.token.is_expired(now) {
            let grant = command("grant", &code.token);
            return Err(ContactError::Expired { expired: code.token.expires, now, grant });
        }
        let (server, client) = reach(code).await?;
        let failed = |error| refused(&server, code, error);
        let nodes = listing::nodes(&client).await.map_err(failed)?;
        let services = listing::count(&client, "/api/v1/services").await.map_err(failed)?;
        let pods = Pods::look(&client, &nodes, knock).await.map_err(failed)?;
        let token = exchange(&client, &server, code).await?;
        Ok(Contact { server: server.clone(), services, nodes, pods, token })
    }
}

/// The servers in turn. One that answers with a no has answered.
async fn reach(code: &Code) -> Result<(String, Client), ContactError> {
    let mut failures = Vec::new();
    for server in &code.servers {
        let client = client(code, server)?;
        match uid(&client).await {
            Ok(found) if found == code.uid => return Ok((server.clone(), client)),
            Ok(found) => {
                let wanted = code.uid.clone();
                return Err(ContactError::OtherCluster { server: server.clone(), found, wanted });
            }
            Err(RequestError::Failed(why)) if why.contains("invalid peer certificate") => {
                return Err(ContactError::Untrusted { server: server.clone(), why: certificate(&why) });
            }
            Err(error @ (RequestError::Failed(_) | RequestError::Silent)) => {
                failures.push(format!("{server}: {error}"))
            }
            Err(error) => return Err(refused(server, code, error)),
        }
    }
    Err(ContactError::Unreachable(failures.join("; ")))
}

async fn exchange(client: &Client, server: &str, code: &Code) -> Result<Token, ContactError> {
    let given = request_token(client, &code.token.namespace, &code.token.account, code.lifetime).await;
    given.map_err(|error| match error {
        TokenRequestError::Request(error) => refused(server, code, error),
        TokenRequestError::Token(_) => ContactError::Strange { server: server.to_owned(), why: error.to_string() },
    })
}

/// The part of the chain that is about the certificate.
fn certificate(why: &str) -> String {
    why.find("invalid peer certificate").map_or(why, |at| &why[at..]).to_owned()
}

fn refused(server: &str, code: &Code, error: RequestError) -> ContactError {
    let (server, grant) = (server.to_owned(), command("grant", &code.token));
    match error.code() {
        Some(401) => ContactError::Unauthorized { server, grant },
        Some(403) => {
            let host = code.token.account.clone();
            ContactError::Forbidden { server, host, why: error.to_string(), grant }
        }
        _ => ContactError::Strange { server, why: error.to_string() },
    }
}

fn client(code: &Code, server: &str) -> Result<Client, ContactError> {
    let strange = |why: String| ContactError::Strange { server: server.to_owned(), why };
    let mut config = Config::new(server.parse().map_err(|_| strange("is no URL".into()))?);
    config.root_cert = (!code.authorities.is_empty()).then(|| code.authorities.clone());
    config.tls_server_name = code.server_name.clone();
    config.auth_info.token = Some(code.token.text().to_owned().into());
    config.connect_timeout = Some(request::CONNECT);
    config.default_retry = false;
    Client::try_from(config).map_err(|error| strange(error.to_string()))
}
