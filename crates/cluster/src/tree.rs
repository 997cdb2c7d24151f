//! Text to JSON values: one object per document, or the items of a List one by one, so that a dump of a whole cluster
//! never stands in memory as a tree. YAML goes through JSON, as `kubectl` does it: `name: 80` is a number, and wrong.

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};
use std::fmt;
use std::io::Read;

/// Called with each item of a List and its number, from 1.
pub(crate) type Sink<'a> = &'a mut dyn FnMut(u32, Value);

/// A document without its items.
pub(crate) struct Tree {
    pub(crate) object: Map<String, Value>,
    pub(crate) has_items: bool,
}

impl Tree {
    pub(crate) fn text(&self, key: &str) -> Option<&str> {
        self.object.get(key).and_then(Value::as_str)
    }
}

/// `line`: how many lines of the file come before the document, for the message.
pub(crate) fn parse_yaml(text: &[u8], line: u64, sink: Sink) -> Result<Tree, String> {
    let text = std::str::from_utf8(text).map_err(|bad| format!("not UTF-8 at byte {}", bad.valid_up_to()))?;
    let parse = |deserializer: serde_saphyr::Deserializer<'_, '_>| Top(sink).deserialize(deserializer);
    serde_saphyr::with_deserializer_from_str_with_options(text, options(), parse).map_err(|bad| located(&bad, line))
}

type Json<R> = serde_json::Deserializer<serde_json::de::IoRead<R>>;

pub(crate) fn has_more<R: Read>(stream: &mut Json<R>) -> bool {
    stream.end().is_err()
}

pub(crate) fn parse_json<R: Read>(stream: &mut Json<R>, sink: Sink) -> Result<Tree, String> {
    Top(sink).deserialize(stream).map_err(|bad| bad.to_string())
}

/// Size is bounded by the file, so only what can grow beyond it is limited: aliases (a few lines can stand for
/// gigabytes) and depth.
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

/// The position in the file instead of the one in the document.
fn located(bad: &serde_saphyr::Error, line: u64) -> String {
    let text = bad.to_string();
    match bad.location() {
        Some(at) if at.line() > 0 => {
            let own = format!(" at line {}, column {}", at.line(), at.column());
            let text = text.strip_suffix(&own).unwrap_or(&text);
            format!("line {}: {text}", line + at.line())
        }
        _ => text,
    }
}

/// The first field below this path that was given and is not among what was read of it.
pub(crate) fn unread(given: &Value, read: &Value, path: &[&str]) -> Option<String> {
    let at = |value: &Value| path.iter().fold(value.clone(), |value, key| value.get(key).cloned().unwrap_or_default());
    missing(&at(given), &at(read), &path.join("."))
}

fn missing(given: &Value, read: &Value, path: &str) -> Option<String> {
    match (given, read) {
        (Value::Object(given), Value::Object(read)) => given.iter().find_map(|(key, value)| {
            let path = format!("{path}.{key}");
            read.get(key).map_or(Some(path.clone()), |read| missing(value, read, &path))
        }),
        (Value::Array(given), Value::Array(read)) => {
            let pairs = given.iter().zip(read).enumerate();
            pairs.into_iter().find_map(|(i, (given, read))| missing(given, read, &format!("{path}[{i}]")))
        }
        _ => None,
    }
}

struct Top<'a>(Sink<'a>);

impl<'de> DeserializeSeed<'de> for Top<'_> {
    type Value = Tree;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Tree, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Top<'_> {
    type Value = Tree;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a Kubernetes object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Tree, A::Error> {
        let mut tree = Tree { object: Map::new(), has_items: false };
        while let Some(key) = map.next_key::<String>()? {
            if key == "items" && !tree.has_items {
                map.next_value_seed(Items(&mut *self.0))?;
                tree.has_items = true;
            } else if key == "items" || tree.object.contains_key(&key) {
                return Err(A::Error::custom(format!("duplicate field {key:?}")));
            } else {
                tree.object.insert(key, map.next_value()?);
            }
        }
        Ok(tree)
    }
}

struct Items<'a>(Sink<'a>);

impl<'de> DeserializeSeed<'de> for Items<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Items<'_> {
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
