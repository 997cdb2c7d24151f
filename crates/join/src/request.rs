//! Requests to an API server with plain JSON values. This crate writes only a few objects and needs no typed API for them.

use http::Request;
use kube::Client;
use serde_json::Value;
use std::time::Duration;

/// Time limit of a request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(15);
/// Time limit of a TCP connect. A server that does not accept within this time counts as unreachable.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// The API server answered with an error status.
    #[error("{message} ({code})")]
    Refused { code: u16, message: String },
    #[error("no response within {} s", REQUEST_TIMEOUT.as_secs())]
    TimedOut,
    #[error("{0}")]
    Failed(String),
}

impl RequestError {
    pub(crate) fn code(&self) -> Option<u16> {
        if let RequestError::Refused { code, .. } = self { Some(*code) } else { None }
    }
}

pub(crate) async fn get(client: &Client, path: &str) -> Result<Value, RequestError> {
    send(client, Request::get(path), Vec::new()).await
}

pub(crate) async fn post(client: &Client, path: &str, body: &Value) -> Result<Value, RequestError> {
    let request = Request::post(path).header("content-type", "application/json");
    send(client, request, body.to_string().into_bytes()).await
}

pub(crate) async fn delete(client: &Client, path: &str) -> Result<Value, RequestError> {
    send(client, Request::delete(path), Vec::new()).await
}

/// Server-side apply: creates the object, or changes it to `object`.
pub(crate) async fn apply(client: &Client, path: &str, object: &Value) -> Result<Value, RequestError> {
    let path = format!("{path}?fieldManager=beeline&force=true");
    let request = Request::patch(path).header("content-type", "application/apply-patch+yaml");
    send(client, request, object.to_string().into_bytes()).await
}

async fn send(client: &Client, request: http::request::Builder, body: Vec<u8>) -> Result<Value, RequestError> {
    let request = request.body(body).map_err(|e| RequestError::Failed(e.to_string()))?;
    match tokio::time::timeout(REQUEST_TIMEOUT, client.request::<Value>(request)).await {
        Ok(Ok(response)) => Ok(response),
        Ok(Err(kube::Error::Api(status))) => {
            Err(RequestError::Refused { code: status.code, message: status.message.clone() })
        }
        Ok(Err(other)) => Err(RequestError::Failed(error_chain(&other))),
        Err(_) => Err(RequestError::TimedOut),
    }
}

/// All causes of an error: the first message alone is often only "error sending request".
fn error_chain(error: &(dyn std::error::Error + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |cause| cause.source());
    causes.fold(String::new(), |text, cause| match cause.to_string() {
        message if text.contains(&message) => text,
        message if text.is_empty() => message,
        message => format!("{text}: {message}"),
    })
}
