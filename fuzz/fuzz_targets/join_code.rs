//! Fuzzes join codes. The invariants are in `beeline_join::check_join_code`, which `cargo test` runs over the corpus
//! too.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    beeline_join::check_join_code(input);
});
