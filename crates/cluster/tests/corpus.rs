//! Runs the fuzzer's checks over its corpus and over the example manifests.

mod support;

use std::fs;
use std::path::{Path, PathBuf};

fn corpus(target: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target)
}

fn inputs(folder: &Path) -> Vec<Vec<u8>> {
    let entries = fs::read_dir(folder).unwrap_or_else(|bad| panic!("{}: {bad}", folder.display()));
    entries.map(|entry| fs::read(entry.unwrap().path()).unwrap()).collect()
}

fn replay(folder: &Path) -> usize {
    let inputs = inputs(folder);
    inputs.iter().for_each(|input| beeline_cluster::check_conversion(input));
    inputs.len()
}

/// The number of inputs that the parser accepts.
fn accepted(target: &str, check: fn(&[u8]) -> bool) -> usize {
    inputs(&corpus(target)).iter().filter(|input| check(input)).count()
}

#[test]
fn the_corpus_and_the_examples_pass_the_checks() {
    assert!(replay(&corpus("convert")) >= 22);
    assert!(replay(&support::data()) >= 6);
}

#[test]
fn the_corpus_of_edge_answers_passes_the_checks() {
    assert!(accepted("edge_answer", beeline_cluster::check_edge_answers) >= 5);
}

#[test]
fn the_corpus_of_policies_passes_the_checks() {
    assert!(accepted("policy", beeline_cluster::check_policy_object) >= 6);
}
