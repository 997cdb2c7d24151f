//! Requests to an API server, as JSON: a handful of objects, of which no more is known here than is written.

use http::Request;
use kube::Client;
use serde_json::Value;
use std::time::Duration;

/// Until an answer.
const PATIENCE: Duration = Duration::from_secs(15);
/// A server that does not even accept within this time is as good as gone.
pub(crate) const CONNECT: Duration = Duration::from_secs(5);

#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// It answered, and would not.
    #[error("{message} ({code})")]
    Refused { code: u16, message: String },
    #[error("no answer within {} s", PATIENCE.as_secs())]
    Silent,
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

/// Server-side apply: made if it is not there, brought to this if it is.
pub(crate) async fn apply(client: &Client, path: &str, object: &Value) -> Result<Value, RequestError> {
    let path = format!("{path}?fieldManager=beeline&force=true");
    let request = Request::patch(path).header("content-type", "application/apply-patch+yaml");
    send(client, request, object.to_string().into_bytes()).await
}

async fn send(client: &Client, request: http::request::Builder, body: Vec<u8>) -> Result<Value, RequestError> {
    let request = request.body(body).map_err(|e| RequestError::Failed(e.to_string()))?;
    match tokio::time::timeout(PATIENCE, client.request::<Value>(request)).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(kube::Error::Api(status))) => {
            Err(RequestError::Refused { code: status.code, message: status.message.clone() })
        }
        Ok(Err(other)) => Err(RequestError::Failed(chain(&other))),
        Err(_) => Err(RequestError::Silent),
    }
}

/// The whole chain: the first link alone is often no more than "error sending request".
fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let links = std::iter::successors(Some(error), |link| link.source());
    links.fold(String::new(), |text, link| match link.to_string() {
        said if text.contains(&said) => text,
        said if text.is_empty() => said,
        said => format!("{text}: {said}"),
    })
}
