//! The tables of refusal reasons and of log messages contain what the sources contain.

use crate::{read, root};
use beeline_model::refusal::RefusalReason;
use std::collections::BTreeSet;
use std::path::Path;

/// The first cells of the rows of all tables in this text that are code, without the backticks.
fn first_code_cells(text: &str) -> BTreeSet<String> {
    let cells = text.lines().filter_map(|line| line.strip_prefix("| `")?.split(" | ").next());
    cells.map(|cell| cell.strip_prefix('`').map_or(cell.trim_end_matches('`'), inner_of_double).to_owned()).collect()
}

/// The text of a code span that begins and ends with two backticks, because it contains one.
fn inner_of_double(rest: &str) -> &str {
    rest.strip_suffix("``").unwrap_or(rest).trim_end()
}

#[test]
fn the_refusals_page_lists_every_reason() {
    let documented = first_code_cells(&read(&root().join("docs/refusals.md")));
    let reasons: BTreeSet<String> = RefusalReason::ALL.iter().map(ToString::to_string).collect();
    assert_eq!(documented, reasons, "left: the rows of docs/refusals.md, right: RefusalReason");
}

/// The fixed texts of all calls of `warn!` and `error!` in a source: the last string literal of each call. Unit tests
/// at the end of a file are left out.
fn warnings(source: &str) -> Vec<String> {
    let source = source.split("\n#[cfg(test)]\nmod ").next().unwrap_or(source);
    let calls = source.match_indices("warn!(").chain(source.match_indices("error!("));
    calls.map(|(at, name)| last_literal(&source[at + name.len()..])).collect()
}

/// The last string literal before the parenthesis that ends the call.
fn last_literal(call: &str) -> String {
    let (mut depth, mut literal, mut chars) = (1, String::new(), call.chars());
    while let Some(c) = chars.next().filter(|_| depth > 0) {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            '"' => literal = rest_of_literal(&mut chars),
            _ => {}
        }
    }
    literal
}

/// A backslash at the end of a line continues the literal with the next line's first word.
fn rest_of_literal(chars: &mut std::str::Chars<'_>) -> String {
    let mut literal = String::new();
    while let Some(c) = chars.next().filter(|c| *c != '"') {
        match c {
            '\\' => match chars.next() {
                Some('\n') => *chars = chars.as_str().trim_start().chars(),
                Some(escaped) => literal.push(escaped),
                None => {}
            },
            _ => literal.push(c),
        }
    }
    literal
}

/// The crates whose messages are in the agent's log.
const LOGGED_BY_THE_AGENT: [&str; 7] = ["agent", "beeline", "cluster", "datapath", "dns", "join", "listener"];

fn rust_sources(dir: &Path, sources: &mut Vec<String>) {
    for entry in std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()) {
        if entry.is_dir() {
            rust_sources(&entry, sources);
        } else if entry.extension().is_some_and(|extension| extension == "rs") {
            sources.push(read(&entry));
        }
    }
}

#[test]
fn the_troubleshooting_page_lists_every_warning_of_the_agent() {
    let mut sources = Vec::new();
    for name in LOGGED_BY_THE_AGENT {
        rust_sources(&root().join("crates").join(name).join("src"), &mut sources);
    }
    let logged: BTreeSet<String> = sources.iter().flat_map(|source| warnings(source)).collect();
    let page = read(&root().join("docs/troubleshooting.md"));
    let section = page.split("\n## Messages in the log\n").nth(1).and_then(|rest| rest.split("\n## ").next()).unwrap();
    assert_eq!(first_code_cells(section), logged, "left: the rows of docs/troubleshooting.md, right: the sources");
}

#[test]
fn warnings_are_found_in_a_source() {
    let source = "warn!(%error, at = f(\"x\"), \"a (b) \\\n    c\"); tracing::error!(\"d\");\n#[cfg(test)]\nmod t { warn!(\"e\") }";
    assert_eq!(warnings(source), ["a (b) c", "d"]);
    let cells = first_code_cells("| `a` | b |\n| ``c `d` `` | e |\n| ``f `g` h`` | i |\n| j | k |");
    assert_eq!(cells.into_iter().collect::<Vec<_>>(), ["a", "c `d`", "f `g` h"]);
}
