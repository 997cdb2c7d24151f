//! Fuzzes the bodies of requests to the admission webhook. The invariants are in `beeline_controller::check_review`,
//! which `cargo test` runs over the corpus too.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    beeline_controller::check_review(input);
});
