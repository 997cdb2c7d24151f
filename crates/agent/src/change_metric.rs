//! Counts the changes of objects and measures how long it takes to program them, under the metric names of kube-proxy.

use beeline_model::change::{Change, ObjectKey};
use beeline_model::object::Object;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, SystemTime};

pub struct ChangeMetrics {
    /// From the arrival of a change to the last write.
    duration: Histogram,
    full: Histogram,
    partial: Histogram,
    /// From the time that the EndpointSlice controller recorded for the change to the last write.
    network: Histogram,
    services: Counter,
    endpoints: Counter,
    last: Option<SystemTime>,
}

impl Default for ChangeMetrics {
    fn default() -> ChangeMetrics {
        let fine = || Histogram::new(exponential_buckets(0.0001, 2.0, 20));
        ChangeMetrics {
            duration: fine(),
            full: fine(),
            partial: fine(),
            network: Histogram::new(network_buckets()),
            services: Counter::default(),
            endpoints: Counter::default(),
            last: None,
        }
    }
}

/// kube-proxy's buckets, with finer ones below 0.5 s, where most of our values are.
fn network_buckets() -> impl Iterator<Item = f64> {
    let fine = [0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5].into_iter();
    let steps = |from: u32, step: u32, count: u32| (0..count).map(move |i| f64::from(from + i * step));
    fine.chain(steps(1, 1, 59)).chain(steps(60, 5, 12)).chain(steps(120, 30, 7))
}

impl ChangeMetrics {
    /// Counts Services and EndpointSlices. kube-proxy has no metric for the other kinds.
    pub fn count(&self, change: &Change) {
        match change {
            Change::Upsert(Object::Service(_)) | Change::Delete(ObjectKey::Service(_)) => drop(self.services.inc()),
            Change::Upsert(Object::Slice(_)) | Change::Delete(ObjectKey::Slice(_)) => drop(self.endpoints.inc()),
            _ => {}
        }
    }

    pub fn record_sync(&mut self, took: Duration, full: bool) {
        let seconds = took.as_secs_f64();
        self.duration.observe(seconds);
        let histogram = if full { &self.full } else { &self.partial };
        histogram.observe(seconds);
        self.last = Some(SystemTime::now());
    }

    /// The changes that happened at these times are in the kernel now.
    pub fn record_programmed(&self, triggers: &[SystemTime]) {
        let now = SystemTime::now();
        for took in triggers.iter().filter_map(|then| now.duration_since(*then).ok()) {
            self.network.observe(took.as_secs_f64());
        }
    }

    pub fn register(&self, registry: &mut Registry) {
        let mut histogram = |name: &str, help: &str, metric: &Histogram| registry.register(name, help, metric.clone());
        let help = "Time from the arrival of a change to its last write to the kernel, in seconds";
        histogram("kubeproxy_sync_proxy_rules_duration_seconds", help, &self.duration);
        let help = "Time of a full synchronization, in seconds";
        histogram("kubeproxy_sync_full_proxy_rules_duration_seconds", help, &self.full);
        let help = "Time from the arrival of a single change to its last write to the kernel, in seconds";
        histogram("kubeproxy_sync_partial_proxy_rules_duration_seconds", help, &self.partial);
        let help =
            "Time from the change of a pod or Service, as annotated on its EndpointSlice, to the kernel, in seconds";
        histogram("kubeproxy_network_programming_duration_seconds", help, &self.network);
        let mut counter = |name: &str, help: &str, metric: &Counter| registry.register(name, help, metric.clone());
        counter("kubeproxy_sync_proxy_rules_service_changes", "Changes of Services", &self.services);
        counter("kubeproxy_sync_proxy_rules_endpoint_changes", "Changes of EndpointSlices", &self.endpoints);
        let last = self.last.and_then(|at| at.duration_since(SystemTime::UNIX_EPOCH).ok());
        let gauge = Gauge::<f64, AtomicU64>::default();
        gauge.set(last.map_or(0.0, |at| at.as_secs_f64()));
        let help = "Unix time of the last synchronization, in seconds";
        registry.register("kubeproxy_sync_proxy_rules_last_timestamp_seconds", help, gauge);
    }
}
