//! A weight is a number of slots: how often an entry stands in its set.

use super::BackendPlan;
use crate::row::MAX_SLOTS;
use std::collections::BTreeMap;

/// A set whose backends are weighed has no more slots than this, or a few for each backend.
const MOST_SLOTS: usize = 256;
const SLOTS_EACH: usize = 4;

/// Each backend as often as it is listed, divided by what all have in common. Sorted.
pub(crate) fn weigh(listed: Vec<BackendPlan>) -> Vec<BackendPlan> {
    let mut counts: BTreeMap<BackendPlan, usize> = BTreeMap::new();
    listed.into_iter().for_each(|backend| *counts.entry(backend).or_default() += 1);
    let weights = fit(counts.values().copied().collect());
    counts.into_keys().zip(weights).flat_map(|(backend, slots)| std::iter::repeat_n(backend, slots)).collect()
}

fn fit(counts: Vec<usize>) -> Vec<usize> {
    let common = counts.iter().copied().fold(0, gcd).max(1);
    let total: usize = counts.iter().map(|count| count / common).sum();
    let room = MOST_SLOTS.max(SLOTS_EACH * counts.len()).min(MAX_SLOTS).max(counts.len());
    if total <= room {
        return counts.into_iter().map(|count| count / common).collect();
    }
    // One for each, and the rest by what each has beyond that.
    let (spare, beyond) = (room - counts.len(), total - counts.len());
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
    fn a_weight_is_a_number_of_slots() {
        assert_eq!(weights(&[2, 2]), [1, 1]);
        assert_eq!(weights(&[4, 2]), [2, 1]);
        assert_eq!(weights(&[3, 1, 2]), [3, 1, 2]);
        assert_eq!(weights(&[1023, 1]), [255, 1]);
        assert_eq!(weights(&[]), [0; 0]);
    }

    #[test]
    fn there_are_never_more_slots_than_fit() {
        let many: Vec<usize> = std::iter::once(1000).chain([1; 200]).collect();
        let slots = weights(&many);
        assert_eq!((slots.iter().sum::<usize>(), slots[0], slots[200]), (804, 604, 1));
        assert_eq!(fit(vec![1; 300]), vec![1; 300], "one for each is the least");
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
