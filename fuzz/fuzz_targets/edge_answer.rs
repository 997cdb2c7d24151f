//! Fuzzes the answers of KubeEdge's cache. The invariants are in `beeline_cluster::check_edge_answers`, which `cargo
//! test` runs over the corpus too.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    beeline_cluster::check_edge_answers(input);
});
