//! Health in the form of kube-proxy: `/livez` reports the agent, `/healthz` the agent and its node.

use serde::Serialize;
use std::sync::Mutex;
use std::time::{Duration, SystemTime};

#[derive(Clone, Copy, Debug)]
pub enum HealthEndpoint {
    Healthz,
    Livez,
}

/// Written by the main loop, read by the HTTP server.
#[derive(Debug)]
pub struct Health {
    sync_period: Duration,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    /// When the oldest change arrived that is not programmed yet.
    queued_since: Option<SystemTime>,
    updated: SystemTime,
    node_eligible: bool,
    synced: bool,
    /// Whether packets from outside are served. True if the packet path is off.
    serves_packets: bool,
    /// Number of responses: 200 and 503 of `/healthz`, then 200 and 503 of `/livez`.
    responses: [u64; 4],
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HealthReport {
    last_updated: String,
    current_time: String,
    node_eligible: bool,
    healthy: bool,
    status: FamilyReport,
}

#[derive(Debug, Serialize)]
struct FamilyReport {
    #[serde(rename = "IPv4")]
    v4: FamilyStatus,
    #[serde(rename = "IPv6")]
    v6: FamilyStatus,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct FamilyStatus {
    last_updated: String,
    healthy: bool,
}

impl Health {
    pub fn new(sync_period: Duration) -> Health {
        let updated = SystemTime::now();
        let inner = Inner {
            queued_since: None,
            updated,
            node_eligible: true,
            synced: false,
            serves_packets: true,
            responses: [0; 4],
        };
        Health { sync_period, inner: Mutex::new(inner) }
    }

    fn with<T>(&self, work: impl FnOnce(&mut Inner) -> T) -> T {
        work(&mut self.inner.lock().unwrap_or_else(std::sync::PoisonError::into_inner))
    }

    /// A change arrived. If the main loop does not program it in time, the agent is not live any more.
    pub fn record_queued(&self) {
        self.with(|inner| inner.queued_since = inner.queued_since.or(Some(SystemTime::now())));
    }

    /// Everything that arrived is processed, but nothing may be programmed before the first complete list.
    pub fn record_waiting(&self) {
        self.with(|inner| inner.queued_since = None);
    }

    pub fn record_programmed(&self, all: bool) {
        self.with(|inner| {
            inner.updated = SystemTime::now();
            inner.synced = true;
            if all {
                inner.queued_since = None;
            }
        });
    }

    pub fn set_node_eligible(&self, eligible: bool) {
        self.with(|inner| inner.node_eligible = eligible);
    }

    /// A load balancer must not send connections to a node whose packet path does not work.
    pub fn set_packet_path(&self, serves_packets: bool) {
        self.with(|inner| inner.serves_packets = serves_packets);
    }

    /// Before the first sync the agent is live: if it cannot reach its source, a restart does not help.
    pub fn is_live(&self) -> bool {
        let limit = self.sync_period * 2;
        self.with(|inner| inner.queued_since.is_none_or(|since| since.elapsed().unwrap_or_default() <= limit))
    }

    pub fn is_healthy(&self) -> bool {
        self.is_live() && self.with(|inner| inner.synced && inner.node_eligible && inner.serves_packets)
    }

    pub fn count_response(&self, endpoint: HealthEndpoint, healthy: bool) {
        self.with(|inner| inner.responses[endpoint as usize * 2 + usize::from(!healthy)] += 1);
    }

    /// The number of responses of this endpoint, by HTTP status.
    pub fn responses(&self, endpoint: HealthEndpoint) -> [(u16, u64); 2] {
        let [healthy, unhealthy, live, not_live] = self.with(|inner| inner.responses);
        match endpoint {
            HealthEndpoint::Healthz => [(200, healthy), (503, unhealthy)],
            HealthEndpoint::Livez => [(200, live), (503, not_live)],
        }
    }

    pub fn report(&self, healthy: bool) -> HealthReport {
        let (updated, eligible) = self.with(|inner| (inner.updated, inner.node_eligible));
        let updated = timestamp(updated);
        let family = FamilyStatus { last_updated: updated.clone(), healthy: self.is_live() };
        HealthReport {
            last_updated: updated,
            current_time: timestamp(SystemTime::now()),
            node_eligible: eligible,
            healthy,
            status: FamilyReport { v4: family.clone(), v6: family },
        }
    }
}

/// RFC 3339; empty for a time that cannot be represented.
pub fn timestamp(time: SystemTime) -> String {
    jiff::Timestamp::try_from(time).map_or_else(|_| String::new(), |t| t.to_string())
}
