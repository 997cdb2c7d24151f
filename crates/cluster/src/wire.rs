//! Kubernetes objects without the fields that are not used: managed fields, most annotations (which may contain a copy
//! of the whole object) and owners, the images of a Node. These fields are skipped while the text is parsed and never
//! built.

mod kinds;

use crate::api::TRIGGER_TIME_ANNOTATION;
use crate::convert::published::SHAPE;
use crate::convert::{ENTRY_ADDRESS, ISTIO_SIDECAR, LEADER, MIRRORED, OUTSIDE_ADDRESS, RESOLVE, VIEW, is_node};
use crate::policy::GROUP;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ListMeta, ObjectMeta, OwnerReference, Time};
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, de::DeserializeOwned};
use std::collections::BTreeMap;
use std::fmt;

/// A kind that is read, and the form in which it is deserialized.
pub(crate) trait TrimmedKind: Sized + Clone + Send + 'static {
    type Wire: DeserializeOwned + Into<Self>;
}

#[derive(Clone, Debug)]
pub(crate) struct Trimmed<K>(pub(crate) K);

impl<'de, K: TrimmedKind> Deserialize<'de> for Trimmed<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        K::Wire::deserialize(deserializer).map(|wire| Trimmed(wire.into()))
    }
}

/// One page of a list.
#[derive(Deserialize)]
#[serde(bound = "K: TrimmedKind")]
pub(crate) struct Page<K: TrimmedKind> {
    #[serde(default)]
    pub(crate) metadata: ListMeta,
    /// `null` in an empty list.
    pub(crate) items: Option<Vec<Trimmed<K>>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Meta {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    generation: Option<i64>,
    creation_timestamp: Option<Time>,
    deletion_timestamp: Option<Time>,
    labels: Option<BTreeMap<String, String>>,
    #[serde(deserialize_with = "used_annotations")]
    annotations: Option<BTreeMap<String, String>>,
    #[serde(deserialize_with = "used_owners")]
    owner_references: Option<Vec<OwnerReference>>,
}

impl From<Meta> for ObjectMeta {
    fn from(meta: Meta) -> ObjectMeta {
        ObjectMeta {
            name: meta.name,
            namespace: meta.namespace,
            uid: meta.uid,
            resource_version: meta.resource_version,
            generation: meta.generation,
            creation_timestamp: meta.creation_timestamp,
            deletion_timestamp: meta.deletion_timestamp,
            labels: meta.labels,
            annotations: meta.annotations,
            owner_references: meta.owner_references,
            ..ObjectMeta::default()
        }
    }
}

/// Only policies, and the Node of a static pod, are kept as owners.
fn used_owners<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Vec<OwnerReference>>, D::Error> {
    let all: Option<Vec<OwnerReference>> = Deserialize::deserialize(deserializer)?;
    let kept = all.into_iter().flatten().filter(|owner| owner.api_version.starts_with(GROUP) || is_node(owner));
    Ok(Some(kept.collect()).filter(|kept: &Vec<_>| !kept.is_empty()))
}

const USED_ANNOTATIONS: [&str; 9] =
    [TRIGGER_TIME_ANNOTATION, RESOLVE, VIEW, MIRRORED, ISTIO_SIDECAR, ENTRY_ADDRESS, OUTSIDE_ADDRESS, SHAPE, LEADER];

fn used_annotations<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<BTreeMap<String, String>>, D::Error> {
    struct AnnotationVisitor;
    impl<'de> Visitor<'de> for AnnotationVisitor {
        type Value = Option<BTreeMap<String, String>>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("annotations")
        }

        fn visit_unit<E>(self) -> Result<Self::Value, E> {
            Ok(None)
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut found = BTreeMap::new();
            while let Some(key) = map.next_key::<String>()? {
                if USED_ANNOTATIONS.contains(&key.as_str()) {
                    found.insert(key, map.next_value()?);
                } else {
                    map.next_value::<IgnoredAny>()?;
                }
            }
            Ok(Some(found).filter(|found| !found.is_empty()))
        }
    }
    deserializer.deserialize_any(AnnotationVisitor)
}

/// A policy without its status. The installed CustomResourceDefinition may be of another version, so a spec that does
/// not deserialize must affect neither the other objects of the page nor the metadata.
#[derive(Clone, Debug)]
pub(crate) struct PolicyObject<S> {
    pub(crate) metadata: ObjectMeta,
    pub(crate) spec: Result<S, String>,
}

#[derive(Deserialize)]
#[serde(bound = "S: DeserializeOwned")]
pub(crate) struct PolicyWire<S> {
    #[serde(default)]
    metadata: Meta,
    #[serde(default = "missing_spec", deserialize_with = "fallible_spec")]
    spec: Result<S, String>,
}

fn missing_spec<S>() -> Result<S, String> {
    Err("it has no spec".into())
}

fn fallible_spec<'de, D: Deserializer<'de>, S: DeserializeOwned>(
    deserializer: D,
) -> Result<Result<S, String>, D::Error> {
    let value = serde_json::Value::deserialize(deserializer)?;
    Ok(serde_path_to_error::deserialize(value).map_err(|error| format!("spec.{}: {}", error.path(), error.inner())))
}

impl<S> From<PolicyWire<S>> for PolicyObject<S> {
    fn from(wire: PolicyWire<S>) -> PolicyObject<S> {
        PolicyObject { metadata: wire.metadata.into(), spec: wire.spec }
    }
}

impl<S: DeserializeOwned + Clone + Send + 'static> TrimmedKind for PolicyObject<S> {
    type Wire = PolicyWire<S>;
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::{Node, Pod};
    use k8s_openapi::api::discovery::v1::EndpointSlice;

    #[test]
    fn unused_fields_are_dropped() {
        let text = r#"{"kind":"EndpointSlice","metadata":{"name":"a","namespace":"b","labels":{"l":"1"},
            "managedFields":[{"manager":"x","fieldsV1":{"f:a":{}}}],
            "annotations":{"endpoints.kubernetes.io/last-change-trigger-time":"2026-01-01T00:00:00Z","big":"text"}},
            "addressType":"IPv4","ports":null,
            "endpoints":[{"addresses":["10.0.0.1"],"conditions":{"ready":true},"targetRef":{"kind":"Pod","name":"p"}}]}"#;
        let Trimmed(slice) = serde_json::from_str::<Trimmed<EndpointSlice>>(text).unwrap();
        assert_eq!(slice.metadata.annotations.as_ref().unwrap().len(), 1);
        assert_eq!(slice.metadata.managed_fields, None);
        assert_eq!(slice.metadata.labels.as_ref().unwrap()["l"], "1");
        assert_eq!((slice.endpoints.len(), slice.endpoints[0].target_ref.as_ref()), (1, None));
    }

    #[test]
    fn only_the_node_of_a_static_pod_is_kept_as_owner() {
        let owners = |text: &str| {
            let pod = format!(r#"{{"metadata":{{"name":"a","ownerReferences":[{text}]}}}}"#);
            let Trimmed(pod) = serde_json::from_str::<Trimmed<Pod>>(&pod).unwrap();
            pod.metadata.owner_references.map_or(0, |owners| owners.len())
        };
        assert_eq!(owners(r#"{"apiVersion":"v1","kind":"Node","name":"n1","uid":"u"}"#), 1);
        assert_eq!(owners(r#"{"apiVersion":"apps/v1","kind":"ReplicaSet","name":"n1","uid":"u"}"#), 0);
    }

    #[test]
    fn a_list_with_null_items_is_empty() {
        let page: Page<Node> = serde_json::from_str(r#"{"metadata":{"resourceVersion":"7"},"items":null}"#).unwrap();
        assert_eq!((page.items.is_none(), page.metadata.resource_version.as_deref()), (true, Some("7")));
        assert!(
            serde_json::from_str::<Page<Node>>(r#"{"kind":"Status"}"#).is_ok_and(|p| p.metadata == ListMeta::default())
        );
    }
}
