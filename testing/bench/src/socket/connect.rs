//! connect(), all ways in one run: dials alternate one by one, in random order.

use anyhow::Result;

use super::site::{COMPARED, Site};
use crate::stats::{Samples, turns};

const WARM_UP: usize = 500;

/// Rounds at this many services: iptables walks through all of them at every dial.
pub fn rounds(services: u32) -> usize {
    if services > 10_000 { 4_000 } else { 10_000 }
}

/// Times of connect(), in the order of the variants.
pub fn measure(site: &Site) -> Result<Vec<Samples>> {
    let mut samples = vec![Samples::default(); COMPARED];
    let warm_up = WARM_UP * COMPARED;
    for (turn, who) in turns(COMPARED, WARM_UP + rounds(site.services), 1).enumerate() {
        let took = site.turn(who, 1)?;
        if turn >= warm_up {
            samples[who].push(took);
        }
    }
    Ok(samples)
}
