//! Fuzzes snapshot files. The invariants are in `beeline_agent::snapshot::check_snapshot`, which `cargo test` runs over
//! the corpus too.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    beeline_agent::snapshot::check_snapshot(input);
});
