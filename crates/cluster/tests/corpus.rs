//! Runs the fuzzer's checks over its corpus and over the example manifests.

mod support;

use std::fs;
use std::path::{Path, PathBuf};

fn replay(folder: &Path) -> usize {
    let entries = fs::read_dir(folder).unwrap_or_else(|bad| panic!("{}: {bad}", folder.display()));
    let inputs: Vec<Vec<u8>> = entries.map(|entry| fs::read(entry.unwrap().path()).unwrap()).collect();
    inputs.iter().for_each(|input| beeline_cluster::check_conversion(input));
    inputs.len()
}

#[test]
fn the_corpus_and_the_examples_pass_the_checks() {
    let corpus = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/convert"));
    assert!(replay(&corpus) >= 22);
    assert!(replay(&support::data()) >= 6);
}
