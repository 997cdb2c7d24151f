//! Hash maps with a hash function that is fast for short keys. A large cluster needs a few million lookups, which would
//! dominate with the hash function of the standard library. The maps are seeded at random, like those of the standard
//! library.

pub type HashMap<K, V> = std::collections::HashMap<K, V, foldhash::fast::RandomState>;
pub type HashSet<K> = std::collections::HashSet<K, foldhash::fast::RandomState>;

/// FNV-1a. For values that are stored or compared outside this process: the result is the same in every build and must
/// never change.
pub fn stable_hash(bytes: impl IntoIterator<Item = u8>) -> u64 {
    let mix = |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    bytes.into_iter().fold(0xcbf2_9ce4_8422_2325, mix)
}
