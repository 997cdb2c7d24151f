//! Replaces `dns` in a binary for Nodes, which contains no DNS server: the settings never ask for one.

use crate::settings::{ClusterSettings, DnsSettings};
use anyhow::ensure;
use beeline_api::DnsStatus;
use beeline_model::Name;
use beeline_model::change::Change;
use beeline_model::cluster::order::ClusterOrder;
use beeline_model::reach::Reach;
use beeline_model::rules::Rules;
use std::convert::Infallible;

/// There is no listener for DNS.
pub const MAX_CONNECTIONS: usize = 0;

/// The zone of a cluster. No name is answered, so nothing of it is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Zone;

impl Zone {
    pub fn new(_cluster: &str, _domain: &str) -> Result<Zone, Infallible> {
        Ok(Zone)
    }
}

/// Does not exist in this build.
pub enum DnsServer {}

impl DnsServer {
    pub async fn bind(
        settings: Option<&DnsSettings>,
        _clusters: &[ClusterSettings],
        _retry: bool,
    ) -> anyhow::Result<Option<DnsServer>> {
        ensure!(settings.is_none(), "this binary is built without the feature `outside` and has no DNS server");
        Ok(None)
    }

    pub fn updater(&self) -> DnsUpdater {
        match *self {}
    }

    pub async fn serve(self) -> anyhow::Result<()> {
        match self {}
    }
}

/// Does not exist in this build.
pub enum DnsUpdater {}

impl DnsUpdater {
    pub fn queue(&mut self, _changes: &[Change]) {
        match *self {}
    }

    pub fn publish<'a>(&mut self, _order: &ClusterOrder, _reach: &Reach, _synced: impl Iterator<Item = &'a Name>) {
        match *self {}
    }

    pub fn set_own_addresses(&self, _rules: &Rules) {
        match *self {}
    }

    pub fn set_zones(&self, _clusters: &[ClusterSettings]) {
        match *self {}
    }

    pub fn query_counts(&self) -> Vec<(&'static str, &'static str, u64)> {
        match *self {}
    }

    pub fn services(&self) -> usize {
        match *self {}
    }

    pub fn status(&self) -> DnsStatus {
        match *self {}
    }
}
