//! The seed of property tests.

use std::env;

/// The seed of a property test: `BEELINE_SEED` if it is set, else `default`. The seed is printed, so that a failure can
/// be repeated.
pub fn test_seed(default: u64) -> u64 {
    let given = env::var("BEELINE_SEED").ok();
    let seed = given.map_or(default, |text| text.parse().expect("BEELINE_SEED must be a number"));
    println!("BEELINE_SEED={seed}");
    seed
}
