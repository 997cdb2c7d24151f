//! Replays the corpora of the fuzzers.

use std::path::Path;

/// Runs a check over the corpus of a fuzz target. Returns how many inputs there are, and how many of them the parser
/// accepted.
pub fn replay_corpus(target: &str, check: fn(&[u8]) -> bool) -> (usize, usize) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    let entries = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let inputs: Vec<Vec<u8>> = entries.map(|entry| std::fs::read(entry.unwrap().path()).unwrap()).collect();
    let accepted = inputs.iter().filter(|input| check(input)).count();
    (inputs.len(), accepted)
}
