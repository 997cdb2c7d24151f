//! Answers load balancers at the healthCheckNodePort of Services with externalTrafficPolicy Local: a load balancer sends
//! traffic only to nodes with local endpoints. The main loop sets the ports and the number of endpoints; one task keeps
//! the listeners.

use crate::descriptor::{DescriptorBudget, HEALTH_CHECK_LIMITS};
use crate::health::Health;
use crate::listen::listen;
use axum::extract::State;
use axum::http::{HeaderName, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use beeline_listener::http::{HttpListenerConfig, serve_plain};
use beeline_model::plan::candidates;
use beeline_model::planner::Planner;
use beeline_model::refusal::{Refusal, RefusalReason};
use beeline_model::{Family, ServiceName};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::Ipv6Addr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::task::{AbortHandle, JoinSet};

/// The pause before a port that is in use is tried again.
const BIND_RETRY_INTERVAL: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HealthCheck {
    pub port: u16,
    /// The number of distinct addresses of ready endpoints on this node.
    pub local_endpoints: usize,
}

#[derive(Default)]
struct HealthCheckTable {
    checks: BTreeMap<ServiceName, HealthCheck>,
    refused: BTreeMap<ServiceName, Refusal>,
    ports_changed: bool,
}

/// Shared between the main loop, which sets the health checks, and the listeners.
#[derive(Default)]
pub struct HealthCheckPorts {
    table: Mutex<HealthCheckTable>,
    changed: Notify,
}

impl HealthCheckPorts {
    fn with<T>(&self, work: impl FnOnce(&mut HealthCheckTable) -> T) -> T {
        work(&mut self.table.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Sets the health checks of changed Services. Wakes the listeners if the set of ports changed.
    pub fn update<'a>(&self, services: impl Iterator<Item = &'a ServiceName>, planner: &Planner) {
        services.for_each(|name| self.set(name, health_check_of(planner, name)));
        if self.with(|table| std::mem::take(&mut table.ports_changed)) {
            self.changed.notify_one();
        }
    }

    fn set(&self, name: &ServiceName, check: Option<HealthCheck>) {
        self.with(|table| match check {
            Some(check) => {
                let before = table.checks.insert(name.clone(), check);
                table.ports_changed |= before.is_none_or(|before| before.port != check.port);
            }
            None => table.ports_changed |= table.checks.remove(name).is_some(),
        });
    }

    pub fn refusals(&self) -> Vec<Refusal> {
        self.with(|table| table.refused.values().cloned().collect())
    }

    fn local_endpoints(&self, name: &ServiceName) -> usize {
        self.with(|table| table.checks.get(name).map_or(0, |check| check.local_endpoints))
    }

    fn ports(&self) -> BTreeMap<ServiceName, u16> {
        self.with(|table| table.checks.iter().map(|(name, check)| (name.clone(), check.port)).collect())
    }
}

/// `None` if the Service has no healthCheckNodePort.
fn health_check_of(planner: &Planner, name: &ServiceName) -> Option<HealthCheck> {
    let service = planner.service(name).filter(|service| service.health_check_node_port > 0)?;
    let context = planner.plan_context(name.cluster())?;
    let mut addresses = HashSet::new();
    for port in &service.ports {
        for family in Family::BOTH.into_iter().filter(|family| service.cluster_ip(*family).is_some()) {
            let found = candidates(port, family, planner.slices_of(name), &context);
            addresses.extend(found.iter().filter(|c| c.local && c.ready).map(|c| c.address));
        }
    }
    Some(HealthCheck { port: service.health_check_node_port, local_endpoints: addresses.len() })
}

struct HealthCheckContext {
    checks: Arc<HealthCheckPorts>,
    health: Arc<Health>,
    service: ServiceName,
}

async fn respond(State(context): State<Arc<HealthCheckContext>>) -> Response {
    let endpoints = context.checks.local_endpoints(&context.service);
    let healthy = context.health.is_healthy();
    let code = if endpoints > 0 && healthy { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let weight = HeaderName::from_static("x-load-balancing-endpoint-weight");
    let headers = [(header::X_CONTENT_TYPE_OPTIONS, "nosniff".to_owned()), (weight, endpoints.to_string())];
    let body = serde_json::json!({
        "service": { "namespace": context.service.namespace(), "name": context.service.name() },
        "localEndpoints": endpoints,
        "serviceProxyHealthy": healthy,
    });
    (code, headers, Json(body)).into_response()
}

pub async fn serve(checks: Arc<HealthCheckPorts>, health: Arc<Health>, budget: DescriptorBudget) -> anyhow::Result<()> {
    let mut listeners = JoinSet::new();
    // All ports share the limit of connections: their number is not bounded by the node's owner.
    let config = HttpListenerConfig::new("healthCheckNodePort", HEALTH_CHECK_LIMITS);
    let config = HttpListenerConfig { keep_alive: false, ..config };
    let mut open: BTreeMap<ServiceName, (u16, AbortHandle)> = BTreeMap::new();
    loop {
        let ports = checks.ports();
        let stale: BTreeSet<ServiceName> = open
            .iter()
            .filter(|(name, (port, _))| ports.get(name) != Some(port))
            .map(|(name, _)| name.clone())
            .collect();
        for (_, task) in stale.iter().filter_map(|name| open.remove(name)) {
            task.abort();
            // A port may move from one Service to another, so old listeners are closed before new ones are opened.
            listeners.join_next().await;
        }
        let missing = ports.iter().filter(|(name, _)| !open.contains_key(*name)).collect::<Vec<_>>();
        let mut refused = BTreeMap::new();
        for (name, port) in missing {
            if open.len() >= budget.health_check_ports {
                refused.insert(name.clone(), limit_refusal(name, *port, budget));
                continue;
            }
            match listen((Ipv6Addr::UNSPECIFIED, *port).into()).await {
                Ok(listener) => {
                    let (checks, health) = (checks.clone(), health.clone());
                    let context = HealthCheckContext { checks, health, service: name.clone() };
                    let app = Router::new().fallback(get(respond)).with_state(Arc::new(context));
                    let task = listeners.spawn(serve_plain(listener, config.clone(), app));
                    open.insert(name.clone(), (*port, task));
                }
                Err(error) => drop(refused.insert(name.clone(), bind_refusal(name, *port, &error))),
            }
        }
        let retry = !refused.is_empty();
        checks.with(|table| table.refused = refused);
        tokio::select! {
            () = checks.changed.notified() => {}
            () = tokio::time::sleep(BIND_RETRY_INTERVAL), if retry => {}
        }
    }
}

fn bind_refusal(name: &ServiceName, port: u16, error: &std::io::Error) -> Refusal {
    let message = format!(
        "cannot listen on healthCheckNodePort {port}: {error}; if kube-proxy runs on this node, use --beside-kube-proxy"
    );
    Refusal::new(name, RefusalReason::HealthCheckPortTaken, message)
}

fn limit_refusal(name: &ServiceName, port: u16, budget: DescriptorBudget) -> Refusal {
    let DescriptorBudget { limit, health_check_ports } = budget;
    let message = format!(
        "cannot listen on healthCheckNodePort {port}: {health_check_ports} of them are served, which is what a limit of \
         {limit} open files allows; raise it (LimitNOFILE)"
    );
    Refusal::new(name, RefusalReason::HealthCheckPortLimit, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, TcpListener};

    fn free_ports<const N: usize>() -> [u16; N] {
        let bound = [(); N].map(|()| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap());
        bound.map(|listener| listener.local_addr().unwrap().port())
    }

    #[tokio::test]
    async fn a_port_of_another_process_is_refused_until_it_is_free() {
        let other = TcpListener::bind((Ipv6Addr::UNSPECIFIED, 0)).unwrap();
        let port = other.local_addr().unwrap().port();
        let checks = Arc::new(HealthCheckPorts::default());
        checks.set(&ServiceName::local("test", "a"), Some(HealthCheck { port, local_endpoints: 1 }));
        let budget = DescriptorBudget { limit: 1024, health_check_ports: 2 };
        let task = tokio::spawn(serve(checks.clone(), Arc::new(Health::new(Duration::from_secs(30))), budget));
        while checks.refusals().is_empty() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(checks.refusals()[0].reason, RefusalReason::HealthCheckPortTaken);
        drop(other);
        checks.changed.notify_one();
        while !checks.refusals().is_empty() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        task.abort();
    }

    #[tokio::test]
    async fn ports_beyond_the_limit_of_open_files_are_refused() {
        let checks = Arc::new(HealthCheckPorts::default());
        for (name, port) in ["a", "b", "c"].into_iter().zip(free_ports::<3>()) {
            checks.set(&ServiceName::local("test", name), Some(HealthCheck { port, local_endpoints: 1 }));
        }
        let budget = DescriptorBudget { limit: 1024, health_check_ports: 2 };
        let task = tokio::spawn(serve(checks.clone(), Arc::new(Health::new(Duration::from_secs(30))), budget));
        while checks.refusals().is_empty() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let [refusal] = &checks.refusals()[..] else { panic!("{:?}", checks.refusals()) };
        assert_eq!(refusal.reason, RefusalReason::HealthCheckPortLimit);
        assert!(refusal.message.contains("2 of them are served"), "{}", refusal.message);
        // A port that becomes free is given to the one that was refused.
        checks.set(&ServiceName::local("test", "a"), None);
        checks.changed.notify_one();
        while !checks.refusals().is_empty() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        task.abort();
    }
}
