//! Reads one file of manifests: documents to Kubernetes objects to objects of the model. Each object is converted as
//! soon as it is parsed, so the memory use is that of the converted objects, not of the file.

use crate::convert::{Converted, Converter, Unserved, object_ref};
use crate::defaults;
use crate::document::{Document, DocumentReader, MAX_DOCUMENT};
use crate::kind::{self, ResourceKind};
use crate::manifest_object::{Content, ManifestObject, Place, title};
use crate::parser::{self, ItemSink, ParsedDocument};
use crate::policy::{BalancingPolicy, LocalRedirectPolicy};
use crate::source_key::{SourceKey, policy_kind};
use beeline_model::Name;
use beeline_model::change::ObjectKey;
use beeline_model::object::Object;
use beeline_model::policy::{Policy, PolicyKind};
use beeline_model::refusal::{FileRef, Refusal, RefusalReason};
use k8s_openapi::api::core::v1::{Endpoints, Namespace, Node, Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::ServiceCIDR;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::io::BufRead;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ManifestFormat {
    /// Documents that are separated by `---` lines.
    Yaml,
    /// Concatenated values.
    Json,
}

/// The content of a file.
#[derive(Default)]
pub(crate) struct FileContents {
    pub(crate) objects: Vec<ManifestObject>,
    pub(crate) refusals: Vec<Refusal>,
    /// A document or object was refused as a whole. It may contain objects that the file defined before, so their
    /// absence from `objects` does not mean that they were removed.
    pub(crate) is_incomplete: bool,
}

pub(crate) fn read(file: &str, format: ManifestFormat, input: impl BufRead, converter: &mut Converter) -> FileContents {
    let mut reader = ManifestReader { file, converter, contents: FileContents::default() };
    match format {
        ManifestFormat::Yaml => reader.read_yaml(input),
        ManifestFormat::Json => reader.read_json(input),
    }
    reader.contents
}

struct ManifestReader<'a> {
    file: &'a str,
    converter: &'a mut Converter,
    contents: FileContents,
}

impl ManifestReader<'_> {
    fn read_yaml(&mut self, input: impl BufRead) {
        for document in DocumentReader::new(input) {
            match document {
                Ok(document) => self.read_document(&document),
                Err(error) => return self.refuse(None, RefusalReason::Unreadable, format!("cannot be read: {error}")),
            }
        }
    }

    fn read_document(&mut self, document: &Document) {
        if document.is_too_large {
            let place = Place::document(document.number);
            return self.refuse(
                Some(place),
                RefusalReason::TooLarge,
                format!("larger than {} MiB: split it", MAX_DOCUMENT >> 20),
            );
        }
        self.collect(document.number, |sink| parser::parse_yaml(&document.text, document.line, sink));
    }

    /// After a syntax error the start of the next JSON value is unknown, so the rest of the file is refused with it.
    fn read_json(&mut self, input: impl BufRead) {
        let mut stream = serde_json::Deserializer::from_reader(input);
        let mut number = 0;
        let mut is_parsed = true;
        while is_parsed && parser::has_more(&mut stream) {
            number += 1;
            is_parsed = self.collect(number, |sink| parser::parse_json(&mut stream, sink));
        }
    }

    /// Reads the objects of one document. They are kept only if the whole document has been parsed; the result says
    /// whether it has.
    fn collect(&mut self, number: u32, parse: impl FnOnce(ItemSink) -> Result<ParsedDocument, String>) -> bool {
        let FileContents { objects, refusals, is_incomplete } = &self.contents;
        let (objects, refusals, is_incomplete) = (objects.len(), refusals.len(), *is_incomplete);
        let mut untyped = Vec::new();
        let parsed = parse(&mut |item, value| self.read_item(Place { document: number, item }, value, &mut untyped));
        if let Ok(list) = &parsed
            && is_list(list)
        {
            self.read_untyped(list, untyped, number);
            return true;
        }
        self.contents.objects.truncate(objects);
        self.contents.refusals.truncate(refusals);
        self.contents.is_incomplete = is_incomplete;
        let place = Place::document(number);
        let is_parsed = parsed.is_ok();
        match parsed {
            Ok(document) => self.read_object(place, Value::Object(document.object)),
            Err(why) => self.refuse(Some(place), RefusalReason::Syntax, why),
        }
        is_parsed
    }

    fn read_item(&mut self, place: Place, item: Value, untyped: &mut Vec<(Place, Value)>) {
        if item.get("kind").is_some() {
            self.read_object(place, item);
        } else {
            untyped.push((place, item));
        }
    }

    /// Reads items without a kind, as an API server lists them: the kind of the list gives the kind of the items.
    fn read_untyped(&mut self, list: &ParsedDocument, items: Vec<(Place, Value)>, number: u32) {
        if !list.has_items {
            self.refuse(
                Some(Place::document(number)),
                RefusalReason::NoItems,
                "a List has no items: add the field `items`".into(),
            );
        }
        let kind = list.text("kind").and_then(kind::item_kind).filter(|kind| !kind.is_empty());
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
        match ResourceKind::find(api_version, name) {
            Some(ResourceKind::Service) => self.read_service(place, value),
            Some(ResourceKind::EndpointSlice) => self.read_slice(place, value),
            Some(ResourceKind::Endpoints) => self.read_endpoints(place, value),
            Some(ResourceKind::Node) => self.read_node(place, value),
            Some(ResourceKind::Pod) => self.read_pod(place, value),
            Some(ResourceKind::Namespace) => self.read_namespace(place, value),
            Some(ResourceKind::LocalRedirectPolicy) => self.read_local_redirect(place, value),
            Some(ResourceKind::BalancingPolicy) => self.read_balancing(place, value),
            Some(ResourceKind::ServiceCidr) => self.read_range(place, value),
            None if kind::is_ignored(api_version, name) => {
                tracing::debug!(file = self.file, %place, kind = name, "ignored an object of a kind that is not read");
            }
            None => {
                let supported = kind::SUPPORTED;
                let why = format!("kind {name:?} of apiVersion {api_version:?} is not read; supported: {supported}");
                self.refuse(Some(place), RefusalReason::UnknownKind, why);
            }
        }
    }

    fn read_service(&mut self, place: Place, value: Value) {
        let Some(mut service) = self.deserialize::<Service>(place, value) else { return };
        defaults::service(&mut service);
        self.add_refusals(place, defaults::refuse_unallocated(&service));
        let key = self.converter.service_name(&service.metadata).map(ObjectKey::Service).map(SourceKey::Object);
        let converted = self.converter.service_object(&service);
        let selector = service.spec.as_ref().and_then(|spec| spec.selector.as_ref());
        let is_selectorless = selector.is_none_or(|selector| selector.is_empty());
        let object = self.checked(place, ResourceKind::Service, &service.metadata, key, converted);
        let object = object.map(|(key, object)| (key, Content::Object(object)));
        self.add(place, object, is_selectorless);
    }

    fn read_slice(&mut self, place: Place, value: Value) {
        let Some(mut slice) = self.deserialize::<EndpointSlice>(place, value) else { return };
        defaults::slice(&mut slice);
        let key = self.converter.slice_name(&slice).map(ObjectKey::Slice);
        let converted = self.converter.slice_object(&slice);
        self.add_object(place, ResourceKind::EndpointSlice, &slice.metadata, key, converted);
    }

    fn read_endpoints(&mut self, place: Place, value: Value) {
        let Some(mut endpoints) = self.deserialize::<Endpoints>(place, value) else { return };
        defaults::endpoints(&mut endpoints);
        let key = self.converter.service_name(&endpoints.metadata).map(SourceKey::Endpoints);
        let converted = self.converter.endpoints(&endpoints);
        let object = self.checked(place, ResourceKind::Endpoints, &endpoints.metadata, key, converted);
        let object = object.map(|(key, slices)| (key, Content::Endpoints(slices.unwrap_or_default())));
        self.add(place, object, false);
    }

    fn read_node(&mut self, place: Place, value: Value) {
        let Some(node) = self.deserialize::<Node>(place, value) else { return };
        let key = self.cluster_scoped(&node.metadata, |cluster, name| ObjectKey::Node { cluster, name });
        let converted = self.converter.node(&node).map(Object::Node);
        self.add_object(place, ResourceKind::Node, &node.metadata, key, converted);
    }

    /// A pod without a node is skipped: users write such manifests, and the pod runs nowhere.
    fn read_pod(&mut self, place: Place, value: Value) {
        let Some(mut pod) = self.deserialize::<Pod>(place, value) else { return };
        defaults::namespace(&mut pod.metadata);
        let key = self.converter.pod_name(&pod).map(ObjectKey::Pod);
        let converted = self.converter.pod(&pod).map(Object::Pod);
        self.add_object(place, ResourceKind::Pod, &pod.metadata, key, converted);
    }

    fn read_namespace(&mut self, place: Place, value: Value) {
        let Some(mut namespace) = self.deserialize::<Namespace>(place, value) else { return };
        defaults::namespace_labels(&mut namespace);
        let key = self.cluster_scoped(&namespace.metadata, |cluster, name| ObjectKey::Namespace { cluster, name });
        let converted = self.converter.namespace(&namespace).map(Object::Namespace);
        self.add_object(place, ResourceKind::Namespace, &namespace.metadata, key, converted);
    }

    fn read_range(&mut self, place: Place, value: Value) {
        let Some(range) = self.deserialize::<ServiceCIDR>(place, value) else { return };
        let key = self.cluster_scoped(&range.metadata, |cluster, name| ObjectKey::ServiceRange { cluster, name });
        let converted = self.converter.range(&range).map(Object::ServiceRange);
        self.add_object(place, ResourceKind::ServiceCidr, &range.metadata, key, converted);
    }

    fn read_local_redirect(&mut self, place: Place, value: Value) {
        let Some(mut policy) = self.deserialize_strict::<LocalRedirectPolicy>(place, value) else { return };
        defaults::namespace(&mut policy.metadata);
        let converted = self.converter.local_redirect(&policy.metadata, &policy.spec);
        self.add_policy(place, PolicyKind::LocalRedirect, &policy.metadata, converted);
    }

    fn read_balancing(&mut self, place: Place, value: Value) {
        let Some(mut policy) = self.deserialize_strict::<BalancingPolicy>(place, value) else { return };
        defaults::namespace(&mut policy.metadata);
        let converted = self.converter.balancing(&policy.metadata, &policy.spec);
        self.add_policy(place, PolicyKind::Balancing, &policy.metadata, converted);
    }

    fn add_policy(&mut self, place: Place, kind: PolicyKind, meta: &ObjectMeta, converted: Converted<Policy>) {
        let key = self.converter.policy_name(kind, meta).map(ObjectKey::Policy);
        self.add_object(place, policy_kind(kind), meta, key, converted.map(Object::Policy));
    }

    fn cluster_scoped(&self, meta: &ObjectMeta, key: impl FnOnce(Name, Name) -> ObjectKey) -> Option<ObjectKey> {
        meta.name.as_deref().map(|name| key(self.converter.cluster().clone(), name.into()))
    }

    /// Deserializes a policy and refuses unknown fields: `kubectl apply` would reject such a policy, and applying a
    /// part of it could send dials to unintended backends.
    fn deserialize_strict<T: DeserializeOwned + Serialize>(&mut self, place: Place, mut value: Value) -> Option<T> {
        defaults::policy(&mut value);
        let title = title(&value);
        let object: T = self.deserialize(place, value.clone())?;
        let read = serde_json::to_value(&object).unwrap_or_default();
        match parser::unknown_field(&value, &read, &["spec"]) {
            None => Some(object),
            Some(path) => {
                let why = format!("{title}: {path}: there is no such field, or it is null; leave it out");
                self.refuse(Some(place), RefusalReason::UnknownField, why);
                None
            }
        }
    }

    fn deserialize<T: DeserializeOwned>(&mut self, place: Place, value: Value) -> Option<T> {
        let title = title(&value);
        match serde_path_to_error::deserialize(value) {
            Ok(object) => Some(object),
            Err(error) => {
                let why = format!("{title}: {}: {}", error.path(), error.inner());
                self.refuse(Some(place), RefusalReason::WrongType, why);
                None
            }
        }
    }

    fn add_object(
        &mut self,
        place: Place,
        kind: ResourceKind,
        meta: &ObjectMeta,
        key: Option<ObjectKey>,
        converted: Converted<Object>,
    ) {
        let object = self.checked(place, kind, meta, key.map(SourceKey::Object), converted);
        self.add(place, object.map(|(key, object)| (key, Content::Object(object))), false);
    }

    /// The key of an object and its converted value, which is `None` for a skipped object. `None` if the object is
    /// refused.
    fn checked<T>(
        &mut self,
        place: Place,
        kind: ResourceKind,
        meta: &ObjectMeta,
        key: Option<SourceKey>,
        converted: Converted<T>,
    ) -> Option<(SourceKey, Option<T>)> {
        self.add_refusals(place, converted.refusals);
        match (converted.result, key) {
            (Err(Unserved::Refused), _) => {
                self.contents.is_incomplete = true;
                None
            }
            (result, Some(key)) => Some((key, result.ok())),
            (_, None) => {
                tracing::debug!(file = self.file, %place, object = %object_ref(kind, meta), "skipped an object");
                None
            }
        }
    }

    fn add(&mut self, place: Place, object: Option<(SourceKey, Content)>, is_selectorless: bool) {
        let object = object.map(|(key, content)| ManifestObject { key, place, content, is_selectorless });
        self.contents.objects.extend(object);
    }

    /// Adds refusals of an object, with the place where the user can correct it.
    fn add_refusals(&mut self, place: Place, refusals: Vec<Refusal>) {
        let file = self.file;
        let placed = |refusal: Refusal| Refusal { message: format!("{} ({file} {place})", refusal.message), ..refusal };
        self.contents.refusals.extend(refusals.into_iter().map(placed));
    }

    /// `None` refuses the whole file.
    fn refuse(&mut self, place: Option<Place>, reason: RefusalReason, message: String) {
        let file = FileRef {
            name: self.file.into(),
            document: place.map(|place| place.document),
            item: place.map(|place| place.item).filter(|item| *item > 0),
        };
        self.contents.refusals.push(Refusal::new(file, reason, message));
        self.contents.is_incomplete = true;
    }
}

fn is_list(document: &ParsedDocument) -> bool {
    let kind = document.text("kind").unwrap_or_default();
    kind == "List" || document.has_items && kind::item_kind(kind).is_some()
}
