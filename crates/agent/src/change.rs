//! How many changes came in and how soon they were in the kernel, by the names that kube-proxy's dashboards read.

use beeline_model::fact::Fact;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;
use std::time::{Duration, SystemTime};

pub struct Changes {
    /// From what the source said to the kernel.
    duration: Histogram,
    full: Histogram,
    partial: Histogram,
    /// From the pod's change, as the slice's controller saw it, to the kernel.
    network: Histogram,
    services: Counter,
    endpoints: Counter,
    last: Option<SystemTime>,
}

impl Default for Changes {
    fn default() -> Changes {
        let fine = || Histogram::new(exponential_buckets(0.0001, 2.0, 20));
        Changes {
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

/// kube-proxy's own, finer below a quarter of a second, where we are.
fn network_buckets() -> impl Iterator<Item = f64> {
    let fine = [0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5].into_iter();
    let steps = |from: u32, step: u32, count: u32| (0..count).map(move |i| f64::from(from + i * step));
    fine.chain(steps(1, 1, 59)).chain(steps(60, 5, 12)).chain(steps(120, 30, 7))
}

impl Changes {
    pub fn count(&self, fact: &Fact) {
        match fact {
            Fact::Service(_) | Fact::ServiceGone(_) => drop(self.services.inc()),
            Fact::Slice(_) | Fact::SliceGone(_) => drop(self.endpoints.inc()),
            // kube-proxy has no word for the others.
            _ => {}
        }
    }

    pub fn programmed(&mut self, took: Duration, full: bool) {
        let seconds = took.as_secs_f64();
        self.duration.observe(seconds);
        if full {
            self.full.observe(seconds)
        } else {
            self.partial.observe(seconds)
        }
        self.last = Some(SystemTime::now());
    }

    /// Changes that happened at these times are in the kernel now.
    pub fn reached(&self, triggers: &[SystemTime]) {
        let now = SystemTime::now();
        for took in triggers.iter().filter_map(|then| now.duration_since(*then).ok()) {
            self.network.observe(took.as_secs_f64());
        }
    }

    pub fn register(&self, registry: &mut Registry) {
        let mut histogram = |name: &str, help: &str, it: &Histogram| registry.register(name, help, it.clone());
        histogram("kubeproxy_sync_proxy_rules_duration_seconds", "Time from a change to the kernel", &self.duration);
        histogram("kubeproxy_sync_full_proxy_rules_duration_seconds", "The same, of full syncs", &self.full);
        histogram("kubeproxy_sync_partial_proxy_rules_duration_seconds", "The same, of single changes", &self.partial);
        let help = "Time from the change of a pod or service to the kernel, by the slice's annotation";
        histogram("kubeproxy_network_programming_duration_seconds", help, &self.network);
        let mut counter = |name: &str, help: &str, it: &Counter| registry.register(name, help, it.clone());
        counter("kubeproxy_sync_proxy_rules_service_changes", "Changes of Services", &self.services);
        counter("kubeproxy_sync_proxy_rules_endpoint_changes", "Changes of EndpointSlices", &self.endpoints);
        let last = self.last.and_then(|at| at.duration_since(SystemTime::UNIX_EPOCH).ok());
        let gauge = prometheus_client::metrics::gauge::Gauge::<f64, std::sync::atomic::AtomicU64>::default();
        gauge.set(last.map_or(0.0, |at| at.as_secs_f64()));
        registry.register(
            "kubeproxy_sync_proxy_rules_last_timestamp_seconds",
            "When the kernel was last written",
            gauge,
        );
    }
}
