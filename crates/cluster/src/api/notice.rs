//! A refusal, told where the owner of the object looks: an Event on it.
//!
//! All agents of a cluster refuse the same objects, so the Event's name follows from what it says: one agent creates
//! it, the others are told that it exists already, and that is the end of it.

use super::allowance::Allowance;
use crate::kind::Kind;
use crate::policy::{API_VERSION, BalancingPolicy, LocalRedirectPolicy};
use beeline_model::fact::Refusal;
use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference, Service};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::api::{Api, ListParams, PostParams};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::Mutex;
use tokio::sync::mpsc::{Receiver, Sender};

/// How long the server may take, before the next one is told.
const LIMIT: std::time::Duration = std::time::Duration::from_secs(10);

#[derive(Clone, Debug)]
pub(crate) struct Notice {
    object: ObjectReference,
    reason: &'static str,
    message: String,
}

impl Notice {
    pub(crate) fn about(kind: Kind, meta: &ObjectMeta, refusal: &Refusal) -> Notice {
        let (kind, api_version) = match kind {
            Kind::Service => ("Service", "v1"),
            Kind::EndpointSlice => ("EndpointSlice", "discovery.k8s.io/v1"),
            Kind::Endpoints => ("Endpoints", "v1"),
            Kind::Node => ("Node", "v1"),
            Kind::Pod => ("Pod", "v1"),
            Kind::Namespace => ("Namespace", "v1"),
            Kind::LocalRedirect => ("LocalRedirectPolicy", API_VERSION),
            Kind::Balancing => ("BalancingPolicy", API_VERSION),
            Kind::ServiceCidr => ("ServiceCIDR", "networking.k8s.io/v1"),
        };
        let object = ObjectReference {
            api_version: Some(api_version.into()),
            kind: Some(kind.into()),
            name: meta.name.clone(),
            namespace: meta.namespace.clone(),
            uid: meta.uid.clone(),
            resource_version: meta.resource_version.clone(),
            field_path: None,
        };
        Notice { object, reason: refusal.reason, message: refusal.message.clone() }
    }

    fn namespace(&self) -> &str {
        self.object.namespace.as_deref().unwrap_or("default")
    }

    /// The same for the same words about the same object, at every agent.
    fn name(&self) -> String {
        let mut hash = DefaultHasher::new();
        (&self.object.uid, self.reason, &self.message).hash(&mut hash);
        let object = self.object.name.as_deref().unwrap_or("object");
        // 253 at most, the hash included.
        format!("{}.{:016x}", &object[..object.len().min(230)], hash.finish())
    }

    fn event(&self, node: &str) -> Event {
        let now = Time(jiff::Timestamp::now());
        Event {
            metadata: ObjectMeta {
                name: Some(self.name()),
                namespace: Some(self.namespace().into()),
                ..ObjectMeta::default()
            },
            involved_object: self.object.clone(),
            reason: Some(reason(self.reason)),
            message: Some(self.message.chars().take(1000).collect()),
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

/// Events speak in UpperCamelCase.
fn reason(word: &str) -> String {
    let mut letters = word.chars();
    let first = letters.next().map(|letter| letter.to_ascii_uppercase());
    first.into_iter().chain(letters).collect()
}

/// Best effort, one after the other: a refusal is in the log, the metrics and `status` anyway.
pub(crate) async fn post(client: kube::Client, node: String, mut notices: Receiver<Notice>) {
    let mut allowance = Allowance::new(Instant::now());
    while let Some(notice) = notices.recv().await {
        // What comes meanwhile and finds no room is in the log.
        tokio::time::sleep(allowance.take(Instant::now())).await;
        let api: Api<Event> = Api::namespaced(client.clone(), notice.namespace());
        let event = notice.event(&node);
        let posted = tokio::time::timeout(LIMIT, api.create(&PostParams::default(), &event)).await;
        match posted {
            Ok(Ok(_)) => {}
            Ok(Err(kube::Error::Api(status))) if status.code == 409 => {}
            Ok(Err(error)) => tracing::debug!("no Event about {:?}: {error}", notice.object.name),
            Err(_) => tracing::debug!("no Event about {:?}: no answer", notice.object.name),
        }
    }
}

/// A refusal of the plan names its object, and an Event needs to know which one of that name: the server is asked. Best
/// effort, too.
pub(crate) async fn look_up(
    client: kube::Client,
    cluster: String,
    refused: Arc<Mutex<Receiver<Refusal>>>,
    notices: Sender<Notice>,
) {
    let mut refused = refused.lock().await;
    while let Some(refusal) = refused.recv().await {
        match tokio::time::timeout(LIMIT, find(&client, &cluster, &refusal)).await {
            Ok(Ok(Some((kind, meta)))) => {
                let _ = notices.send(Notice::about(kind, &meta, &refusal)).await;
            }
            Ok(Ok(None)) => {}
            Ok(Err(error)) => tracing::debug!("no Event about {}: {error}", refusal.subject),
            Err(_) => tracing::debug!("no Event about {}: no answer", refusal.subject),
        }
    }
}

/// By a list of one: that is what our account may do, and all that following these kinds needs.
async fn find(
    client: &kube::Client,
    cluster: &str,
    refusal: &Refusal,
) -> Result<Option<(Kind, ObjectMeta)>, kube::Error> {
    let Some((word, place)) = refusal.subject.split_once(' ') else { return Ok(None) };
    let Some((namespace, name)) = place.split_once('/') else { return Ok(None) };
    // `CLUSTER:NAMESPACE` where there are several; those of others are not ours to write to.
    let namespace = match namespace.split_once(':') {
        Some((whose, namespace)) if whose == cluster => namespace,
        Some(_) => return Ok(None),
        None => namespace,
    };
    let found = match word {
        "Service" => (Kind::Service, first(Api::<Service>::namespaced(client.clone(), namespace), name).await?),
        "LocalRedirectPolicy" => {
            (Kind::LocalRedirect, first(Api::<LocalRedirectPolicy>::namespaced(client.clone(), namespace), name).await?)
        }
        "BalancingPolicy" => {
            (Kind::Balancing, first(Api::<BalancingPolicy>::namespaced(client.clone(), namespace), name).await?)
        }
        _ => return Ok(None),
    };
    Ok(found.1.map(|meta| (found.0, meta)))
}

async fn first<K>(api: Api<K>, name: &str) -> Result<Option<ObjectMeta>, kube::Error>
where
    K: Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    let one = ListParams::default().fields(&format!("metadata.name={name}"));
    Ok(api.list_metadata(&one).await?.items.into_iter().next().map(|object| object.metadata))
}
