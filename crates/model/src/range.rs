//! Ranges that cover all ClusterIPs, for the filter in the BPF programs. The filter lets a dial to a known ClusterIP
//! pass even if no frontend uses its port, because such a dial is refused. Ranges only ever widen, one word per write,
//! so a reader never misses an address; a range that is too wide costs one lookup and is never wrong.

use crate::address::{Address, Family};

pub const RANGES: usize = 4;

/// The number of address bits that a range can distinguish, and the shortest prefix to which two ranges are joined.
fn limits(family: Family) -> (u32, u32) {
    match family {
        Family::V4 => (32, 12),
        Family::V6 => (56, 40),
    }
}

/// The first 64 bits of an IPv6 address, or the 32 bits of an IPv4 address, left-aligned.
fn bits(address: Address) -> u64 {
    let b = &address.0;
    let word = |at: usize| u64::from(u32::from_be_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]]));
    match address.family() {
        Family::V4 => word(12) << 32,
        Family::V6 => word(0) << 32 | word(4),
    }
}

fn mask(length: u32) -> u64 {
    if length == 0 { 0 } else { u64::MAX << (64 - length) }
}

fn encode(family: Family, bits: u64, length: u32) -> u64 {
    let base = bits & mask(length);
    match family {
        Family::V4 => base | mask(length) >> 32,
        Family::V6 => base | u64::from(length),
    }
}

fn decode(family: Family, word: u64) -> (u64, u32) {
    match family {
        Family::V4 => (word & mask(32), (word << 32).leading_ones()),
        Family::V6 => (word & !0xff, (word & 63) as u32),
    }
}

pub fn contains(word: u64, address: Address) -> bool {
    let (base, length) = decode(address.family(), word);
    word != 0 && (bits(address) ^ base) & mask(length) == 0
}

/// Length of the common prefix of two ranges, at most the length of the shorter range.
fn shared(family: Family, a: (u64, u32), b: (u64, u32)) -> u32 {
    let (longest, _) = limits(family);
    (a.0 ^ b.0).leading_zeros().min(a.1).min(b.1).min(longest)
}

/// The words to write, in this order, to cover the address. No address is uncovered at any time.
pub fn cover(words: &[u64; RANGES], address: Address) -> Vec<(usize, u64)> {
    let family = address.family();
    if words.iter().any(|w| contains(*w, address)) {
        return Vec::new();
    }
    let (_, join) = limits(family);
    let fresh = (bits(address), 24);
    let used: Vec<(usize, (u64, u32))> =
        (0..RANGES).filter(|i| words[*i] != 0).map(|i| (i, decode(family, words[i]))).collect();
    let widened = |range: (u64, u32), length| encode(family, range.0, length);
    let nearest = used.iter().map(|(i, range)| (shared(family, *range, fresh), *i, *range)).max();
    let free = (0..RANGES).find(|i| words[*i] == 0);
    match (nearest, free) {
        (Some((length, i, range)), _) if length >= join => vec![(i, widened(range, length))],
        (_, Some(i)) => vec![(i, widened(fresh, fresh.1))],
        (nearest, None) => join_ranges(family, &used, nearest.filter(|n| n.0 > 0), fresh),
    }
}

/// Used when all words are in use: joins the two ranges with the longest common prefix, the new range included. Of five
/// ranges, three lie in the same half of the address space, so two of them always share a bit.
fn join_ranges(
    family: Family,
    used: &[(usize, (u64, u32))],
    nearest: Option<(u32, usize, (u64, u32))>,
    fresh: (u64, u32),
) -> Vec<(usize, u64)> {
    let pairs = used.iter().flat_map(|a| used.iter().filter(move |b| b.0 > a.0).map(move |b| (a, b)));
    let closest = pairs.map(|(a, b)| (shared(family, a.1, b.1), a, b)).max_by_key(|(length, ..)| *length);
    match (closest, nearest) {
        (Some((length, a, b)), near) if near.is_none_or(|n| n.0 < length) => {
            vec![(a.0, encode(family, a.1.0, length)), (b.0, encode(family, fresh.0, fresh.1))]
        }
        (_, Some((length, i, range))) => vec![(i, encode(family, range.0, length))],
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::parse_ip;

    fn covered(all: &[&str]) -> [u64; RANGES] {
        let mut words = [0; RANGES];
        let mut seen: Vec<Address> = Vec::new();
        for text in all {
            let address = Address::from(parse_ip(text).unwrap());
            for (i, word) in cover(&words, address) {
                words[i] = word;
            }
            seen.push(address);
            for a in &seen {
                assert!(words.iter().any(|w| contains(*w, *a)), "{a} is not covered after {text}");
            }
        }
        words
    }

    #[test]
    fn addresses_of_one_service_range_share_one_word() {
        let words = covered(&["10.96.0.1", "10.96.0.10", "10.111.255.254", "10.100.3.4"]);
        assert_eq!(words.iter().filter(|w| **w != 0).count(), 1);
        assert!(!words.iter().any(|w| contains(*w, Address::from(parse_ip("10.244.0.1").unwrap()))));
        covered(&["fd00:10:96::1", "fd00:10:96::ffff", "fd00:20::1", "2001:db8::1", "fe00::1", "::2", "a000::1"]);
    }

    #[test]
    fn scattered_addresses_are_all_covered() {
        covered(&["1.2.3.4", "250.1.1.1", "100.1.1.1", "180.1.1.1", "60.1.1.1", "33.1.1.1", "129.0.0.1", "0.0.0.1"]);
    }
}
