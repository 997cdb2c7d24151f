//! Fuzzes the conversion of manifests in both formats. The invariants are in `beeline_cluster::check_conversion`, which
//! `cargo test` runs over the corpus too.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| beeline_cluster::check_conversion(input));
