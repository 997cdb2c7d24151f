//! Runs the fuzzers' checks over their corpora.

use std::path::Path;

/// Returns how many inputs there are, and how many of them were accepted by the parser.
fn replay(target: &str, check: fn(&[u8]) -> bool) -> (usize, usize) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    let entries = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let inputs: Vec<Vec<u8>> = entries.map(|entry| std::fs::read(entry.unwrap().path()).unwrap()).collect();
    let accepted = inputs.iter().filter(|input| check(input)).count();
    (inputs.len(), accepted)
}

#[test]
fn the_corpus_of_admission_reviews_passes_the_checks() {
    let (inputs, accepted) = replay("admission_review", beeline_controller::check_review);
    assert!(inputs >= 6 && accepted >= 4, "{accepted} of {inputs} inputs were accepted");
}
