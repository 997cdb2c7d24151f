//! Replacements for what a cluster on one machine does not have: cluster DNS (instead of CoreDNS) and a cloud provider
//! that assigns addresses to Services of type LoadBalancer. Check them first when a test of DNS or load balancers
//! fails.
//!
//! Runs in the control plane's network namespace, as the component `addon`.

mod balancer;
mod dns;
mod zone;

use std::{sync::Arc, time::Duration};

use anyhow::{Context, Result, anyhow};
use futures::StreamExt;
use k8s_openapi::api::{
    core::v1::{Node, Service},
    discovery::v1::EndpointSlice,
};
use kube::{
    Api, Client, Config, Resource,
    api::{Patch, PatchParams},
    config::{KubeConfigOptions, Kubeconfig},
    runtime::{
        WatchStreamExt,
        reflector::{self, Store},
        watcher,
    },
};
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::{
    sync::Notify,
    task::JoinSet,
    time::{sleep, timeout},
};

use self::{balancer::LoadBalancer, dns::SharedZone, zone::ClusterZone};
use crate::{
    address_plan::{CONTROL, DNS},
    state,
};

/// Delay after a change, so that a burst of changes is reconciled once.
const DEBOUNCE: Duration = Duration::from_millis(50);
/// Longest time between two reconciliations. Node health checks change without an object changing.
const RECONCILE_INTERVAL: Duration = Duration::from_millis(500);

#[tokio::main(flavor = "current_thread")]
pub async fn run() -> Result<()> {
    let file = Kubeconfig::read_from(state::kubeconfig("admin"))?;
    let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await?;
    let client = Client::try_from(config)?;
    publish_dns_service(&client).await?;
    let (zone, changed) = (SharedZone::default(), Arc::new(Notify::new()));
    let mut tasks = JoinSet::new();
    dns::serve(&mut tasks, zone.clone()).await?;
    let services = watch::<Service>(&mut tasks, &client, &changed);
    let slices = watch::<EndpointSlice>(&mut tasks, &client, &changed);
    let nodes = watch::<Node>(&mut tasks, &client, &changed);
    tasks.spawn(async move {
        let mut balancer = LoadBalancer::new(client);
        loop {
            zone.replace(ClusterZone::new(&services.state(), &slices.state()));
            balancer.reconcile(&services.state(), &nodes.state()).await;
            let _ = timeout(RECONCILE_INTERVAL, changed.notified()).await;
            sleep(DEBOUNCE).await;
        }
    });
    // No task is expected to end. The first one that does stops the addon with its error.
    tasks.join_next().await.context("no task")??
}

/// Watches all objects of a kind and keeps them in a store.
fn watch<K>(tasks: &mut JoinSet<Result<()>>, client: &Client, changed: &Arc<Notify>) -> Store<K>
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + DeserializeOwned + Send + Sync + 'static,
{
    let (store, writer) = reflector::store();
    let objects = watcher(Api::<K>::all(client.clone()), watcher::Config::default()).default_backoff();
    let changed = changed.clone();
    tasks.spawn(async move {
        let mut events = reflector::reflector(writer, objects).boxed();
        while let Some(event) = events.next().await {
            match event {
                Ok(_) => changed.notify_one(),
                Err(error) => eprintln!("addon: watch of {} failed: {error}", K::kind(&())),
            }
        }
        Err(anyhow!("the watch of {} has ended", K::kind(&())))
    });
    store
}

/// Creates the kube-dns Service, whose address pods have in their resolv.conf, and its EndpointSlice for this process.
async fn publish_dns_service(client: &Client) -> Result<()> {
    let ports =
        json!([{"name": "dns", "port": 53, "protocol": "UDP"}, {"name": "dns-tcp", "port": 53, "protocol": "TCP"}]);
    let service: Service = serde_json::from_value(json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": "kube-dns", "labels": {"k8s-app": "kube-dns"}},
        "spec": {"clusterIP": DNS, "ports": ports},
    }))?;
    let slice: EndpointSlice = serde_json::from_value(json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4", "ports": ports,
        "metadata": {"name": "kube-dns-kit", "labels": {
            "kubernetes.io/service-name": "kube-dns", "endpointslice.kubernetes.io/managed-by": "beeline-kit",
        }},
        "endpoints": [{"addresses": [CONTROL[0]], "conditions": {"ready": true}}],
    }))?;
    let (namespace, params) = ("kube-system", PatchParams::apply("beeline-kit").force());
    Api::<Service>::namespaced(client.clone(), namespace).patch("kube-dns", &params, &Patch::Apply(&service)).await?;
    Api::<EndpointSlice>::namespaced(client.clone(), namespace)
        .patch("kube-dns-kit", &params, &Patch::Apply(&slice))
        .await?;
    Ok(())
}
