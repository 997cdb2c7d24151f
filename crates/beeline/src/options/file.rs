//! The text of a configuration file. An unknown key is reported with the nearest known one, a wrong value with its key
//! and line.

use super::{ClusterOptions, Options};
use anyhow::{anyhow, bail};
use serde::de::{Deserializer, Error, Visitor};
use serde::{Deserialize, forward_to_deserialize_any};
use serde_json::Value;
use std::collections::BTreeMap;

/// Options for tests, which are not suggested.
const HIDDEN: [&str; 2] = ["token-renewal-percent", "unsafe-skip-grace"];

pub fn parse(text: &str) -> anyhow::Result<Options> {
    if text.lines().all(|line| line.trim().is_empty() || line.starts_with('#')) {
        return Ok(Options::default());
    }
    check_keys(text)?;
    serde_saphyr::from_str(text).map_err(|error| describe(text, &error))
}

/// Parses the options of these keys only, so that a wrong value of another key is no error.
#[cfg(feature = "outside")]
pub fn parse_keys(text: &str, keys: &[&str]) -> anyhow::Result<Options> {
    check_keys(text)?;
    let mut file: BTreeMap<String, Value> = serde_saphyr::from_str(text).map_err(|error| describe(text, &error))?;
    file.retain(|key, _| keys.contains(&key.as_str()));
    Ok(serde_json::from_value(serde_json::to_value(file)?)?)
}

/// Reports the first unknown key. A text that is no map of keys is left to the typed parser.
fn check_keys(text: &str) -> anyhow::Result<()> {
    let Ok(file) = serde_saphyr::from_str::<BTreeMap<String, Value>>(text) else { return Ok(()) };
    for key in file.keys() {
        check_key(text, key, field_names::<Options>())?;
    }
    let clusters = file.get("clusters").and_then(Value::as_array).into_iter().flatten();
    for key in clusters.filter_map(Value::as_object).flat_map(|cluster| cluster.keys()) {
        check_key(text, key, field_names::<ClusterOptions>())?;
    }
    Ok(())
}

fn check_key(text: &str, key: &str, known: &[&str]) -> anyhow::Result<()> {
    if known.contains(&key) {
        return Ok(());
    }
    let line = text.lines().position(|line| line.contains(&format!("{key}:"))).map(|at| format!("line {}: ", at + 1));
    let line = line.unwrap_or_default();
    match nearest(key, known) {
        Some(name) => bail!("{line}unknown key `{key}`; did you mean `{name}`?"),
        None => bail!("{line}unknown key `{key}`; see docs/options.md or `beeline agent --help`"),
    }
}

fn nearest<'a>(key: &str, known: &[&'a str]) -> Option<&'a str> {
    let visible = known.iter().filter(|name| !HIDDEN.contains(name));
    let scored = visible.map(|name| (strsim::jaro_winkler(key, name), *name)).filter(|(score, _)| *score > 0.75);
    scored.max_by(|(a, _), (b, _)| a.total_cmp(b)).map(|(_, name)| name)
}

fn describe(text: &str, error: &serde_saphyr::Error) -> anyhow::Error {
    let message = error.without_snippet().to_string();
    let Some(location) = error.location() else { return anyhow!("{message}") };
    let line = usize::try_from(location.line()).unwrap_or(1).max(1);
    let key = text.lines().nth(line - 1).and_then(|text| key_before(text, location.column()));
    let key = key.map(|key| format!("{key}: ")).unwrap_or_default();
    let cluster = wrong_cluster(text).map(|name| format!("cluster {name}: ")).unwrap_or_default();
    anyhow!("line {line}: {cluster}{key}{message}")
}

/// The name of the first cluster whose entry has a wrong value.
fn wrong_cluster(text: &str) -> Option<String> {
    let file: BTreeMap<String, Value> = serde_saphyr::from_str(text).ok()?;
    let is_wrong = |entry: &&Value| serde_json::from_value::<ClusterOptions>((*entry).clone()).is_err();
    let entry = file.get("clusters")?.as_array()?.iter().find(is_wrong)?;
    entry.get("name")?.as_str().map(str::to_owned)
}

/// The key of the value at this column: the word before the last `:` that precedes it.
fn key_before(line: &str, column: u64) -> Option<String> {
    let before: String = line.chars().take(usize::try_from(column).ok()?.saturating_sub(1)).collect();
    let (key, _) = before.rsplit_once(": ").or_else(|| before.trim_end().rsplit_once(':')).or(line.split_once(':'))?;
    let key = key.rsplit([' ', ',', '{', '[']).next()?.trim_matches('"');
    (!key.is_empty()).then(|| key.to_owned())
}

/// The names under which serde knows the fields of a struct.
fn field_names<'de, T: Deserialize<'de>>() -> &'static [&'static str] {
    let mut names: &[&str] = &[];
    // The deserializer always returns an error: only the names are wanted.
    let _ = T::deserialize(FieldNames(&mut names));
    names
}

struct FieldNames<'a>(&'a mut &'static [&'static str]);

impl<'de> Deserializer<'de> for FieldNames<'_> {
    type Error = serde::de::value::Error;

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Self::Error> {
        Err(Error::custom("only the names of the fields are read"))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Self::Error> {
        *self.0 = fields;
        self.deserialize_any(visitor)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> String {
        format!("{:#}", parse(text).unwrap_err())
    }

    #[test]
    fn a_typo_is_answered_with_the_nearest_key() {
        let expected = "line 2: unknown key `max-servicez`; did you mean `max-services`?";
        assert_eq!(refused("node-name: n1\nmax-servicez: 5\n"), expected);
        let in_a_cluster = "clusters:\n- name: a\n  serviceCIDR: [10.43.0.0/16]\n";
        assert_eq!(refused(in_a_cluster), "line 3: unknown key `serviceCIDR`; did you mean `serviceCIDRs`?");
        let far = refused("fish: 1\n");
        assert!(far.starts_with("line 1: unknown key `fish`; see") && far.lines().count() == 1, "{far}");
        let hidden = refused("token-renewal-percents: 5\n");
        assert!(!hidden.contains("did you mean `token-renewal-percent`"), "{hidden}");
    }

    #[test]
    fn a_wrong_value_is_reported_once_with_its_key_and_line() {
        for (text, expected) in [
            ("node-name: n1\nmax-services: many\n", "line 2: max-services: "),
            ("sync-period: 5\n", "line 1: sync-period: "),
            ("host-role: moon\n", "line 1: host-role: "),
            ("clusters:\n- { name: a, podAccess: maybe }\n", "line 2: cluster a: podAccess: "),
            ("{\"clusters\":[{\"name\":\"a\",\"podAccess\":\"maybe\"}]}", "line 1: cluster a: podAccess: "),
        ] {
            let message = refused(text);
            assert!(message.starts_with(expected) && message.lines().count() == 1, "{message}");
        }
    }

    #[test]
    fn the_examples_are_valid() {
        for text in
            [include_str!("../../../../examples/beeline.yaml"), include_str!("../../../../examples/outside.yaml")]
        {
            parse(text).unwrap().check().unwrap();
            // The options that are shown as comments are valid one by one.
            for line in text.lines().filter_map(|line| line.strip_prefix('#')).filter(|line| !line.starts_with(' ')) {
                assert!(line.is_empty() || parse(line).is_ok(), "{line}");
            }
        }
    }

    #[test]
    fn a_file_without_options_sets_none() {
        assert_eq!(parse("").unwrap(), Options::default());
        assert_eq!(parse("# events: all\n\n").unwrap(), Options::default());
    }
}
