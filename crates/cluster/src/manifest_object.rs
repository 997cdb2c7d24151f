//! An object of a manifest: its key, its place in the file and its content.

use crate::source_key::SourceKey;
use beeline_model::ServiceName;
use beeline_model::object::{Object, Slice};
use serde_json::Value;
use std::fmt::{self, Write};
use std::hash::{DefaultHasher, Hasher};

/// The place of an object in its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    /// Counted from 1.
    pub(crate) document: u32,
    /// The item of a List, counted from 1. 0 means that the document is not a List.
    pub(crate) item: u32,
}

impl Place {
    pub(crate) fn document(document: u32) -> Place {
        Place { document, item: 0 }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.item {
            0 => write!(f, "document {}", self.document),
            item => write!(f, "document {} item {item}", self.document),
        }
    }
}

pub(crate) struct ManifestObject {
    pub(crate) key: SourceKey,
    pub(crate) place: Place,
    pub(crate) content: Content,
    /// Whether this is a Service without a selector, to which Endpoints of the same name apply.
    pub(crate) is_selectorless: bool,
}

pub(crate) enum Content {
    /// `None` for an object that is skipped. Such an object defines its key nevertheless.
    Object(Option<Object>),
    /// The slices of v1 Endpoints.
    Endpoints(Vec<Slice>),
}

impl Content {
    /// 0 if the content is empty.
    pub(crate) fn fingerprint(&self) -> u64 {
        match self {
            Content::Object(Some(object)) => fingerprint(object),
            Content::Endpoints(slices) if !slices.is_empty() => fingerprint(slices),
            Content::Object(None) | Content::Endpoints(_) => 0,
        }
    }

    /// The Service whose endpoints these are.
    pub(crate) fn owner(&self) -> Option<&ServiceName> {
        match self {
            Content::Object(Some(Object::Slice(slice) | Object::NamedSlice(slice))) => Some(&slice.service),
            Content::Endpoints(slices) => slices.first().map(|slice| &slice.service),
            Content::Object(_) => None,
        }
    }
}

/// A 64-bit hash stands for the content, so that objects are not kept in memory twice: the receiver of the changes
/// keeps them. The hash covers the debug text, which contains every field, also fields that are added later.
fn fingerprint(content: &impl fmt::Debug) -> u64 {
    struct HashWriter(DefaultHasher);
    impl Write for HashWriter {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            self.0.write(text.as_bytes());
            Ok(())
        }
    }
    let mut writer = HashWriter(DefaultHasher::new());
    // Writing to a hasher never fails.
    let _ = write!(writer, "{content:?}");
    writer.0.finish().max(1)
}

/// The kind and name of an object that is not deserialized yet: `Service default/web`.
pub(crate) fn title(value: &Value) -> String {
    let text = |value: Option<&Value>| value.and_then(Value::as_str).unwrap_or("?").to_owned();
    let meta = value.get("metadata");
    let namespace = meta.and_then(|meta| meta.get("namespace"));
    let name = text(meta.and_then(|meta| meta.get("name")));
    match namespace {
        Some(namespace) => format!("{} {}/{name}", text(value.get("kind")), text(Some(namespace))),
        None => format!("{} {name}", text(value.get("kind"))),
    }
}
