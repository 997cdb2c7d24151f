//! One file of manifests: documents to objects to facts. Each object is converted as soon as it is parsed and dropped at
//! once, so the memory needed is that of the facts, not of the file.

use crate::convert::{Convert, Converted, Unserved, kind_text, subject};
use crate::document::{Document, Documents};
use crate::kind::{self, Kind};
use crate::object::{Body, Identity, Object, Place};
use crate::policy::{BalancingPolicy, LocalRedirectPolicy};
use crate::tree::{self, Tree};
use crate::{default, object};
use beeline_model::fact::{Refusal, Slice};
use beeline_model::policy::{Policy, PolicyKind};
use k8s_openapi::api::core::v1::{Endpoints, Namespace, Node, Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::ServiceCIDR;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::io::BufRead;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Documents between `---` lines.
    Yaml,
    /// One value after the other.
    Json,
}

/// What a file says.
#[derive(Default)]
pub(crate) struct Reading {
    pub(crate) objects: Vec<Object>,
    pub(crate) refusals: Vec<Refusal>,
    /// Something was refused whole: what the file gave before and does not give now may be hidden in there, so its
    /// absence means nothing.
    pub(crate) broken: bool,
}

pub(crate) fn read(file: &str, format: Format, input: impl BufRead, convert: &mut Convert) -> Reading {
    let mut reader = Reader { file, convert, reading: Reading::default() };
    match format {
        Format::Yaml => reader.read_yaml(input),
        Format::Json => reader.read_json(input),
    }
    reader.reading
}

struct Reader<'a> {
    file: &'a str,
    convert: &'a mut Convert,
    reading: Reading,
}

impl Reader<'_> {
    fn read_yaml(&mut self, input: impl BufRead) {
        for document in Documents::new(input) {
            match document {
                Ok(document) => self.read_document(&document),
                Err(bad) => return self.refuse_file("unreadable", &format!("cannot be read: {bad}")),
            }
        }
    }

    fn read_document(&mut self, document: &Document) {
        if document.too_large {
            return self.refuse(Place::document(document.number), "tooLarge", "too large: split it".into());
        }
        self.collect(document.number, |sink| tree::parse_yaml(&document.text, document.line, sink));
    }

    /// After an error nobody knows where the next JSON value begins, so the rest of the file is lost with it.
    fn read_json(&mut self, input: impl BufRead) {
        let mut stream = serde_json::Deserializer::from_reader(input);
        let mut number = 0;
        let mut whole = true;
        while whole && tree::has_more(&mut stream) {
            number += 1;
            whole = self.collect(number, |sink| tree::parse_json(&mut stream, sink));
        }
    }

    /// One document's objects count only when all of it has been parsed. True: it has.
    fn collect(&mut self, number: u32, parse: impl FnOnce(tree::Sink) -> Result<Tree, String>) -> bool {
        let (objects, refusals, broken) =
            (self.reading.objects.len(), self.reading.refusals.len(), self.reading.broken);
        let mut untyped = Vec::new();
        let parsed = parse(&mut |item, value| self.read_item(Place { document: number, item }, value, &mut untyped));
        if let Ok(list) = &parsed
            && is_list(list)
        {
            self.read_untyped(list, untyped, number);
            return true;
        }
        self.reading.objects.truncate(objects);
        self.reading.refusals.truncate(refusals);
        self.reading.broken = broken;
        let place = Place::document(number);
        let whole = parsed.is_ok();
        match parsed {
            Ok(tree) => self.read_object(place, Value::Object(tree.object)),
            Err(why) => self.refuse(place, "syntax", why),
        }
        whole
    }

    fn read_item(&mut self, place: Place, item: Value, untyped: &mut Vec<(Place, Value)>) {
        if item.get("kind").is_some() {
            self.read_object(place, item);
        } else {
            untyped.push((place, item));
        }
    }

    /// Items as an API server lists them: only the list says their kind.
    fn read_untyped(&mut self, list: &Tree, items: Vec<(Place, Value)>, number: u32) {
        if !list.has_items {
            self.refuse(Place::document(number), "noItems", "a List without items".into());
        }
        let kind = list.text("kind").and_then(kind::of_items).filter(|kind| !kind.is_empty());
        let api_version = list.text("apiVersion");
        for (place, mut item) in items {
            if let (Some(kind), Some(api_version), Some(object)) = (kind, api_version, item.as_object_mut()) {
                object.insert("kind".into(), kind.into());
                object.insert("apiVersion".into(), api_version.into());
            }
            self.read_object(place, item);
        }
    }

    fn read_object(&mut self, place: Place, value: Value) {
        let text = |key: &str| value.get(key).and_then(Value::as_str).unwrap_or_default();
        let (api_version, name) = (text("apiVersion"), text("kind"));
        match Kind::of(api_version, name) {
            Some(Kind::Service) => self.read_service(place, value),
            Some(Kind::EndpointSlice) => self.read_slice(place, value),
            Some(Kind::Endpoints) => self.read_endpoints(place, value),
            Some(Kind::Node) => self.read_node(place, value),
            Some(Kind::Pod) => self.read_pod(place, value),
            Some(Kind::Namespace) => self.read_namespace(place, value),
            Some(Kind::LocalRedirect) => self.read_redirect(place, value),
            Some(Kind::Balancing) => self.read_balancing(place, value),
            Some(Kind::ServiceCidr) => self.read_range(place, value),
            None if kind::is_ignored(api_version, name) => {
                tracing::debug!(file = self.file, %place, kind = name, "not a kind that is read: ignored");
            }
            None => {
                let why = format!("kind {name:?} of apiVersion {api_version:?} is not read; read are {}", kind::READ);
                self.refuse(place, "unknownKind", why);
            }
        }
    }

    fn read_service(&mut self, place: Place, value: Value) {
        let Some(mut object) = self.typed::<Service>(place, value) else { return };
        default::service(&mut object);
        self.note(place, default::missing(&object));
        let identity = self.convert.service_name(&object.metadata).map(Identity::Service);
        let converted = self.convert.service_fact(&object);
        let spec = object.spec.as_ref();
        let selectorless = spec.and_then(|spec| spec.selector.as_ref()).is_none_or(|selector| selector.is_empty());
        self.add(place, "Service", &object.metadata, identity, converted, |fact| Body::Service { fact, selectorless });
    }

    fn read_slice(&mut self, place: Place, value: Value) {
        let Some(mut object) = self.typed::<EndpointSlice>(place, value) else { return };
        default::slice(&mut object);
        let identity = self.convert.slice_name(&object).map(|name| Identity::Slice(name.into()));
        let converted = self.convert.slice_fact(&object);
        self.add(place, "EndpointSlice", &object.metadata, identity, converted, Body::Slice);
    }

    fn read_endpoints(&mut self, place: Place, value: Value) {
        let Some(mut object) = self.typed::<Endpoints>(place, value) else { return };
        default::endpoints(&mut object);
        let identity = self.convert.service_name(&object.metadata).map(Identity::Endpoints);
        let converted = self.convert.endpoints(&object);
        let body = |slices: Option<Vec<Slice>>| Body::Endpoints(slices.unwrap_or_default());
        self.add(place, "Endpoints", &object.metadata, identity, converted, body);
    }

    fn read_node(&mut self, place: Place, value: Value) {
        let Some(object) = self.typed::<Node>(place, value) else { return };
        let identity = object.metadata.name.as_deref().map(|name| Identity::Node(name.into()));
        let converted = self.convert.node(&object);
        self.add(place, "Node", &object.metadata, identity, converted, Body::Node);
    }

    /// Of a folder: one that was never scheduled, as people write them, stands nowhere and says nothing.
    fn read_pod(&mut self, place: Place, value: Value) {
        let Some(mut object) = self.typed::<Pod>(place, value) else { return };
        default::namespace(&mut object.metadata);
        let identity = self.convert.pod_name(&object).map(|name| Identity::Pod(name.into()));
        let converted = self.convert.pod(&object);
        self.add(place, "Pod", &object.metadata, identity, converted, Body::Pod);
    }

    fn read_namespace(&mut self, place: Place, value: Value) {
        let Some(mut object) = self.typed::<Namespace>(place, value) else { return };
        default::namespace_labels(&mut object);
        let identity = object.metadata.name.as_deref().map(|name| Identity::Namespace(name.into()));
        let converted = self.convert.namespace(&object);
        self.add(place, "Namespace", &object.metadata, identity, converted, Body::Namespace);
    }

    fn read_range(&mut self, place: Place, value: Value) {
        let Some(object) = self.typed::<ServiceCIDR>(place, value) else { return };
        let identity = object.metadata.name.as_deref().map(|name| Identity::Range(name.into()));
        let converted = self.convert.range(&object);
        self.add(place, "ServiceCIDR", &object.metadata, identity, converted, Body::Range);
    }

    fn read_redirect(&mut self, place: Place, value: Value) {
        let Some(mut object) = self.known::<LocalRedirectPolicy>(place, value) else { return };
        default::namespace(&mut object.metadata);
        let converted = self.convert.local_redirect(&object.metadata, &object.spec);
        self.add_policy(place, PolicyKind::LocalRedirect, &object.metadata, converted);
    }

    fn read_balancing(&mut self, place: Place, value: Value) {
        let Some(mut object) = self.known::<BalancingPolicy>(place, value) else { return };
        default::namespace(&mut object.metadata);
        let converted = self.convert.balancing(&object.metadata, &object.spec);
        self.add_policy(place, PolicyKind::Balancing, &object.metadata, converted);
    }

    fn add_policy(&mut self, place: Place, kind: PolicyKind, meta: &ObjectMeta, converted: Converted<Policy>) {
        let identity = self.convert.policy_name(kind, meta).map(|name| Identity::Policy(name.into()));
        self.add(place, kind_text(kind), meta, identity, converted, Body::Policy);
    }

    /// Typed, and with no field that there is not: `kubectl apply` would not take such a policy, and half of what it
    /// should say would be worse than nothing.
    fn known<T: DeserializeOwned + Serialize>(&mut self, place: Place, mut value: Value) -> Option<T> {
        default::policy(&mut value);
        let name = object::title(&value);
        let object: T = self.typed(place, value.clone())?;
        let read = serde_json::to_value(&object).unwrap_or_default();
        match tree::unread(&value, &read, &["spec"]) {
            None => Some(object),
            Some(path) => {
                self.refuse(
                    place,
                    "unknownField",
                    format!("{name}: {path}: there is no such field, or it is null; leave it out"),
                );
                None
            }
        }
    }

    fn typed<T: DeserializeOwned>(&mut self, place: Place, value: Value) -> Option<T> {
        let name = object::title(&value);
        match serde_path_to_error::deserialize(value) {
            Ok(object) => Some(object),
            Err(bad) => {
                self.refuse(place, "wrongType", format!("{name}: {}: {}", bad.path(), bad.inner()));
                None
            }
        }
    }

    fn add<T>(
        &mut self,
        place: Place,
        kind: &'static str,
        meta: &ObjectMeta,
        identity: Option<Identity>,
        converted: Converted<T>,
        body: impl FnOnce(Option<T>) -> Body,
    ) {
        self.note(place, converted.refusals);
        match (converted.fact, identity) {
            (Err(Unserved::Refused), _) => self.reading.broken = true,
            (fact, Some(identity)) => self.reading.objects.push(Object { identity, place, body: body(fact.ok()) }),
            (_, None) => tracing::debug!(file = self.file, %place, "{} is skipped", subject(kind, meta)),
        }
    }

    /// An object's own refusals, with the place where to mend it.
    fn note(&mut self, place: Place, refusals: Vec<Refusal>) {
        let file = self.file;
        let placed = |refusal: Refusal| Refusal { message: format!("{} ({file} {place})", refusal.message), ..refusal };
        self.reading.refusals.extend(refusals.into_iter().map(placed));
    }

    fn refuse(&mut self, place: Place, reason: &'static str, message: String) {
        let subject = format!("file {} {place}", self.file);
        self.reading.refusals.push(Refusal { subject, reason, message });
        self.reading.broken = true;
    }

    fn refuse_file(&mut self, reason: &'static str, message: &str) {
        let subject = format!("file {}", self.file);
        self.reading.refusals.push(Refusal { subject, reason, message: message.into() });
        self.reading.broken = true;
    }
}

fn is_list(tree: &Tree) -> bool {
    let kind = tree.text("kind").unwrap_or_default();
    kind == "List" || tree.has_items && kind::of_items(kind).is_some()
}
