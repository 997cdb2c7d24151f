//! A client on a host that dials in a loop while a test injects faults, and counts its results.

use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader},
    mem,
    net::SocketAddr,
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};

use super::{HostAgent, OutsideHost};
use crate::{
    component,
    load::{DialProtocol, DialTarget, FAILED},
};

/// Cgroup or view in which a client runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientContext<'a> {
    /// The host's default view.
    Plain,
    /// A view, entered by `beeline run --view`.
    View(&'a str),
    /// A cgroup below the host's.
    Cgroup(&'a str),
}

/// A running client. It ends when the value is dropped.
pub struct DialClient {
    pub name: String,
    child: Child,
    counts: Arc<Mutex<DialCounts>>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DialCounts {
    pub answers: BTreeMap<String, u64>,
    /// Number of failures by reason.
    pub failures: BTreeMap<String, u64>,
}

impl DialCounts {
    pub fn dials(&self) -> u64 {
        self.answers.values().sum::<u64>() + self.failed()
    }

    pub fn failed(&self) -> u64 {
        self.failures.values().sum()
    }

    /// Number of answers from servers that are not expected.
    pub fn unexpected(&self, is_expected: impl Fn(&str) -> bool) -> u64 {
        self.answers.iter().filter(|(name, _)| !is_expected(name)).map(|(_, count)| count).sum()
    }

    fn record(&mut self, line: &str) {
        let (counts, key) = match line.strip_prefix(FAILED) {
            Some(reason) => (&mut self.failures, reason),
            None => (&mut self.answers, line),
        };
        *counts.entry(key.to_owned()).or_default() += 1;
    }
}

impl OutsideHost {
    /// Starts a client on this host.
    pub fn client(
        &self,
        agent: &HostAgent,
        context: ClientContext,
        protocol: DialProtocol,
        at: SocketAddr,
    ) -> Result<DialClient> {
        let kit = component::program()?.display().to_string();
        let target = DialTarget { protocol, at };
        let arguments = [kit.as_str(), "dial", &target.to_string()];
        let (cgroup, arguments) = match context {
            ClientContext::Plain => ("client", arguments.map(str::to_owned).to_vec()),
            ClientContext::View(view) => ("client", agent.view_command(view, &arguments)?),
            ClientContext::Cgroup(name) => (name, arguments.map(str::to_owned).to_vec()),
        };
        let mut command = Command::new(&kit);
        command.args(["host", &self.host.name(), "--component", cgroup, "--"]).args(arguments);
        DialClient::start(format!("{context:?} {target}"), command)
    }
}

impl DialClient {
    fn start(name: String, mut command: Command) -> Result<DialClient> {
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().with_context(|| name.clone())?;
        let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let counts = Arc::new(Mutex::new(DialCounts::default()));
        let shared = counts.clone();
        thread::spawn(move || lines.map_while(Result::ok).for_each(|line| lock(&shared).record(&line)));
        let client = DialClient { name, child, counts };
        client.wait_for(1)?;
        Ok(client)
    }

    /// Returns the counts since the last call, and resets them.
    pub fn take_counts(&self) -> DialCounts {
        mem::take(&mut lock(&self.counts))
    }

    /// Waits until the client has dialled this often since [`DialClient::take_counts`].
    pub fn wait_for(&self, dials: u64) -> Result<()> {
        let start = Instant::now();
        while lock(&self.counts).dials() < dials {
            ensure!(start.elapsed() < Duration::from_secs(30), "{}: fewer than {dials} dials within 30 s", self.name);
            thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }
}

impl Drop for DialClient {
    fn drop(&mut self) {
        let _ = self.child.kill(); // The process may have ended by itself.
        let _ = self.child.wait();
    }
}

fn lock(counts: &Mutex<DialCounts>) -> std::sync::MutexGuard<'_, DialCounts> {
    counts.lock().unwrap_or_else(PoisonError::into_inner)
}
