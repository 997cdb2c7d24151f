//! Health as kube-proxy tells it: `/livez` is about the agent, `/healthz` also about the node.

use serde::Serialize;
use std::sync::Mutex;
use std::time::{Duration, SystemTime};

#[derive(Clone, Copy, Debug)]
pub enum Page {
    Healthz,
    Livez,
}

/// Shared between the owner, which reports, and HTTP, which asks.
#[derive(Debug)]
pub struct Health {
    sync_period: Duration,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    /// When the oldest change came in that is not programmed yet.
    queued: Option<SystemTime>,
    updated: SystemTime,
    node_eligible: bool,
    synced: bool,
    /// Answers so far, 200 and 503: of `/healthz`, then of `/livez`.
    answers: [u64; 4],
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
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
        let now = SystemTime::now();
        let inner = Inner { queued: None, updated: now, node_eligible: true, synced: false, answers: [0; 4] };
        Health { sync_period, inner: Mutex::new(inner) }
    }

    fn with<T>(&self, work: impl FnOnce(&mut Inner) -> T) -> T {
        work(&mut self.inner.lock().unwrap_or_else(std::sync::PoisonError::into_inner))
    }

    pub fn queued(&self) {
        self.with(|i| i.queued = i.queued.or(Some(SystemTime::now())));
    }

    /// What has come in is taken in, but nothing may be programmed before the source has been read once.
    pub fn waits(&self) {
        self.with(|i| i.queued = None);
    }

    pub fn programmed(&self, all: bool) {
        self.with(|i| {
            i.updated = SystemTime::now();
            i.synced = true;
            if all {
                i.queued = None;
            }
        });
    }

    pub fn set_node_eligible(&self, eligible: bool) {
        self.with(|i| i.node_eligible = eligible);
    }

    /// Before the first sync nothing waits: an agent that cannot reach its source yet gains nothing by a restart.
    pub fn is_live(&self) -> bool {
        self.with(|i| i.queued.is_none_or(|q| q.elapsed().unwrap_or_default() <= self.sync_period * 2))
    }

    pub fn is_healthy(&self) -> bool {
        self.is_live() && self.with(|i| i.synced && i.node_eligible)
    }

    /// `/healthz` or `/livez` was asked.
    pub fn answered(&self, page: Page, healthy: bool) {
        self.with(|i| i.answers[page as usize * 2 + usize::from(!healthy)] += 1);
    }

    /// How often each code was the answer of this page.
    pub fn answers(&self, page: Page) -> [(u16, u64); 2] {
        let [well, unwell, live, dead] = self.with(|i| i.answers);
        match page {
            Page::Healthz => [(200, well), (503, unwell)],
            Page::Livez => [(200, live), (503, dead)],
        }
    }

    pub fn report(&self, healthy: bool) -> Report {
        let (updated, eligible) = self.with(|i| (i.updated, i.node_eligible));
        let updated = timestamp(updated);
        let family = FamilyStatus { last_updated: updated.clone(), healthy: self.is_live() };
        Report {
            last_updated: updated,
            current_time: timestamp(SystemTime::now()),
            node_eligible: eligible,
            healthy,
            status: FamilyReport { v4: family.clone(), v6: family },
        }
    }
}

pub fn timestamp(time: SystemTime) -> String {
    jiff::Timestamp::try_from(time).map_or_else(|_| String::new(), |t| t.to_string())
}
