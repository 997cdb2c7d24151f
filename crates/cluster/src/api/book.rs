//! What the API server has said so far, as far as it must be remembered: which objects gave a fact (so that a list can
//! tell which are gone), what is refused, which kinds have been listed. The objects themselves go on as facts at once.

use super::news::{News, Object};
use super::notice::Notice;
use super::{taint, trigger};
use crate::convert::{Convert, Converted};
use crate::folder::Batch;
use crate::kind::Kind;
use crate::object::Identity;
use beeline_model::Name;
use beeline_model::fact::{Fact, Refusal};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use std::collections::{BTreeMap, HashSet};
use std::time::SystemTime;

#[derive(Default)]
struct Shelf {
    /// Objects that gave a fact.
    known: HashSet<Identity>,
    /// While a list is under way: all that it has named, also what is not for us.
    seen: Option<HashSet<Identity>>,
    listed: bool,
    error: Option<String>,
    /// When the error began.
    since: Option<SystemTime>,
}

pub(crate) struct Book {
    convert: Convert,
    node: Name,
    services: Shelf,
    slices: Shelf,
    nodes: Shelf,
    pods: Shelf,
    refused: BTreeMap<Identity, Vec<Refusal>>,
    next: Batch,
    /// How it was when it was last told, without the facts.
    told: Option<Batch>,
    /// Refusals that were not there before, each with the object that it is about.
    pub(crate) notices: Vec<Notice>,
    /// Our own node has the start-up taint.
    pub(crate) tainted: bool,
}

impl Book {
    pub(crate) fn new(convert: Convert, node: &str) -> Book {
        Book {
            convert,
            node: node.into(),
            services: Shelf::default(),
            slices: Shelf::default(),
            nodes: Shelf::default(),
            pods: Shelf::default(),
            refused: BTreeMap::new(),
            next: Batch::default(),
            told: None,
            notices: Vec::new(),
            tainted: false,
        }
    }

    fn shelf(&mut self, kind: Kind) -> &mut Shelf {
        match kind {
            Kind::Service => &mut self.services,
            Kind::EndpointSlice | Kind::Endpoints => &mut self.slices,
            Kind::Node => &mut self.nodes,
            Kind::Pod => &mut self.pods,
        }
    }

    pub(crate) fn take(&mut self, news: News) {
        match news {
            News::Begin(kind) => self.shelf(kind).seen = Some(HashSet::new()),
            News::Listed(objects) => objects.into_iter().for_each(|object| self.put(object)),
            News::Done(kind) => self.close_list(kind),
            News::Changed(object, heard) => {
                self.next.heard.get_or_insert(heard);
                if let Object::Slice(slice) = &object {
                    self.next.triggers.extend(trigger::time(&slice.metadata));
                }
                self.put(object);
            }
            News::Gone(object) => self.remove(&object),
            News::Well(kind) => (self.shelf(kind).error, self.shelf(kind).since) = (None, None),
            News::Failed(kind, why) => self.fail(kind, why),
        }
    }

    fn fail(&mut self, kind: Kind, why: String) {
        let shelf = self.shelf(kind);
        shelf.since.get_or_insert_with(SystemTime::now);
        shelf.error = Some(why);
    }

    fn put(&mut self, object: Object) {
        match object {
            Object::Service(service) => {
                let Some(name) = self.convert.service_name(&service.metadata) else { return };
                let converted = self.convert.service(&service);
                self.settle(Kind::Service, Identity::Service(name), &service.metadata, converted, Fact::Service);
            }
            Object::Slice(slice) => {
                let Some(name) = self.convert.slice_name(&slice) else { return };
                let converted = self.convert.owned_slice(&slice);
                self.settle(Kind::EndpointSlice, Identity::Slice(name.into()), &slice.metadata, converted, Fact::Slice);
            }
            Object::Node(node) => {
                let Some(name) = node.metadata.name.as_deref().map(Name::from) else { return };
                if name == self.node {
                    self.tainted = taint::is_tainted(&node);
                }
                let converted = self.convert.node(&node);
                self.settle(Kind::Node, Identity::Node(name), &node.metadata, converted, Fact::Node);
            }
            Object::Pod(pod) => {
                let Some(name) = self.convert.pod_name(&pod) else { return };
                let converted = self.convert.pod(&pod);
                self.settle(Kind::Pod, Identity::Pod(name.into()), &pod.metadata, converted, Fact::Pod);
            }
        }
    }

    fn settle<T>(
        &mut self,
        kind: Kind,
        id: Identity,
        meta: &ObjectMeta,
        converted: Converted<T>,
        fact: impl FnOnce(T) -> Fact,
    ) {
        self.note(kind, &id, meta, converted.refusals);
        let shelf = self.shelf(kind);
        if let Some(seen) = &mut shelf.seen {
            seen.insert(id.clone());
        }
        match converted.fact {
            Ok(said) => {
                shelf.known.insert(id);
                self.next.facts.push(fact(said));
            }
            // It may have been one of ours: a type, a label or an address was changed.
            Err(_) if shelf.known.remove(&id) => self.next.facts.extend(id.gone(self.convert.cluster())),
            Err(_) => {}
        }
    }

    fn note(&mut self, kind: Kind, id: &Identity, meta: &ObjectMeta, refusals: Vec<Refusal>) {
        if refusals.is_empty() {
            self.refused.remove(id);
            return;
        }
        let before = self.refused.get(id).map(Vec::as_slice).unwrap_or_default();
        let new = refusals.iter().filter(|refusal| !before.contains(refusal));
        self.notices.extend(new.map(|refusal| Notice::about(kind, meta, refusal)));
        self.refused.insert(id.clone(), refusals);
    }

    fn remove(&mut self, object: &Object) {
        let (kind, id) = match object {
            Object::Service(service) => {
                (Kind::Service, self.convert.service_name(&service.metadata).map(Identity::Service))
            }
            Object::Slice(slice) => {
                (Kind::EndpointSlice, self.convert.slice_name(slice).map(|name| Identity::Slice(name.into())))
            }
            Object::Node(node) => (Kind::Node, node.metadata.name.as_deref().map(|name| Identity::Node(name.into()))),
            Object::Pod(pod) => (Kind::Pod, self.convert.pod_name(pod).map(|name| Identity::Pod(name.into()))),
        };
        let Some(id) = id else { return };
        self.refused.remove(&id);
        if self.shelf(kind).known.remove(&id) {
            self.next.facts.extend(id.gone(self.convert.cluster()));
        }
    }

    /// Only now is it sure what is gone.
    fn close_list(&mut self, kind: Kind) {
        let shelf = self.shelf(kind);
        shelf.listed = true;
        let Some(seen) = shelf.seen.take() else { return };
        let lost: Vec<Identity> = shelf.known.iter().filter(|id| !seen.contains(id)).cloned().collect();
        shelf.known.retain(|id| seen.contains(id));
        self.refused.retain(|id, _| kind_of(id) != kind || seen.contains(id));
        let cluster = self.convert.cluster().clone();
        self.next.facts.extend(lost.iter().filter_map(|id| id.gone(&cluster)));
        let shelves = [&self.services, &self.slices, &self.nodes, &self.pods];
        self.convert.trim(shelves.iter().map(|shelf| shelf.known.len()).sum());
    }

    /// Services and slices have been listed, and our node, too, unless nobody tells us of it.
    fn is_synced(&self) -> bool {
        let nodes = self.nodes.listed || self.nodes.error.is_some();
        self.services.listed && self.slices.listed && nodes
    }

    fn error(&self) -> Option<String> {
        let failing = [&self.services, &self.slices, &self.nodes, &self.pods].into_iter();
        let first =
            failing.filter_map(|shelf| Some((shelf.since?, shelf.error.as_ref()?))).min_by_key(|(since, _)| *since);
        let (since, why) = first?;
        let since = jiff::Timestamp::try_from(since).map(|time| format!("{time:.0}")).unwrap_or_default();
        Some(format!("since {since}: {why}"))
    }

    /// What differs since it was last asked; `None`: nothing.
    pub(crate) fn batch(&mut self, server: String) -> Option<Batch> {
        let synced = self.is_synced();
        let now = Batch {
            refusals: self.refused.values().flatten().cloned().collect(),
            synced,
            whole: synced,
            error: self.error(),
            server: Some(server),
            ..Batch::default()
        };
        let said = std::mem::take(&mut self.next);
        if said.facts.is_empty() && self.told.as_ref() == Some(&now) {
            return None;
        }
        self.told = Some(now.clone());
        Some(Batch { facts: said.facts, heard: said.heard, triggers: said.triggers, ..now })
    }
}

fn kind_of(id: &Identity) -> Kind {
    match id {
        Identity::Service(_) => Kind::Service,
        Identity::Slice(_) => Kind::EndpointSlice,
        Identity::Endpoints(_) => Kind::Endpoints,
        Identity::Node(_) => Kind::Node,
        Identity::Pod(_) => Kind::Pod,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Claim;
    use k8s_openapi::api::core::v1::Service;

    fn book() -> Book {
        Book::new(Convert::new("local", Claim::default()), "node-1")
    }

    fn service(name: &str, ip: &str) -> Object {
        let ports = r#"[{"name":"http","port":80,"protocol":"TCP"}]"#;
        let spec = format!(r#"{{"clusterIP":"{ip}","clusterIPs":["{ip}"],"ipFamilies":["IPv4"],"ports":{ports}}}"#);
        let text = format!(r#"{{"metadata":{{"name":"{name}","namespace":"default"}},"spec":{spec}}}"#);
        Object::Service(Box::new(serde_json::from_str::<Service>(&text).unwrap()))
    }

    fn gone(batch: &Batch) -> usize {
        batch.facts.iter().filter(|fact| matches!(fact, Fact::ServiceGone(_))).count()
    }

    fn tell(book: &mut Book, news: impl IntoIterator<Item = News>) -> Batch {
        news.into_iter().for_each(|news| book.take(news));
        book.batch("https://192.0.2.1".into()).unwrap_or_default()
    }

    #[test]
    fn synced_is_when_all_have_been_listed() {
        let mut book = book();
        assert!(!tell(&mut book, [News::Begin(Kind::Service), News::Done(Kind::Service)]).synced);
        assert!(!tell(&mut book, [News::Begin(Kind::EndpointSlice), News::Done(Kind::EndpointSlice)]).synced);
        assert!(tell(&mut book, [News::Begin(Kind::Node), News::Done(Kind::Node)]).synced);
    }

    #[test]
    fn a_node_that_nobody_may_read_holds_nothing_up() {
        let mut book = book();
        tell(&mut book, [News::Done(Kind::Service), News::Done(Kind::EndpointSlice)]);
        let batch = tell(&mut book, [News::Failed(Kind::Node, "forbidden".into())]);
        assert!(batch.synced && batch.error.is_some_and(|error| error.contains("forbidden")));
        assert!(tell(&mut book, [News::Well(Kind::Node)]).error.is_none());
    }

    #[test]
    fn what_a_list_does_not_name_is_gone_when_it_is_complete() {
        let mut book = book();
        let both = vec![service("a", "10.96.0.1"), service("b", "10.96.0.2")];
        let batch = tell(&mut book, [News::Begin(Kind::Service), News::Listed(both), News::Done(Kind::Service)]);
        assert_eq!((batch.facts.len(), gone(&batch)), (2, 0));
        // Cut short: what it did not get to may still be there.
        let batch = tell(&mut book, [News::Begin(Kind::Service), News::Listed(vec![service("a", "10.96.0.1")])]);
        assert_eq!(gone(&batch), 0);
        let one = vec![service("b", "10.96.0.2")];
        let batch = tell(&mut book, [News::Begin(Kind::Service), News::Listed(one)]);
        assert_eq!(gone(&batch), 0, "the list is not complete");
        assert_eq!(gone(&tell(&mut book, [News::Done(Kind::Service)])), 1, "a is gone");
    }

    #[test]
    fn an_object_that_is_no_longer_ours_is_gone_and_a_refusal_goes_with_its_object() {
        let mut book = book();
        let now = std::time::Instant::now();
        assert_eq!(tell(&mut book, [News::Changed(service("a", "10.96.0.1"), now)]).facts.len(), 1);
        assert_eq!(gone(&tell(&mut book, [News::Changed(service("a", "None"), now)])), 1);
        let batch = tell(&mut book, [News::Changed(service("a", "127.0.0.1"), now)]);
        assert_eq!((batch.facts.len(), batch.refusals.len(), book.notices.len()), (0, 1, 1));
        tell(&mut book, [News::Changed(service("a", "127.0.0.1"), now)]);
        assert_eq!(book.notices.len(), 1, "nothing new");
        assert!(tell(&mut book, [News::Gone(service("a", "127.0.0.1"))]).refusals.is_empty());
    }

    #[test]
    fn says_nothing_if_nothing_changed() {
        let mut book = book();
        assert!(book.batch("s".into()).is_some(), "the first time");
        book.take(News::Begin(Kind::Service));
        assert!(book.batch("s".into()).is_none());
    }
}
