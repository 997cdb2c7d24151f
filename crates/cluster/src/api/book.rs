//! What the API server has said so far, as far as it must be remembered: which objects gave a fact (so that a list can
//! tell which are gone), what is refused, which kinds have been listed. The objects themselves go on as facts at once.

use super::assembly::Assembly;
use super::news::{News, Object};
use super::notice::Notice;
use super::refused::Refused;
use super::twin::{Turn, Twins};
use super::{taint, trigger};
use crate::convert::published::{Purpose, purpose};
use crate::convert::{Convert, Converted, Range, Unserved, untyped};
use crate::folder::Batch;
use crate::kind::Kind;
use crate::object::Identity;
use beeline_model::Name;
use beeline_model::fact::{Fact, Pod, PodName, Refusal, SliceName};
use beeline_model::policy::{Policy, PolicyKind};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

/// What is not needed is waited for no longer than this many failures, about three seconds.
const FAILURES: u32 = 5;
/// That we may not read a kind, or that it is not there, is sure once nothing else was said for this long: a token may
/// just have been replaced, a server may just have started. Whoever believes it too soon removes every policy.
const DOUBT: Duration = Duration::from_secs(30);

#[derive(Default)]
struct Shelf {
    /// Objects that gave a fact, each with a mark of what it said; 0: told every time.
    known: HashMap<Identity, u64>,
    /// While a list is under way: all that it has named, also what is not for us.
    seen: Option<HashSet<Identity>>,
    listed: bool,
    error: Option<String>,
    /// When the error began.
    since: Option<SystemTime>,
    /// Since Services and slices were there.
    failures: u32,
    /// Since when, with Services and slices there, nothing else was said than that it is not for us.
    missing: Option<Instant>,
    /// And it was said long enough.
    sure: bool,
}

impl Shelf {
    /// Listed, or not to be had now.
    fn is_settled(&self) -> bool {
        self.listed || self.missing.is_some() || self.failures >= FAILURES
    }

    /// Nothing of it is there that we do not know of, or nothing that we may know.
    fn is_whole(&self) -> bool {
        self.listed || self.sure
    }
}

/// Which of the controller's slices are read.
#[derive(Clone, Debug, Default)]
pub(crate) struct Published {
    pub(crate) policies: bool,
    pub(crate) nodes: bool,
    /// Slices of nodes are read here only.
    pub(crate) namespace: String,
}

pub(crate) struct Book {
    convert: Convert,
    node: Name,
    /// By kind.
    shelves: [Shelf; Kind::COUNT],
    followed: Box<[Kind]>,
    published: Published,
    /// As their slices say.
    nodes: Assembly,
    refused: Refused,
    twins: Twins,
    next: Batch,
    /// How it was when it was last told, without the facts.
    told: Option<Batch>,
    /// Refusals that were not there before, each with the object that it is about.
    pub(crate) notices: Vec<Notice>,
    /// Our own node has the start-up taint.
    pub(crate) tainted: bool,
}

impl Book {
    pub(crate) fn new(convert: Convert, node: &str, followed: &[Kind], published: Published) -> Book {
        Book {
            nodes: Assembly::new(convert.cluster().clone(), node.into()),
            published,
            convert,
            node: node.into(),
            shelves: Default::default(),
            followed: followed.into(),
            refused: Refused::default(),
            twins: Twins::default(),
            next: Batch::default(),
            told: None,
            notices: Vec::new(),
            tainted: false,
        }
    }

    fn shelf(&mut self, kind: Kind) -> &mut Shelf {
        &mut self.shelves[kind as usize]
    }

    pub(crate) fn take(&mut self, news: News, now: Instant) {
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
            News::Well(kind) => self.recover(kind),
            News::Failed { kind, why, denied } => self.fail(kind, why, denied.then_some(now)),
            News::Absent(kind) => self.miss(kind, now),
        }
    }

    fn fail(&mut self, kind: Kind, why: String, denied: Option<Instant>) {
        let shelf = self.shelf(kind);
        shelf.since.get_or_insert_with(SystemTime::now);
        shelf.error = Some(why);
        shelf.failures += 1;
        match denied {
            Some(now) => self.miss(kind, now),
            None => (shelf.missing, shelf.sure) = (None, false),
        }
    }

    /// It is not for us, says the server. While it does not even tell Services, that says nothing.
    fn miss(&mut self, kind: Kind, now: Instant) {
        if self.has_base() {
            let shelf = self.shelf(kind);
            let since = *shelf.missing.get_or_insert(now);
            shelf.sure |= now.saturating_duration_since(since) >= DOUBT;
        }
    }

    fn recover(&mut self, kind: Kind) {
        let shelf = self.shelf(kind);
        (shelf.error, shelf.since, shelf.failures) = (None, None, 0);
        (shelf.missing, shelf.sure) = (None, false);
    }

    fn put(&mut self, object: Object) {
        match object {
            Object::Service(service) => {
                let Some(name) = self.convert.service_name(&service.metadata) else { return };
                let converted = self.convert.service_fact(&service);
                self.settle(Identity::Service(name), &service.metadata, converted, |fact| fact, 0);
            }
            Object::Slice(slice) => self.put_slice(&slice),
            Object::Node(node) => {
                let Some(name) = node.metadata.name.as_deref().map(Name::from) else { return };
                if name == self.node {
                    self.tainted = taint::is_tainted(&node);
                }
                let converted = self.convert.node(&node);
                self.settle(Identity::Node(name), &node.metadata, converted, Fact::Node, 0);
            }
            Object::Pod(pod) => {
                let Some(name) = self.convert.pod_name(&pod) else { return };
                let converted = self.convert.pod(&pod);
                let converted = self.claim_cgroup(&name, &pod.metadata, converted);
                self.settle(Identity::Pod(name.into()), &pod.metadata, converted, Fact::Pod, 0);
            }
            Object::Namespace(namespace) => {
                let Some(name) = namespace.metadata.name.as_deref().map(Name::from) else { return };
                let converted = self.convert.namespace(&namespace);
                self.settle(Identity::Namespace(name), &namespace.metadata, converted, Fact::Namespace, 0);
            }
            Object::Range(range) => {
                let Some(name) = range.metadata.name.as_deref().map(Name::from) else { return };
                let converted = self.convert.range(&range);
                self.settle(Identity::Range(name), &range.metadata, converted, Range::fact, 0);
            }
            Object::Redirect(policy) => {
                let (kind, meta) = (PolicyKind::LocalRedirect, &policy.metadata);
                let convert = |spec| self.convert.local_redirect(meta, spec);
                let converted = policy.spec.as_ref().map_or_else(|why| untyped(kind, meta, why), convert);
                self.put_policy(kind, meta, converted);
            }
            Object::Balancing(policy) => {
                let (kind, meta) = (PolicyKind::Balancing, &policy.metadata);
                let convert = |spec| self.convert.balancing(meta, spec);
                let converted = policy.spec.as_ref().map_or_else(|why| untyped(kind, meta, why), convert);
                self.put_policy(kind, meta, converted);
            }
        }
    }

    /// Of two static pods that claim one cgroup only the older is there.
    fn claim_cgroup(&mut self, name: &PodName, meta: &ObjectMeta, mut said: Converted<Pod>) -> Converted<Pod> {
        let Ok(pod) = &said.fact else { return said };
        if meta.uid.as_deref() == Some(&*pod.uid) {
            return said;
        }
        let created = meta.creation_timestamp.as_ref().map_or(i64::MAX, |time| time.0.as_second());
        match self.twins.claim(name, &pod.uid, created) {
            Turn::Ours => {}
            Turn::Younger(holder) => {
                said.fact = Err(Unserved::Refused);
                said.refusals.push(same_cgroup(name, &holder));
            }
            Turn::Taken(younger) => {
                let refusal = same_cgroup(&younger, name);
                let id = Identity::Pod(younger.into());
                self.forget(&id);
                self.refused.set(&id, vec![refusal]);
            }
        }
        said
    }

    /// A slice is a Service's, or published for a policy or for nodes; a label that was changed makes it another.
    fn put_slice(&mut self, slice: &EndpointSlice) {
        let Some(name) = self.convert.slice_name(slice).map(Arc::new) else { return };
        let (purpose, meta) = (purpose(slice), &slice.metadata);
        for (other, id) in slice_identities(&name) {
            if other != purpose {
                self.forget(&id);
            }
        }
        match purpose {
            Purpose::Service => {
                let converted = self.convert.owned_slice(slice);
                self.settle(Identity::Slice(name), meta, converted, |fact| fact, 0);
            }
            Purpose::Policy if self.published.policies => {
                let converted = self.convert.policy_slice(slice);
                self.settle(Identity::PolicySlice(name), meta, converted, Fact::PolicySlice, 0);
            }
            Purpose::Nodes if self.published.nodes => self.put_nodes(name, slice),
            Purpose::Policy | Purpose::Nodes => {}
        }
    }

    fn put_nodes(&mut self, name: Arc<SliceName>, slice: &EndpointSlice) {
        let Converted { fact, refusals } = self.convert.node_slice(slice, &self.published.namespace);
        let id = Identity::NodeSlice(name.clone());
        self.note(Kind::EndpointSlice, &id, &slice.metadata, refusals);
        let shelf = self.shelf(Kind::EndpointSlice);
        if let Some(seen) = &mut shelf.seen {
            seen.insert(id.clone());
        }
        if fact.is_ok() {
            shelf.known.insert(id, 0)
        } else {
            shelf.known.remove(&id)
        };
        self.next.facts.extend(self.nodes.put(&name, fact.ok()));
    }

    /// It is not there any more.
    fn forget(&mut self, id: &Identity) {
        self.refused.set(id, Vec::new());
        if self.shelf(kind_of(id)).known.remove(id).is_some() {
            self.gone(id);
        }
    }

    fn gone(&mut self, id: &Identity) {
        match id {
            Identity::NodeSlice(name) => self.next.facts.extend(self.nodes.put(name, None)),
            Identity::Pod(name) => {
                self.twins.release(name);
                self.next.facts.extend(id.gone(self.convert.cluster()));
            }
            other => self.next.facts.extend(other.gone(self.convert.cluster())),
        }
    }

    /// The controller writes a policy's status often, and every agent hears of it: the generation tells that nothing else
    /// has changed.
    fn put_policy(&mut self, kind: PolicyKind, meta: &ObjectMeta, converted: Converted<Policy>) {
        let Some(name) = self.convert.policy_name(kind, meta) else { return };
        let mark = meta.generation.map_or(0, |generation| {
            let mut hash = DefaultHasher::new();
            (&meta.uid, generation).hash(&mut hash);
            hash.finish().max(1)
        });
        self.settle(Identity::Policy(name.into()), meta, converted, Fact::Policy, mark);
    }

    fn settle<T>(
        &mut self,
        id: Identity,
        meta: &ObjectMeta,
        converted: Converted<T>,
        fact: impl FnOnce(T) -> Fact,
        mark: u64,
    ) {
        let kind = kind_of(&id);
        self.note(kind, &id, meta, converted.refusals);
        let shelf = self.shelf(kind);
        if let Some(seen) = &mut shelf.seen {
            seen.insert(id.clone());
        }
        match converted.fact {
            Ok(said) => {
                if shelf.known.insert(id, mark) != Some(mark) || mark == 0 {
                    self.next.facts.push(fact(said));
                }
            }
            // It may have been one of ours: a type, a label or an address was changed.
            Err(_) if shelf.known.remove(&id).is_some() => self.next.facts.extend(id.gone(self.convert.cluster())),
            Err(_) => {}
        }
    }

    fn note(&mut self, kind: Kind, id: &Identity, meta: &ObjectMeta, refusals: Vec<Refusal>) {
        // A slice that only looks like one of the controller's is somebody's forgery: counted and logged. Nobody looks for
        // Events there, and whoever writes many would have every agent write as many.
        let published = matches!(id, Identity::PolicySlice(_) | Identity::NodeSlice(_));
        let before = self.refused.of(id);
        let new = refusals.iter().filter(|refusal| !published && !before.contains(refusal));
        self.notices.extend(new.map(|refusal| Notice::about(kind, meta, refusal)));
        self.refused.set(id, refusals);
    }

    fn remove(&mut self, object: &Object) {
        match self.identity(object) {
            Some(Identity::Slice(name)) => slice_identities(&name).iter().for_each(|(_, id)| self.forget(id)),
            Some(id) => self.forget(&id),
            None => {}
        }
    }

    fn identity(&mut self, object: &Object) -> Option<Identity> {
        let convert = &mut self.convert;
        let policy = |name| Identity::Policy(Arc::new(name));
        match object {
            Object::Service(service) => convert.service_name(&service.metadata).map(Identity::Service),
            Object::Slice(slice) => convert.slice_name(slice).map(|name| Identity::Slice(name.into())),
            Object::Node(node) => node.metadata.name.as_deref().map(|name| Identity::Node(name.into())),
            Object::Pod(pod) => convert.pod_name(pod).map(|name| Identity::Pod(name.into())),
            Object::Namespace(one) => one.metadata.name.as_deref().map(|name| Identity::Namespace(name.into())),
            Object::Range(one) => one.metadata.name.as_deref().map(|name| Identity::Range(name.into())),
            Object::Redirect(one) => convert.policy_name(PolicyKind::LocalRedirect, &one.metadata).map(policy),
            Object::Balancing(one) => convert.policy_name(PolicyKind::Balancing, &one.metadata).map(policy),
        }
    }

    /// Only now is it sure what is gone.
    fn close_list(&mut self, kind: Kind) {
        let before = self.has_base();
        self.shelf(kind).listed = true;
        if !before && self.has_base() {
            // Who failed while the server was away gets its chances from now on.
            self.shelves.iter_mut().for_each(|shelf| (shelf.failures, shelf.missing) = (0, None));
        }
        let shelf = self.shelf(kind);
        let Some(seen) = shelf.seen.take() else { return };
        let lost: Vec<Identity> = shelf.known.keys().filter(|id| !seen.contains(id)).cloned().collect();
        shelf.known.retain(|id, _| seen.contains(id));
        self.refused.retain(|id| kind_of(id) != kind || seen.contains(id));
        lost.iter().for_each(|id| self.gone(id));
        self.convert.trim(self.shelves.iter().map(|shelf| shelf.known.len()).sum());
    }

    /// Who is no node of this cluster reaches pods by their nodes: without these nothing leads anywhere.
    fn has_base(&self) -> bool {
        let nodes = self.node.is_empty() && self.followed.contains(&Kind::Node);
        let base = [Kind::Service, Kind::EndpointSlice].into_iter().chain(nodes.then_some(Kind::Node));
        base.into_iter().all(|kind| self.shelves[kind as usize].listed)
    }

    /// Services and slices have been listed, and so has all that changes where they lead (our node, its pods, policies),
    /// unless it cannot be had: nothing of that may keep Services from being served.
    fn is_synced(&self) -> bool {
        self.has_base() && self.followed.iter().all(|kind| self.shelves[*kind as usize].is_settled())
    }

    /// Nobody else can have said what is in the kernel and not here: a kind that merely failed so far may have.
    fn is_whole(&self) -> bool {
        self.has_base() && self.followed.iter().all(|kind| self.shelves[*kind as usize].is_whole())
    }

    fn error(&self) -> Option<String> {
        let failing = self.shelves.iter().filter_map(|shelf| Some((shelf.since?, shelf.error.as_ref()?)));
        let (since, why) = failing.min_by_key(|(since, _)| *since)?;
        let since = jiff::Timestamp::try_from(since).map(|time| format!("{time:.0}")).unwrap_or_default();
        Some(format!("since {since}: {why}"))
    }

    /// What differs since it was last asked; `None`: nothing.
    pub(crate) fn batch(&mut self, server: String) -> Option<Batch> {
        let now = Batch {
            refusals: self.refused.all(),
            synced: self.is_synced(),
            whole: self.is_whole(),
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

fn slice_identities(name: &Arc<SliceName>) -> [(Purpose, Identity); 3] {
    [
        (Purpose::Service, Identity::Slice(name.clone())),
        (Purpose::Policy, Identity::PolicySlice(name.clone())),
        (Purpose::Nodes, Identity::NodeSlice(name.clone())),
    ]
}

fn same_cgroup(younger: &PodName, older: &PodName) -> Refusal {
    let show = |name: &PodName| format!("{}/{}", name.namespace, name.name);
    let message = format!(
        "it claims the cgroup of the static pod {}, which is older, and is left out; delete one of the two",
        show(older)
    );
    Refusal { subject: format!("Pod {}", show(younger)), reason: "sameCgroup", message }
}

fn kind_of(id: &Identity) -> Kind {
    match id {
        Identity::Service(_) => Kind::Service,
        Identity::Slice(_) | Identity::PolicySlice(_) | Identity::NodeSlice(_) => Kind::EndpointSlice,
        Identity::Endpoints(_) => Kind::Endpoints,
        Identity::Node(_) => Kind::Node,
        Identity::Pod(_) => Kind::Pod,
        Identity::Namespace(_) => Kind::Namespace,
        Identity::Policy(name) if name.kind == PolicyKind::LocalRedirect => Kind::LocalRedirect,
        Identity::Policy(_) => Kind::Balancing,
        Identity::Range(_) => Kind::ServiceCidr,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Claim;
    use k8s_openapi::api::core::v1::Service;

    fn book() -> Book {
        let followed =
            [Kind::Service, Kind::EndpointSlice, Kind::Node, Kind::Pod, Kind::LocalRedirect, Kind::Balancing];
        Book::new(Convert::new("local", Claim::default()), "node-1", &followed, Published::default())
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
        tell_at(book, Instant::now(), news)
    }

    fn tell_at(book: &mut Book, now: Instant, news: impl IntoIterator<Item = News>) -> Batch {
        news.into_iter().for_each(|news| book.take(news, now));
        book.batch("https://192.0.2.1".into()).unwrap_or_default()
    }

    #[test]
    fn synced_is_when_all_have_been_listed() {
        let mut book = book();
        assert!(!tell(&mut book, [News::Begin(Kind::Service), News::Done(Kind::Service)]).synced);
        assert!(!tell(&mut book, [News::Begin(Kind::EndpointSlice), News::Done(Kind::EndpointSlice)]).synced);
        assert!(!tell(&mut book, [News::Begin(Kind::Node), News::Done(Kind::Node)]).synced);
        tell(&mut book, [News::Done(Kind::Pod), News::Done(Kind::LocalRedirect)]);
        assert!(tell(&mut book, [News::Done(Kind::Balancing)]).synced);
    }

    #[test]
    fn outside_nodes_are_the_way_to_pods_and_waited_for() {
        let followed = [Kind::Service, Kind::EndpointSlice, Kind::Node];
        let mut book = Book::new(Convert::new("far", Claim::default()), "", &followed, Published::default());
        tell(&mut book, [News::Done(Kind::Service), News::Done(Kind::EndpointSlice)]);
        let batch = tell(&mut book, (0..9).map(|_| failed(Kind::Node, true)));
        assert!(!batch.synced && batch.error.is_some_and(|why| why.contains("forbidden")));
        assert!(tell(&mut book, [News::Done(Kind::Node), News::Well(Kind::Node)]).synced);
    }

    fn base() -> Book {
        let mut book = book();
        tell(&mut book, [News::Done(Kind::Node), News::Done(Kind::Pod), News::Done(Kind::Service)]);
        book
    }

    fn failed(kind: Kind, denied: bool) -> News {
        News::Failed { kind, why: "forbidden".into(), denied }
    }

    #[test]
    fn policies_that_cannot_be_had_hold_nothing_up() {
        let mut book = base();
        // While Services cannot be had either, the server is away: that says nothing of policies.
        (0..9).for_each(|_| book.take(failed(Kind::Balancing, false), Instant::now()));
        assert!(!tell(&mut book, [News::Done(Kind::LocalRedirect), News::Done(Kind::EndpointSlice)]).synced);
        assert!(!tell(&mut book, (1..FAILURES).map(|_| failed(Kind::Balancing, false))).synced);
        let batch = tell(&mut book, [failed(Kind::Balancing, false)]);
        assert!(batch.synced && !batch.whole, "rows of policies that nobody could list stay");
        let batch = tell(&mut book, [News::Done(Kind::Balancing), News::Well(Kind::Balancing)]);
        assert!(batch.synced && batch.whole);
    }

    #[test]
    fn a_kind_that_is_denied_is_believed_late() {
        let (mut book, start, second) = (base(), Instant::now(), Duration::from_secs(1));
        tell(&mut book, [Kind::LocalRedirect, Kind::EndpointSlice].map(News::Done));
        let mut said = |at: u32, denied: bool| {
            tell_at(&mut book, start + at * second, [failed(Kind::Balancing, denied)]);
            (book.is_synced(), book.is_whole())
        };
        assert_eq!([said(0, true), said(1, true), said(29, true)], [(true, false); 3], "a moment is no proof");
        assert_eq!([said(30, false), said(31, true), said(60, true)].map(|said| said.1), [false; 3], "not in a row");
        assert_eq!(said(61, true), (true, true));
    }

    #[test]
    fn what_is_denied_or_absent_before_services_are_there_says_nothing() {
        for news in [|kind| failed(kind, true), News::Absent] {
            let (mut book, start, second) = (book(), Instant::now(), Duration::from_secs(1));
            let policies = [Kind::LocalRedirect, Kind::Balancing];
            (0..60).for_each(|at| drop(tell_at(&mut book, start + at * second, policies.map(news))));
            let rest = [Kind::Service, Kind::EndpointSlice, Kind::Node, Kind::Pod].map(News::Done);
            let batch = tell_at(&mut book, start + 61 * second, rest);
            assert!(!batch.synced && !batch.whole, "the server was away: they get their chance now");
            let batch = tell_at(&mut book, start + 62 * second, policies.map(news));
            assert!(batch.synced && !batch.whole, "Services are served, and rows of policies stay");
            assert!(tell_at(&mut book, start + 92 * second, policies.map(news)).whole);
        }
    }

    fn policy(uid: &str, generation: i64) -> Object {
        let spec = serde_json::json!({
            "frontend": { "serviceMatcher": { "serviceName": "web" } },
            "backend": { "endpointSelector": {}, "toPorts": [{ "port": 80 }] },
        });
        let meta = serde_json::json!({ "name": "a", "namespace": "b", "uid": uid, "generation": generation });
        Object::Redirect(Box::new(crate::api::lean::Read {
            metadata: serde_json::from_value(meta).unwrap(),
            spec: Ok(serde_json::from_value(spec).unwrap()),
        }))
    }

    #[test]
    fn a_policy_is_told_once_a_generation() {
        let (mut book, now) = (book(), std::time::Instant::now());
        let mut facts = |policy| tell(&mut book, [News::Changed(policy, now)]).facts.len();
        assert_eq!(
            [facts(policy("u", 1)), facts(policy("u", 1)), facts(policy("u", 2)), facts(policy("v", 2))],
            [1, 0, 1, 1]
        );
        assert_eq!(tell(&mut book, [News::Gone(policy("v", 2))]).facts.len(), 1);
        assert_eq!(tell(&mut book, [News::Changed(policy("v", 2), now)]).facts.len(), 1);
    }

    #[test]
    fn a_node_that_nobody_may_read_holds_nothing_up() {
        let mut book = book();
        tell(&mut book, [Kind::Service, Kind::EndpointSlice, Kind::Pod].map(News::Done));
        tell(&mut book, [Kind::LocalRedirect, Kind::Balancing].map(News::Done));
        let batch = tell(&mut book, [failed(Kind::Node, true)]);
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

    fn slice(label: &str, value: &str) -> Object {
        let meta = serde_json::json!({ "name": "forged", "namespace": "default", "labels": { label: value } });
        let slice = serde_json::json!({ "metadata": meta, "addressType": "IPv4", "endpoints": [] });
        Object::Slice(Box::new(serde_json::from_value(slice).unwrap()))
    }

    #[test]
    fn a_forged_slice_is_counted_and_makes_no_event() {
        let published = Published { policies: true, nodes: true, namespace: "kube-system".into() };
        let mut book = Book::new(Convert::new("local", Claim::default()), "node-1", &[], published);
        let now = std::time::Instant::now();
        for (label, value, reason) in
            [("beeline.dev/policy", "api", "notOwned"), ("beeline.dev/nodes", "InternalIP", "wrongNamespace")]
        {
            let batch = tell(&mut book, [News::Changed(slice(label, value), now)]);
            let reasons: Vec<_> = batch.refusals.iter().map(|refusal| refusal.reason).collect();
            assert_eq!((reasons, book.notices.len()), (vec![reason], 0));
        }
    }

    fn mirror(name: &str, created: &str) -> Object {
        let pod = serde_json::json!({
            "metadata": {
                "name": name, "namespace": "default", "uid": name, "creationTimestamp": created,
                "annotations": { "kubernetes.io/config.mirror": "3f0ab1cc3f0ab1cc3f0ab1cc3f0ab1cc" },
                "ownerReferences": [{ "apiVersion": "v1", "kind": "Node", "name": "node-1", "uid": "n" }],
            },
            "spec": { "nodeName": "node-1", "containers": [] },
        });
        Object::Pod(Box::new(serde_json::from_value(pod).unwrap()))
    }

    #[test]
    fn of_two_pods_with_one_cgroup_the_older_is_there() {
        let (mut book, now) = (book(), std::time::Instant::now());
        let mut told = |object| {
            let batch = tell(&mut book, [News::Changed(object, now)]);
            let show = |fact: &Fact| match fact {
                Fact::Pod(pod) => format!("+{}", pod.name.name),
                Fact::PodGone(name) => format!("-{}", name.name),
                other => format!("{other:?}"),
            };
            batch.facts.iter().map(show).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(told(mirror("young", "2026-01-02T00:00:00Z")), "+young");
        assert_eq!(told(mirror("old", "2026-01-01T00:00:00Z")), "-young +old");
        assert_eq!(told(mirror("young", "2026-01-02T00:00:00Z")), "");
        let said = book.refused.all();
        let said: Vec<_> = said.iter().map(|refusal| (refusal.subject.as_str(), refusal.reason)).collect();
        assert_eq!(said, [("Pod default/young", "sameCgroup")]);
    }

    #[test]
    fn says_nothing_if_nothing_changed() {
        let mut book = book();
        assert!(book.batch("s".into()).is_some(), "the first time");
        book.take(News::Begin(Kind::Service), Instant::now());
        assert!(book.batch("s".into()).is_none());
    }
}
