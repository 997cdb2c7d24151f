//! Converts Kubernetes objects to objects of the model. Pure functions without client, clock or file, so that an object
//! means the same whichever source delivers it.
//!
//! An invalid part (one of several addresses, one port) is refused with a reason, and the rest of the object is kept.
//! The whole object is refused only if the rest would be meaningless: an unusable name, or a malformed ClusterIP.

mod address;
mod endpoints;
mod name;
mod named;
mod namespace;
mod node;
mod pod;
mod policy;
mod port;
pub(crate) mod published;
mod range;
mod service;
mod slice;

use crate::kind::ResourceKind;
use beeline_model::object::Object;
use beeline_model::refusal::{ObjectRef, Refusal, RefusalReason};
use beeline_model::selector::Labels;
use beeline_model::{Name, ServiceName};
pub(crate) use endpoints::LEADER;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use name::NameInterner;
pub(crate) use node::{ENTRY_ADDRESS, OUTSIDE_ADDRESS};
pub(crate) use pod::{ISTIO_SIDECAR, MIRRORED, RESOLVE, VIEW, is_node};
pub(crate) use policy::untyped_policy;
pub(crate) use service::DEFAULT_AFFINITY_SECONDS;
use std::collections::BTreeMap;

pub(crate) const PROXY_NAME: &str = "service.kubernetes.io/service-proxy-name";
pub(crate) const HEADLESS: &str = "service.kubernetes.io/headless";
const SERVICE_NAME: &str = "kubernetes.io/service-name";

/// Which Services are served.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceFilter {
    /// `None` selects the Services without the label `service.kubernetes.io/service-proxy-name`. `Some` selects those
    /// with this value of the label and no others.
    pub proxy_name: Option<String>,
    /// The DNS server of this host is in use: objects that only DNS needs (headless and ExternalName Services, Services
    /// of other proxies, hostnames of endpoints) are converted too.
    pub dns_names: bool,
}

impl ServiceFilter {
    fn selects(&self, meta: &ObjectMeta) -> bool {
        // The headless label is meant for slices, but kube-proxy ignores Services that carry it as well.
        label(meta, PROXY_NAME) == self.proxy_name.as_deref() && label(meta, HEADLESS).is_none()
    }
}

/// Why an object was not converted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unserved {
    /// The object is valid but not served here: headless, ExternalName, or another proxy's.
    Skipped,
    /// The object is invalid as a whole; the refusals say why.
    Refused,
}

#[derive(Debug)]
pub struct Converted<T> {
    pub result: Result<T, Unserved>,
    /// Also of a converted object: the parts that were left out.
    pub refusals: Vec<Refusal>,
}

impl<T> Converted<T> {
    fn skipped() -> Converted<T> {
        Converted { result: Err(Unserved::Skipped), refusals: Vec::new() }
    }

    pub(crate) fn map<U>(self, convert: impl FnOnce(T) -> U) -> Converted<U> {
        Converted { result: self.result.map(convert), refusals: self.refusals }
    }
}

/// Converts the objects of one cluster. It interns names that occur in many objects (namespaces, port names, node
/// names); its results do not depend on the objects that it has converted before.
pub struct Converter {
    cluster: Name,
    filter: ServiceFilter,
    names: NameInterner,
}

impl Converter {
    pub fn new(cluster: &str, filter: ServiceFilter) -> Converter {
        Converter { cluster: cluster.into(), filter, names: NameInterner::default() }
    }

    /// Drops the interned names once most of them must belong to deleted objects. `objects` is the current number of
    /// objects.
    pub fn trim(&mut self, objects: usize) {
        self.names.trim(objects);
    }

    pub(crate) fn cluster(&self) -> &Name {
        &self.cluster
    }

    fn labels(&mut self, meta: &ObjectMeta) -> Labels {
        let labels = meta.labels.iter().flatten();
        labels.map(|(key, value)| (self.names.intern(key), self.names.intern(value))).collect()
    }

    pub(crate) fn service_name(&mut self, meta: &ObjectMeta) -> Option<ServiceName> {
        let (namespace, name) = (meta.namespace.as_deref()?, meta.name.as_deref()?);
        let is_valid = name::is_label(namespace) && name::is_label(name);
        is_valid.then(|| self.names.intern_service(&self.cluster, namespace, name))
    }
}

fn label<'a>(meta: &'a ObjectMeta, key: &str) -> Option<&'a str> {
    entry(&meta.labels, key)
}

fn entry<'a>(map: &'a Option<BTreeMap<String, String>>, key: &str) -> Option<&'a str> {
    map.as_ref()?.get(key).map(String::as_str)
}

/// Collects the refusals of one object.
pub(crate) struct RefusalCollector<'a> {
    kind: ResourceKind,
    meta: &'a ObjectMeta,
    refusals: Vec<Refusal>,
}

impl<'a> RefusalCollector<'a> {
    pub(crate) fn new(kind: ResourceKind, meta: &'a ObjectMeta) -> RefusalCollector<'a> {
        RefusalCollector { kind, meta, refusals: Vec::new() }
    }

    /// Refuses a part of the object; the rest is served.
    pub(crate) fn refuse(&mut self, reason: RefusalReason, message: impl Into<String>) {
        self.refusals.push(Refusal::new(object_ref(self.kind, self.meta), reason, message));
    }

    /// Refuses the whole object.
    fn refuse_all(&mut self, reason: RefusalReason, message: impl Into<String>) -> Unserved {
        self.refuse(reason, message);
        Unserved::Refused
    }

    /// The value, or `None` and a refusal of this field.
    fn accept<T>(&mut self, reason: RefusalReason, field: &str, value: Result<T, String>) -> Option<T> {
        value.map_err(|why| self.refuse(reason, format!("{field}: {why}"))).ok()
    }

    fn service_name(&mut self, converter: &mut Converter) -> Result<ServiceName, Unserved> {
        converter.service_name(self.meta).ok_or_else(|| self.refuse_name())
    }

    fn refuse_name(&mut self) -> Unserved {
        self.refuse_all(
            RefusalReason::BadName,
            "metadata.name and metadata.namespace must be DNS-1123 names: a-z, 0-9 and '-', at most 63 characters",
        )
    }

    pub(crate) fn finish<T>(self, result: Result<T, Unserved>) -> Converted<T> {
        Converted { result, refusals: self.refusals }
    }

    fn finish_object<T>(self, result: Result<T, Unserved>, object: impl FnOnce(T) -> Object) -> Converted<Object> {
        self.finish(result.map(object))
    }

    pub(crate) fn into_refusals(self) -> Vec<Refusal> {
        self.refusals
    }
}

/// The cluster is `None`, because the receiver of a source's refusals knows it.
pub(crate) fn object_ref(kind: ResourceKind, meta: &ObjectMeta) -> ObjectRef {
    ObjectRef {
        kind: kind.as_str(),
        cluster: None,
        namespace: meta.namespace.as_deref().filter(|_| kind.is_namespaced()).map(Name::from),
        name: meta.name.as_deref().unwrap_or("without a name").into(),
    }
}
