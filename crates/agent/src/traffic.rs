//! The number of bytes read from each cluster's edge cache, over all tasks that read it.

use beeline_cluster::TrafficCounter;
use beeline_model::Name;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

#[derive(Default)]
pub struct TrafficCounters(Mutex<BTreeMap<Name, Arc<TrafficCounter>>>);

impl TrafficCounters {
    pub fn counter(&self, cluster: &Name) -> Arc<TrafficCounter> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(cluster.clone()).or_default().clone()
    }

    /// `None` means that the cluster is not read from an edge cache.
    pub fn bytes(&self, cluster: &Name) -> Option<u64> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(cluster).map(|traffic| traffic.bytes())
    }
}
