//! Shared by the tests: manifests as text in, facts out.
#![allow(dead_code)]

use beeline_cluster::{Claim, Convert, Format, Snapshot, parse};
use beeline_model::fact::{Service, Slice};
use std::path::PathBuf;

pub fn read(text: &str) -> Snapshot {
    read_as(text, Claim::default())
}

pub fn read_as(text: &str, claim: Claim) -> Snapshot {
    parse(text.as_bytes(), Format::Yaml, &mut Convert::new("local", claim))
}

/// A Service `default/a` with this spec.
pub fn service(spec: &str) -> Snapshot {
    read(&format!("{{apiVersion: v1, kind: Service, metadata: {{name: a}}, spec: {{{spec}}}}}"))
}

/// An EndpointSlice `default/a-1` of a Service `default/a` that is there, with these fields.
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
    snapshot.refusals.iter().map(|refusal| refusal.reason).collect()
}

pub fn texts<T: ToString>(values: &[T]) -> Vec<String> {
    values.iter().map(ToString::to_string).collect()
}

pub fn data() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data"))
}
