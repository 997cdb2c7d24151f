//! Writes the maps: all rows at once, and one endpoint of one service.

use std::{
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use libbpf_rs::{MapCore, MapFlags, MapMut};

use super::{
    CandidateTable,
    layout::{self, BACKENDS},
    skel::TablesSkel,
};
use crate::mapping::Mapping;

/// Writes a whole map in the fastest way, and returns the duration of the writes.
pub fn fill(skel: &TablesSkel<'_>, table: CandidateTable, services: u32) -> Result<Duration> {
    let map = map(skel, table);
    let all = 0..services;
    match table {
        CandidateTable::Frontend | CandidateTable::LazyFrontend => {
            batch(map, all.map(|service| (layout::key(service), layout::value(service))))
        }
        CandidateTable::PlainService => {
            batch(map, all.map(|service| (layout::key(service), layout::pair(service, BACKENDS))))
        }
        CandidateTable::PlainBackend => batch(map, all.flat_map(plain_backends)),
        CandidateTable::Bucket => fill_buckets(map, services),
        CandidateTable::Set => mapped(map, all.map(layout::set)),
        CandidateTable::Slot => mapped(map, (0..services * BACKENDS).map(|id| [layout::pair(id, 0)])),
        CandidateTable::Backend => mapped(map, (0..services * BACKENDS).map(layout::backend)),
    }
}

fn plain_backends(service: u32) -> impl Iterator<Item = (u64, [u64; 3])> {
    (0..BACKENDS).map(move |index| {
        (layout::pair(service, index), [0, layout::address(layout::backend_id(service, index)), 8080])
    })
}

pub fn map<'a, 'b>(skel: &'a TablesSkel<'b>, table: CandidateTable) -> &'a MapMut<'b> {
    let maps = &skel.maps;
    match table {
        CandidateTable::Frontend => &maps.frontend,
        CandidateTable::LazyFrontend => &maps.lazy_frontend,
        CandidateTable::Bucket => &maps.bucket,
        CandidateTable::Set => &maps.set,
        CandidateTable::Slot => &maps.slot,
        CandidateTable::Backend => &maps.backend,
        CandidateTable::PlainService => &maps.plain_service,
        CandidateTable::PlainBackend => &maps.plain_backend,
    }
}

/// Words of a key or a value.
trait Words {
    fn append(self, bytes: &mut Vec<u8>);
}

impl Words for u64 {
    fn append(self, bytes: &mut Vec<u8>) {
        bytes.extend(self.to_ne_bytes());
    }
}

impl<const N: usize> Words for [u64; N] {
    fn append(self, bytes: &mut Vec<u8>) {
        self.into_iter().for_each(|word| word.append(bytes));
    }
}

fn batch<K: Words, V: Words>(map: &MapMut<'_>, rows: impl Iterator<Item = (K, V)>) -> Result<Duration> {
    let (mut keys, mut values, mut count) = (Vec::new(), Vec::new(), 0);
    for (key, value) in rows {
        key.append(&mut keys);
        value.append(&mut values);
        count += 1;
    }
    let start = Instant::now();
    map.update_batch(&keys, &values, count, MapFlags::ANY, MapFlags::ANY)?;
    Ok(start.elapsed())
}

fn mapped<const N: usize>(map: &MapMut<'_>, rows: impl Iterator<Item = [u64; N]>) -> Result<Duration> {
    let rows: Vec<_> = rows.collect();
    let start = Instant::now();
    let mapping = Mapping::of(map)?;
    for (row, value) in rows.into_iter().enumerate() {
        mapping.write(row as u32, value);
    }
    Ok(start.elapsed())
}

fn fill_buckets(map: &MapMut<'_>, services: u32) -> Result<Duration> {
    let start = Instant::now();
    let mapping = Mapping::of(map)?;
    let words = mapping.words();
    for service in 0..services {
        let mut places = layout::places(service, layout::buckets(services));
        let place = places.find(|place| words[*place].load(Ordering::Relaxed) == 0);
        let place = place.context("all rows of a service are used: the custom hash needs more buckets")?;
        let row = layout::key(service).into_iter().chain([layout::value(service)]);
        // The first word marks the row as used, so it is written last.
        for (offset, word) in row.enumerate().collect::<Vec<_>>().into_iter().rev() {
            words[place + offset].store(word, Ordering::Release);
        }
    }
    Ok(start.elapsed())
}

/// Replaces the last endpoint of random services in mapped arrays. Returns nanoseconds per change.
pub fn change_mapped(skel: &TablesSkel<'_>, services: u32, changes: u32, slots: bool) -> Result<u64> {
    let set = Mapping::of(map(skel, CandidateTable::Set))?;
    let slot = Mapping::of(map(skel, CandidateTable::Slot))?;
    let backend = Mapping::of(map(skel, CandidateTable::Backend))?;
    let mut random = fastrand::Rng::with_seed(u64::from(services));
    let start = Instant::now();
    for _ in 0..changes {
        let service = random.u32(0..services);
        let id = layout::backend_id(service, BACKENDS - 1);
        let row = service as usize * 8;
        set.words()[row].store(layout::span(service, BACKENDS - 1), Ordering::Release);
        backend.write(id, layout::backend(id));
        if slots {
            slot.write(id, [layout::pair(id, 0)]);
        } else {
            set.words()[row + 4].store(layout::pair(id, 0), Ordering::Release);
        }
        set.words()[row].store(layout::span(service, BACKENDS), Ordering::Release);
    }
    Ok(start.elapsed().as_nanos() as u64 / u64::from(changes))
}

/// Like `change_mapped` with two hashes: decrements the count, replaces the backend, increments the count.
pub fn change_plain(skel: &TablesSkel<'_>, services: u32, changes: u32) -> Result<u64> {
    let (service_map, backend_map) = (map(skel, CandidateTable::PlainService), map(skel, CandidateTable::PlainBackend));
    let mut random = fastrand::Rng::with_seed(u64::from(services));
    let start = Instant::now();
    for _ in 0..changes {
        let service = random.u32(0..services);
        let (key, value) = plain_backends(service).last().context("a service without backends")?;
        put(service_map, layout::key(service), layout::pair(service, BACKENDS - 1))?;
        put(backend_map, key, value)?;
        put(service_map, layout::key(service), layout::pair(service, BACKENDS))?;
    }
    Ok(start.elapsed().as_nanos() as u64 / u64::from(changes))
}

fn put(map: &MapMut<'_>, key: impl Words, value: impl Words) -> Result<()> {
    let (mut key_bytes, mut value_bytes) = (Vec::with_capacity(24), Vec::with_capacity(24));
    key.append(&mut key_bytes);
    value.append(&mut value_bytes);
    Ok(map.update(&key_bytes, &value_bytes, MapFlags::ANY)?)
}
