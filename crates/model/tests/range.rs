//! Covering ranges against the plain meaning of their words: whatever is covered once stays covered, also between two
//! words, and one service range never swallows the pods' addresses.

use beeline_model::range::{RANGES, contains, cover};
use beeline_model::{Address, Family};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// As the kernel half reads a word, written down again from its description: v4 is address << 32 | mask, v6 the first 56
/// bits of the address << 8 | prefix length.
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

/// Clumps, as service ranges are, and strays.
fn random_ip(rng: &mut fastrand::Rng, family: Family, clumps: &[u128]) -> IpAddr {
    let width = if family == Family::V4 { 32 } else { 128 };
    let clump = clumps[rng.usize(..clumps.len())] >> (128 - width);
    let low = if rng.u8(..3) == 0 { rng.u32(..width) } else { rng.u32(..width / 2) };
    let bits = clump ^ (rng.u128(..) & ((1u128 << low) - 1));
    match family {
        Family::V4 => IpAddr::V4(Ipv4Addr::from(bits as u32)),
        // A mapped address is an IPv4 one.
        Family::V6 => IpAddr::V6(Ipv6Addr::from(bits | 1 << 125)),
    }
}

#[test]
fn nothing_is_ever_uncovered() {
    for seed in 0..3000 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let family = Family::BOTH[usize::from(rng.bool())];
        let clumps: Vec<u128> = (0..rng.usize(1..16)).map(|_| rng.u128(..)).collect();
        let (mut words, mut seen) = ([0u64; RANGES], Vec::new());
        for _ in 0..60 {
            let ip = random_ip(&mut rng, family, &clumps);
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
            let other = random_ip(&mut rng, family, &clumps);
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
fn a_service_range_covers_no_other() {
    let mut rng = fastrand::Rng::with_seed(1);
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
