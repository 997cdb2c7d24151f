//! Hash maps with a hash that is made for keys of a few words: the whole state of a large cluster is a few million
//! look-ups, and the standard library's hash would take longer than all the rest. Seeded at random, as that one is.

pub type HashMap<K, V> = std::collections::HashMap<K, V, foldhash::fast::RandomState>;
pub type HashSet<K> = std::collections::HashSet<K, foldhash::fast::RandomState>;

/// FNV-1a: the same in every build, for what is kept or compared outside this process. Never to be changed.
pub fn lasting(bytes: impl IntoIterator<Item = u8>) -> u64 {
    let mix = |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    bytes.into_iter().fold(0xcbf2_9ce4_8422_2325, mix)
}
