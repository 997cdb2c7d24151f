//! Runs the fuzzers' checks over their corpora.

use beeline_harness::replay_corpus;

#[test]
fn the_corpus_of_admission_reviews_passes_the_checks() {
    let (inputs, accepted) = replay_corpus("admission_review", beeline_controller::check_review);
    assert!(inputs >= 6 && accepted >= 4, "{accepted} of {inputs} inputs were accepted");
}
