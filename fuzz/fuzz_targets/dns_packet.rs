//! Fuzzes DNS queries, and responses of upstream name servers. The invariants are in `beeline_dns::check_packet`, which
//! `cargo test` runs over the corpus too.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| beeline_dns::check_packet(input));
