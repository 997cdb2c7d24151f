//! Tracks the objects of the edge cache and turns the updates of the watchers into batches of changes.

use super::version_filter::VersionFilter;
use super::watcher::{CachedObject, EdgeUpdate};
use crate::convert::{Converted, Converter};
use crate::folder::ChangeBatch;
use crate::kind::ResourceKind;
use crate::mirrored_endpoints::{MirroredEndpoints, SplitChanges};
use crate::readiness::KindReadiness;
use crate::refusals::RefusalTracker;
use crate::source_key::SourceKey;
use beeline_model::change::{Change, ObjectKey};
use beeline_model::object::{Object, Slice};
use beeline_model::{Name, ServiceName};
use k8s_openapi::api::core::v1::{Endpoints, Node, Service};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use std::collections::{BTreeMap, BTreeSet, HashSet};

#[derive(Default)]
struct KindState {
    versions: VersionFilter<ServiceName>,
    readiness: KindReadiness,
    error: Option<String>,
}

pub(crate) struct EdgeTracker {
    converter: Converter,
    /// The node of this host.
    node: Name,
    services: KindState,
    endpoints: KindState,
    served: HashSet<ServiceName>,
    mirrors: MirroredEndpoints,
    /// The nodes that the Endpoints of each Service name.
    endpoint_nodes: BTreeMap<ServiceName, BTreeSet<Name>>,
    /// Nodes that have been read.
    nodes: BTreeSet<Name>,
    /// Nodes that have been read, or that could not be read.
    tried_nodes: BTreeSet<Name>,
    refusals: RefusalTracker<SourceKey>,
    changes: Vec<Change>,
    /// Whether everything was read once. It stays set: Nodes that are needed later are not waited for.
    is_synced: bool,
    /// The last batch without its changes.
    last_sent: Option<ChangeBatch>,
}

fn version(meta: &ObjectMeta) -> Option<u64> {
    meta.resource_version.as_deref()?.parse().ok()
}

impl EdgeTracker {
    pub(crate) fn new(converter: Converter, node: Name) -> EdgeTracker {
        EdgeTracker {
            converter,
            node,
            services: KindState::default(),
            endpoints: KindState::default(),
            served: HashSet::new(),
            mirrors: MirroredEndpoints::default(),
            endpoint_nodes: BTreeMap::new(),
            nodes: BTreeSet::new(),
            tried_nodes: BTreeSet::new(),
            refusals: RefusalTracker::default(),
            changes: Vec::new(),
            is_synced: false,
            last_sent: None,
        }
    }

    /// Only Services and Endpoints are listed and watched.
    fn kind(&mut self, kind: ResourceKind) -> &mut KindState {
        if kind == ResourceKind::Service { &mut self.services } else { &mut self.endpoints }
    }

    pub(crate) fn apply(&mut self, update: EdgeUpdate) {
        match update {
            EdgeUpdate::List { kind, objects, from_cache: true, .. } => self.apply_cached_list(kind, &objects),
            EdgeUpdate::List { kind, objects, version, from_cache: false } => self.apply_list(kind, &objects, version),
            EdgeUpdate::Upserted(object) => self.apply_event(&object),
            EdgeUpdate::Deleted(object) => {
                if let Some(name) = self.converter.service_name(object.meta()) {
                    self.kind(object.kind()).versions.remove(&name);
                    self.delete(object.kind(), &name);
                }
            }
            EdgeUpdate::Failed(kind, error) => self.kind(kind).error = Some(error),
            EdgeUpdate::Healthy(kind) => self.kind(kind).error = None,
            EdgeUpdate::Node(node) => self.upsert_node(&node),
            EdgeUpdate::NodeUnavailable(name) => drop(self.tried_nodes.insert(name)),
        }
    }

    fn apply_list(&mut self, kind: ResourceKind, objects: &[CachedObject], list_version: Option<u64>) {
        self.kind(kind).versions.begin_list();
        for object in objects {
            let Some(name) = self.converter.service_name(object.meta()) else { continue };
            if self.kind(kind).versions.accept_listed(&name, version(object.meta())) {
                self.upsert(&name, object);
            }
        }
        let state = self.kind(kind);
        (state.readiness, state.error) = (KindReadiness::Listed { from_cache: false }, None);
        let deleted = state.versions.finish_list(list_version);
        deleted.iter().for_each(|name| self.delete(kind, name));
        self.converter.trim(self.services.versions.len() + self.endpoints.versions.len());
    }

    /// A list from the database may lack objects that exist, and may contain outdated ones.
    fn apply_cached_list(&mut self, kind: ResourceKind, objects: &[CachedObject]) {
        objects.iter().for_each(|object| self.apply_event(object));
        self.kind(kind).readiness = KindReadiness::Listed { from_cache: true };
    }

    fn apply_event(&mut self, object: &CachedObject) {
        let Some(name) = self.converter.service_name(object.meta()) else { return };
        if self.kind(object.kind()).versions.accept_event(&name, version(object.meta())) {
            self.upsert(&name, object);
        }
    }

    fn upsert(&mut self, name: &ServiceName, object: &CachedObject) {
        match object {
            CachedObject::Service(service) => self.upsert_service(name, service),
            CachedObject::Endpoints(endpoints) => self.upsert_endpoints(name, endpoints),
        }
    }

    fn upsert_service(&mut self, name: &ServiceName, service: &Service) {
        let Converted { result, refusals } = self.converter.service_object(service);
        self.refusals.set(&SourceKey::service(name), refusals);
        match result {
            Ok(object) => {
                self.served.insert(name.clone());
                self.changes.push(Change::Upsert(object));
            }
            // The Service may have been served before.
            Err(_) => self.delete_service(name),
        }
    }

    fn delete_service(&mut self, name: &ServiceName) {
        if self.served.remove(name) {
            self.changes.push(Change::Delete(ObjectKey::Service(name.clone())));
        }
    }

    fn upsert_endpoints(&mut self, name: &ServiceName, endpoints: &Endpoints) {
        let Converted { result, refusals } = self.converter.cached_endpoints(endpoints);
        self.refusals.set(&SourceKey::Endpoints(name.clone()), refusals);
        self.set_slices(name, result.unwrap_or_default());
    }

    fn set_slices(&mut self, name: &ServiceName, slices: Vec<Slice>) {
        let nodes = slices.iter().flat_map(|slice| slice.endpoints.iter().filter_map(|one| one.node.clone()));
        let nodes: BTreeSet<Name> = nodes.collect();
        if nodes.is_empty() {
            self.endpoint_nodes.remove(name)
        } else {
            self.endpoint_nodes.insert(name.clone(), nodes)
        };
        self.mirrors.set(name, slices);
        let mut changes = SplitChanges::default();
        self.mirrors.publish(name, true, &mut changes);
        self.changes.extend(changes.into_changes());
    }

    fn delete(&mut self, kind: ResourceKind, name: &ServiceName) {
        if kind == ResourceKind::Service {
            self.refusals.clear(&SourceKey::service(name));
            self.delete_service(name);
        } else {
            self.refusals.clear(&SourceKey::Endpoints(name.clone()));
            self.set_slices(name, Vec::new());
        }
    }

    fn upsert_node(&mut self, node: &Node) {
        let Some(name) = node.metadata.name.as_deref().map(Name::from) else { return };
        let Converted { result, refusals } = self.converter.node(node);
        let key = SourceKey::Object(self.node_key(name.clone()));
        self.refusals.set(&key, refusals);
        self.tried_nodes.insert(name.clone());
        if let Ok(node) = result {
            self.nodes.insert(name);
            self.changes.push(Change::Upsert(Object::Node(node)));
        }
    }

    fn node_key(&self, name: Name) -> ObjectKey {
        ObjectKey::Node { cluster: self.converter.cluster().clone(), name }
    }

    /// The nodes to be read: the node of this host, and those that the Endpoints of served Services name. Other nodes
    /// are deleted.
    pub(crate) fn needed_nodes(&mut self) -> BTreeSet<Name> {
        let served = self.endpoint_nodes.iter().filter(|(service, _)| self.served.contains(*service));
        let mut needed: BTreeSet<Name> = served.flat_map(|(_, nodes)| nodes.iter().cloned()).collect();
        needed.insert(self.node.clone());
        let unneeded: Vec<Name> = self.nodes.difference(&needed).cloned().collect();
        for name in unneeded {
            self.nodes.remove(&name);
            self.tried_nodes.remove(&name);
            let key = self.node_key(name);
            self.changes.push(Change::Delete(key));
        }
        needed
    }

    /// Each needed Node is waited for once: without their addresses, the endpoints on other nodes would seem
    /// unreachable.
    fn update_synced(&mut self) -> bool {
        let is_listed = self.services.readiness.is_listed() && self.endpoints.readiness.is_listed();
        self.is_synced |= is_listed && self.needed_nodes().is_subset(&self.tried_nodes);
        self.is_synced
    }

    /// The changes since the last batch; `None` if nothing changed.
    pub(crate) fn next_batch(&mut self, server: &str) -> Option<ChangeBatch> {
        let synced = self.update_synced();
        let kinds = [&self.services, &self.endpoints];
        let mut errors = kinds.into_iter().filter_map(|state| state.error.clone());
        let state = ChangeBatch {
            refusals: self.refusals.all(),
            synced,
            complete: synced && kinds.iter().all(|state| state.readiness.is_complete()),
            from_cache: kinds.iter().any(|state| state.readiness == KindReadiness::Listed { from_cache: true }),
            error: errors.next(),
            server: Some(server.to_owned()),
            ..ChangeBatch::default()
        };
        let changes = std::mem::take(&mut self.changes);
        if changes.is_empty() && self.last_sent.as_ref() == Some(&state) {
            return None;
        }
        self.last_sent = Some(state.clone());
        Some(ChangeBatch { changes, ..state })
    }
}
