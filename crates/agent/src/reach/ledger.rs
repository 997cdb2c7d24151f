//! What is known of the way to each group of pods: by what evidence, since when, and whom to ask next. Plain state: the
//! clock is handed in, decisions come out; netlink and sockets are elsewhere.
//!
//! - A route more specific than the default route: direct, and nobody is knocked at.
//! - No route, or one that bars the way: by the node.
//! - Only a default route: unknown at once, whatever another route said before, and one TCP knock at a ready endpoint. Any
//!   answer, a reset included, proves the way. Three misses after each other, at different endpoints if there are several,
//!   and it is by the node; fewer change nothing.

use super::knock::Answer;
use super::way::Way;
use beeline_model::Address;
use beeline_model::reach::{Found, Group};
use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// So many misses after each other before anything flips.
const MISSES: u32 = 3;
/// A group that nobody asks for any more is remembered this long: endpoints that are unready for a moment come back.
const FORGET: Duration = Duration::from_secs(600);

/// How often who is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    pub interval: Duration,
    /// At most this many knocks a second, over all groups.
    pub per_second: usize,
}

impl Pace {
    /// After a miss the next try comes sooner, so that a lost way is not dialled for a minute and a half.
    fn retry(self) -> Duration {
        (self.interval / 10).clamp(Duration::from_millis(200), Duration::from_secs(3))
    }
}

/// A group, and ready endpoints to knock at.
pub type Asked = (Group, Vec<(Address, u16)>);

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Evidence {
    Nothing,
    Way(Way),
    Answered { at: SocketAddr, reset: bool },
    Missed { at: SocketAddr, why: String },
}

impl fmt::Display for Evidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Evidence::Nothing => f.write_str("only a default route, and no answer yet"),
            Evidence::Way(Way::Specific(net)) => write!(f, "route to {net}"),
            Evidence::Way(Way::Default) => f.write_str("only a default route, and no endpoint to ask"),
            Evidence::Way(Way::Barred(why)) => write!(f, "{why}"),
            Evidence::Answered { at, reset: false } => write!(f, "{at} answered"),
            Evidence::Answered { at, reset: true } => write!(f, "{at} answered with a reset"),
            Evidence::Missed { at, why } => write!(f, "{MISSES} misses, the last at {at}: {why}"),
        }
    }
}

struct Entry {
    ready: Vec<(Address, u16)>,
    way: Option<Way>,
    found: Found,
    since: Instant,
    evidence: Evidence,
    misses: u32,
    /// Which of the endpoints is next.
    turn: usize,
    next: Instant,
    under_way: bool,
    /// Nobody asks for it any more, since then.
    unasked: Option<Instant>,
}

impl Entry {
    fn new(now: Instant) -> Entry {
        Entry {
            ready: Vec::new(),
            way: None,
            found: Found::Unknown,
            since: now,
            evidence: Evidence::Nothing,
            misses: 0,
            turn: 0,
            next: now,
            under_way: false,
            unasked: None,
        }
    }

    fn is_due(&self, now: Instant) -> bool {
        let wanted = self.way == Some(Way::Default) && self.unasked.is_none();
        wanted && !self.ready.is_empty() && !self.under_way && self.next <= now
    }

    /// Whether it is another finding than before.
    fn find(&mut self, found: Found, evidence: Evidence, now: Instant) -> bool {
        self.evidence = evidence;
        let flips = self.found != found;
        if flips {
            (self.found, self.since) = (found, now);
        }
        flips
    }
}

/// What `status` shows of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    pub group: Group,
    pub found: Found,
    pub since: Instant,
    pub evidence: String,
}

pub struct Ledger {
    pace: Pace,
    groups: BTreeMap<Group, Entry>,
    /// Knocks that may be given out, and since when more were earned.
    purse: f64,
    filled: Instant,
}

impl Ledger {
    pub fn new(pace: Pace, now: Instant) -> Ledger {
        Ledger { pace, groups: BTreeMap::new(), purse: pace.per_second as f64, filled: now }
    }

    /// The groups that the plan needs an answer for. Whether there are new ones, whose way is to be looked up.
    pub fn ask(&mut self, asked: &[Asked], now: Instant) -> bool {
        for entry in self.groups.values_mut() {
            entry.unasked.get_or_insert(now);
        }
        let mut new = false;
        for (group, ready) in asked {
            let entry = self.groups.entry(group.clone()).or_insert_with(|| Entry::new(now));
            // Nobody looked while nobody asked, and other addresses may have another route.
            new |= entry.way.is_none() || entry.unasked.is_some_and(|since| since < now) || entry.ready != *ready;
            entry.unasked = None;
            entry.ready.clone_from(ready);
        }
        self.groups.retain(|_, entry| entry.unasked.is_none_or(|since| now < since + FORGET));
        new
    }

    /// Addresses that speak for each group.
    pub fn addresses(&self) -> Vec<(Group, Vec<Address>)> {
        let of = |(group, entry): (&Group, &Entry)| {
            let ready = entry.ready.iter().map(|(address, _)| *address);
            let first = group.prefix.hosts().next().map(Address::from);
            let addresses = if entry.ready.is_empty() { first.into_iter().collect() } else { ready.collect() };
            (group.clone(), addresses)
        };
        self.groups.iter().filter(|(_, entry)| entry.unasked.is_none()).map(of).collect()
    }

    /// What the kernel says now. Whether the finding is another.
    pub fn see(&mut self, group: &Group, way: Way, now: Instant) -> bool {
        let Some(entry) = self.groups.get_mut(group) else { return false };
        let before = entry.way.replace(way);
        if before == Some(way) {
            return false;
        }
        entry.misses = 0;
        match way {
            Way::Specific(_) => entry.find(Found::Direct, Evidence::Way(way), now),
            Way::Barred(_) => entry.find(Found::Node, Evidence::Way(way), now),
            // What spoke for the earlier finding is gone. The node's way serves until somebody answers.
            Way::Default => {
                entry.next = now;
                let evidence = if entry.ready.is_empty() { Evidence::Way(way) } else { Evidence::Nothing };
                entry.find(Found::Unknown, evidence, now)
            }
        }
    }

    /// Routes have changed somewhere: what an answer proved is asked again at once.
    pub fn stir(&mut self, now: Instant) {
        self.groups.values_mut().for_each(|entry| entry.next = entry.next.min(now));
    }

    /// Whom to knock at now, as far as the pace allows it; the longest due first.
    pub fn due(&mut self, now: Instant) -> Vec<(Group, SocketAddr)> {
        let most = self.pace.per_second as f64;
        self.purse = (self.purse + now.saturating_duration_since(self.filled).as_secs_f64() * most).min(most);
        self.filled = now;
        let mut due: Vec<(&Group, &mut Entry)> =
            self.groups.iter_mut().filter(|(_, entry)| entry.is_due(now)).collect();
        due.sort_by_key(|(_, entry)| entry.next);
        due.truncate(self.purse as usize);
        self.purse -= due.len() as f64;
        let knock = |(group, entry): (&Group, &mut Entry)| {
            let (address, port) = entry.ready[entry.turn % entry.ready.len()];
            entry.under_way = true;
            (group.clone(), SocketAddr::new(address.ip(), port))
        };
        due.into_iter().map(knock).collect()
    }

    /// When `due` is to be asked again.
    pub fn next(&self, now: Instant) -> Option<Instant> {
        let waits = |entry: &&Entry| entry.is_due(entry.next.max(now));
        let first = self.groups.values().filter(waits).map(|entry| entry.next).min()?;
        let earned = if self.purse < 1.0 { now + Duration::from_secs(1) / self.pace.per_second as u32 } else { now };
        Some(first.max(earned))
    }

    /// What came of a knock. Whether the finding is another.
    pub fn hear(&mut self, group: &Group, at: SocketAddr, answer: Answer, now: Instant) -> bool {
        let (interval, retry) = (self.pace.interval, self.pace.retry());
        let Some(entry) = self.groups.get_mut(group) else { return false };
        entry.under_way = false;
        if entry.way != Some(Way::Default) {
            return false;
        }
        match answer {
            Answer::Connected | Answer::Reset => {
                (entry.misses, entry.next) = (0, now + interval);
                entry.find(Found::Direct, Evidence::Answered { at, reset: answer == Answer::Reset }, now)
            }
            Answer::Missed(why) => {
                entry.misses += 1;
                // One that is silent may be one of several.
                entry.turn = entry.turn.wrapping_add(1);
                let lost = entry.misses >= MISSES;
                entry.next = now + if lost { interval } else { retry };
                lost && entry.find(Found::Node, Evidence::Missed { at, why }, now)
            }
            // It says something of this host, and nothing of the way.
            Answer::Unable(_) => {
                entry.next = now + retry;
                false
            }
        }
    }

    /// Nothing is left that a moment's patience would tell.
    pub fn is_settled(&self) -> bool {
        let open = |entry: &Entry| match entry.way {
            None => true,
            Some(Way::Default) => !entry.ready.is_empty() && entry.found == Found::Unknown && entry.misses == 0,
            Some(_) => false,
        };
        !self.groups.values().filter(|entry| entry.unasked.is_none()).any(open)
    }

    pub fn found(&self) -> BTreeMap<Group, Found> {
        self.groups.iter().map(|(group, entry)| (group.clone(), entry.found)).collect()
    }

    pub fn findings(&self) -> Vec<Finding> {
        let asked = self.groups.iter().filter(|(_, entry)| entry.unasked.is_none());
        let finding = |(group, entry): (&Group, &Entry)| Finding {
            group: group.clone(),
            found: entry.found,
            since: entry.since,
            evidence: match (&entry.evidence, entry.misses) {
                (evidence @ Evidence::Answered { .. }, 1..) => {
                    format!("{evidence}; since then missed {}", entry.misses)
                }
                (Evidence::Nothing, 1..) => format!("only a default route, missed {} so far", entry.misses),
                (evidence, _) => evidence.to_string(),
            },
        };
        asked.map(finding).collect()
    }
}

#[cfg(test)]
#[path = "ledger_tests.rs"]
mod tests;
