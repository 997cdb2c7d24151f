//! From Kubernetes objects to facts. Values in, values out: no client, no clock, no file, so that every source (a folder
//! of manifests, an API server) means the same by the same object.
//!
//! A part that is wrong (one address among several, one port) is refused with a reason and the rest of the object is
//! kept. Only what leaves nothing to stand on (no usable name, a malformed ClusterIP) refuses the whole object.

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

use beeline_model::fact::Refusal;
use beeline_model::selector::Labels;
use beeline_model::{Name, OwnerName};
pub(crate) use endpoints::LEADER;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use name::Names;
pub(crate) use node::{ENTRY_ADDRESS, OUTSIDE_ADDRESS};
pub(crate) use pod::{MIRRORED, RESOLVE, VIEW, is_node};
pub(crate) use policy::{kind_text, untyped};
pub(crate) use range::Range;
pub(crate) use service::AFFINITY_SECONDS;
use std::collections::BTreeMap;

pub(crate) const PROXY_NAME: &str = "service.kubernetes.io/service-proxy-name";
pub(crate) const HEADLESS: &str = "service.kubernetes.io/headless";
const SERVICE_NAME: &str = "kubernetes.io/service-name";

/// Which Services are ours.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Claim {
    /// `None`: those without the label `service.kubernetes.io/service-proxy-name`; `Some`: those with this value of it,
    /// and no others (as for any proxy that claims services by name).
    pub proxy_name: Option<String>,
    /// Names are answered here: of the others, what their names lead to.
    pub names: bool,
}

impl Claim {
    fn holds(&self, meta: &ObjectMeta) -> bool {
        // The second label is made for slices, but kube-proxy leaves Services that carry it alone as well.
        label(meta, PROXY_NAME) == self.proxy_name.as_deref() && label(meta, HEADLESS).is_none()
    }
}

/// Why an object gave no fact.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unserved {
    /// Nothing is wrong with it, it is just not for us: headless, ExternalName, another proxy's.
    Skipped,
    /// It is wrong as a whole; the refusals say why.
    Refused,
}

#[derive(Debug)]
pub struct Converted<T> {
    pub fact: Result<T, Unserved>,
    pub refusals: Vec<Refusal>,
}

/// One source's converter. It remembers words only to share them between facts (namespaces, port and node names occur a
/// hundred thousand times); the answers do not depend on what it has seen.
pub struct Convert {
    cluster: Name,
    claim: Claim,
    names: Names,
}

impl Convert {
    pub fn new(cluster: &str, claim: Claim) -> Convert {
        Convert { cluster: cluster.into(), claim, names: Names::default() }
    }

    /// Forgets shared words once most of them must be of objects that are gone. Only sharing is lost.
    pub fn trim(&mut self, objects: usize) {
        self.names.trim(objects);
    }

    pub(crate) fn cluster(&self) -> &Name {
        &self.cluster
    }

    fn labels(&mut self, meta: &ObjectMeta) -> Labels {
        let all = meta.labels.iter().flatten();
        all.map(|(key, value)| (self.names.word(key), self.names.word(value))).collect()
    }

    pub(crate) fn service_name(&mut self, meta: &ObjectMeta) -> Option<OwnerName> {
        let (namespace, name) = (meta.namespace.as_deref()?, meta.name.as_deref()?);
        let valid = name::is_label(namespace) && name::is_label(name);
        valid.then(|| self.names.service(&self.cluster, namespace, name))
    }
}

fn label<'a>(meta: &'a ObjectMeta, key: &str) -> Option<&'a str> {
    entry(&meta.labels, key)
}

fn entry<'a>(map: &'a Option<BTreeMap<String, String>>, key: &str) -> Option<&'a str> {
    map.as_ref()?.get(key).map(String::as_str)
}

/// Collects what is refused of one object.
pub(crate) struct Report<'a> {
    kind: &'static str,
    meta: &'a ObjectMeta,
    refusals: Vec<Refusal>,
}

impl<'a> Report<'a> {
    pub(crate) fn new(kind: &'static str, meta: &'a ObjectMeta) -> Report<'a> {
        Report { kind, meta, refusals: Vec::new() }
    }

    /// A part of the object is not served; the rest is.
    pub(crate) fn refuse(&mut self, reason: &'static str, message: impl Into<String>) {
        self.refusals.push(Refusal { subject: subject(self.kind, self.meta), reason, message: message.into() });
    }

    /// The object is not served at all.
    fn stop(&mut self, reason: &'static str, message: impl Into<String>) -> Unserved {
        self.refuse(reason, message);
        Unserved::Refused
    }

    /// Keeps the value, or refuses this part with the reason.
    fn keep<T>(&mut self, reason: &'static str, field: &str, value: Result<T, String>) -> Option<T> {
        value.map_err(|why| self.refuse(reason, format!("{field}: {why}"))).ok()
    }

    fn service_name(&mut self, convert: &mut Convert) -> Result<OwnerName, Unserved> {
        convert.service_name(self.meta).ok_or_else(|| self.bad_name())
    }

    fn bad_name(&mut self) -> Unserved {
        self.stop(
            "badName",
            "metadata.name and metadata.namespace must be DNS-1123 names: a-z, 0-9 and '-', at most 63",
        )
    }

    pub(crate) fn close<T>(self, fact: Result<T, Unserved>) -> Converted<T> {
        Converted { fact, refusals: self.refusals }
    }

    pub(crate) fn refusals(self) -> Vec<Refusal> {
        self.refusals
    }
}

/// `Service default/web`, `Node n1`.
pub(crate) fn subject(kind: &str, meta: &ObjectMeta) -> String {
    let name = meta.name.as_deref().unwrap_or("without a name");
    match meta.namespace.as_deref() {
        Some(namespace) if !matches!(kind, "Node" | "ServiceCIDR") => format!("{kind} {namespace}/{name}"),
        _ => format!("{kind} {name}"),
    }
}
