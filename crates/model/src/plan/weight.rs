//! Weights: a backend with weight n has n slots in its set.

use super::BackendPlan;
use crate::row::MAX_SLOTS;
use std::collections::BTreeMap;

/// Maximum number of slots of a weighted set. Large sets get `SLOTS_PER_BACKEND` slots per backend instead.
const MAX_WEIGHTED_SLOTS: usize = 256;
const SLOTS_PER_BACKEND: usize = 4;

/// Returns each backend as often as it is listed, after dividing the counts by their greatest common divisor. Sorted.
pub(crate) fn weigh(listed: Vec<BackendPlan>) -> Vec<BackendPlan> {
    let mut counts: BTreeMap<BackendPlan, usize> = BTreeMap::new();
    listed.into_iter().for_each(|backend| *counts.entry(backend).or_default() += 1);
    let weights = fit(counts.values().copied().collect());
    counts.into_keys().zip(weights).flat_map(|(backend, slots)| std::iter::repeat_n(backend, slots)).collect()
}

fn fit(counts: Vec<usize>) -> Vec<usize> {
    let common = counts.iter().copied().fold(0, gcd).max(1);
    let total: usize = counts.iter().map(|count| count / common).sum();
    let max_slots = MAX_WEIGHTED_SLOTS.max(SLOTS_PER_BACKEND * counts.len()).min(MAX_SLOTS).max(counts.len());
    if total <= max_slots {
        return counts.into_iter().map(|count| count / common).collect();
    }
    // One slot for each backend. The remaining slots are distributed in proportion to the counts.
    let (spare, beyond) = (max_slots - counts.len(), total - counts.len());
    counts.into_iter().map(|count| 1 + (count / common - 1) * spare / beyond).collect()
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::Address;

    fn backend(last: u8) -> BackendPlan {
        BackendPlan { address: Address::from(std::net::IpAddr::from([10, 0, 0, last])), port: 80, node: None }
    }

    fn weights(counts: &[usize]) -> Vec<usize> {
        let all = counts.iter().enumerate().flat_map(|(i, count)| std::iter::repeat_n(backend(i as u8), *count));
        let weighed = weigh(all.collect());
        (0..counts.len()).map(|i| weighed.iter().filter(|b| **b == backend(i as u8)).count()).collect()
    }

    #[test]
    fn counts_become_slots_without_common_divisor() {
        assert_eq!(weights(&[2, 2]), [1, 1]);
        assert_eq!(weights(&[4, 2]), [2, 1]);
        assert_eq!(weights(&[3, 1, 2]), [3, 1, 2]);
        assert_eq!(weights(&[1023, 1]), [255, 1]);
        assert_eq!(weights(&[]), [0; 0]);
    }

    #[test]
    fn the_number_of_slots_is_limited() {
        let many: Vec<usize> = std::iter::once(1000).chain([1; 200]).collect();
        let slots = weights(&many);
        assert_eq!((slots.iter().sum::<usize>(), slots[0], slots[200]), (804, 604, 1));
        assert_eq!(fit(vec![1; 300]), vec![1; 300], "every backend has at least one slot");
        assert_eq!(fit(vec![2; MAX_SLOTS + 9]), vec![1; MAX_SLOTS + 9]);
        let uneven: Vec<usize> = (1..=MAX_SLOTS / 2).collect();
        let slots: usize = fit(uneven).iter().sum();
        assert!(slots <= MAX_SLOTS && slots > MAX_SLOTS / 2, "{slots}");
    }

    #[test]
    fn a_large_set_keeps_its_weights() {
        let node_and_pods: Vec<usize> = std::iter::once(300).chain(vec![1; 300]).collect();
        assert_eq!(fit(node_and_pods.clone()), node_and_pods);
        assert_eq!(fit([7].into_iter().chain(vec![1; 299]).collect())[0], 7);
        let nodes: Vec<usize> = (0..150).map(|i| 3 + i % 2).collect();
        assert_eq!(fit(nodes.clone()), nodes);
    }
}
