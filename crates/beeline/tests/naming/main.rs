//! Checks the names of the source tree and the help of every option: no two public types of one name in different
//! crates, no banned word in an identifier or file name, and no option without a useful help text.

mod help;
mod source;

use source::{Declaration, DeclarationKind, SourceFile};
use std::collections::{BTreeMap, BTreeSet};

/// Public types that share their name on purpose.
const SHARED_TYPE_NAMES: [(&str, &str); 2] = [
    ("Error", "the error type of a crate, always written with its path"),
    ("Result", "the result type that goes with the crate's error"),
];

/// Words that say nothing to a reader who does not know this code base. They are matched against the parts of
/// snake_case and CamelCase names, so `keepalive` and `gateway` are not affected.
const BANNED: [&str; 49] = [
    "book",
    "census",
    "deed",
    "desk",
    "door",
    "doubt",
    "ear",
    "errand",
    "fact",
    "facts",
    "ground",
    "hear",
    "heard",
    "house",
    "knock",
    "ledger",
    "linger",
    "mend",
    "news",
    "outlook",
    "passport",
    "patience",
    "pulse",
    "remember",
    "rhythm",
    "room",
    "rooms",
    "said",
    "seat",
    "seats",
    "shelf",
    "siege",
    "sieve",
    "somebody",
    "spot",
    "stage",
    "steward",
    "storm",
    "surroundings",
    "tell",
    "told",
    "toll",
    "twin",
    "twins",
    "way",
    "ways",
    "whoever",
    "whole",
    "wish",
];

/// Banned words that are plain English in the name of a test, which is a sentence: `refuses_the_whole_service`.
const ALLOWED_IN_SENTENCES: [&str; 4] = ["room", "way", "ways", "whole"];
const SENTENCE_WORDS: usize = 4;

/// Words that are banned as the whole name of a type: as part of a longer name they are fine.
const BANNED_TYPES: [&str; 14] = [
    "Beat", "Crew", "Data", "Feat", "Field", "Helper", "Hold", "Info", "Keep", "Known", "Manager", "Road", "Score",
    "Util",
];

/// Identifiers with a banned word that mean what the word says in the field.
const ALLOWED: [(&str, &str); 1] = [("whole_file", "a reference to a file and not to one of its documents")];

#[test]
fn no_two_crates_have_a_public_type_of_the_same_name() {
    let mut crates: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for file in source::files().into_iter().filter(|file| file.is_library_source()) {
        for declaration in file.declarations().into_iter().filter(Declaration::is_public_type) {
            crates.entry(declaration.name).or_default().insert(file.crate_name());
        }
    }
    let is_allowed = |name: &str| SHARED_TYPE_NAMES.iter().any(|(allowed, _)| *allowed == name);
    let shared: Vec<String> = crates
        .iter()
        .filter(|(name, crates)| crates.len() > 1 && !is_allowed(name))
        .map(|(name, crates)| format!("{name}: {}", crates.iter().cloned().collect::<Vec<_>>().join(", ")))
        .collect();
    assert!(shared.is_empty(), "public types of the same name in several crates:\n{}", shared.join("\n"));
}

#[test]
fn no_name_contains_a_banned_word() {
    let mut offenders = BTreeSet::new();
    for file in source::files() {
        offenders.extend(banned_in_path(&file));
        for declaration in file.declarations() {
            if let Some(word) = banned_word(&declaration) {
                let Declaration { kind, name, line, .. } = declaration;
                offenders.insert(format!("{}:{line}: {kind:?} {name} (`{word}`)", file.path));
            }
        }
    }
    let offenders: Vec<String> = offenders.into_iter().collect();
    assert!(offenders.is_empty(), "names with a banned word:\n{}", offenders.join("\n"));
}

fn banned_in_path(file: &SourceFile) -> Vec<String> {
    let parts = file.path.split('/').flat_map(|part| words(part.split('.').next().unwrap_or_default()));
    let found = parts.filter(|word| BANNED.contains(&word.as_str()));
    found.map(|word| format!("{}: file name (`{word}`)", file.path)).collect()
}

fn banned_word(declaration: &Declaration) -> Option<String> {
    if ALLOWED.iter().any(|(name, _)| *name == declaration.name) {
        return None;
    }
    let is_type = declaration.kind == DeclarationKind::Type;
    if is_type && BANNED_TYPES.contains(&declaration.name.as_str()) {
        return Some(declaration.name.clone());
    }
    let words = words(&declaration.name);
    let is_sentence = declaration.kind == DeclarationKind::Function && words.len() >= SENTENCE_WORDS;
    let is_allowed = |word: &str| is_sentence && ALLOWED_IN_SENTENCES.contains(&word);
    words.into_iter().find(|word| BANNED.contains(&word.as_str()) && !is_allowed(word))
}

/// The lower-case parts of a snake_case, kebab-case or CamelCase name.
fn words(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut previous_is_lower = false;
    for c in name.chars() {
        if !c.is_alphanumeric() || (c.is_uppercase() && previous_is_lower) {
            words.push(String::new());
        }
        if c.is_alphanumeric() {
            words.last_mut().unwrap().extend(c.to_lowercase());
        }
        previous_is_lower = c.is_lowercase() || c.is_numeric();
    }
    words.retain(|word| !word.is_empty());
    words
}

#[test]
fn every_option_has_a_help_text_with_its_default_and_unit() {
    let offenders: Vec<String> = help::options().iter().flat_map(help::OptionHelp::problems).collect();
    assert!(offenders.is_empty(), "help texts of options:\n{}", offenders.join("\n"));
}

#[test]
fn the_scanner_finds_declarations_and_their_words() {
    let text = "//! fn hidden()\npub struct NewsDesk<T> { pub told: T, /* a */ way: fn(seat: u8) -> u8 }\n\
                enum E { Door(u8), Other { spot: u8 } }\npub(crate) fn keepalive(x: &'static str) { let s = \"struct X\"; }\n\
                macro_rules! m { () => {} }\n";
    let file = SourceFile { path: "crates/x/src/lib.rs".into(), text: text.into() };
    let found: Vec<String> = file.declarations().into_iter().map(|declaration| declaration.name).collect();
    assert_eq!(found, ["NewsDesk", "told", "way", "E", "Door", "Other", "spot", "keepalive"]);
    assert_eq!(words("NewsDesk_of-HTTPServer"), ["news", "desk", "of", "httpserver"]);
    assert_eq!(words("gateway2Ways"), ["gateway2", "ways"]);
}
