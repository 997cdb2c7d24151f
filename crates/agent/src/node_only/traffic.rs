//! Replaces `traffic` in a binary for Nodes, which reads no edge cache.

use beeline_model::Name;

#[derive(Default)]
pub struct TrafficCounters;

impl TrafficCounters {
    pub fn bytes(&self, _cluster: &Name) -> Option<u64> {
        None
    }
}
