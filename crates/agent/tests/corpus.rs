//! Runs the fuzzers' checks over their corpora.

use beeline_harness::replay_corpus;

#[test]
fn the_corpus_of_agent_requests_passes_the_checks() {
    let (inputs, accepted) = replay_corpus("agent_request", beeline_agent::check_request);
    assert!(inputs >= 12 && accepted >= 9, "{accepted} of {inputs} inputs were accepted");
}

#[test]
fn the_corpus_of_snapshots_passes_the_checks() {
    let (inputs, accepted) = replay_corpus("snapshot", beeline_agent::snapshot::check_snapshot);
    assert!(inputs >= 6 && accepted >= 3, "{accepted} of {inputs} inputs were accepted");
}
