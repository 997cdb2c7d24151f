//! Limits the connections of a listener, in total and per peer address, so that no peer can block the others. At the limit
//! a new connection replaces another one: first an idle one, of the peer with the most connections, the oldest first.
//! tower's limits cannot do this: they count requests, know no peers, and make a new request wait.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::task::AbortHandle;

#[derive(Clone, Copy, Debug)]
pub struct ConnectionLimits {
    pub total: usize,
    pub per_peer: usize,
}

#[derive(Debug)]
struct Connection<P> {
    peer: P,
    /// A request is in progress.
    busy: bool,
    /// Closes the connection.
    abort: Option<AbortHandle>,
}

#[derive(Debug)]
struct ConnectionTable<P> {
    /// By number, which increases with each new connection.
    connections: BTreeMap<u64, Connection<P>>,
    per_peer: HashMap<P, usize>,
    next: u64,
}

/// `P` identifies a peer: an address, or a process. Several listeners may share one limiter.
#[derive(Clone, Debug)]
pub struct ConnectionLimiter<P> {
    limits: ConnectionLimits,
    table: Arc<Mutex<ConnectionTable<P>>>,
}

/// One counted connection. Dropping it frees the slot.
#[derive(Debug)]
pub struct ConnectionSlot<P: Copy + Eq + Hash> {
    limiter: ConnectionLimiter<P>,
    number: u64,
}

impl<P: Copy + Eq + Hash> ConnectionLimiter<P> {
    pub fn new(limits: ConnectionLimits) -> ConnectionLimiter<P> {
        let table = ConnectionTable { connections: BTreeMap::new(), per_peer: HashMap::new(), next: 0 };
        ConnectionLimiter { limits, table: Arc::new(Mutex::new(table)) }
    }

    fn table(&self) -> MutexGuard<'_, ConnectionTable<P>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `None` if all connections that the peer may have are busy.
    pub fn acquire(&self, peer: P) -> Option<ConnectionSlot<P>> {
        let (number, replaced) = self.table().insert(peer, self.limits)?;
        // The lock is released first: an aborted connection drops its slot, which takes the lock.
        replaced.into_iter().for_each(|abort| abort.abort());
        Some(ConnectionSlot { limiter: self.clone(), number })
    }

    /// Sets how the connection of a slot is closed if another connection replaces it. Closes it at once if that has
    /// happened already, by another listener that shares the limiter.
    pub fn set_abort(&self, number: u64, abort: AbortHandle) {
        if let Some(connection) = self.table().connections.get_mut(&number) {
            connection.abort = Some(abort);
            return;
        }
        abort.abort();
    }
}

impl<P: Copy + Eq + Hash> ConnectionSlot<P> {
    pub fn number(&self) -> u64 {
        self.number
    }

    pub fn set_busy(&self, busy: bool) {
        if let Some(connection) = self.limiter.table().connections.get_mut(&self.number) {
            connection.busy = busy;
        }
    }
}

impl<P: Copy + Eq + Hash> Drop for ConnectionSlot<P> {
    fn drop(&mut self) {
        self.limiter.table().remove(self.number);
    }
}

impl<P: Copy + Eq + Hash> ConnectionTable<P> {
    fn insert(&mut self, peer: P, limits: ConnectionLimits) -> Option<(u64, Vec<AbortHandle>)> {
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

    fn count(&self, peer: &P) -> usize {
        self.per_peer.get(peer).copied().unwrap_or(0)
    }

    fn first_to_replace(&self, is_candidate: impl Fn(&Connection<P>) -> bool) -> Option<u64> {
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

    fn numbers(limiter: &ConnectionLimiter<u8>) -> Vec<u64> {
        limiter.table().connections.keys().copied().collect()
    }

    #[test]
    fn a_peer_at_its_limit_replaces_its_own_idle_connections() {
        let limiter = ConnectionLimiter::new(ConnectionLimits { total: 10, per_peer: 2 });
        let slots: Vec<ConnectionSlot<u8>> = (0..3).filter_map(|_| limiter.acquire(1)).collect();
        assert_eq!((slots.len(), numbers(&limiter)), (3, vec![1, 2]), "the first connection was replaced");
        slots.iter().for_each(|slot| slot.set_busy(true));
        assert!(limiter.acquire(1).is_none(), "all connections of the peer are busy");
        assert!(limiter.acquire(2).is_some());
        drop(slots);
        assert!(limiter.table().per_peer.is_empty() && numbers(&limiter).is_empty());
    }

    #[test]
    fn the_peer_with_the_most_connections_loses_one_first() {
        let limiter = ConnectionLimiter::new(ConnectionLimits { total: 4, per_peer: 3 });
        let one = limiter.acquire(1).unwrap();
        let many: Vec<ConnectionSlot<u8>> = (0..3).filter_map(|_| limiter.acquire(2)).collect();
        many[0].set_busy(true);
        let other = limiter.acquire(3).unwrap();
        assert_eq!(numbers(&limiter), [one.number(), many[0].number(), many[2].number(), other.number()]);
    }

    /// Two listeners share a limiter: one replaces the connection that the other has just accepted.
    #[tokio::test]
    async fn a_connection_that_is_replaced_before_it_is_served_is_closed() {
        let limiter = ConnectionLimiter::new(ConnectionLimits { total: 1, per_peer: 1 });
        let first = limiter.acquire(1).unwrap();
        let _second = limiter.acquire(2).unwrap();
        let served = tokio::spawn(std::future::pending::<()>());
        limiter.set_abort(first.number(), served.abort_handle());
        assert!(served.await.unwrap_err().is_cancelled());
    }
}
