//! Runs the fuzzers' checks over their corpora.

use beeline_harness::replay_corpus;

#[test]
fn the_corpus_of_join_codes_passes_the_checks() {
    let (inputs, accepted) = replay_corpus("join_code", beeline_join::check_join_code);
    assert!(inputs >= 6 && accepted >= 3, "{accepted} of {inputs} inputs were accepted");
}
