//! One on a host who dials without pause while others break things, and the score of it.

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

use super::{Outside, Resolver};
use crate::{
    part,
    storm::{FAILED, Protocol, Target},
};

/// Whose dials are seen how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seat<'a> {
    /// As everybody on the host.
    Plain,
    /// By `beeline run --view`.
    View(&'a str),
    /// In this cgroup below the host's.
    Cgroup(&'a str),
}

/// It ends when this is dropped.
pub struct Client {
    pub name: String,
    child: Child,
    score: Arc<Mutex<Score>>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Score {
    pub answers: BTreeMap<String, u64>,
    /// Why, and how often.
    pub failures: BTreeMap<String, u64>,
}

impl Score {
    pub fn dials(&self) -> u64 {
        self.answers.values().sum::<u64>() + self.failed()
    }

    pub fn failed(&self) -> u64 {
        self.failures.values().sum()
    }

    /// Answers of others than these.
    pub fn strange(&self, is_right: impl Fn(&str) -> bool) -> u64 {
        self.answers.iter().filter(|(name, _)| !is_right(name)).map(|(_, count)| count).sum()
    }

    fn note(&mut self, line: &str) {
        let (counts, key) = match line.strip_prefix(FAILED) {
            Some(why) => (&mut self.failures, why),
            None => (&mut self.answers, line),
        };
        *counts.entry(key.to_owned()).or_default() += 1;
    }
}

impl Outside {
    /// Starts one, in the same place where the resolver's other clients are.
    pub fn client(&self, resolver: &Resolver, seat: Seat, protocol: Protocol, at: SocketAddr) -> Result<Client> {
        let kit = part::program()?.display().to_string();
        let target = Target { protocol, at };
        let words = [kit.as_str(), "dial", &target.to_string()];
        let (cgroup, words) = match seat {
            Seat::Plain => ("client", words.map(str::to_owned).to_vec()),
            Seat::View(view) => ("client", resolver.in_view(view, &words)?),
            Seat::Cgroup(name) => (name, words.map(str::to_owned).to_vec()),
        };
        let mut command = Command::new(&kit);
        command.args(["host", &self.host.name(), "--part", cgroup, "--"]).args(words);
        Client::start(format!("{seat:?} {target}"), command)
    }
}

impl Client {
    fn start(name: String, mut command: Command) -> Result<Client> {
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().with_context(|| name.clone())?;
        let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let score = Arc::new(Mutex::new(Score::default()));
        let shared = score.clone();
        thread::spawn(move || lines.map_while(Result::ok).for_each(|line| lock(&shared).note(&line)));
        let client = Client { name, child, score };
        client.wait_for(1)?;
        Ok(client)
    }

    /// What came since the last time this was asked.
    pub fn take(&self) -> Score {
        mem::take(&mut lock(&self.score))
    }

    /// Until it has dialled so often since [`Client::take`].
    pub fn wait_for(&self, dials: u64) -> Result<()> {
        let start = Instant::now();
        while lock(&self.score).dials() < dials {
            ensure!(start.elapsed() < Duration::from_secs(30), "{}: no {dials} dials within 30 s", self.name);
            thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.child.kill(); // It may have ended by itself.
        let _ = self.child.wait();
    }
}

fn lock(score: &Mutex<Score>) -> std::sync::MutexGuard<'_, Score> {
    score.lock().unwrap_or_else(PoisonError::into_inner)
}
