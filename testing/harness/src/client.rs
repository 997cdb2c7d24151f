//! This side of a dialling child: sockets in another namespace and cgroup, used as if they were here.

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
    errno::Errno,
    netns::Namespace,
    op::{Family, Op, Reply, Slot, Sort, Value},
    serve::Service,
    spawn::Program,
    storm::{Storm, Tally},
};

/// In the environment of a program that links this crate: be a dialling child instead.
pub(crate) const CHILD: &str = "BEELINE_LAB_CHILD";

/// What a call in the child came to. Tests look at the errno; trouble with the child itself is no errno.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    #[error("{step}: {errno}")]
    Os { step: &'static str, errno: Errno },
    #[error("dialling child: {0:#}")]
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

/// A process in a namespace and a cgroup that makes socket calls for us; killed and reaped on drop.
#[derive(Debug)]
pub struct Client {
    child: Child,
    pipes: Mutex<(ChildStdin, BufReader<ChildStdout>)>,
}

impl Client {
    pub fn start(namespace: Option<&Namespace>, cgroup: Option<&Cgroup>) -> anyhow::Result<Self> {
        let mut child = Program::new("/proc/self/exe", namespace, cgroup)?.env(CHILD, "1").spawn_piped()?;
        let stdin = child.stdin.take().context("stdin is piped")?;
        let stdout = BufReader::new(child.stdout.take().context("stdout is piped")?);
        Ok(Client { child, pipes: Mutex::new((stdin, stdout)) })
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn call(&self, step: &'static str, op: &Op) -> Result<(Value, u64)> {
        let reply = self.exchange(op).with_context(|| format!("{step} ({op:?})"))?;
        reply.result.map(|value| (value, reply.nanos)).map_err(|errno| CallError::Os { step, errno })
    }

    fn exchange(&self, op: &Op) -> anyhow::Result<Reply> {
        let mut pipes = self.pipes.lock().expect("no panic while held");
        let (stdin, stdout) = &mut *pipes;
        writeln!(stdin, "{}", serde_json::to_string(op)?)?;
        let mut line = String::new();
        stdout.read_line(&mut line)?;
        serde_json::from_str(&line).with_context(|| format!("the child said {line:?}"))
    }

    pub fn socket(&self, family: Family, sort: Sort) -> Result<Socket<'_>> {
        match self.call("socket", &Op::Socket { family, sort })? {
            (Value::Slot(slot), _) => Ok(Socket { client: self, slot }),
            other => Err(odd(other)),
        }
    }

    pub fn tcp(&self, family: Family) -> Result<Socket<'_>> {
        self.socket(family, Sort::Tcp)
    }

    pub fn udp(&self, family: Family) -> Result<Socket<'_>> {
        self.socket(family, Sort::Udp)
    }

    /// Serves from the child: its replies pass the hooks of its cgroup, as those of a real pod do.
    pub fn serve(&self, service: Service) -> Result<Served<'_>> {
        match self.call("serve", &Op::Serve(service))? {
            (Value::Slot(slot), _) => Ok(Served { client: self, slot }),
            other => Err(odd(other)),
        }
    }

    /// Begins to dial in the background; `storm_end` or `storm_wait` gives the tally. One storm per client at a time.
    pub fn storm(&self, storm: Storm) -> Result<()> {
        self.call("storm", &Op::Storm(storm)).map(drop)
    }

    pub fn storm_end(&self) -> Result<Tally> {
        self.tally(true)
    }

    /// Lets the storm reach its own limit.
    pub fn storm_wait(&self) -> Result<Tally> {
        self.tally(false)
    }

    fn tally(&self, now: bool) -> Result<Tally> {
        match self.call("storm", &Op::StormEnd { now })? {
            (Value::Tally(tally), _) => Ok(tally),
            other => Err(odd(other)),
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A server in a child; stopped on drop.
#[derive(Debug)]
pub struct Served<'c> {
    client: &'c Client,
    slot: Slot,
}

impl Served<'_> {
    /// TCP connections accepted, TCP requests answered, UDP datagrams answered.
    pub fn hits(&self) -> Result<(u64, u64, u64)> {
        match self.client.call("hits", &Op::Hits { slot: self.slot })? {
            (Value::Hits { connections, requests, datagrams }, _) => Ok((connections, requests, datagrams)),
            other => Err(odd(other)),
        }
    }
}

impl Drop for Served<'_> {
    fn drop(&mut self) {
        let _ = self.client.exchange(&Op::ServeEnd { slot: self.slot });
    }
}

fn odd(reply: (Value, u64)) -> CallError {
    anyhow!("unexpected reply {reply:?}").into()
}
