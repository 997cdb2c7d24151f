//! The clusters' names, answered where the facts are: an index (facts in, records out) and a DNS server on a loopback
//! address that reads it. The server needs nobody: what the index has been told is answered, also while the cluster
//! that told it is away.
#![forbid(unsafe_code)]

mod check;
mod count;
mod desk;
mod forward;
mod index;
mod question;
mod record;
mod schema;
mod serve;
mod told;
mod way;
mod wire;
mod zone;

#[doc(hidden)]
pub use check::check;
pub use count::{Counts, Outcome};
pub use desk::Desk;
pub use forward::Forward;
pub use index::{Heard, Index};
pub use question::{Answer, Code};
pub use record::TTL;
pub use serve::{BindError, Bound, ServeError};
pub use told::Told;
pub use zone::{BadDomain, Zone};

use beeline_model::reach::Reach;
use beeline_model::stand::order::Order;
use beeline_model::{Address, Name as Word};
use hickory_proto::rr::{Name, RecordType};
use ipnet::IpNet;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{PoisonError, RwLock};

/// The index and the counts, shared: the owner of the facts tells it, the server asks.
pub struct Names {
    index: RwLock<Index>,
    pub counts: Counts,
    /// Addresses at which nobody answers yet, and why.
    closed: RwLock<BTreeMap<SocketAddr, String>>,
}

impl Names {
    /// `views`: clusters that somebody sees first; they are asked by their place here, from 1.
    pub fn new(zones: Vec<Zone>, views: Vec<Word>) -> Names {
        Names { index: RwLock::new(Index::new(zones, views)), counts: Counts::default(), closed: RwLock::default() }
    }

    /// Whether an address could be had, or why not.
    pub fn set_closed(&self, at: SocketAddr, why: Option<String>) {
        let mut closed = self.closed.write().unwrap_or_else(PoisonError::into_inner);
        match why {
            Some(why) => drop(closed.insert(at, why)),
            None => drop(closed.remove(&at)),
        }
    }

    pub fn closed(&self) -> Vec<String> {
        self.closed.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    /// All of it before the next answer; `known`: of these clusters everything has been told once.
    pub fn tell<'a>(&self, all: Vec<Told>, known: impl IntoIterator<Item = &'a str>) {
        let new: Vec<&str> = self.read(|index| known.into_iter().filter(|name| !index.is_known(name)).collect());
        if all.is_empty() && new.is_empty() {
            return;
        }
        self.write(|index| {
            all.into_iter().for_each(|told| index.apply(told));
            new.into_iter().for_each(|cluster| index.set_known(cluster));
        });
    }

    pub fn set_zones(&self, zones: Vec<Zone>) {
        self.write(|index| index.set_zones(zones));
    }

    pub fn set_own(&self, node: Word, own: impl IntoIterator<Item = Address>) {
        self.write(|index| index.set_own(node, own));
    }

    pub fn set_virtual(&self, ranges: &[IpNet]) {
        self.write(|index| index.set_virtual(ranges.to_vec()));
    }

    /// Costs next to nothing where it is the same.
    pub fn set_order(&self, order: &Order) {
        if self.read(|index| index.outlook.order != *order) {
            self.write(|index| index.set_order(order.clone()));
        }
    }

    pub fn set_reach(&self, reach: &Reach) {
        if self.read(|index| index.outlook.reach != *reach) {
            self.write(|index| index.set_reach(reach.clone()));
        }
    }

    pub fn set_address(&self, at: IpAddr) {
        self.write(|index| index.set_address(at));
    }

    pub fn answer(&self, view: usize, name: &Name, kind: RecordType) -> Answer {
        self.read(|index| index.answer(view, name, kind))
    }

    pub fn services(&self) -> usize {
        self.read(Index::services)
    }

    pub fn domains(&self) -> Vec<String> {
        self.read(Index::domains)
    }

    pub fn heard(&self) -> Vec<Heard> {
        self.read(Index::heard)
    }

    fn read<T>(&self, ask: impl FnOnce(&Index) -> T) -> T {
        ask(&self.index.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn write(&self, change: impl FnOnce(&mut Index)) {
        change(&mut self.index.write().unwrap_or_else(PoisonError::into_inner));
    }
}
