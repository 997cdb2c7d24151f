//! Who has a connection to a listener. Nobody can take all of them: a peer has so many, and where all are taken the next
//! one gets the place of whoever has no request under way, has most of them, and came first.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::task::AbortHandle;

#[derive(Clone, Copy, Debug)]
pub struct Size {
    pub all: usize,
    pub per_peer: usize,
}

#[derive(Debug)]
struct Sitter {
    peer: IpAddr,
    /// A request is being answered.
    busy: bool,
    /// Ends its connection.
    end: Option<AbortHandle>,
}

#[derive(Debug, Default)]
struct Table {
    /// In the order in which they came.
    sitters: BTreeMap<u64, Sitter>,
    per_peer: HashMap<IpAddr, usize>,
    next: u64,
}

#[derive(Clone, Debug)]
pub struct Seats {
    size: Size,
    table: Arc<Mutex<Table>>,
}

/// A place, for as long as it lives.
#[derive(Debug)]
pub struct Seat {
    seats: Seats,
    number: u64,
}

impl Seats {
    pub fn new(size: Size) -> Seats {
        Seats { size, table: Arc::default() }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `None`: this peer has enough under way.
    pub fn sit(&self, peer: IpAddr) -> Option<Seat> {
        let peer = peer.to_canonical();
        let (number, ended) = self.table().sit(peer, self.size)?;
        // Not under the lock: whoever is ended gives its seat back.
        ended.into_iter().for_each(|end| end.abort());
        Some(Seat { seats: self.clone(), number })
    }
}

impl Seat {
    pub fn number(&self) -> u64 {
        self.number
    }

    pub fn set_busy(&self, busy: bool) {
        if let Some(sitter) = self.seats.table().sitters.get_mut(&self.number) {
            sitter.busy = busy;
        }
    }
}

impl Seats {
    /// How this one's connection is ended, should another need the place.
    pub fn set_end(&self, number: u64, end: AbortHandle) {
        if let Some(sitter) = self.table().sitters.get_mut(&number) {
            sitter.end = Some(end);
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.seats.table().leave(self.number);
    }
}

impl Table {
    fn sit(&mut self, peer: IpAddr, size: Size) -> Option<(u64, Vec<AbortHandle>)> {
        let mut ended = Vec::new();
        if self.count(&peer) >= size.per_peer {
            let idle = self.first_to_go(|sitter| sitter.peer == peer && !sitter.busy)?;
            ended.extend(self.leave(idle));
        }
        if self.sitters.len() >= size.all {
            let worst = self.first_to_go(|_| true)?;
            ended.extend(self.leave(worst));
        }
        let number = self.next;
        self.next += 1;
        *self.per_peer.entry(peer).or_default() += 1;
        self.sitters.insert(number, Sitter { peer, busy: false, end: None });
        Some((number, ended))
    }

    fn count(&self, peer: &IpAddr) -> usize {
        self.per_peer.get(peer).copied().unwrap_or(0)
    }

    fn first_to_go(&self, may: impl Fn(&Sitter) -> bool) -> Option<u64> {
        let all = self.sitters.iter().filter(|(_, sitter)| may(sitter));
        let worst = all.max_by_key(|(number, sitter)| (!sitter.busy, self.count(&sitter.peer), Reverse(**number)));
        worst.map(|(number, _)| *number)
    }

    fn leave(&mut self, number: u64) -> Option<AbortHandle> {
        let sitter = self.sitters.remove(&number)?;
        if let Some(count) = self.per_peer.get_mut(&sitter.peer) {
            *count -= 1;
            if *count == 0 {
                self.per_peer.remove(&sitter.peer);
            }
        }
        sitter.end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(n: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, n])
    }

    fn there(seats: &Seats) -> Vec<u64> {
        seats.table().sitters.keys().copied().collect()
    }

    #[test]
    fn a_peer_has_so_many_and_its_own_idle_ones_go() {
        let seats = Seats::new(Size { all: 10, per_peer: 2 });
        let held: Vec<Seat> = (0..3).filter_map(|_| seats.sit(peer(1))).collect();
        assert_eq!((held.len(), there(&seats)), (3, vec![1, 2]), "the first of them gave way");
        held.iter().for_each(|seat| seat.set_busy(true));
        assert!(seats.sit(peer(1)).is_none(), "all that it may have is under way");
        assert!(seats.sit(peer(2)).is_some());
        drop(held);
        assert!(seats.table().per_peer.is_empty() && there(&seats).is_empty());
    }

    #[test]
    fn who_has_most_gives_way() {
        let seats = Seats::new(Size { all: 4, per_peer: 3 });
        let one = seats.sit(peer(1)).unwrap();
        let many: Vec<Seat> = (0..3).filter_map(|_| seats.sit(peer(2))).collect();
        many[0].set_busy(true);
        let other = seats.sit(peer(3)).unwrap();
        assert_eq!(there(&seats), [one.number(), many[0].number(), many[2].number(), other.number()]);
    }
}
