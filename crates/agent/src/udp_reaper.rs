//! Destroys connected UDP sockets whose backend gets no new dials, so that their applications dial again: at once if the
//! backend is gone, and after a grace period if it may still answer, so that answers in flight arrive. Nothing is searched
//! while no UDP backend is removed.

use crate::stale_udp::{self, ConnectedTarget};
use beeline_datapath::reap::{ConnectedSocket, Reaper};
use beeline_model::Address;
use beeline_model::planner::Planner;
use beeline_model::table::Tables;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// How often the search is repeated while stale sockets cannot be destroyed.
const MAX_ATTEMPTS: u32 = 20;
/// The search is repeated after this time: a connect that was in progress during the first one is finished by then.
const SECOND_SEARCH: Duration = Duration::from_millis(200);

pub struct UdpReaper {
    /// `None` if the kernel does not support it.
    reaper: Option<Reaper>,
    /// UDP backends were removed since the last search.
    dirty: bool,
    second_search: Option<Instant>,
    /// Some sockets have a backend that gets no new dials but still answers. They are searched again after every change.
    has_kept_sockets: bool,
    attempts: u32,
    destroyed: u64,
    grace: GracePeriod,
}

/// Stale sockets that are not destroyed yet.
struct GracePeriod {
    length: Duration,
    /// By cookie: the backend, and when the grace period ends. A socket stays here until it is destroyed, so that it gets
    /// no second grace period if that fails.
    ends: BTreeMap<u64, ((Address, u16), Instant)>,
    /// The time of the last search. The periods that had ended by then have been handled.
    searched: Instant,
}

impl GracePeriod {
    /// When the grace period of the socket ends. It begins when the socket is first found with this backend.
    fn end_of(&self, socket: &ConnectedSocket, now: Instant) -> Instant {
        let known = self.ends.get(&socket.cookie()).filter(|(chosen, _)| *chosen == chosen_by(socket));
        known.map_or(now + self.length, |(_, end)| *end)
    }

    /// When the next period ends.
    fn next_end(&self) -> Option<Instant> {
        self.ends.values().map(|(_, end)| *end).filter(|end| *end > self.searched).min()
    }

    /// Returns the sockets whose grace period has ended.
    fn end_periods(&mut self, sockets: Vec<ConnectedSocket>, now: Instant) -> Vec<ConnectedSocket> {
        let end = |socket: &ConnectedSocket| (socket.cookie(), (chosen_by(socket), self.end_of(socket, now)));
        let ends: BTreeMap<u64, ((Address, u16), Instant)> = sockets.iter().map(end).collect();
        let ended = sockets.into_iter().filter(|socket| ends[&socket.cookie()].1 <= now).collect();
        self.ends = ends;
        ended
    }
}

fn chosen_by(socket: &ConnectedSocket) -> (Address, u16) {
    (socket.chosen, socket.chosen_port)
}

/// The sockets whose backend gets no new dials.
#[derive(Default)]
struct UnusedSockets {
    /// Some backends still serve: terminating pods.
    has_kept: bool,
    /// The backend is gone.
    gone: Vec<ConnectedSocket>,
    /// The backend may still answer.
    answering: Vec<ConnectedSocket>,
}

impl UdpReaper {
    /// The first search happens at once: backends may have been removed while no agent ran.
    pub fn new(reaper: beeline_datapath::Result<Reaper>, grace_period: Duration) -> UdpReaper {
        if let Err(error) = &reaper {
            tracing::warn!(%error, "cannot search for stale UDP sockets; see `beeline doctor`");
        }
        UdpReaper {
            reaper: reaper.ok(),
            dirty: true,
            second_search: None,
            has_kept_sockets: false,
            attempts: 0,
            destroyed: 0,
            grace: GracePeriod { length: grace_period, ends: BTreeMap::new(), searched: Instant::now() },
        }
    }

    /// When the next grace period ends.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.grace.next_end()
    }

    pub fn is_exact(&self) -> bool {
        self.reaper.as_ref().is_some_and(Reaper::is_exact)
    }

    /// The number of sockets destroyed since the start.
    pub fn destroyed(&self) -> u64 {
        self.destroyed
    }

    /// Tables were written. `removed` tells whether a UDP backend was removed or the hooks were attached.
    pub fn record_sync(&mut self, removed: bool, now: Instant) {
        if removed || self.has_kept_sockets || self.grace.next_end().is_some() {
            self.dirty = true;
            self.second_search = Some(now + SECOND_SEARCH);
        }
    }

    /// Searches for stale sockets and destroys them, if needed. `epoch` is the epoch of the tables.
    pub fn run(&mut self, tables: &Tables, planner: &Planner, epoch: u32, now: Instant) {
        self.dirty |= self.second_search.take_if(|at| *at <= now).is_some();
        self.dirty |= self.next_deadline().is_some_and(|end| end <= now);
        let Some(reaper) = self.reaper.as_ref().filter(|_| self.dirty) else { return };
        self.grace.searched = now;
        let found = find_unused(reaper, tables, planner, epoch);
        let result = found.and_then(|UnusedSockets { has_kept, gone, answering }| {
            self.has_kept_sockets = has_kept;
            let stale = gone.into_iter().chain(self.grace.end_periods(answering, now)).collect::<Vec<_>>();
            let destroyed = if stale.is_empty() { 0 } else { reaper.destroy(&stale)? };
            Ok((stale.len(), destroyed))
        });
        match result {
            Ok((stale, destroyed)) => {
                self.destroyed += destroyed as u64;
                // A socket that was not found may be closed by now, or in a namespace that cannot be entered.
                self.attempts = if destroyed < stale { self.attempts + 1 } else { 0 };
                self.dirty = (1..MAX_ATTEMPTS).contains(&self.attempts);
            }
            Err(error) => {
                self.attempts += 1;
                self.dirty = self.attempts < MAX_ATTEMPTS;
                tracing::warn!(%error, "cannot search for stale UDP sockets; retrying");
            }
        }
        if !self.dirty {
            self.attempts = 0;
        }
    }
}

fn find_unused(
    reaper: &Reaper,
    tables: &Tables,
    planner: &Planner,
    epoch: u32,
) -> beeline_datapath::Result<UnusedSockets> {
    let mut unused = UnusedSockets::default();
    for socket in reaper.connected_sockets()? {
        let target = ConnectedTarget::new(&socket, epoch);
        if stale_udp::is_in_use(tables, &target) {
            continue;
        }
        if stale_udp::still_serves(tables, planner, &target) {
            unused.has_kept = true;
        } else if stale_udp::may_answer(tables, planner, &target) {
            unused.answering.push(socket);
        } else {
            unused.gone.push(socket);
        }
    }
    Ok(unused)
}
