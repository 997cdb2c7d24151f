//! Limits the connections of a listener, in total and per peer address, so that no peer can block the others. At the limit
//! a new connection replaces another one: first an idle one, of the peer with the most connections, the oldest first.
//! tower's limits cannot do this: they count requests, know no peers, and make a new request wait.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::task::AbortHandle;

#[derive(Clone, Copy, Debug)]
pub struct ConnectionLimits {
    pub total: usize,
    pub per_peer: usize,
}

#[derive(Debug)]
struct Connection {
    peer: IpAddr,
    /// A request is in progress.
    busy: bool,
    /// Closes the connection.
    abort: Option<AbortHandle>,
}

#[derive(Debug, Default)]
struct ConnectionTable {
    /// By number, which increases with each new connection.
    connections: BTreeMap<u64, Connection>,
    per_peer: HashMap<IpAddr, usize>,
    next: u64,
}

#[derive(Clone, Debug)]
pub struct ConnectionLimiter {
    limits: ConnectionLimits,
    table: Arc<Mutex<ConnectionTable>>,
}

/// One counted connection. Dropping it frees the slot.
#[derive(Debug)]
pub struct ConnectionSlot {
    limiter: ConnectionLimiter,
    number: u64,
}

impl ConnectionLimiter {
    pub fn new(limits: ConnectionLimits) -> ConnectionLimiter {
        ConnectionLimiter { limits, table: Arc::default() }
    }

    fn table(&self) -> MutexGuard<'_, ConnectionTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `None` if all connections that the peer may have are busy.
    pub fn acquire(&self, peer: IpAddr) -> Option<ConnectionSlot> {
        let peer = peer.to_canonical();
        let (number, replaced) = self.table().insert(peer, self.limits)?;
        // The lock is released first: an aborted connection drops its slot, which takes the lock.
        replaced.into_iter().for_each(|abort| abort.abort());
        Some(ConnectionSlot { limiter: self.clone(), number })
    }

    /// Sets how the connection of a slot is closed if another connection replaces it.
    pub fn set_abort(&self, number: u64, abort: AbortHandle) {
        if let Some(connection) = self.table().connections.get_mut(&number) {
            connection.abort = Some(abort);
        }
    }
}

impl ConnectionSlot {
    pub fn number(&self) -> u64 {
        self.number
    }

    pub fn set_busy(&self, busy: bool) {
        if let Some(connection) = self.limiter.table().connections.get_mut(&self.number) {
            connection.busy = busy;
        }
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.limiter.table().remove(self.number);
    }
}

impl ConnectionTable {
    fn insert(&mut self, peer: IpAddr, limits: ConnectionLimits) -> Option<(u64, Vec<AbortHandle>)> {
        let mut replaced = Vec::new();
        if self.count(&peer) >= limits.per_peer {
            let idle = self.first_to_replace(|connection| connection.peer == peer && !connection.busy)?;
            replaced.extend(self.remove(idle));
        }
        if self.connections.len() >= limits.total {
            let worst = self.first_to_replace(|_| true)?;
            replaced.extend(self.remove(worst));
        }
        let number = self.next;
        self.next += 1;
        *self.per_peer.entry(peer).or_default() += 1;
        self.connections.insert(number, Connection { peer, busy: false, abort: None });
        Some((number, replaced))
    }

    fn count(&self, peer: &IpAddr) -> usize {
        self.per_peer.get(peer).copied().unwrap_or(0)
    }

    fn first_to_replace(&self, is_candidate: impl Fn(&Connection) -> bool) -> Option<u64> {
        let candidates = self.connections.iter().filter(|(_, connection)| is_candidate(connection));
        let worst = candidates
            .max_by_key(|(number, connection)| (!connection.busy, self.count(&connection.peer), Reverse(**number)));
        worst.map(|(number, _)| *number)
    }

    fn remove(&mut self, number: u64) -> Option<AbortHandle> {
        let connection = self.connections.remove(&number)?;
        if let Some(count) = self.per_peer.get_mut(&connection.peer) {
            *count -= 1;
            if *count == 0 {
                self.per_peer.remove(&connection.peer);
            }
        }
        connection.abort
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(n: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, n])
    }

    fn numbers(limiter: &ConnectionLimiter) -> Vec<u64> {
        limiter.table().connections.keys().copied().collect()
    }

    #[test]
    fn a_peer_at_its_limit_replaces_its_own_idle_connections() {
        let limiter = ConnectionLimiter::new(ConnectionLimits { total: 10, per_peer: 2 });
        let slots: Vec<ConnectionSlot> = (0..3).filter_map(|_| limiter.acquire(peer(1))).collect();
        assert_eq!((slots.len(), numbers(&limiter)), (3, vec![1, 2]), "the first connection was replaced");
        slots.iter().for_each(|slot| slot.set_busy(true));
        assert!(limiter.acquire(peer(1)).is_none(), "all connections of the peer are busy");
        assert!(limiter.acquire(peer(2)).is_some());
        drop(slots);
        assert!(limiter.table().per_peer.is_empty() && numbers(&limiter).is_empty());
    }

    #[test]
    fn the_peer_with_the_most_connections_loses_one_first() {
        let limiter = ConnectionLimiter::new(ConnectionLimits { total: 4, per_peer: 3 });
        let one = limiter.acquire(peer(1)).unwrap();
        let many: Vec<ConnectionSlot> = (0..3).filter_map(|_| limiter.acquire(peer(2))).collect();
        many[0].set_busy(true);
        let other = limiter.acquire(peer(3)).unwrap();
        assert_eq!(numbers(&limiter), [one.number(), many[0].number(), many[2].number(), other.number()]);
    }
}
