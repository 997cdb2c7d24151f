//! Parses text to JSON values: one object per document, or the items of a List one by one, so that the dump of a whole
//! cluster is never in memory as a whole. YAML is read as JSON, as `kubectl` does: `name: 80` is a number, and invalid.

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};
use std::fmt;
use std::io::Read;

/// Receives each item of a List with its number, counted from 1.
pub(crate) type ItemSink<'a> = &'a mut dyn FnMut(u32, Value);

/// A document without the items of a List.
pub(crate) struct ParsedDocument {
    pub(crate) object: Map<String, Value>,
    pub(crate) has_items: bool,
}

impl ParsedDocument {
    pub(crate) fn text(&self, key: &str) -> Option<&str> {
        self.object.get(key).and_then(Value::as_str)
    }
}

/// `line` is the number of lines in the file before the document. It is used in error messages.
pub(crate) fn parse_yaml(text: &[u8], line: u64, sink: ItemSink) -> Result<ParsedDocument, String> {
    let text = std::str::from_utf8(text).map_err(|error| format!("not UTF-8 at byte {}", error.valid_up_to()))?;
    let parse = |deserializer: serde_saphyr::Deserializer<'_, '_>| DocumentSeed(sink).deserialize(deserializer);
    let parsed = serde_saphyr::with_deserializer_from_str_with_options(text, options(), parse);
    parsed.map_err(|error| with_line_of_file(&error, line))
}

type JsonStream<R> = serde_json::Deserializer<serde_json::de::IoRead<R>>;

pub(crate) fn has_more<R: Read>(stream: &mut JsonStream<R>) -> bool {
    stream.end().is_err()
}

pub(crate) fn parse_json<R: Read>(stream: &mut JsonStream<R>, sink: ItemSink) -> Result<ParsedDocument, String> {
    DocumentSeed(sink).deserialize(stream).map_err(|error| error.to_string())
}

/// The file bounds the size of the result, except for aliases (a few lines can expand to gigabytes) and depth. Only
/// these are limited here.
fn options() -> serde_saphyr::Options {
    serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_events: usize::MAX,
            max_nodes: usize::MAX,
            max_total_scalar_bytes: usize::MAX,
            max_recorded_anchor_events: 100_000,
            max_recorded_anchor_bytes: 16 << 20,
            enforce_alias_anchor_ratio: false,
        },
        alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: 100_000 },
        with_snippet: false,
    }
}

/// The message with the line in the file instead of the line in the document.
fn with_line_of_file(error: &serde_saphyr::Error, line: u64) -> String {
    let text = error.to_string();
    match error.location() {
        Some(location) if location.line() > 0 => {
            let suffix = format!(" at line {}, column {}", location.line(), location.column());
            let text = text.strip_suffix(&suffix).unwrap_or(&text);
            format!("line {}: {text}", line + location.line())
        }
        _ => text,
    }
}

/// The first field below `path` that is in `given` and not in `read`, the value after deserializing and serializing it.
pub(crate) fn unknown_field(given: &Value, read: &Value, path: &[&str]) -> Option<String> {
    let at = |value: &Value| path.iter().fold(value.clone(), |value, key| value.get(key).cloned().unwrap_or_default());
    first_missing(&at(given), &at(read), &path.join("."))
}

fn first_missing(given: &Value, read: &Value, path: &str) -> Option<String> {
    match (given, read) {
        (Value::Object(given), Value::Object(read)) => given.iter().find_map(|(key, value)| {
            let path = format!("{path}.{key}");
            read.get(key).map_or(Some(path.clone()), |read| first_missing(value, read, &path))
        }),
        (Value::Array(given), Value::Array(read)) => {
            let pairs = given.iter().zip(read).enumerate();
            pairs.into_iter().find_map(|(i, (given, read))| first_missing(given, read, &format!("{path}[{i}]")))
        }
        _ => None,
    }
}

struct DocumentSeed<'a>(ItemSink<'a>);

impl<'de> DeserializeSeed<'de> for DocumentSeed<'_> {
    type Value = ParsedDocument;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<ParsedDocument, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for DocumentSeed<'_> {
    type Value = ParsedDocument;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a Kubernetes object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<ParsedDocument, A::Error> {
        let mut document = ParsedDocument { object: Map::new(), has_items: false };
        while let Some(key) = map.next_key::<String>()? {
            if key == "items" && !document.has_items {
                map.next_value_seed(ItemsSeed(&mut *self.0))?;
                document.has_items = true;
            } else if key == "items" || document.object.contains_key(&key) {
                return Err(A::Error::custom(format!("duplicate field {key:?}")));
            } else {
                document.object.insert(key, map.next_value()?);
            }
        }
        Ok(document)
    }
}

struct ItemsSeed<'a>(ItemSink<'a>);

impl<'de> DeserializeSeed<'de> for ItemsSeed<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for ItemsSeed<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of Kubernetes objects")
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_none<E: Error>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        let mut number = 0;
        while let Some(item) = items.next_element()? {
            number += 1;
            (self.0)(number, item);
        }
        Ok(())
    }
}
