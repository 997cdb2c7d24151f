//! Duration of connect() for all variants, which alternate in random order.

use anyhow::Result;

use super::setup::{BenchSetup, COMPARED};
use crate::stats::{Samples, random_rounds};

const WARM_UP: usize = 500;

/// Number of rounds. It is smaller for many Services, because iptables evaluates all rules at every dial.
pub fn rounds(services: u32) -> usize {
    if services > 10_000 { 4_000 } else { 10_000 }
}

/// Durations of connect() in the order of the variants.
pub fn measure(setup: &BenchSetup) -> Result<Vec<Samples>> {
    let mut samples = vec![Samples::default(); COMPARED];
    let warm_up = WARM_UP * COMPARED;
    for (round, variant) in random_rounds(COMPARED, WARM_UP + rounds(setup.services), 1).enumerate() {
        let took = setup.dial(variant, 1)?;
        if round >= warm_up {
            samples[variant].push(took);
        }
    }
    Ok(samples)
}
