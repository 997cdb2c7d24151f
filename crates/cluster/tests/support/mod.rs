//! Test fixture: parses manifests and gives access to the converted objects.
#![allow(dead_code)]

use beeline_cluster::{Converter, ManifestFormat, ServiceFilter, Snapshot, parse_manifests};
use beeline_model::object::{Service, Slice};
use std::path::PathBuf;

pub fn read(text: &str) -> Snapshot {
    read_with(text, ServiceFilter::default())
}

pub fn read_with(text: &str, filter: ServiceFilter) -> Snapshot {
    parse_manifests(text.as_bytes(), ManifestFormat::Yaml, &mut Converter::new("local", filter))
}

/// Converts a Service `default/a` with this spec.
pub fn service(spec: &str) -> Snapshot {
    read(&format!("{{apiVersion: v1, kind: Service, metadata: {{name: a}}, spec: {{{spec}}}}}"))
}

/// Converts an EndpointSlice `default/a-1` with these fields, together with its Service `default/a`.
pub fn slice(fields: &str) -> Snapshot {
    read(&format!(
        "{{apiVersion: v1, kind: Service, metadata: {{name: a}}, spec: {{clusterIP: 10.0.0.1, ports: [{{port: 80}}]}}}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: a-1, labels: {{kubernetes.io/service-name: a}}}}
{fields}
"
    ))
}

pub fn only_service(snapshot: &Snapshot) -> &Service {
    assert_eq!(snapshot.services.len(), 1, "{:?}", snapshot.refusals);
    snapshot.services.values().next().unwrap()
}

pub fn only_slice(snapshot: &Snapshot) -> &Slice {
    assert_eq!(snapshot.slices.len(), 1, "{:?}", snapshot.refusals);
    snapshot.slices.values().next().unwrap()
}

pub fn reasons(snapshot: &Snapshot) -> Vec<&'static str> {
    snapshot.refusals.iter().map(|refusal| refusal.reason.as_str()).collect()
}

pub fn texts<T: ToString>(values: &[T]) -> Vec<String> {
    values.iter().map(ToString::to_string).collect()
}

pub fn data() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data"))
}
