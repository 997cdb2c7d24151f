//! The shared state of the DNS server: the index behind a lock, the query counts, and the listeners' errors. The agent
//! updates it, the query handlers read it.

use crate::answer::Answer;
use crate::change::NameChange;
use crate::index::{NameIndex, ZoneStatus};
use crate::query_count::QueryCounts;
use crate::zone::Zone;
use beeline_model::cluster::order::ClusterOrder;
use beeline_model::reach::Reach;
use beeline_model::{Address, Name};
use hickory_proto::rr::{Name as DnsName, RecordType};
use ipnet::IpNet;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{PoisonError, RwLock};

pub struct NameStore {
    index: RwLock<NameIndex>,
    pub counts: QueryCounts,
    /// Addresses that could not be bound yet, with the reason.
    listen_errors: RwLock<BTreeMap<SocketAddr, String>>,
}

impl NameStore {
    /// Each entry of `views` is a cluster that a view puts first. A query names its view by the position here, from 1.
    pub fn new(zones: Vec<Zone>, views: Vec<Name>) -> NameStore {
        NameStore {
            index: RwLock::new(NameIndex::new(zones, views)),
            counts: QueryCounts::default(),
            listen_errors: RwLock::default(),
        }
    }

    /// Records why an address could not be bound; `None` once it is bound.
    pub fn set_listen_error(&self, address: SocketAddr, error: Option<String>) {
        let mut errors = self.listen_errors.write().unwrap_or_else(PoisonError::into_inner);
        match error {
            Some(error) => drop(errors.insert(address, error)),
            None => drop(errors.remove(&address)),
        }
    }

    pub fn listen_errors(&self) -> Vec<String> {
        self.listen_errors.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    /// Applies all changes atomically: a query sees none or all of them. `synced` names the clusters whose objects have
    /// been listed completely.
    pub fn apply<'a>(&self, changes: Vec<NameChange>, synced: impl IntoIterator<Item = &'a str>) {
        let newly_synced: Vec<&str> =
            self.read(|index| synced.into_iter().filter(|name| !index.is_synced(name)).collect());
        if changes.is_empty() && newly_synced.is_empty() {
            return;
        }
        self.write(|index| {
            changes.into_iter().for_each(|change| index.apply(change));
            newly_synced.into_iter().for_each(|cluster| index.set_synced(cluster));
        });
    }

    pub fn set_zones(&self, zones: Vec<Zone>) {
        self.write(|index| index.set_zones(zones));
    }

    pub fn set_own(&self, node: Name, own: impl IntoIterator<Item = Address>) {
        self.write(|index| index.set_own(node, own));
    }

    pub fn set_virtual_address_cidrs(&self, ranges: &[IpNet]) {
        self.write(|index| index.set_virtual_address_cidrs(ranges.to_vec()));
    }

    /// An unchanged order does not take the write lock.
    pub fn set_order(&self, order: &ClusterOrder) {
        if self.read(|index| index.host.order != *order) {
            self.write(|index| index.set_order(order.clone()));
        }
    }

    pub fn set_reach(&self, reach: &Reach) {
        if self.read(|index| index.host.reach != *reach) {
            self.write(|index| index.set_reach(reach.clone()));
        }
    }

    pub fn set_server_address(&self, address: IpAddr) {
        self.write(|index| index.set_server_address(address));
    }

    pub fn answer(&self, view: usize, name: &DnsName, record_type: RecordType) -> Answer {
        self.read(|index| index.answer(view, name, record_type))
    }

    pub fn services(&self) -> usize {
        self.read(NameIndex::services)
    }

    pub fn domains(&self) -> Vec<String> {
        self.read(NameIndex::domains)
    }

    pub fn zone_statuses(&self) -> Vec<ZoneStatus> {
        self.read(NameIndex::zone_statuses)
    }

    fn read<T>(&self, read: impl FnOnce(&NameIndex) -> T) -> T {
        read(&self.index.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn write(&self, change: impl FnOnce(&mut NameIndex)) {
        change(&mut self.index.write().unwrap_or_else(PoisonError::into_inner));
    }
}
