//! Stand-ins for what a cluster on one machine cannot have: cluster DNS (not CoreDNS) and a cloud that gives addresses to
//! Services of type LoadBalancer. Look at them first when a test of DNS or of load balancers fails.
//!
//! Runs in the network of the control plane, as the part `addon`.

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

use self::{balancer::Balancer, dns::Shared, zone::Zone};
use crate::{
    plan::{CONTROL, DNS},
    state,
};

/// Changes come in bursts: one look at the whole serves them all.
const BURST: Duration = Duration::from_millis(50);
/// A node's health check port changes without an object changing, so it is asked for at least this often.
const TURN: Duration = Duration::from_millis(500);

#[tokio::main(flavor = "current_thread")]
pub async fn run() -> Result<()> {
    let file = Kubeconfig::read_from(state::kubeconfig("admin"))?;
    let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await?;
    let client = Client::try_from(config)?;
    publish(&client).await?;
    let (zone, changed) = (Shared::default(), Arc::new(Notify::new()));
    let mut tasks = JoinSet::new();
    dns::serve(&mut tasks, zone.clone()).await?;
    let services = follow::<Service>(&mut tasks, &client, &changed);
    let slices = follow::<EndpointSlice>(&mut tasks, &client, &changed);
    let nodes = follow::<Node>(&mut tasks, &client, &changed);
    tasks.spawn(async move {
        let mut balancer = Balancer::new(client);
        loop {
            zone.replace(Zone::new(&services.state(), &slices.state()));
            balancer.reconcile(&services.state(), &nodes.state()).await;
            let _ = timeout(TURN, changed.notified()).await;
            sleep(BURST).await;
        }
    });
    // None of them ends by itself: the first that does ends the rest with its reason.
    tasks.join_next().await.context("no task")??
}

/// Keeps a copy of all objects of a kind.
fn follow<K>(tasks: &mut JoinSet<Result<()>>, client: &Client, changed: &Arc<Notify>) -> Store<K>
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
                Err(error) => eprintln!("addon: {}: {error}", K::kind(&())),
            }
        }
        Err(anyhow!("the watch of {} has ended", K::kind(&())))
    });
    store
}

/// The Service that kubelets tell pods of, and a slice that leads to this process.
async fn publish(client: &Client) -> Result<()> {
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
    let (space, own) = ("kube-system", PatchParams::apply("beeline-kit").force());
    Api::<Service>::namespaced(client.clone(), space).patch("kube-dns", &own, &Patch::Apply(&service)).await?;
    Api::<EndpointSlice>::namespaced(client.clone(), space).patch("kube-dns-kit", &own, &Patch::Apply(&slice)).await?;
    Ok(())
}
