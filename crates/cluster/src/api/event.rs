//! Reports refusals as Events on the refused objects, where the owner of an object looks for them.
//!
//! All agents of a cluster refuse the same objects, so the name of an Event is derived from its content: one agent
//! creates the Event, and the others find that it exists already.

use super::event_limiter::EventLimiter;
use crate::kind::ResourceKind;
use crate::policy::{BalancingPolicy, LocalRedirectPolicy};
use beeline_model::hash::stable_hash;
use beeline_model::refusal::{ObjectRef, Refusal, RefusalReason, RefusalSubject};
use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference, Service};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::api::{Api, ListParams, PostParams};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Mutex;
use tokio::sync::mpsc::{Receiver, Sender};

const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// The API allows 253 bytes, including the hash.
const MAX_NAME_PREFIX: usize = 230;
/// The API allows 1024 bytes.
const MAX_MESSAGE: usize = 1000;

#[derive(Clone, Debug)]
pub(crate) struct RefusalEvent {
    object: ObjectReference,
    reason: RefusalReason,
    message: String,
}

impl RefusalEvent {
    pub(crate) fn new(kind: ResourceKind, meta: &ObjectMeta, refusal: &Refusal) -> RefusalEvent {
        let object = ObjectReference {
            api_version: Some(kind.api_version().into()),
            kind: Some(kind.as_str().into()),
            name: meta.name.clone(),
            namespace: meta.namespace.clone(),
            uid: meta.uid.clone(),
            resource_version: meta.resource_version.clone(),
            field_path: None,
        };
        RefusalEvent { object, reason: refusal.reason, message: refusal.message.clone() }
    }

    fn namespace(&self) -> &str {
        self.object.namespace.as_deref().unwrap_or("default")
    }

    /// The same at every agent for the same refusal of the same object. Agents of different releases must agree too, so
    /// the hash function must never change.
    fn name(&self) -> String {
        let uid = self.object.uid.as_deref().unwrap_or_default();
        let parts = [uid, self.reason.as_str(), &self.message];
        let hash = stable_hash(parts.iter().flat_map(|part| part.bytes().chain([0])));
        let object = self.object.name.as_deref().unwrap_or("object");
        format!("{}.{hash:016x}", &object[..object.len().min(MAX_NAME_PREFIX)])
    }

    fn to_event(&self, node: &str) -> Event {
        let now = Time(jiff::Timestamp::now());
        Event {
            metadata: ObjectMeta {
                name: Some(self.name()),
                namespace: Some(self.namespace().into()),
                ..ObjectMeta::default()
            },
            involved_object: self.object.clone(),
            reason: Some(upper_camel_case(self.reason.as_str())),
            message: Some(self.message.chars().take(MAX_MESSAGE).collect()),
            type_: Some("Warning".into()),
            source: Some(EventSource { component: Some("beeline".into()), host: Some(node.into()) }),
            reporting_component: Some("beeline.dev/agent".into()),
            reporting_instance: Some(node.into()),
            first_timestamp: Some(now.clone()),
            last_timestamp: Some(now),
            count: Some(1),
            ..Event::default()
        }
    }
}

/// The convention for reasons of Events.
fn upper_camel_case(word: &str) -> String {
    let mut letters = word.chars();
    let first = letters.next().map(|letter| letter.to_ascii_uppercase());
    first.into_iter().chain(letters).collect()
}

/// Posts the Events one after the other. A failure is only logged at debug level, because every refusal is also in the
/// log, the metrics and the status.
pub(crate) async fn post_events(client: kube::Client, node: String, mut events: Receiver<RefusalEvent>) {
    let mut limiter = EventLimiter::new(Instant::now());
    while let Some(event) = events.recv().await {
        tokio::time::sleep(limiter.reserve(Instant::now())).await;
        let api: Api<Event> = Api::namespaced(client.clone(), event.namespace());
        let object = event.to_event(&node);
        let posted = tokio::time::timeout(REQUEST_TIMEOUT, api.create(&PostParams::default(), &object)).await;
        let name = event.object.name.as_deref();
        match posted {
            Ok(Ok(_)) => {}
            Ok(Err(kube::Error::Api(status))) if status.code == 409 => {}
            Ok(Err(error)) => tracing::debug!(name, %error, "cannot post an Event about a refusal"),
            Err(_) => tracing::debug!(name, "cannot post an Event about a refusal: no response"),
        }
    }
}

/// Turns refusals of the planner into Events. An Event needs the uid of its object, so the object is looked up.
pub(crate) async fn resolve_plan_refusals(
    client: kube::Client,
    cluster: String,
    refusals: Arc<Mutex<Receiver<Refusal>>>,
    events: Sender<RefusalEvent>,
) {
    let mut refusals = refusals.lock().await;
    while let Some(refusal) = refusals.recv().await {
        let RefusalSubject::Object(object) = &refusal.subject else { continue };
        // Events are written in the cluster of this source only.
        if object.cluster.as_deref().is_some_and(|owner| owner != cluster) {
            continue;
        }
        match tokio::time::timeout(REQUEST_TIMEOUT, find_object(&client, object)).await {
            Ok(Ok(Some((kind, meta)))) => {
                let _ = events.send(RefusalEvent::new(kind, &meta, &refusal)).await;
            }
            Ok(Ok(None)) => {}
            Ok(Err(error)) => tracing::debug!(%object, %error, "cannot look up a refused object"),
            Err(_) => tracing::debug!(%object, "cannot look up a refused object: no response"),
        }
    }
}

/// Uses a list with a field selector: the account has the permission to list, but not necessarily to get.
async fn find_object(
    client: &kube::Client,
    object: &ObjectRef,
) -> Result<Option<(ResourceKind, ObjectMeta)>, kube::Error> {
    let (Some(namespace), name) = (object.namespace.as_deref(), &object.name) else { return Ok(None) };
    let kinds = [ResourceKind::Service, ResourceKind::LocalRedirectPolicy, ResourceKind::BalancingPolicy];
    let Some(kind) = kinds.into_iter().find(|kind| kind.as_str() == object.kind) else { return Ok(None) };
    let client = client.clone();
    let meta = match kind {
        ResourceKind::LocalRedirectPolicy => {
            find_meta(Api::<LocalRedirectPolicy>::namespaced(client, namespace), name).await?
        }
        ResourceKind::BalancingPolicy => find_meta(Api::<BalancingPolicy>::namespaced(client, namespace), name).await?,
        _ => find_meta(Api::<Service>::namespaced(client, namespace), name).await?,
    };
    Ok(meta.map(|meta| (kind, meta)))
}

async fn find_meta<K>(api: Api<K>, name: &str) -> Result<Option<ObjectMeta>, kube::Error>
where
    K: Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    let params = ListParams::default().fields(&format!("metadata.name={name}"));
    Ok(api.list_metadata(&params).await?.items.into_iter().next().map(|object| object.metadata))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_an_event_is_the_same_in_every_release() {
        let meta = ObjectMeta { name: Some("web".into()), uid: Some("u1".into()), ..ObjectMeta::default() };
        let refusal = Refusal::new(RefusalSubject::Routes, RefusalReason::BadPort, "spec.ports[0]: 0 is not a port");
        let event = RefusalEvent::new(ResourceKind::Service, &meta, &refusal);
        assert_eq!(event.name(), "web.840214195dadb267");
        assert_eq!(upper_camel_case(event.reason.as_str()), "BadPort");
    }
}
