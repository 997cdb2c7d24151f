//! Repeats a dial and checks the results: which servers answered how often, and which peer the socket reported.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
};

use anyhow::Result;

use crate::{
    client::Client,
    dial::{DialKind, DialOutcome, DialRequest},
    errno::Errno,
    interrupt,
};

#[derive(Clone, Debug)]
pub enum Expected {
    /// Each of these servers answers at least once, and no other.
    Every(Vec<String>),
    /// Only these servers answer; not all of them have to.
    Any(Vec<String>),
    /// One of these servers answers every dial.
    Same(Vec<String>),
    /// The call that dials fails with ECONNREFUSED.
    Refused,
}

impl Expected {
    pub fn every<'n>(names: impl IntoIterator<Item = &'n str>) -> Self {
        Expected::Every(names.into_iter().map(str::to_owned).collect())
    }

    pub fn any<'n>(names: impl IntoIterator<Item = &'n str>) -> Self {
        Expected::Any(names.into_iter().map(str::to_owned).collect())
    }

    pub fn same<'n>(names: impl IntoIterator<Item = &'n str>) -> Self {
        Expected::Same(names.into_iter().map(str::to_owned).collect())
    }
}

#[derive(Clone, Debug)]
pub struct DialCheck {
    pub kind: DialKind,
    pub to: SocketAddr,
    /// Number of dials. With 60 dials the chance that one of three backends is never picked is below 1 in 10^10.
    pub times: u32,
    pub expected: Expected,
}

/// Results of all dials of a check.
#[derive(Clone, Debug, Default)]
pub struct DialResults {
    pub answers: BTreeMap<String, u32>,
    /// Failures by step and errno ("connect ECONNREFUSED").
    pub failures: BTreeMap<String, u32>,
    /// Peers reported by getpeername, or by recvfrom on an unconnected socket.
    pub peers: BTreeSet<SocketAddr>,
}

impl DialCheck {
    pub fn new(kind: DialKind, to: SocketAddr, expected: Expected) -> Self {
        DialCheck { kind, to, times: 60, expected }
    }

    /// Runs the dials. TCP checks send HTTP requests.
    pub fn run(&self, client: &Client) -> Result<DialResults> {
        let dial = DialRequest::new(self.kind, self.to).http();
        let mut results = DialResults::default();
        for _ in 0..self.times {
            interrupt::check()?;
            results.record(&client.dial(&dial)?);
        }
        Ok(results)
    }

    /// Describes how the results differ from the expectation; None if they match.
    pub fn mismatch(&self, results: &DialResults) -> Option<String> {
        let unexpected_peer = results.peers.iter().find(|peer| **peer != self.to);
        if let Some(peer) = unexpected_peer {
            return Some(format!("the socket reports peer {peer} instead of the dialled address"));
        }
        let names: BTreeSet<&String> = results.answers.keys().collect();
        let matches = match &self.expected {
            Expected::Refused => results.failures.get(&self.refusal()) == Some(&self.times),
            Expected::Every(pods) => results.failures.is_empty() && names == pods.iter().collect(),
            Expected::Any(pods) => results.failures.is_empty() && names.iter().all(|name| pods.contains(name)),
            Expected::Same(pods) => {
                results.failures.is_empty() && names.len() == 1 && names.iter().all(|n| pods.contains(n))
            }
        };
        (!matches)
            .then(|| format!("expected {}, got {:?} {:?}", self.describe_expected(), results.answers, results.failures))
    }

    fn refusal(&self) -> String {
        let unconnected = matches!(self.kind, DialKind::UdpSendTo | DialKind::UdpSendMsg | DialKind::UdpUring);
        format!("{} {}", if unconnected { "send" } else { "connect" }, Errno::ECONNREFUSED)
    }

    fn describe_expected(&self) -> String {
        match &self.expected {
            Expected::Every(pods) => format!("all of {}", pods.join(", ")),
            Expected::Any(pods) => format!("one of {}", pods.join(", ")),
            Expected::Same(pods) => format!("always the same of {}", pods.join(", ")),
            Expected::Refused => self.refusal(),
        }
    }
}

impl DialResults {
    fn record(&mut self, outcome: &DialOutcome) {
        match outcome.error {
            Some((step, errno)) => *self.failures.entry(format!("{step} {errno}")).or_default() += 1,
            None => *self.answers.entry(outcome.name().to_owned()).or_default() += 1,
        }
        self.peers.extend(outcome.peer.or(outcome.from));
    }

    /// Servers and their number of answers ("pod-a 21, pod-b 39"), or errnos and their number.
    pub fn summary(&self) -> String {
        let failures = self.failures.iter().map(|(step, times)| {
            let errno = step.split(' ').next_back().unwrap_or(step);
            format!("{errno} {times}")
        });
        let answers = self.answers.iter().map(|(name, times)| format!("{name} {times}"));
        answers.chain(failures).collect::<Vec<_>>().join(", ")
    }
}
