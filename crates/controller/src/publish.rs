//! Writes what is to be published: the difference between what should be and what is, whoever made it. Only the leader
//! writes; a change of one pod is one write.

use crate::queue::Lane;
use crate::status::resource;
use crate::world::{Next, World};
use beeline_cluster::{Claim, Convert, MANAGED_BY, MANAGER, NODES_LABEL, node_slice_object, policy_slice_object};
use beeline_model::Name;
use beeline_model::fact::SliceName;
use beeline_model::policy::{PolicyKind, PolicyName, PolicySlice};
use beeline_model::publish::NodeSlice;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams};
use kube::{Api, Client};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, watch};

/// Writes under way at once.
const AT_ONCE: usize = 8;
/// Writes in a row; then nodes are looked at again.
const IN_A_ROW: usize = 256;
const TICK: Duration = Duration::from_millis(250);
/// Nodes' addresses that could not be written.
const PAUSE: Duration = Duration::from_secs(1);
/// So long at most until what one object's own fault is (a quota, a name that somebody took) is tried again.
const OWN_FAULT: Duration = Duration::from_secs(60);
/// And what may be nobody's: an API server that does not answer.
const NO_FAULT: Duration = Duration::from_secs(5);
/// Nodes' slices are not watched: they are looked at this often, should somebody have changed them.
const LOOK: Duration = Duration::from_secs(300);

/// The slices of nodes that there are.
pub async fn list_nodes(client: &Client, namespace: &str) -> Result<Vec<NodeSlice>, kube::Error> {
    let api: Api<EndpointSlice> = Api::namespaced(client.clone(), namespace);
    let ours = ListParams::default().labels(&format!("{NODES_LABEL},{MANAGED_BY}={MANAGER}"));
    let mut convert = Convert::new(crate::world::CLUSTER, Claim::default());
    let found = api.list(&ours).await?;
    Ok(found.items.iter().filter_map(|slice| convert.node_slice(slice, namespace).fact.ok()).collect())
}

pub struct Publish {
    client: Client,
    namespace: String,
    world: Arc<Mutex<World>>,
    nodes: BTreeMap<Name, NodeSlice>,
    looked: Option<Instant>,
    /// Nodes' addresses: not before this.
    paused: Option<Instant>,
}

impl Publish {
    pub fn new(client: Client, namespace: &str, world: Arc<Mutex<World>>) -> Publish {
        Publish { client, namespace: namespace.into(), world, nodes: BTreeMap::new(), looked: None, paused: None }
    }

    pub async fn run(mut self, mut leader: watch::Receiver<bool>, changed: Arc<Notify>) -> anyhow::Result<()> {
        loop {
            leader.wait_for(|leads| *leads).await?;
            self.looked = None;
            self.with(World::lead);
            while *leader.borrow() {
                if self.with(|world| world.is_current()) && self.round(&leader).await {
                    continue;
                }
                // A change that came meanwhile is not missed: the notice of it is kept.
                let _ = tokio::time::timeout(TICK, changed.notified()).await;
            }
            self.with(World::follow_another);
        }
    }

    fn with<T>(&self, work: impl FnOnce(&mut World) -> T) -> T {
        work(&mut self.world.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Nodes first: every node needs them. Says whether there is more.
    async fn round(&mut self, leader: &watch::Receiver<bool>) -> bool {
        if self.paused.is_none_or(|until| until <= Instant::now()) {
            self.paused = self.publish_nodes().await.err().map(|error| {
                tracing::warn!("the nodes' addresses cannot be published: {error}");
                Instant::now() + PAUSE
            });
        }
        let puts = self.write_slices(Lane::First, leader).await;
        let drops = self.write_slices(Lane::Then, leader).await;
        puts || drops
    }

    /// A place that becomes free has the next one at once, whatever came of the last. Says whether there is more.
    async fn write_slices(&self, lane: Lane, leader: &watch::Receiver<bool>) -> bool {
        let (mut running, mut written) = (FuturesUnordered::new(), 0);
        let more = loop {
            if written >= IN_A_ROW || !*leader.borrow() {
                break true;
            }
            match self.with(|world| world.next_slice(lane, Instant::now())) {
                Next::Nothing => break false,
                Next::Same => tokio::task::yield_now().await,
                Next::Write(name, slice) => {
                    running.push(self.write(name, slice.map(|slice| *slice), leader));
                    written += 1;
                }
            }
            if running.len() >= AT_ONCE {
                running.next().await;
            }
        };
        while running.next().await.is_some() {}
        more
    }

    async fn write(&self, name: SliceName, slice: Option<PolicySlice>, leader: &watch::Receiver<bool>) {
        let put = slice.is_some();
        if !*leader.borrow() {
            return self.with(|world| world.return_slice(name, put));
        }
        let written = match &slice {
            Some(slice) => self.apply(&slice.name.namespace, &policy_slice_object(slice)).await.map(|()| true),
            None => self.delete(&name).await,
        };
        match written {
            Ok(false) => self.with(|world| world.retry_slice(name, put, NO_FAULT)),
            Ok(true) => self.with(|world| world.wrote_slice(name, slice)),
            Err(error) if is_ending(&error) => {
                tracing::debug!("{name:?} is in a namespace that ends: {error}");
                self.with(|world| world.drop_slice(&name));
            }
            Err(error) => {
                tracing::warn!("EndpointSlice {}/{} cannot be written: {error}", name.namespace, name.name);
                self.with(|world| world.retry_slice(name, put, longest(&error)));
            }
        }
    }

    async fn apply(&self, namespace: &str, object: &EndpointSlice) -> Result<(), kube::Error> {
        let api: Api<EndpointSlice> = Api::namespaced(self.client.clone(), namespace);
        let params = PatchParams::apply("beeline-controller").force();
        let name = object.metadata.name.as_deref().unwrap_or_default();
        api.patch(name, &params, &Patch::Apply(object)).await.map(drop)
    }

    /// A policy that we do not know is asked for first: to know too little must never empty anything. `Ok(false)`: it lives.
    async fn delete(&self, name: &SliceName) -> Result<bool, kube::Error> {
        if let Some((policy, uid)) = self.with(|world| world.unknown_owner(name))
            && self.lives(&policy, &uid).await?
        {
            return Ok(false);
        }
        let api: Api<EndpointSlice> = Api::namespaced(self.client.clone(), &name.namespace);
        gone(api.delete(&name.name, &DeleteParams::default()).await.map(drop)).map(|()| true)
    }

    async fn lives(&self, policy: &PolicyName, uid: &str) -> Result<bool, kube::Error> {
        let api: Api<DynamicObject> =
            Api::namespaced_with(self.client.clone(), &policy.namespace, &resource(PolicyKind::Balancing));
        match api.get(&policy.name).await {
            Ok(found) => Ok(found.metadata.uid.as_deref() == Some(uid)),
            // A server that does not serve the kind (yet) says 404 as well, and names nothing.
            Err(kube::Error::Api(status)) if status.code == 404 => {
                Ok(status.details.as_ref().is_none_or(|details| details.name != *policy.name))
            }
            Err(error) => Err(error),
        }
    }

    async fn publish_nodes(&mut self) -> Result<(), kube::Error> {
        if self.looked.is_none_or(|at| at.elapsed() > LOOK) {
            let found = list_nodes(&self.client, &self.namespace).await?;
            self.nodes = found.into_iter().map(|slice| (slice.name.clone(), slice)).collect();
            self.looked = Some(Instant::now());
            let names: Vec<Name> = self.nodes.keys().cloned().collect();
            self.with(|world| names.into_iter().for_each(|name| world.mark_node_slice(name)));
        }
        for name in self.with(World::take_nodes) {
            if let Err(error) = self.publish_node_slice(&name).await {
                self.with(|world| world.mark_node_slice(name));
                return Err(error);
            }
        }
        Ok(())
    }

    async fn publish_node_slice(&mut self, name: &Name) -> Result<(), kube::Error> {
        let wanted = self.with(|world| world.node_slice(name));
        if wanted.as_ref() == self.nodes.get(name) {
            return Ok(());
        }
        match wanted {
            Some(slice) => {
                self.apply(&self.namespace, &node_slice_object(&slice, &self.namespace)).await?;
                self.nodes.insert(name.clone(), slice);
            }
            None => {
                let api: Api<EndpointSlice> = Api::namespaced(self.client.clone(), &self.namespace);
                gone(api.delete(name, &DeleteParams::default()).await.map(drop))?;
                self.nodes.remove(name);
            }
        }
        Ok(())
    }
}

pub fn gone(answer: Result<(), kube::Error>) -> Result<(), kube::Error> {
    match answer {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        other => other,
    }
}

/// Nothing can be made in a namespace that is being deleted.
fn is_ending(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status)
        if status.code == 404 || status.code == 403 && status.message.contains("being terminated"))
}

/// How long at most to wait before it is tried again.
pub fn longest(error: &kube::Error) -> Duration {
    match error {
        kube::Error::Api(status) if (400..500).contains(&status.code) && status.code != 429 => OWN_FAULT,
        _ => NO_FAULT,
    }
}
