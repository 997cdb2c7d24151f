//! A blocking client of the agent's socket, for the command line.

use crate::event::{EventFilter, MonitorLine};
use crate::explain::{PendingAddress, ServiceExplanation};
use crate::policy::PolicyReport;
use crate::request::{PodLocation, PolicyQuery, Request, Response};
use crate::status::AgentStatus;
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::net::IpAddr;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error("no agent listens at {}: start one, or name its --socket", .0.display())]
    NoAgent(PathBuf),
    #[error("permission denied: {} belongs to root (sudo beeline ...)", .0.display())]
    PermissionDenied(PathBuf),
    #[error("the agent did not answer within 10 s")]
    Timeout,
    /// The agent refused the request.
    #[error("{0}")]
    Refused(String),
    #[error("unexpected response from the agent (does it have another version than this program?): {0}")]
    Protocol(String),
    #[error("the connection to the agent failed: {0}")]
    Io(#[from] std::io::Error),
}

#[derive(Clone, Debug)]
pub struct AgentClient {
    socket: PathBuf,
}

impl AgentClient {
    pub fn new(socket: &Path) -> AgentClient {
        AgentClient { socket: socket.to_owned() }
    }

    pub fn status(&self) -> Result<AgentStatus, ClientError> {
        match self.call(&Request::Status)? {
            Response::Status(status) => Ok(*status),
            other => Err(unexpected(&other)),
        }
    }

    /// `None`: the agent does not know this service port.
    pub fn explain(&self, owner: String) -> Result<Option<ServiceExplanation>, ClientError> {
        match self.call(&Request::Explain { owner })? {
            Response::Explanation(explanation) => Ok(explanation),
            other => Err(unexpected(&other)),
        }
    }

    pub fn explain_address(&self, address: IpAddr) -> Result<Vec<PendingAddress>, ClientError> {
        match self.call(&Request::ExplainAddress { address })? {
            Response::PendingAddresses(pending) => Ok(pending),
            other => Err(unexpected(&other)),
        }
    }

    pub fn policies(&self, query: PolicyQuery) -> Result<Vec<PolicyReport>, ClientError> {
        match self.call(&Request::Policies(query))? {
            Response::Policies(policies) => Ok(policies),
            other => Err(unexpected(&other)),
        }
    }

    pub fn pods(&self, name: &str) -> Result<Vec<PodLocation>, ClientError> {
        match self.call(&Request::Pods { name: name.to_owned() })? {
            Response::Pods(pods) => Ok(pods),
            other => Err(unexpected(&other)),
        }
    }

    /// Returns the level that is in effect.
    pub fn set_event_level(&self, level: &str) -> Result<String, ClientError> {
        match self.call(&Request::SetEventLevel { level: level.to_owned() })? {
            Response::EventLevel(level) => Ok(level),
            other => Err(unexpected(&other)),
        }
    }

    pub fn create_view_cgroup(&self, view: &str) -> Result<PathBuf, ClientError> {
        match self.call(&Request::CreateViewCgroup { view: view.to_owned() })? {
            Response::Cgroup(cgroup) => Ok(cgroup),
            other => Err(unexpected(&other)),
        }
    }

    /// A stream of events. `level` is the event level for as long as the stream is open.
    pub fn monitor(&self, filter: EventFilter, level: Option<String>) -> Result<EventStream, ClientError> {
        let mut stream = self.connect()?;
        send(&mut stream, &Request::Monitor { filter, level })?;
        Ok(EventStream { lines: BufReader::new(stream).lines() })
    }

    fn call(&self, request: &Request) -> Result<Response, ClientError> {
        let mut stream = self.connect()?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        send(&mut stream, request)?;
        let mut line = String::new();
        BufReader::new(&stream).read_line(&mut line).map_err(|error| match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => ClientError::Timeout,
            _ => error.into(),
        })?;
        match serde_json::from_str(&line) {
            Ok(Response::Error(error)) => Err(ClientError::Refused(error)),
            Ok(response) => Ok(response),
            Err(error) => Err(ClientError::Protocol(error.to_string())),
        }
    }

    fn connect(&self) -> Result<UnixStream, ClientError> {
        UnixStream::connect(&self.socket).map_err(|error| match error.kind() {
            ErrorKind::NotFound | ErrorKind::ConnectionRefused => ClientError::NoAgent(self.socket.clone()),
            ErrorKind::PermissionDenied => ClientError::PermissionDenied(self.socket.clone()),
            _ => error.into(),
        })
    }
}

fn send(stream: &mut UnixStream, request: &Request) -> Result<(), ClientError> {
    let line = serde_json::to_string(request).map_err(|error| ClientError::Protocol(error.to_string()))?;
    Ok(writeln!(stream, "{line}")?)
}

fn unexpected(response: &Response) -> ClientError {
    let text = serde_json::to_string(response).unwrap_or_default();
    ClientError::Protocol(text.chars().take(80).collect())
}

/// The lines of a monitor stream, until the agent ends.
#[derive(Debug)]
pub struct EventStream {
    lines: std::io::Lines<BufReader<UnixStream>>,
}

impl Iterator for EventStream {
    type Item = Result<MonitorLine, ClientError>;

    fn next(&mut self) -> Option<Self::Item> {
        let line = match self.lines.next()? {
            Ok(line) => line,
            Err(error) => return Some(Err(error.into())),
        };
        Some(match serde_json::from_str(&line) {
            Ok(MonitorLine::Error { error }) => Err(ClientError::Refused(error)),
            Ok(line) => Ok(line),
            Err(error) => Err(ClientError::Protocol(error.to_string())),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    #[test]
    fn a_missing_socket_and_a_dead_one_mean_no_agent() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("agent.sock");
        assert!(matches!(AgentClient::new(&socket).status(), Err(ClientError::NoAgent(_))));
        drop(UnixListener::bind(&socket).unwrap());
        assert!(matches!(AgentClient::new(&socket).status(), Err(ClientError::NoAgent(_))));
    }

    #[test]
    fn a_refusal_and_an_unknown_response_are_different_errors() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("agent.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let agent = std::thread::spawn(move || {
            for answer in [r#"{"error":"there is no view red"}"#, r#"{"news":1}"#] {
                let (stream, _) = listener.accept().unwrap();
                let mut request = String::new();
                BufReader::new(&stream).read_line(&mut request).unwrap();
                assert_eq!(request, "{\"request\":\"createViewCgroup\",\"view\":\"red\"}\n");
                writeln!(&stream, "{answer}").unwrap();
            }
        });
        let client = AgentClient::new(&socket);
        let refused = client.create_view_cgroup("red").unwrap_err();
        assert_eq!(refused.to_string(), "there is no view red");
        assert!(matches!(client.create_view_cgroup("red"), Err(ClientError::Protocol(_))));
        agent.join().unwrap();
    }
}
