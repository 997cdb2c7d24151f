//! healthCheckNodePort: a load balancer asks each node whether it has endpoints of its own for a service with external
//! policy Local, and sends only there. The owner says which ports and how many endpoints; one task keeps the listeners.

use crate::health::Health;
use crate::listen::listen;
use axum::extract::State;
use axum::http::{HeaderName, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use beeline_model::fact::Refusal;
use beeline_model::plan::candidates;
use beeline_model::planner::Planner;
use beeline_model::{Family, OwnerName};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::Ipv6Addr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::task::{AbortHandle, JoinSet};

/// A port that was taken is tried again this often.
const AGAIN: Duration = Duration::from_secs(10);

/// What a load balancer may ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probe {
    pub port: u16,
    /// Local, ready, each address once.
    pub endpoints: usize,
}

#[derive(Default)]
struct Board {
    wanted: BTreeMap<OwnerName, Probe>,
    refused: BTreeMap<OwnerName, Refusal>,
    changed: bool,
}

/// Shared between the owner, which says what is wanted, and the listeners.
#[derive(Default)]
pub struct Probes {
    board: Mutex<Board>,
    news: Notify,
}

impl Probes {
    fn with<T>(&self, work: impl FnOnce(&mut Board) -> T) -> T {
        work(&mut self.board.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub fn set(&self, name: &OwnerName, probe: Option<Probe>) {
        self.with(|board| match probe {
            Some(probe) => {
                let before = board.wanted.insert(name.clone(), probe);
                board.changed |= before.is_none_or(|before| before.port != probe.port);
            }
            None => board.changed |= board.wanted.remove(name).is_some(),
        });
    }

    /// Wakes the listeners if another port is wanted now.
    pub fn tell(&self) {
        if self.with(|board| std::mem::take(&mut board.changed)) {
            self.news.notify_one();
        }
    }

    pub fn refusals(&self) -> Vec<Refusal> {
        self.with(|board| board.refused.values().cloned().collect())
    }

    fn endpoints(&self, name: &OwnerName) -> usize {
        self.with(|board| board.wanted.get(name).map_or(0, |probe| probe.endpoints))
    }

    fn ports(&self) -> BTreeMap<OwnerName, u16> {
        self.with(|board| board.wanted.iter().map(|(name, probe)| (name.clone(), probe.port)).collect())
    }
}

pub fn wanted(planner: &Planner, name: &OwnerName) -> Option<Probe> {
    let service = planner.service(name).filter(|service| service.health_check_node_port > 0)?;
    let around = planner.surroundings(name.cluster())?;
    let mut addresses = HashSet::new();
    for port in &service.ports {
        for family in Family::BOTH.into_iter().filter(|family| service.cluster_ip(*family).is_some()) {
            let found = candidates(port, family, planner.slices_of(name), &around);
            addresses.extend(found.iter().filter(|c| c.local && c.ready).map(|c| c.address));
        }
    }
    Some(Probe { port: service.health_check_node_port, endpoints: addresses.len() })
}

struct Asked {
    probes: Arc<Probes>,
    health: Arc<Health>,
    service: OwnerName,
}

async fn answer(State(asked): State<Arc<Asked>>) -> Response {
    let (endpoints, healthy) = (asked.probes.endpoints(&asked.service), asked.health.is_healthy());
    let code = if endpoints > 0 && healthy { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let weight = HeaderName::from_static("x-load-balancing-endpoint-weight");
    let headers = [(header::X_CONTENT_TYPE_OPTIONS, "nosniff".to_owned()), (weight, endpoints.to_string())];
    let body = serde_json::json!({
        "service": { "namespace": asked.service.namespace(), "name": asked.service.name() },
        "localEndpoints": endpoints,
        "serviceProxyHealthy": healthy,
    });
    (code, headers, Json(body)).into_response()
}

pub async fn serve(probes: Arc<Probes>, health: Arc<Health>) -> anyhow::Result<()> {
    let mut listeners = JoinSet::new();
    let mut open: BTreeMap<OwnerName, (u16, AbortHandle)> = BTreeMap::new();
    loop {
        let ports = probes.ports();
        let stale: BTreeSet<OwnerName> = open
            .iter()
            .filter(|(name, (port, _))| ports.get(name) != Some(port))
            .map(|(name, _)| name.clone())
            .collect();
        for (_, task) in stale.iter().filter_map(|name| open.remove(name)) {
            task.abort();
            // A port may go from one service to another: its listener must be gone first.
            listeners.join_next().await;
        }
        let missing = ports.iter().filter(|(name, _)| !open.contains_key(*name)).collect::<Vec<_>>();
        let mut refused = BTreeMap::new();
        for (name, port) in missing {
            match listen((Ipv6Addr::UNSPECIFIED, *port).into()).await {
                Ok(listener) => {
                    let asked = Asked { probes: probes.clone(), health: health.clone(), service: name.clone() };
                    let app = Router::new().fallback(get(answer)).with_state(Arc::new(asked));
                    let task = listeners.spawn(async move { axum::serve(listener, app).await });
                    open.insert(name.clone(), (*port, task));
                }
                Err(bad) => drop(refused.insert(name.clone(), taken(name, *port, &bad))),
            }
        }
        let waits = !refused.is_empty();
        probes.with(|board| board.refused = refused);
        tokio::select! {
            () = probes.news.notified() => {}
            () = tokio::time::sleep(AGAIN), if waits => {}
        }
    }
}

fn taken(name: &OwnerName, port: u16, bad: &std::io::Error) -> Refusal {
    Refusal {
        subject: format!("Service {}/{}", name.namespace(), name.name()),
        reason: "healthCheckPortTaken",
        message: format!(
            "healthCheckNodePort {port} cannot be listened on: {bad}; if kube-proxy runs here, use --beside-kube-proxy"
        ),
    }
}
