//! Hash maps with a hash that is made for keys of a few words: the whole state of a large cluster is a few million
//! look-ups, and the standard library's hash would take longer than all the rest. Seeded at random, as that one is.

pub type HashMap<K, V> = std::collections::HashMap<K, V, foldhash::fast::RandomState>;
pub type HashSet<K> = std::collections::HashSet<K, foldhash::fast::RandomState>;
