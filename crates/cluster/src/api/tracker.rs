//! Tracks the objects of an API server and turns the updates of the watchers into batches of changes. The tracker
//! remembers which objects were delivered (so that a list shows which ones are deleted), the refusals, and which kinds
//! have been listed. It does not keep the objects.

use super::event::RefusalEvent;
use super::published_nodes::PublishedNodes;
use super::static_pod::{ClaimResult, StaticPodClaims};
use super::taint::has_startup_taint;
use super::trigger::trigger_time;
use super::update::{ApiObject, WatchUpdate};
use crate::convert::published::{Purpose, purpose};
use crate::convert::{Converted, Converter, Unserved, untyped_policy};
use crate::folder::ChangeBatch;
use crate::kind::ResourceKind;
use crate::list_tracker::ListTracker;
use crate::readiness::KindReadiness;
use crate::refusals::RefusalTracker;
use crate::source_key::SourceKey;
use beeline_model::Name;
use beeline_model::change::{Change, ObjectKey};
use beeline_model::hash::stable_hash;
use beeline_model::object::{Object, PodName, SliceName};
use beeline_model::policy::{Policy, PolicyKind};
use beeline_model::refusal::{Refusal, RefusalReason};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use std::collections::BTreeMap;
use std::time::{Instant, SystemTime};

/// A hash of the version of an object, by which a repeated object is recognized. 0 means that every delivered object
/// counts as changed.
type VersionMark = u64;

#[derive(Default)]
struct KindState {
    objects: ListTracker<SourceKey, VersionMark>,
    readiness: KindReadiness,
    error: Option<KindError>,
}

struct KindError {
    message: String,
    since: SystemTime,
}

/// Which slices of the controller are used.
#[derive(Clone, Debug, Default)]
pub(crate) struct PublishedSlices {
    pub(crate) policies: bool,
    pub(crate) nodes: bool,
    /// Slices of nodes are used only in this namespace.
    pub(crate) namespace: String,
}

pub(crate) struct ObjectTracker {
    converter: Converter,
    /// The node of this agent. Empty on a host outside the cluster.
    node: Name,
    kinds: BTreeMap<ResourceKind, KindState>,
    watched: Box<[ResourceKind]>,
    published: PublishedSlices,
    published_nodes: PublishedNodes,
    refusals: RefusalTracker<SourceKey>,
    static_pods: StaticPodClaims,
    /// The changes for the next batch, with their times.
    next: ChangeBatch,
    /// The last batch without its changes.
    last_sent: Option<ChangeBatch>,
    /// Events about new refusals, which the caller posts.
    pub(crate) events: Vec<RefusalEvent>,
    /// Whether the node of this agent has the startup taint.
    pub(crate) is_tainted: bool,
}

impl ObjectTracker {
    pub(crate) fn new(
        converter: Converter,
        node: &str,
        watched: &[ResourceKind],
        published: PublishedSlices,
    ) -> ObjectTracker {
        ObjectTracker {
            published_nodes: PublishedNodes::new(converter.cluster().clone(), node.into()),
            published,
            converter,
            node: node.into(),
            kinds: BTreeMap::new(),
            watched: watched.into(),
            refusals: RefusalTracker::default(),
            static_pods: StaticPodClaims::default(),
            next: ChangeBatch::default(),
            last_sent: None,
            events: Vec::new(),
            is_tainted: false,
        }
    }

    fn kind(&mut self, kind: ResourceKind) -> &mut KindState {
        self.kinds.entry(kind).or_default()
    }

    fn readiness(&self, kind: ResourceKind) -> KindReadiness {
        self.kinds.get(&kind).map_or_else(KindReadiness::default, |state| state.readiness)
    }

    pub(crate) fn apply(&mut self, update: WatchUpdate, now: Instant) {
        match update {
            WatchUpdate::ListStarted(kind) => self.kind(kind).objects.begin_list(),
            WatchUpdate::ListPage(objects) => objects.iter().for_each(|object| self.upsert(object)),
            WatchUpdate::ListFinished(kind) => self.finish_list(kind),
            WatchUpdate::Upserted(object, received_at) => {
                self.next.received_at.get_or_insert(received_at);
                if let ApiObject::Slice(slice) = &object {
                    self.next.trigger_times.extend(trigger_time(&slice.metadata));
                }
                self.upsert(&object);
            }
            WatchUpdate::Deleted(object) => self.delete(&object),
            WatchUpdate::Healthy(kind) => {
                let state = self.kind(kind);
                state.error = None;
                state.readiness.reset_failures();
            }
            WatchUpdate::Failed { kind, error, is_denied } => self.record_failure(kind, error, is_denied, now),
            // While even Services are not listed, the server is failing, and its responses about other kinds do not
            // count.
            WatchUpdate::NotInstalled(kind) => {
                if self.has_essential_kinds() {
                    self.kind(kind).readiness.record_missing(now, false);
                }
            }
        }
    }

    fn record_failure(&mut self, kind: ResourceKind, message: String, is_denied: bool, now: Instant) {
        let is_missing = is_denied && self.has_essential_kinds();
        let state = self.kind(kind);
        let since = state.error.as_ref().map_or_else(SystemTime::now, |error| error.since);
        state.error = Some(KindError { message, since });
        match is_missing {
            true => state.readiness.record_missing(now, true),
            false => state.readiness.record_failure(),
        }
    }

    fn upsert(&mut self, object: &ApiObject) {
        let Some(key) = self.key(object) else { return };
        match object {
            ApiObject::Service(service) => {
                let converted = self.converter.service_object(service);
                self.record(key, &service.metadata, converted, 0);
            }
            ApiObject::Slice(slice) => self.upsert_slice(slice),
            ApiObject::Node(node) => {
                if node.metadata.name.as_deref() == Some(&*self.node) {
                    self.is_tainted = has_startup_taint(node);
                }
                let converted = self.converter.node(node).map(Object::Node);
                self.record(key, &node.metadata, converted, 0);
            }
            ApiObject::Pod(pod) => self.upsert_pod(key, pod),
            ApiObject::Namespace(namespace) => {
                let converted = self.converter.namespace(namespace).map(Object::Namespace);
                self.record(key, &namespace.metadata, converted, 0);
            }
            ApiObject::Range(range) => {
                let converted = self.converter.range(range).map(Object::ServiceRange);
                self.record(key, &range.metadata, converted, 0);
            }
            ApiObject::LocalRedirect(policy) => {
                let (kind, meta) = (PolicyKind::LocalRedirect, &policy.metadata);
                let convert = |spec| self.converter.local_redirect(meta, spec);
                let converted = policy.spec.as_ref().map_or_else(|why| untyped_policy(kind, meta, why), convert);
                self.upsert_policy(key, meta, converted);
            }
            ApiObject::Balancing(policy) => {
                let (kind, meta) = (PolicyKind::Balancing, &policy.metadata);
                let convert = |spec| self.converter.balancing(meta, spec);
                let converted = policy.spec.as_ref().map_or_else(|why| untyped_policy(kind, meta, why), convert);
                self.upsert_policy(key, meta, converted);
            }
        }
    }

    /// The key of an object; `None` if its name is invalid. The key of a slice is that of a slice of a Service.
    fn key(&mut self, object: &ApiObject) -> Option<SourceKey> {
        let converter = &mut self.converter;
        let cluster = converter.cluster().clone();
        let name = |meta: &ObjectMeta| meta.name.as_deref().map(Name::from);
        let key = match object {
            ApiObject::Service(one) => ObjectKey::Service(converter.service_name(&one.metadata)?),
            ApiObject::Slice(slice) => ObjectKey::Slice(converter.slice_name(slice)?),
            ApiObject::Node(one) => ObjectKey::Node { cluster, name: name(&one.metadata)? },
            ApiObject::Pod(pod) => ObjectKey::Pod(converter.pod_name(pod)?),
            ApiObject::Namespace(one) => ObjectKey::Namespace { cluster, name: name(&one.metadata)? },
            ApiObject::Range(one) => ObjectKey::ServiceRange { cluster, name: name(&one.metadata)? },
            ApiObject::LocalRedirect(one) => {
                ObjectKey::Policy(converter.policy_name(PolicyKind::LocalRedirect, &one.metadata)?)
            }
            ApiObject::Balancing(one) => {
                ObjectKey::Policy(converter.policy_name(PolicyKind::Balancing, &one.metadata)?)
            }
        };
        Some(SourceKey::Object(key))
    }

    /// A static pod that claims the cgroup of an older static pod is refused.
    fn upsert_pod(&mut self, key: SourceKey, pod: &Pod) {
        let meta = &pod.metadata;
        let mut converted = self.converter.pod(pod);
        if let Ok(static_pod) = &converted.result
            && meta.uid.as_deref() != Some(&*static_pod.uid)
        {
            let name = &static_pod.name;
            let created = meta.creation_timestamp.as_ref().map_or(i64::MAX, |time| time.0.as_second());
            match self.static_pods.claim(name, &static_pod.uid, created) {
                ClaimResult::Granted => {}
                ClaimResult::HeldBy(holder) => {
                    converted.refusals.push(refuse_same_cgroup(&key, &holder));
                    converted.result = Err(Unserved::Refused);
                }
                ClaimResult::TakenFrom(younger) => {
                    let younger = SourceKey::Object(ObjectKey::Pod(younger));
                    let refusal = refuse_same_cgroup(&younger, name);
                    self.forget(&younger);
                    self.refusals.set(&younger, vec![refusal]);
                }
            }
        }
        self.record(key, meta, converted.map(Object::Pod), 0);
    }

    /// A slice belongs to a Service, or is published for a policy or for nodes. A changed label changes the purpose,
    /// and the object of the previous purpose is deleted.
    fn upsert_slice(&mut self, slice: &EndpointSlice) {
        let Some(name) = self.converter.slice_name(slice) else { return };
        let (purpose, meta) = (purpose(slice), &slice.metadata);
        for (other, key) in slice_keys(&name) {
            if other != purpose {
                self.forget(&key);
            }
        }
        match purpose {
            Purpose::Service => {
                let converted = self.converter.slice_object_of_service(slice);
                self.record(SourceKey::Object(ObjectKey::Slice(name)), meta, converted, 0);
            }
            Purpose::Policy if self.published.policies => {
                let converted = self.converter.policy_slice(slice).map(Object::PolicySlice);
                self.record(SourceKey::Object(ObjectKey::PolicySlice(name)), meta, converted, 0);
            }
            Purpose::Nodes if self.published.nodes => self.upsert_node_slice(name, slice),
            Purpose::Policy | Purpose::Nodes => {}
        }
    }

    fn upsert_node_slice(&mut self, name: SliceName, slice: &EndpointSlice) {
        let Converted { result, refusals } = self.converter.node_slice(slice, &self.published.namespace);
        let key = SourceKey::NodeSlice(name.clone());
        self.set_refusals(&key, &slice.metadata, refusals);
        let objects = &mut self.kind(ResourceKind::EndpointSlice).objects;
        objects.mark_listed(&key);
        match result {
            Ok(_) => objects.insert(key, 0),
            Err(_) => objects.remove(&key),
        };
        self.next.changes.extend(self.published_nodes.set(&name, result.ok()));
    }

    /// The controller often writes the status of policies, and every agent receives these updates. The generation shows
    /// that the spec is unchanged.
    fn upsert_policy(&mut self, key: SourceKey, meta: &ObjectMeta, converted: Converted<Policy>) {
        let mark = meta.generation.map_or(0, |generation| {
            let uid = meta.uid.as_deref().unwrap_or_default();
            stable_hash(uid.bytes().chain(generation.to_le_bytes())).max(1)
        });
        self.record(key, meta, converted.map(Object::Policy), mark);
    }

    fn record(&mut self, key: SourceKey, meta: &ObjectMeta, converted: Converted<Object>, mark: VersionMark) {
        self.set_refusals(&key, meta, converted.refusals);
        let objects = &mut self.kind(key.kind()).objects;
        objects.mark_listed(&key);
        match converted.result {
            Ok(object) => {
                if objects.insert(key, mark) != Some(mark) || mark == 0 {
                    self.next.changes.push(Change::Upsert(object));
                }
            }
            // The object may have been served before its type, a label or an address changed.
            Err(_) if objects.remove(&key).is_some() => self.next.changes.extend(key.deletion()),
            Err(_) => {}
        }
    }

    fn set_refusals(&mut self, key: &SourceKey, meta: &ObjectMeta, refusals: Vec<Refusal>) {
        // A slice that only resembles one of the controller's is a forgery, which is counted and logged. It gets no
        // Event: a user who writes many of them would make every agent write as many Events.
        let is_published = matches!(key, SourceKey::Object(ObjectKey::PolicySlice(_)) | SourceKey::NodeSlice(_));
        let before = self.refusals.get(key);
        let new = refusals.iter().filter(|refusal| !is_published && !before.contains(refusal));
        self.events.extend(new.map(|refusal| RefusalEvent::new(key.kind(), meta, refusal)));
        self.refusals.set(key, refusals);
    }

    fn delete(&mut self, object: &ApiObject) {
        match self.key(object) {
            Some(SourceKey::Object(ObjectKey::Slice(name))) => {
                slice_keys(&name).iter().for_each(|(_, key)| self.forget(key));
            }
            Some(key) => self.forget(&key),
            None => {}
        }
    }

    /// Removes an object and its refusals.
    fn forget(&mut self, key: &SourceKey) {
        self.refusals.clear(key);
        if self.kind(key.kind()).objects.remove(key).is_some() {
            self.add_deletion(key);
        }
    }

    fn add_deletion(&mut self, key: &SourceKey) {
        match key {
            SourceKey::NodeSlice(name) => self.next.changes.extend(self.published_nodes.set(name, None)),
            SourceKey::Object(ObjectKey::Pod(name)) => self.static_pods.release(name),
            SourceKey::Object(_) | SourceKey::Endpoints(_) => {}
        }
        self.next.changes.extend(key.deletion());
    }

    fn finish_list(&mut self, kind: ResourceKind) {
        let before = self.has_essential_kinds();
        self.kind(kind).readiness = KindReadiness::Listed { from_cache: false };
        if !before && self.has_essential_kinds() {
            // Failures of other kinds from before this list do not count, because the whole server was failing.
            self.kinds.values_mut().for_each(|state| state.readiness.reset_failures());
        }
        let Some(finished) = self.kind(kind).objects.finish_list() else { return };
        self.refusals.retain(|key| key.kind() != kind || finished.listed.contains(key));
        finished.removed.iter().for_each(|(key, _)| self.add_deletion(key));
        self.converter.trim(self.kinds.values().map(|state| state.objects.len()).sum());
    }

    /// Whether Services and slices have been listed. A host outside the cluster needs the Nodes too: it reaches pods by
    /// their nodes.
    fn has_essential_kinds(&self) -> bool {
        let needs_nodes = self.node.is_empty() && self.watched.contains(&ResourceKind::Node);
        let essential = [ResourceKind::Service, ResourceKind::EndpointSlice];
        let mut essential = essential.into_iter().chain(needs_nodes.then_some(ResourceKind::Node));
        essential.all(|kind| self.readiness(kind).is_listed())
    }

    /// Whether Services and slices have been listed, and all kinds that change their meaning (the node, its pods,
    /// policies) have been listed or cannot be read. No such kind may keep Services from being served.
    fn is_synced(&self) -> bool {
        self.has_essential_kinds() && self.watched.iter().all(|kind| self.readiness(*kind).is_settled())
    }

    /// Whether every object is known. A kind that has only failed so far may have objects whose rows are in the kernel.
    fn is_complete(&self) -> bool {
        self.has_essential_kinds() && self.watched.iter().all(|kind| self.readiness(*kind).is_complete())
    }

    /// The error of the kind that has failed for the longest time.
    fn error(&self) -> Option<String> {
        let oldest = self.kinds.values().filter_map(|state| state.error.as_ref()).min_by_key(|error| error.since)?;
        let since = jiff::Timestamp::try_from(oldest.since).map(|time| format!("{time:.0}")).unwrap_or_default();
        Some(format!("since {since}: {}", oldest.message))
    }

    /// The changes since the last batch; `None` if nothing changed.
    pub(crate) fn next_batch(&mut self, server: String) -> Option<ChangeBatch> {
        let state = ChangeBatch {
            refusals: self.refusals.all(),
            synced: self.is_synced(),
            complete: self.is_complete(),
            error: self.error(),
            server: Some(server),
            ..ChangeBatch::default()
        };
        let ChangeBatch { changes, received_at, trigger_times, .. } = std::mem::take(&mut self.next);
        if changes.is_empty() && self.last_sent.as_ref() == Some(&state) {
            return None;
        }
        self.last_sent = Some(state.clone());
        Some(ChangeBatch { changes, received_at, trigger_times, ..state })
    }
}

fn slice_keys(name: &SliceName) -> [(Purpose, SourceKey); 3] {
    [
        (Purpose::Service, SourceKey::Object(ObjectKey::Slice(name.clone()))),
        (Purpose::Policy, SourceKey::Object(ObjectKey::PolicySlice(name.clone()))),
        (Purpose::Nodes, SourceKey::NodeSlice(name.clone())),
    ]
}

fn refuse_same_cgroup(younger: &SourceKey, older: &PodName) -> Refusal {
    let message = format!(
        "it claims the cgroup of the static pod {}/{}, which is older, and is ignored; delete one of the two",
        older.namespace, older.name
    );
    Refusal::new(younger.object_ref(), RefusalReason::SameCgroup, message)
}

#[cfg(test)]
mod tests;
