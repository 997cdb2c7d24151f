//! Checks the names of the source tree and the help of every option: no two public types of one name in different
//! crates, no banned word in an identifier, file name or option, no vague type or module name, no option or argument
//! without a useful help text, and no long file.

mod help;
mod source;

use source::{Declaration, SourceFile};
use std::collections::{BTreeMap, BTreeSet};

/// Public types that share their name on purpose.
const SHARED_TYPE_NAMES: [(&str, &str); 3] = [
    ("Error", "the error type of a crate, always written with its path"),
    ("Result", "the result type that goes with the crate's error"),
    ("Zone", "the agent's own one stands for that of the DNS server in a build without it"),
];

/// Words that say nothing to a reader who does not know this code base. They are matched against the parts of
/// snake_case and CamelCase names, so `keepalive` and `gateway` are not affected.
const BANNED: [&str; 55] = [
    "anybody",
    "book",
    "books",
    "census",
    "deed",
    "desk",
    "door",
    "doors",
    "doubt",
    "ear",
    "errand",
    "everybody",
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
    "nobody",
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
    "stand",
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
const BANNED_TYPES: [&str; 9] = ["Beat", "Crew", "Feat", "Field", "Hold", "Keep", "Known", "Road", "Score"];

/// Words that say nothing about a type or module. They are banned as the last word of its name.
const VAGUE: [&str; 9] = ["common", "data", "helper", "helpers", "info", "manager", "misc", "util", "utils"];

/// Identifiers with a banned word that mean what the word says in the field.
const ALLOWED: [(&str, &str); 4] = [
    ("set_linger", "the socket option SO_LINGER"),
    ("set_socket_linger", "the socket option SO_LINGER"),
    ("set_zero_linger", "the socket option SO_LINGER"),
    ("whole_file", "a reference to a file and not to one of its documents"),
];

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
fn no_identifier_contains_a_banned_word() {
    let mut offenders = BTreeSet::new();
    for file in source::files() {
        for (name, line) in file.identifiers() {
            offenders.extend(banned_word(&name).map(|word| format!("{}:{line}: {name} (`{word}`)", file.path)));
        }
    }
    let offenders: Vec<String> = offenders.into_iter().collect();
    assert!(offenders.is_empty(), "identifiers with a banned word:\n{}", offenders.join("\n"));
}

#[test]
fn no_file_name_or_option_contains_a_banned_word() {
    let sources = source::files().into_iter().map(|file| file.path);
    let options = help::options().into_iter().map(|option| option.to_string());
    let is_banned = |name: &String| words(name).iter().any(|word| BANNED.contains(&word.as_str()));
    let offenders: Vec<String> = sources.chain(source::other_paths()).chain(options).filter(is_banned).collect();
    assert!(offenders.is_empty(), "file names and options with a banned word:\n{}", offenders.join("\n"));
}

#[test]
fn no_type_or_module_has_a_vague_name() {
    let is_vague = |declaration: &Declaration| {
        let last = words(&declaration.name).pop().unwrap_or_default();
        VAGUE.contains(&last.as_str()) || BANNED_TYPES.contains(&declaration.name.as_str())
    };
    let in_file = |file: SourceFile| {
        let vague = file.declarations().into_iter().filter(is_vague);
        vague.map(|Declaration { kind, name, line, .. }| format!("{}:{line}: {kind:?} {name}", file.path)).collect()
    };
    let offenders: Vec<String> = source::files().into_iter().flat_map::<Vec<String>, _>(in_file).collect();
    assert!(offenders.is_empty(), "types and modules with a vague name:\n{}", offenders.join("\n"));
}

/// A snake_case name of several words is a sentence, such as the name of a test.
fn banned_word(name: &str) -> Option<String> {
    if ALLOWED.iter().any(|(allowed, _)| *allowed == name) {
        return None;
    }
    let words = words(name);
    let is_sentence = words.len() >= SENTENCE_WORDS && !name.contains(char::is_uppercase);
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

/// Product code is `bpf/` and the `src` directories below `crates/`.
#[test]
fn no_product_file_has_more_than_500_lines() {
    let is_product = |path: &str| path.starts_with("bpf/") || path.starts_with("crates/") && path.contains("/src/");
    let lines = source::files().into_iter().map(|file| (file.text.lines().count(), file.path));
    let long = lines.filter(|(count, path)| *count > 500 && is_product(path));
    let long: Vec<String> = long.map(|(count, path)| format!("{path}: {count}")).collect();
    assert!(long.is_empty(), "files with more than 500 lines, look for a seam:\n{}", long.join("\n"));
}

#[test]
fn every_option_and_argument_has_a_help_text_with_its_default_and_unit() {
    let offenders: Vec<String> = help::options().iter().flat_map(help::OptionHelp::problems).collect();
    assert!(offenders.is_empty(), "help texts of options and arguments:\n{}", offenders.join("\n"));
}

#[test]
fn the_scanner_finds_identifiers_and_declarations() {
    let text = "//! fn hidden()\npub struct NewsDesk<T> { pub told: T, /* a */ way: fn(seat: u8) -> u8 }\n\
                enum E { Door(u8), Other { spot: u8 } }\npub(crate) fn keepalive(x: &'static str) { let whole = \"struct X\"; }\n\
                macro_rules! m { () => {} }\n";
    let file = SourceFile { path: "crates/x/src/lib.rs".into(), text: text.into() };
    let declared: Vec<String> = file.declarations().into_iter().map(|declaration| declaration.name).collect();
    assert_eq!(declared, ["NewsDesk", "E"]);
    let banned: Vec<String> = file.identifiers().into_iter().filter_map(|(name, _)| banned_word(&name)).collect();
    assert_eq!(banned, ["news", "told", "way", "seat", "door", "spot", "whole"]);
    let c = SourceFile { path: "bpf/x.h".into(), text: "/* told */ struct seat { __u8 room[1]; };".into() };
    let banned: Vec<String> = c.identifiers().into_iter().filter_map(|(name, _)| banned_word(&name)).collect();
    assert_eq!((banned, c.declarations().len()), (vec!["seat".to_owned(), "room".to_owned()], 0));
    assert_eq!(banned_word("refuses_the_whole_service"), None, "the name of a test is a sentence");
    assert_eq!(words("NewsDesk_of-HTTPServer"), ["news", "desk", "of", "httpserver"]);
    assert_eq!(words("gateway2Ways"), ["gateway2", "ways"]);
}
