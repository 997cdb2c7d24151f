//! This side of a dialling child: sockets in another namespace and cgroup, used as if they were here.

use std::{
    io::{BufRead, BufReader, Write},
    net::SocketAddr,
    process::{Child, ChildStdin, ChildStdout},
    sync::Mutex,
};

use anyhow::{Context, anyhow};

use crate::{
    cgroup::Cgroup,
    errno::Errno,
    netns::Namespace,
    op::{By, Family, Op, Reply, Setting, Slot, Sort, Value},
    spawn::Program,
    storm::{Storm, Tally},
    watch::{Watch, Watched},
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

fn odd(reply: (Value, u64)) -> CallError {
    anyhow!("unexpected reply {reply:?}").into()
}

/// One socket of a child; closed on drop. Calls that take time give their nanoseconds.
#[derive(Debug)]
pub struct Socket<'c> {
    client: &'c Client,
    slot: Slot,
}

impl Socket<'_> {
    pub fn set(&self, setting: Setting) -> Result<()> {
        self.client.call("setsockopt", &Op::Set { slot: self.slot, setting }).map(drop)
    }

    pub fn bind(&self, to: SocketAddr) -> Result<()> {
        self.client.call("bind", &Op::Bind { slot: self.slot, to }).map(drop)
    }

    pub fn connect(&self, to: SocketAddr) -> Result<u64> {
        self.connect_by(to, By::Call)
    }

    pub fn connect_by(&self, to: SocketAddr, by: By) -> Result<u64> {
        self.client.call("connect", &Op::Connect { slot: self.slot, to, by }).map(|(_, nanos)| nanos)
    }

    /// connect() with AF_UNSPEC.
    pub fn disconnect(&self) -> Result<()> {
        self.client.call("disconnect", &Op::Disconnect { slot: self.slot }).map(drop)
    }

    /// On a connected socket, by send().
    pub fn send(&self, bytes: impl AsRef<[u8]>) -> Result<u64> {
        self.send_by(None, bytes, By::Call)
    }

    pub fn send_to(&self, to: SocketAddr, bytes: impl AsRef<[u8]>) -> Result<u64> {
        self.send_by(Some(to), bytes, By::Call)
    }

    pub fn send_by(&self, to: Option<SocketAddr>, bytes: impl AsRef<[u8]>, by: By) -> Result<u64> {
        let op = Op::Send { slot: self.slot, to, bytes: bytes.as_ref().to_vec(), by };
        self.client.call("send", &op).map(|(_, nanos)| nanos)
    }

    /// sendto() with MSG_FASTOPEN.
    pub fn fast_open(&self, to: SocketAddr, bytes: impl AsRef<[u8]>) -> Result<u64> {
        let op = Op::FastOpen { slot: self.slot, to, bytes: bytes.as_ref().to_vec() };
        self.client.call("connect", &op).map(|(_, nanos)| nanos)
    }

    /// The source that the kernel names, and the bytes.
    pub fn receive(&self) -> Result<(Option<SocketAddr>, Vec<u8>)> {
        self.receive_by(By::Call)
    }

    pub fn receive_by(&self, by: By) -> Result<(Option<SocketAddr>, Vec<u8>)> {
        match self.client.call("receive", &Op::Receive { slot: self.slot, by })? {
            (Value::Received { from, bytes }, _) => Ok((from, bytes)),
            other => Err(odd(other)),
        }
    }

    /// Whether it became ready in time, and SO_ERROR.
    pub fn poll(&self, write: bool, ms: u32) -> Result<(bool, Option<Errno>)> {
        match self.client.call("poll", &Op::Poll { slot: self.slot, write, ms })? {
            (Value::Ready { ready, error }, _) => Ok((ready, error)),
            other => Err(odd(other)),
        }
    }

    pub fn peer(&self) -> Result<SocketAddr> {
        self.address("getpeername", Op::Peer { slot: self.slot })
    }

    pub fn local(&self) -> Result<SocketAddr> {
        self.address("getsockname", Op::Local { slot: self.slot })
    }

    fn address(&self, step: &'static str, op: Op) -> Result<SocketAddr> {
        match self.client.call(step, &op)? {
            (Value::Address(address), _) => Ok(address),
            other => Err(odd(other)),
        }
    }

    pub fn cookie(&self) -> Result<u64> {
        match self.client.call("cookie", &Op::Cookie { slot: self.slot })? {
            (Value::Cookie(cookie), _) => Ok(cookie),
            other => Err(odd(other)),
        }
    }

    /// Sends and receives in the background, on a connected UDP socket, until the first error.
    pub fn watch(&self, watch: Watch) -> Result<()> {
        self.client.call("watch", &Op::Watch { slot: self.slot, watch }).map(drop)
    }

    /// Waits up to `ms` for the first error, then ends the watch.
    pub fn watch_end(&self, ms: u64) -> Result<Watched> {
        match self.client.call("watch", &Op::WatchEnd { slot: self.slot, ms })? {
            (Value::Watched(watched), _) => Ok(watched),
            other => Err(odd(other)),
        }
    }
}

impl Drop for Socket<'_> {
    fn drop(&mut self) {
        let _ = self.client.exchange(&Op::Close { slot: self.slot });
    }
}
