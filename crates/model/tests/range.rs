//! The covering ranges, compared with an independent reading of their encoding. An address that is covered stays
//! covered, also between two writes, and one service range does not cover the addresses of pods.

#[allow(dead_code)]
mod support;

use beeline_model::range::{RANGES, contains, cover};
use beeline_model::{Address, Family};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use support::seed::seeds;

/// Reads a word as the BPF programs do: IPv4 is address << 32 | mask, IPv6 is the first 56 bits of the address << 8 |
/// prefix length.
fn holds(word: u64, ip: IpAddr) -> bool {
    match ip {
        _ if word == 0 => false,
        IpAddr::V4(ip) => u32::from(ip) & word as u32 == (word >> 32) as u32,
        IpAddr::V6(ip) => {
            let length = (word & 0xff) as u32;
            assert!((1..=56).contains(&length), "{word:x}");
            (u128::from(ip) >> (128 - length)) as u64 == word >> (64 - length)
        }
    }
}

/// Mostly addresses near a few bases, as in service ranges.
fn random_ip(rng: &mut fastrand::Rng, family: Family, bases: &[u128]) -> IpAddr {
    let width = if family == Family::V4 { 32 } else { 128 };
    let base = bases[rng.usize(..bases.len())] >> (128 - width);
    let low = if rng.u8(..3) == 0 { rng.u32(..width) } else { rng.u32(..width / 2) };
    let bits = base ^ (rng.u128(..) & ((1u128 << low) - 1));
    match family {
        Family::V4 => IpAddr::V4(Ipv4Addr::from(bits as u32)),
        // Avoids mapped addresses, which are IPv4 addresses.
        Family::V6 => IpAddr::V6(Ipv6Addr::from(bits | 1 << 125)),
    }
}

#[test]
fn a_covered_address_stays_covered() {
    for seed in seeds(0..3000) {
        let mut rng = fastrand::Rng::with_seed(seed);
        let family = Family::BOTH[usize::from(rng.bool())];
        let bases: Vec<u128> = (0..rng.usize(1..16)).map(|_| rng.u128(..)).collect();
        let (mut words, mut seen) = ([0u64; RANGES], Vec::new());
        for _ in 0..60 {
            let ip = random_ip(&mut rng, family, &bases);
            let writes = cover(&words, Address::from(ip));
            for (i, word) in writes {
                words[i] = word;
                for old in &seen {
                    assert!(words.iter().any(|w| holds(*w, *old)), "seed {seed}: {old} was covered before {ip}");
                }
            }
            seen.push(ip);
            for ip in &seen {
                assert!(words.iter().any(|w| holds(*w, *ip)), "seed {seed}: {ip} in {words:x?}");
            }
            let other = random_ip(&mut rng, family, &bases);
            for word in words {
                assert_eq!(
                    contains(word, Address::from(other)),
                    holds(word, other),
                    "seed {seed}: {other} in {word:x}"
                );
            }
        }
    }
}

#[test]
fn a_service_range_does_not_cover_pod_addresses() {
    let mut seeds = seeds(1..2);
    let mut rng = fastrand::Rng::with_seed(seeds.next().unwrap());
    for (base, pod) in [("10.96.0.0", "10.244.0.1"), ("10.43.0.0", "10.42.0.1"), ("fd00:96::", "fd00:244::1")] {
        let base: IpAddr = base.parse().unwrap();
        let mut words = [0u64; RANGES];
        for _ in 0..2000 {
            let ip = match base {
                IpAddr::V4(ip) => IpAddr::V4(Ipv4Addr::from(u32::from(ip) | rng.u32(..1 << 16))),
                IpAddr::V6(ip) => IpAddr::V6(Ipv6Addr::from(u128::from(ip) | rng.u128(..1 << 20))),
            };
            for (i, word) in cover(&words, Address::from(ip)) {
                words[i] = word;
            }
        }
        assert_eq!(words.iter().filter(|w| **w != 0).count(), 1, "{base} {words:x?}");
        assert!(!holds(words[0], pod.parse().unwrap()), "{base} {words:x?}");
    }
}
