//! The parent's side of a child process: sockets in another namespace and cgroup, used as if they were local.

mod socket;

use std::{
    io::{BufRead, BufReader, Write},
    process::{Child, ChildStdin, ChildStdout},
    sync::Mutex,
};

use anyhow::{Context, anyhow};

pub use self::socket::Socket;
use crate::{
    cgroup::Cgroup,
    echo_server::EchoService,
    errno::Errno,
    load::{LoadConfig, LoadReport},
    netns::NetworkNamespace,
    program::TestProgram,
    protocol::{ChildRequest, ChildResponse, ChildValue, Slot, SocketFamily, SocketType},
};

/// Environment variable that turns any program that links this crate into a child process of the harness.
pub(crate) const CHILD: &str = "BEELINE_HARNESS_CHILD";

/// A failed call: an errno from the kernel, or a failure of the child process itself.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    #[error("{step}: {errno}")]
    Os { step: &'static str, errno: Errno },
    #[error("harness child process: {0:#}")]
    Child(#[from] anyhow::Error),
}

impl CallError {
    pub fn errno(&self) -> Option<Errno> {
        match self {
            CallError::Os { errno, .. } => Some(*errno),
            CallError::Child(_) => None,
        }
    }
}

type Result<T> = std::result::Result<T, CallError>;

/// A process in a namespace and a cgroup that makes socket calls on request. It is killed and reaped on drop.
#[derive(Debug)]
pub struct Client {
    child: Child,
    pipes: Mutex<(ChildStdin, BufReader<ChildStdout>)>,
}

impl Client {
    pub fn start(namespace: Option<&NetworkNamespace>, cgroup: Option<&Cgroup>) -> anyhow::Result<Self> {
        let mut child = TestProgram::new("/proc/self/exe", namespace, cgroup)?.env(CHILD, "1").spawn_piped()?;
        let stdin = child.stdin.take().context("stdin is piped")?;
        let stdout = BufReader::new(child.stdout.take().context("stdout is piped")?);
        Ok(Client { child, pipes: Mutex::new((stdin, stdout)) })
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn call(&self, step: &'static str, request: &ChildRequest) -> Result<(ChildValue, u64)> {
        let response = self.exchange(request).with_context(|| format!("{step} ({request:?})"))?;
        response.result.map(|value| (value, response.nanos)).map_err(|errno| CallError::Os { step, errno })
    }

    fn exchange(&self, request: &ChildRequest) -> anyhow::Result<ChildResponse> {
        let mut pipes = self.pipes.lock().expect("no panic while held");
        let (stdin, stdout) = &mut *pipes;
        writeln!(stdin, "{}", serde_json::to_string(request)?)?;
        let mut line = String::new();
        stdout.read_line(&mut line)?;
        serde_json::from_str(&line).with_context(|| format!("unexpected response from the harness child: {line:?}"))
    }

    pub fn socket(&self, family: SocketFamily, socket_type: SocketType) -> Result<Socket<'_>> {
        match self.call("socket", &ChildRequest::Socket { family, socket_type })? {
            (ChildValue::Slot(slot), _) => Ok(Socket { client: self, slot }),
            other => Err(unexpected(other)),
        }
    }

    pub fn tcp(&self, family: SocketFamily) -> Result<Socket<'_>> {
        self.socket(family, SocketType::Tcp)
    }

    pub fn udp(&self, family: SocketFamily) -> Result<Socket<'_>> {
        self.socket(family, SocketType::Udp)
    }

    /// Serves from the child process: its replies pass the hooks of its cgroup, as those of a real pod do.
    pub fn serve(&self, service: EchoService) -> Result<ChildServer<'_>> {
        match self.call("serve", &ChildRequest::Serve(service))? {
            (ChildValue::Slot(slot), _) => Ok(ChildServer { client: self, slot }),
            other => Err(unexpected(other)),
        }
    }

    /// Starts to dial in the background. `stop_load` or `finish_load` returns the report. A client runs one load at a
    /// time.
    pub fn start_load(&self, config: LoadConfig) -> Result<()> {
        self.call("load", &ChildRequest::StartLoad(config)).map(drop)
    }

    pub fn stop_load(&self) -> Result<LoadReport> {
        self.load_report(true)
    }

    /// Waits until the load has reached its own limit.
    pub fn finish_load(&self) -> Result<LoadReport> {
        self.load_report(false)
    }

    fn load_report(&self, now: bool) -> Result<LoadReport> {
        match self.call("load", &ChildRequest::StopLoad { now })? {
            (ChildValue::LoadReport(report), _) => Ok(report),
            other => Err(unexpected(other)),
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// An echo server in a child process; stopped on drop.
#[derive(Debug)]
pub struct ChildServer<'c> {
    client: &'c Client,
    slot: Slot,
}

impl ChildServer<'_> {
    /// Accepted TCP connections, answered TCP requests, answered UDP datagrams.
    pub fn counts(&self) -> Result<(u64, u64, u64)> {
        match self.client.call("counts", &ChildRequest::ServerCounts { slot: self.slot })? {
            (ChildValue::ServerCounts { connections, requests, datagrams }, _) => {
                Ok((connections, requests, datagrams))
            }
            other => Err(unexpected(other)),
        }
    }
}

impl Drop for ChildServer<'_> {
    fn drop(&mut self) {
        let _ = self.client.exchange(&ChildRequest::StopServer { slot: self.slot });
    }
}

fn unexpected(response: (ChildValue, u64)) -> CallError {
    anyhow!("unexpected response {response:?}").into()
}
