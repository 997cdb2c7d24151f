//! What the edge cache has said so far, turned into facts.

use super::follow::{Kind, News, Object};
use super::sieve::Sieve;
use crate::api::Refused;
use crate::convert::{Convert, Converted};
use crate::folder::Batch;
use crate::mirror::Mirrors;
use crate::object::Identity;
use beeline_model::fact::{Fact, Slice};
use beeline_model::{Name, OwnerName};
use k8s_openapi::api::core::v1::{Endpoints, Node, Service};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

#[derive(Default)]
struct Shelf {
    sieve: Sieve,
    /// Whose key it is.
    names: HashMap<Box<str>, OwnerName>,
    listed: bool,
    /// The last list came from the cloud.
    complete: bool,
    error: Option<String>,
}

pub(crate) struct Book {
    convert: Convert,
    node: Name,
    services: Shelf,
    endpoints: Shelf,
    served: HashSet<OwnerName>,
    mirrors: Mirrors,
    /// By Service: the Nodes that its Endpoints name.
    named: BTreeMap<OwnerName, BTreeSet<Name>>,
    nodes: BTreeSet<Name>,
    /// Read, or tried and not to be had.
    tried: BTreeSet<Name>,
    refused: Refused,
    facts: Vec<Fact>,
    /// It was once: later Nodes are nothing to wait for.
    synced: bool,
    told: Option<Batch>,
}

fn version(meta: &ObjectMeta) -> Option<u64> {
    meta.resource_version.as_deref()?.parse().ok()
}

fn key(meta: &ObjectMeta) -> Box<str> {
    let text = |part: &Option<String>| part.clone().unwrap_or_default();
    format!("{}/{}", text(&meta.namespace), text(&meta.name)).into()
}

fn meta(object: &Object) -> (Kind, &ObjectMeta) {
    match object {
        Object::Service(service) => (Kind::Service, &service.metadata),
        Object::Endpoints(endpoints) => (Kind::Endpoints, &endpoints.metadata),
    }
}

impl Book {
    pub(crate) fn new(convert: Convert, node: Name) -> Book {
        Book {
            convert,
            node,
            services: Shelf::default(),
            endpoints: Shelf::default(),
            served: HashSet::new(),
            mirrors: Mirrors::default(),
            named: BTreeMap::new(),
            nodes: BTreeSet::new(),
            tried: BTreeSet::new(),
            refused: Refused::default(),
            facts: Vec::new(),
            synced: false,
            told: None,
        }
    }

    fn shelf(&mut self, kind: Kind) -> &mut Shelf {
        match kind {
            Kind::Service => &mut self.services,
            Kind::Endpoints => &mut self.endpoints,
        }
    }

    pub(crate) fn take(&mut self, news: News) {
        match news {
            News::List { kind, objects, cached: true, .. } => self.list_cached(kind, objects),
            News::List { kind, objects, version, cached: false } => self.list(kind, objects, version),
            News::Changed(object) => self.change(object),
            News::Gone(object) => {
                let (kind, meta) = meta(&object);
                let key = key(meta);
                self.shelf(kind).sieve.forget(&key);
                self.remove(kind, &key);
            }
            News::Failed(kind, why) => self.shelf(kind).error = Some(why),
            News::Well(kind) => self.shelf(kind).error = None,
            News::Node(node) => self.put_node(&node),
            News::NoNode(name) => drop(self.tried.insert(name)),
        }
    }

    fn list(&mut self, kind: Kind, objects: Vec<Object>, listed: Option<u64>) {
        let named: HashSet<Box<str>> = objects.iter().map(|object| key(meta(object).1)).collect();
        for object in objects {
            let (_, meta) = meta(&object);
            let (key, version) = (key(meta), version(meta));
            if self.shelf(kind).sieve.is_other(&key, version) {
                self.put(object);
            }
        }
        let shelf = self.shelf(kind);
        (shelf.listed, shelf.complete, shelf.error) = (true, true, None);
        let gone = shelf.sieve.list(&named, listed);
        gone.iter().for_each(|key| self.remove(kind, key));
        self.convert.trim(self.services.names.len() + self.endpoints.names.len());
    }

    /// What it lacks may be there nevertheless, and what it has may be old.
    fn list_cached(&mut self, kind: Kind, objects: Vec<Object>) {
        objects.into_iter().for_each(|object| self.change(object));
        let shelf = self.shelf(kind);
        (shelf.listed, shelf.complete) = (true, false);
    }

    fn change(&mut self, object: Object) {
        let (kind, meta) = meta(&object);
        let (key, version) = (key(meta), version(meta));
        if self.shelf(kind).sieve.is_news(&key, version) {
            self.put(object);
        }
    }

    fn put(&mut self, object: Object) {
        match object {
            Object::Service(service) => self.put_service(&service),
            Object::Endpoints(endpoints) => self.put_endpoints(&endpoints),
        }
    }

    fn put_service(&mut self, service: &Service) {
        let Some(name) = self.convert.service_name(&service.metadata) else { return };
        let Converted { fact, refusals } = self.convert.service_fact(service);
        self.refused.set(&Identity::Service(name.clone()), refusals);
        match fact {
            Ok(fact) => {
                self.services.names.insert(key(&service.metadata), name.clone());
                self.served.insert(name);
                self.facts.push(fact);
            }
            // It may have been one of ours.
            Err(_) => self.end_service(&name),
        }
    }

    fn end_service(&mut self, name: &OwnerName) {
        if self.served.remove(name) {
            self.facts.push(Fact::ServiceGone(name.clone()));
        }
    }

    fn put_endpoints(&mut self, endpoints: &Endpoints) {
        let Some(name) = self.convert.service_name(&endpoints.metadata) else { return };
        let Converted { fact, refusals } = self.convert.cached_endpoints(endpoints);
        self.refused.set(&Identity::Endpoints(name.clone()), refusals);
        self.endpoints.names.insert(key(&endpoints.metadata), name.clone());
        self.mirror(&name, fact.unwrap_or_default());
    }

    fn mirror(&mut self, name: &OwnerName, slices: Vec<Slice>) {
        let nodes = slices.iter().flat_map(|slice| slice.endpoints.iter().filter_map(|one| one.node.clone()));
        let nodes: BTreeSet<Name> = nodes.collect();
        if nodes.is_empty() {
            self.named.remove(name)
        } else {
            self.named.insert(name.clone(), nodes)
        };
        self.mirrors.say(name, slices);
        let mut gone = Vec::new();
        self.mirrors.show(name, true, &mut self.facts, &mut gone);
        self.facts.extend(gone);
    }

    fn remove(&mut self, kind: Kind, key: &str) {
        let Some(name) = self.shelf(kind).names.remove(key) else { return };
        match kind {
            Kind::Service => {
                self.refused.set(&Identity::Service(name.clone()), Vec::new());
                self.end_service(&name);
            }
            Kind::Endpoints => {
                self.refused.set(&Identity::Endpoints(name.clone()), Vec::new());
                self.mirror(&name, Vec::new());
            }
        }
    }

    fn put_node(&mut self, node: &Node) {
        let Some(name) = node.metadata.name.as_deref().map(Name::from) else { return };
        let Converted { fact, refusals } = self.convert.node(node);
        self.refused.set(&Identity::Node(name.clone()), refusals);
        self.tried.insert(name.clone());
        if let Ok(fact) = fact {
            self.nodes.insert(name);
            self.facts.push(Fact::Node(fact));
        }
    }

    /// Our own, and those that Endpoints of our Services name.
    pub(crate) fn needed(&mut self) -> BTreeSet<Name> {
        let served = self.named.iter().filter(|(service, _)| self.served.contains(*service));
        let mut needed: BTreeSet<Name> = served.flat_map(|(_, nodes)| nodes.iter().cloned()).collect();
        needed.insert(self.node.clone());
        let lost: Vec<Name> = self.nodes.difference(&needed).cloned().collect();
        for name in lost {
            self.nodes.remove(&name);
            self.tried.remove(&name);
            self.facts.push(Fact::NodeGone { cluster: self.convert.cluster().clone(), name });
        }
        needed
    }

    fn is_listed(&self) -> bool {
        self.services.listed && self.endpoints.listed
    }

    /// Nodes are waited for once each: without their addresses half of the endpoints would seem unreachable.
    fn is_synced(&mut self) -> bool {
        self.synced |= self.is_listed() && self.needed().is_subset(&self.tried);
        self.synced
    }

    /// What differs since it was last asked; `None`: nothing.
    pub(crate) fn batch(&mut self, server: &str) -> Option<Batch> {
        let synced = self.is_synced();
        let shelves = [&self.services, &self.endpoints];
        let errors = shelves.into_iter().filter_map(|shelf| shelf.error.clone());
        let now = Batch {
            refusals: self.refused.all(),
            synced,
            // The database may have lost what the cloud has.
            whole: synced && shelves.iter().all(|shelf| shelf.complete),
            second_hand: shelves.iter().any(|shelf| shelf.listed && !shelf.complete),
            error: errors.reduce(|first, _| first),
            server: Some(server.to_owned()),
            ..Batch::default()
        };
        let facts = std::mem::take(&mut self.facts);
        if facts.is_empty() && self.told.as_ref() == Some(&now) {
            return None;
        }
        self.told = Some(now.clone());
        Some(Batch { facts, ..now })
    }
}
