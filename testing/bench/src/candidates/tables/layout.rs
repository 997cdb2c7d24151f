//! Rows of `bpf/tables.bpf.c` as 8-byte words, for services numbered from 0.

/// Number of backends of each service.
pub const BACKENDS: u32 = 3;
/// Rows per bucket of the custom hash.
const ROWS: usize = 2;

pub fn key(service: u32) -> [u64; 3] {
    [80 << 32 | 6, 0, (0x0a60_0000 + u64::from(service)) << 32 | 0xffff_0000]
}

fn mix(word: u64) -> u64 {
    let word = word.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    word ^ (word >> 29)
}

pub fn tag(key: [u64; 3]) -> u64 {
    mix(mix(key[0] ^ key[1]) ^ key[2]) >> 32
}

/// Value of a frontend row: the set and the tag.
pub fn value(service: u32) -> u64 {
    u64::from(service) | tag(key(service)) << 32
}

pub fn backend_id(service: u32, index: u32) -> u32 {
    service * BACKENDS + index
}

pub fn span(service: u32, count: u32) -> u64 {
    u64::from(backend_id(service, 0)) | u64::from(count) << 32
}

pub fn set(service: u32) -> [u64; 8] {
    let id = |index| backend_id(service, index);
    [span(service, BACKENDS), 0, pair(0, service), pair(id(0), id(1)), pair(id(2), 0), 0, 0, 0]
}

pub fn backend(id: u32) -> [u64; 4] {
    [0, address(id), 8080, 0]
}

pub fn address(id: u32) -> u64 {
    (0x0a80_0000 + u64::from(id)) << 32 | 0xffff_0000
}

/// Two consecutive 4-byte fields.
pub fn pair(first: u32, second: u32) -> u64 {
    u64::from_ne_bytes([first.to_ne_bytes(), second.to_ne_bytes()].concat().try_into().expect("4 and 4 are 8"))
}

/// Number of buckets that keeps half of the rows free, so that probing stays short.
pub fn buckets(services: u32) -> u32 {
    services.next_power_of_two()
}

/// Word offsets of the possible rows of a service, in probing order.
pub fn places(service: u32, buckets: u32) -> impl Iterator<Item = usize> {
    let home = tag(key(service)) as u32;
    (0..8).flat_map(move |step| {
        let bucket = (home.wrapping_add(step) & (buckets - 1)) as usize;
        (0..ROWS).map(move |row| (bucket * ROWS + row) * 4)
    })
}
