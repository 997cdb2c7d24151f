//! How much has been read from each cluster's edge cache, whichever of its followers read it.

use beeline_cluster::Traffic;
use beeline_model::Name;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

#[derive(Default)]
pub struct Meters(Mutex<BTreeMap<Name, Arc<Traffic>>>);

impl Meters {
    pub fn of(&self, cluster: &Name) -> Arc<Traffic> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(cluster.clone()).or_default().clone()
    }

    /// `None`: it has no edge cache.
    pub fn bytes(&self, cluster: &Name) -> Option<u64> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(cluster).map(|traffic| traffic.bytes())
    }
}
