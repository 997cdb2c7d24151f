//! Destroys connected UDP sockets whose backend is gone, so that their applications dial again. Nothing is searched while no
//! UDP backend is removed.

use crate::stale_udp::{self, ConnectedTarget};
use beeline_datapath::reap::{ConnectedSocket, Reaper};
use beeline_model::planner::Planner;
use beeline_model::table::Tables;
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
}

struct SearchResult {
    has_kept_sockets: bool,
    stale: usize,
    destroyed: usize,
}

impl UdpReaper {
    /// The first search happens at once: backends may have been removed while no agent ran.
    pub fn new(reaper: beeline_datapath::Result<Reaper>) -> UdpReaper {
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
        }
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
        if removed || self.has_kept_sockets {
            self.dirty = true;
            self.second_search = Some(now + SECOND_SEARCH);
        }
    }

    /// Searches for stale sockets and destroys them, if needed. `epoch` is the epoch of the tables.
    pub fn run(&mut self, tables: &Tables, planner: &Planner, epoch: u32, now: Instant) {
        self.dirty |= self.second_search.take_if(|at| *at <= now).is_some();
        let Some(reaper) = self.reaper.as_ref().filter(|_| self.dirty) else { return };
        match search(reaper, tables, planner, epoch) {
            Ok(SearchResult { has_kept_sockets, stale, destroyed }) => {
                self.has_kept_sockets = has_kept_sockets;
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

fn search(reaper: &Reaper, tables: &Tables, planner: &Planner, epoch: u32) -> beeline_datapath::Result<SearchResult> {
    let mut unused = reaper.connected_sockets()?;
    let target = |socket: &ConnectedSocket| ConnectedTarget::new(socket, epoch);
    unused.retain(|socket| !stale_udp::is_in_use(tables, &target(socket)));
    let still_serves = |socket: &ConnectedSocket| stale_udp::still_serves(tables, planner, &target(socket));
    let (kept, stale): (Vec<ConnectedSocket>, Vec<ConnectedSocket>) = unused.into_iter().partition(still_serves);
    let destroyed = if stale.is_empty() { 0 } else { reaper.destroy(&stale)? };
    Ok(SearchResult { has_kept_sockets: !kept.is_empty(), stale: stale.len(), destroyed })
}
