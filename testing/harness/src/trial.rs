//! The same dial many times, and whether it came out as it should: who answered how often, and whom the socket showed
//! as its peer.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
};

use anyhow::Result;

use crate::{
    client::Client,
    dial::{Dial, Kind, Outcome},
    errno::Errno,
    interrupt,
};

#[derive(Clone, Debug)]
pub enum Expect {
    /// Each of them at least once, and nobody else.
    Every(Vec<String>),
    /// Nobody but them.
    Any(Vec<String>),
    /// One of them, always the same.
    Same(Vec<String>),
    /// ECONNREFUSED by the call that dials, exactly that.
    Refused,
}

impl Expect {
    pub fn every<'n>(names: impl IntoIterator<Item = &'n str>) -> Self {
        Expect::Every(names.into_iter().map(str::to_owned).collect())
    }

    pub fn any<'n>(names: impl IntoIterator<Item = &'n str>) -> Self {
        Expect::Any(names.into_iter().map(str::to_owned).collect())
    }

    pub fn same<'n>(names: impl IntoIterator<Item = &'n str>) -> Self {
        Expect::Same(names.into_iter().map(str::to_owned).collect())
    }
}

#[derive(Clone, Debug)]
pub struct Trial {
    pub kind: Kind,
    pub to: SocketAddr,
    /// Enough that a backend which is never picked is no accident: one of three stays out of 60 dials once in 10^10.
    pub times: u32,
    pub expect: Expect,
}

/// What was seen.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    pub answers: BTreeMap<String, u32>,
    /// By step and errno ("connect ECONNREFUSED").
    pub failures: BTreeMap<String, u32>,
    /// What getpeername said, or recvfrom of an unconnected socket.
    pub peers: BTreeSet<SocketAddr>,
}

impl Trial {
    pub fn new(kind: Kind, to: SocketAddr, expect: Expect) -> Self {
        Trial { kind, to, times: 60, expect }
    }

    /// TCP trials ask by HTTP.
    pub fn run(&self, client: &Client) -> Result<Seen> {
        let dial = Dial::new(self.kind, self.to).http();
        let mut seen = Seen::default();
        for _ in 0..self.times {
            interrupt::check()?;
            seen.note(&client.dial(&dial)?);
        }
        Ok(seen)
    }

    /// What is wrong with it; None: all is as expected.
    pub fn fault(&self, seen: &Seen) -> Option<String> {
        let strangers = seen.peers.iter().find(|peer| **peer != self.to);
        if let Some(peer) = strangers {
            return Some(format!("the socket shows {peer}"));
        }
        let names: BTreeSet<&String> = seen.answers.keys().collect();
        let is_so = match &self.expect {
            Expect::Refused => seen.failures.get(&self.refusal()) == Some(&self.times),
            Expect::Every(pods) => seen.failures.is_empty() && names == pods.iter().collect(),
            Expect::Any(pods) => seen.failures.is_empty() && names.iter().all(|name| pods.contains(name)),
            Expect::Same(pods) => {
                seen.failures.is_empty() && names.len() == 1 && names.iter().all(|n| pods.contains(n))
            }
        };
        (!is_so).then(|| format!("expected {}, seen {:?} {:?}", self.expected(), seen.answers, seen.failures))
    }

    fn refusal(&self) -> String {
        let unconnected = matches!(self.kind, Kind::UdpSendTo | Kind::UdpSendMsg | Kind::UdpUring);
        format!("{} {}", if unconnected { "send" } else { "connect" }, Errno::ECONNREFUSED)
    }

    fn expected(&self) -> String {
        match &self.expect {
            Expect::Every(pods) => format!("all of {}", pods.join(", ")),
            Expect::Any(pods) => format!("one of {}", pods.join(", ")),
            Expect::Same(pods) => format!("always the same of {}", pods.join(", ")),
            Expect::Refused => self.refusal(),
        }
    }
}

impl Seen {
    fn note(&mut self, outcome: &Outcome) {
        match outcome.error {
            Some((step, errno)) => *self.failures.entry(format!("{step} {errno}")).or_default() += 1,
            None => *self.answers.entry(outcome.name().to_owned()).or_default() += 1,
        }
        self.peers.extend(outcome.peer.or(outcome.from));
    }

    /// "pod-a 21 · pod-b 39", or the errno.
    pub fn became(&self) -> String {
        let failures = self.failures.iter().map(|(step, times)| {
            let errno = step.split(' ').next_back().unwrap_or(step);
            format!("{errno} {times}")
        });
        let answers = self.answers.iter().map(|(name, times)| format!("{name} {times}"));
        answers.chain(failures).collect::<Vec<_>>().join(" · ")
    }
}
