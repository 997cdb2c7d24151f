//! Bytes to documents to objects to facts, by both formats. What must hold is in `beeline_cluster::check`, which
//! `cargo test` runs over the corpus too.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| beeline_cluster::check(input));
