//! Percentiles, and the order of measurements.
//!
//! Two separate runs differ by 15 % on a busy machine. Variants that alternate in one run are affected by the same
//! noise.

/// Measured times in nanoseconds.
#[derive(Debug, Default, Clone)]
pub struct Samples(Vec<u64>);

impl Samples {
    pub fn push(&mut self, nanoseconds: u64) {
        self.0.push(nanoseconds);
    }

    pub fn extend(&mut self, other: &Samples) {
        self.0.extend_from_slice(&other.0);
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The sample that a share (0 to 1) of all samples does not exceed; 0 without samples.
    pub fn percentile(&self, share: f64) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        let rank = (share * sorted.len() as f64).ceil() as usize;
        sorted.get(rank.saturating_sub(1)).map_or(0.0, |sample| *sample as f64)
    }

    pub fn p50(&self) -> f64 {
        self.percentile(0.5)
    }

    pub fn p99(&self) -> f64 {
        self.percentile(0.99)
    }
}

impl FromIterator<u64> for Samples {
    fn from_iter<I: IntoIterator<Item = u64>>(samples: I) -> Self {
        Self(samples.into_iter().collect())
    }
}

/// Every round contains each of `variants` indices once, in a random order, so that neighbours and slow drifts affect
/// all variants equally.
pub fn random_rounds(variants: usize, rounds: usize, seed: u64) -> impl Iterator<Item = usize> {
    let mut random = fastrand::Rng::with_seed(seed);
    (0..rounds).flat_map(move |_| {
        let mut order: Vec<usize> = (0..variants).collect();
        random.shuffle(&mut order);
        order
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_a_sample() {
        let samples: Samples = (1..=100).rev().collect();
        assert_eq!((samples.p50(), samples.p99(), samples.percentile(1.0)), (50.0, 99.0, 100.0));
        assert_eq!(Samples::default().p50(), 0.0);
        assert_eq!(Samples::from_iter([7]).p99(), 7.0);
    }

    #[test]
    fn every_round_contains_each_variant_once() {
        let order: Vec<usize> = random_rounds(5, 40, 1).collect();
        for round in order.chunks(5) {
            let mut sorted = round.to_vec();
            sorted.sort_unstable();
            assert_eq!(sorted, [0, 1, 2, 3, 4]);
        }
        assert_ne!(order[..5], order[5..10]);
    }
}
