//! The index of the clusters' names: plain synchronous state that takes one change at a time. `answer` reads it.
//!
//! Records are built when they are queried, from the service and its slices: applying a change costs no more than storing
//! it, and an answer costs no more than its own length. Only what cannot be derived from a name is indexed: which
//! namespaces exist, and which services have an address.

use crate::change::NameChange;
use crate::cluster_records::ClusterRecords;
use crate::host_context::HostContext;
use crate::zone::{Zone, ZoneTable};
use beeline_model::cluster::order::ClusterOrder;
use beeline_model::reach::Reach;
use beeline_model::{Address, Name};
use ipnet::IpNet;
use std::collections::HashMap;
use std::net::IpAddr;

pub struct NameIndex {
    zones: Vec<Zone>,
    /// For each view, the cluster that it puts first.
    pub(crate) views: Vec<Name>,
    /// The zones in the configured order, then in the order of each view.
    pub(crate) zone_tables: Vec<ZoneTable>,
    pub(crate) clusters: HashMap<Name, ClusterRecords>,
    pub(crate) host: HostContext,
    /// The address of this DNS server, returned as the zones' name server.
    pub(crate) server_address: Option<IpAddr>,
    /// Number of changes, used as the serial of the zones.
    pub(crate) serial: u32,
}

impl NameIndex {
    /// Each entry of `views` is a cluster that a view puts first.
    pub fn new(zones: Vec<Zone>, views: Vec<Name>) -> NameIndex {
        let zone_tables = zone_tables(&zones, &views);
        NameIndex {
            zones,
            views,
            zone_tables,
            clusters: HashMap::new(),
            host: HostContext::default(),
            server_address: None,
            serial: 1,
        }
    }

    /// Replaces the list of clusters. The records of clusters that stay are kept.
    pub fn set_zones(&mut self, zones: Vec<Zone>) {
        self.zone_tables = zone_tables(&zones, &self.views);
        self.clusters.retain(|name, _| zones.iter().any(|zone| zone.cluster == *name));
        self.zones = zones;
        self.increment_serial();
    }

    /// Sets this host's node name and addresses.
    pub fn set_own(&mut self, node: Name, own: impl IntoIterator<Item = Address>) {
        self.host.node = node;
        self.host.own = own.into_iter().collect();
        self.increment_serial();
    }

    /// Sets the ranges of virtual addresses.
    pub fn set_virtual_address_cidrs(&mut self, ranges: Vec<IpNet>) {
        self.host.virtual_address_cidrs = ranges;
        self.increment_serial();
    }

    /// Sets the order of the clusters, which decides who owns an address.
    pub fn set_order(&mut self, order: ClusterOrder) {
        self.host.order = order;
        self.increment_serial();
    }

    /// Sets what is known about the reachability of pods.
    pub fn set_reach(&mut self, reach: Reach) {
        self.host.reach = reach;
        self.increment_serial();
    }

    /// Sets the address of this DNS server.
    pub fn set_server_address(&mut self, address: IpAddr) {
        self.server_address = Some(address);
    }

    /// Marks a cluster as completely listed. From then on a name that is not in the index does not exist.
    pub fn set_synced(&mut self, cluster: &str) {
        self.cluster(cluster).synced = true;
    }

    pub fn is_synced(&self, cluster: &str) -> bool {
        self.clusters.get(cluster).is_some_and(|cluster| cluster.synced)
    }

    pub fn apply(&mut self, change: NameChange) {
        let cluster = self.cluster(change.cluster());
        match change {
            NameChange::UpsertService(service) => cluster.upsert_service(service),
            NameChange::DeleteService(name) => cluster.remove_service(&name),
            NameChange::UpsertSlice(name, slice) => cluster.upsert_slice(name, slice),
            NameChange::DeleteSlice(name) => cluster.remove_slice(&name),
            NameChange::UpsertNode(node) => cluster.upsert_node(node),
            NameChange::DeleteNode { name, .. } => cluster.remove_node(&name),
        }
        self.increment_serial();
    }

    fn increment_serial(&mut self) {
        self.serial = self.serial.wrapping_add(1);
    }

    fn cluster(&mut self, name: &str) -> &mut ClusterRecords {
        if !self.clusters.contains_key(name) {
            self.clusters.insert(name.into(), ClusterRecords::default());
        }
        self.clusters.entry(name.into()).or_default()
    }

    pub fn services(&self) -> usize {
        self.clusters.values().map(|cluster| cluster.services.len()).sum()
    }

    /// The domains that this server answers for.
    pub fn domains(&self) -> Vec<String> {
        self.zone_tables[0].served_domains()
    }

    /// For each cluster: its domains, the number of its services, and whether it has synced.
    pub fn zone_statuses(&self) -> Vec<ZoneStatus> {
        self.zones.iter().map(|zone| self.zone_status(zone)).collect()
    }

    fn zone_status(&self, zone: &Zone) -> ZoneStatus {
        let cluster = self.clusters.get(&zone.cluster);
        ZoneStatus {
            cluster: zone.cluster.clone(),
            domains: self.zone_tables[0].domains_of(&zone.cluster),
            services: cluster.map_or(0, |cluster| cluster.services.len()),
            synced: cluster.is_some_and(|cluster| cluster.synced),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZoneStatus {
    pub cluster: Name,
    pub domains: Vec<String>,
    pub services: usize,
    pub synced: bool,
}

fn zone_tables(zones: &[Zone], views: &[Name]) -> Vec<ZoneTable> {
    let of_view = |first: &Name| {
        let (mut order, rest): (Vec<Zone>, Vec<Zone>) = zones.iter().cloned().partition(|zone| zone.cluster == *first);
        order.extend(rest);
        ZoneTable::new(order)
    };
    std::iter::once(ZoneTable::new(zones.to_vec())).chain(views.iter().map(of_view)).collect()
}
