//! Fuzzes policy objects, and the plan that they lead to. The invariants are in `beeline_cluster::check_policy_object`,
//! which `cargo test` runs over the corpus too.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    beeline_cluster::check_policy_object(input);
});
