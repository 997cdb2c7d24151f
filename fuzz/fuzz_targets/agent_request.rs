//! Fuzzes the lines that are sent to the agent's socket. The invariants are in `beeline_agent::check_request`, which
//! `cargo test` runs over the corpus too.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    beeline_agent::check_request(input);
});
