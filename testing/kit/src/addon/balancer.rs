//! Load balancer of the kit: assigns an address to each Service of type LoadBalancer and routes it from the control
//! plane's network to the nodes.
//!
//! With externalTrafficPolicy Local only nodes whose health check succeeds get traffic. With client affinity one node
//! gets all traffic, as from a load balancer with session affinity.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    net::IpAddr,
    sync::Arc,
};

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::{Node, Service};
use kube::{
    Api, Client, ResourceExt,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};
use tokio::task::spawn_blocking;

use crate::{address_plan::balancer_address, network};

const FINALIZER: &str = "service.kubernetes.io/load-balancer-cleanup";

pub struct LoadBalancer {
    client: Client,
    /// Addresses by the uid of the Service.
    addresses: HashMap<String, Vec<IpAddr>>,
    /// Node addresses to which each load-balancer address is routed.
    routes: BTreeMap<IpAddr, Vec<IpAddr>>,
}

impl LoadBalancer {
    pub fn new(client: Client) -> LoadBalancer {
        LoadBalancer { client, addresses: HashMap::new(), routes: BTreeMap::new() }
    }

    /// Reconciles all Services. Errors are logged and retried in the next reconciliation.
    pub async fn reconcile(&mut self, services: &[Arc<Service>], nodes: &[Arc<Node>]) {
        let mut wanted = HashSet::new();
        for service in services {
            let result = match is_balanced(service) {
                true => {
                    wanted.insert(service.uid().unwrap_or_default());
                    self.ensure(service, nodes).await
                }
                false => self.release(service).await,
            };
            if let Err(error) = result {
                eprintln!("addon: load balancer of Service {} failed: {error:#}", service.name_any());
            }
        }
        let removed: Vec<String> = self.addresses.keys().filter(|uid| !wanted.contains(*uid)).cloned().collect();
        removed.iter().for_each(|uid| self.unroute(uid));
    }

    async fn ensure(&mut self, service: &Service, nodes: &[Arc<Node>]) -> Result<()> {
        if !service.finalizers().iter().any(|name| name == FINALIZER) {
            let names: Vec<&str> = service.finalizers().iter().map(String::as_str).chain([FINALIZER]).collect();
            self.patch(service, json!({"metadata": {"finalizers": names}}), false).await?;
        }
        let (current, addresses) = (ingress(service), self.addresses_of(service));
        let targets = targets(service, nodes).await;
        for address in &addresses {
            self.route(*address, &targets)?;
        }
        if current != addresses {
            let ingress: Vec<Value> = addresses.iter().map(|ip| json!({"ip": ip, "ipMode": "VIP"})).collect();
            println!("assigned addresses to Service {}: {addresses:?}", service.name_any());
            self.patch(service, json!({"status": {"loadBalancer": {"ingress": ingress}}}), true).await?;
        }
        Ok(())
    }

    async fn release(&mut self, service: &Service) -> Result<()> {
        if !service.finalizers().iter().any(|name| name == FINALIZER) {
            return Ok(());
        }
        self.unroute(&service.uid().unwrap_or_default());
        if !ingress(service).is_empty() && service.metadata.deletion_timestamp.is_none() {
            self.patch(service, json!({"status": {"loadBalancer": {"ingress": null}}}), true).await?;
        }
        let rest: Vec<&String> = service.finalizers().iter().filter(|name| *name != FINALIZER).collect();
        println!("released Service {}", service.name_any());
        self.patch(service, json!({"metadata": {"finalizers": rest}}), false).await
    }

    /// The Service's addresses, one for each of its families. Assigned addresses do not change.
    fn addresses_of(&mut self, service: &Service) -> Vec<IpAddr> {
        let families = service.spec.as_ref().and_then(|spec| spec.ip_families.clone()).unwrap_or_default();
        let uid = service.uid().unwrap_or_default();
        let known = self.addresses.get(&uid).cloned().unwrap_or_else(|| ingress(service));
        let mut addresses = Vec::new();
        for v6 in families.iter().map(|family| family == "IPv6") {
            let old = known.iter().copied().find(|address| address.is_ipv6() == v6);
            addresses.extend(old.or_else(|| self.free_address(v6)));
        }
        self.addresses.insert(uid, addresses.clone());
        addresses
    }

    fn free_address(&self, v6: bool) -> Option<IpAddr> {
        let used: HashSet<IpAddr> = self.addresses.values().flatten().copied().collect();
        (1..=250).map(|index| balancer_address(v6, index)).find(|address| !used.contains(address))
    }

    fn route(&mut self, address: IpAddr, targets: &[[Option<IpAddr>; 2]]) -> Result<()> {
        let nodes: Vec<IpAddr> = targets.iter().filter_map(|pair| pair[usize::from(address.is_ipv6())]).collect();
        if self.routes.get(&address) != Some(&nodes) {
            network::add_balanced_route(address, &nodes)
                .with_context(|| format!("cannot route {address} to {nodes:?}"))?;
            println!("routed {address} to {nodes:?}");
            self.routes.insert(address, nodes);
        }
        Ok(())
    }

    fn unroute(&mut self, uid: &str) {
        for address in self.addresses.remove(uid).unwrap_or_default() {
            let _ = network::remove_balanced_route(address); // The address may never have been routed.
            self.routes.remove(&address);
        }
    }

    async fn patch(&self, service: &Service, value: Value, status: bool) -> Result<()> {
        let namespace = service.namespace().unwrap_or_default();
        let api: Api<Service> = Api::namespaced(self.client.clone(), &namespace);
        let (name, params, patch) = (service.name_any(), PatchParams::default(), Patch::Merge(&value));
        match status {
            true => api.patch_status(&name, &params, &patch).await.map(drop)?,
            false => api.patch(&name, &params, &patch).await.map(drop)?,
        }
        Ok(())
    }
}

/// Whether this load balancer serves the Service: its type is LoadBalancer, it has no class and is not being deleted.
fn is_balanced(service: &Service) -> bool {
    let spec = service.spec.as_ref();
    let kind = spec.and_then(|spec| spec.type_.as_deref()) == Some("LoadBalancer");
    let other = spec.is_some_and(|spec| spec.load_balancer_class.is_some());
    kind && !other && service.metadata.deletion_timestamp.is_none()
}

fn ingress(service: &Service) -> Vec<IpAddr> {
    let status = service.status.as_ref().and_then(|status| status.load_balancer.as_ref());
    let points = status.and_then(|balancer| balancer.ingress.as_ref()).into_iter().flatten();
    points.filter_map(|point| point.ip.as_ref()?.parse().ok()).collect()
}

/// IPv4 and IPv6 addresses of the nodes that get a Service's traffic.
async fn targets(service: &Service, nodes: &[Arc<Node>]) -> Vec<[Option<IpAddr>; 2]> {
    let Some(spec) = &service.spec else { return Vec::new() };
    let mut all: Vec<_> = nodes.iter().map(|node| (node.name_any(), addresses(node))).collect();
    all.sort();
    let mut targets: Vec<_> = all.into_iter().map(|(_, pair)| pair).collect();
    if let (Some("Local"), Some(port)) = (spec.external_traffic_policy.as_deref(), spec.health_check_node_port) {
        let health = futures::future::join_all(targets.iter().map(|pair| is_healthy(pair[0], port))).await;
        targets = targets.into_iter().zip(health).filter_map(|(pair, healthy)| healthy.then_some(pair)).collect();
    }
    if spec.session_affinity.as_deref() == Some("ClientIP") {
        targets.truncate(1);
    }
    targets
}

fn addresses(node: &Node) -> [Option<IpAddr>; 2] {
    let all = node.status.iter().flat_map(|status| status.addresses.iter().flatten());
    let own: Vec<IpAddr> = all.filter(|a| a.type_ == "InternalIP").filter_map(|a| a.address.parse().ok()).collect();
    [false, true].map(|v6| own.iter().copied().find(|address| address.is_ipv6() == v6))
}

async fn is_healthy(address: Option<IpAddr>, port: i32) -> bool {
    let (Some(address), Ok(port)) = (address, u16::try_from(port)) else { return false };
    spawn_blocking(move || network::is_healthy(address, port)).await.unwrap_or(false)
}
