//! A check for tests and the fuzzer: any snapshot file is read or refused without a panic, and its objects can be planned.

use super::clock::ClockReading;
use super::file::{LoadRequirements, MAGIC, SnapshotFiles, VERSION, hex, new_checksum, object};
use beeline_model::change::Change;
use beeline_model::name::LOCAL_CLUSTER;
use beeline_model::object::Object;
use std::path::PathBuf;

/// The input is used as a whole file, and as the lines after a first line with the correct checksum. Returns whether it was
/// read.
#[doc(hidden)]
pub fn check_snapshot(input: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(input) else { return false };
    let mut checksum = new_checksum();
    checksum.update(input);
    let with_checksum = format!("{MAGIC} {VERSION} {}\n{text}", hex(checksum));
    let files = SnapshotFiles { dir: PathBuf::new(), cluster: LOCAL_CLUSTER.into() };
    let now = ClockReading { boot_id: "1".into(), uptime: 100, time: 1_800_000_000 };
    let requirements = LoadRequirements { now, max_age: None, uid: Some("u1") };
    let read = |text: &str| files.parse(text, &requirements).ok();
    let Some((_, objects, _)) = read(text).or_else(|| read(&with_checksum)) else { return false };
    objects.iter().for_each(|object| check_object(object, &files));
    beeline_model::check_plan(objects.into_iter().map(Change::Upsert).collect());
    true
}

/// An object that was read is written and read back unchanged.
fn check_object(before: &Object, files: &SnapshotFiles) {
    let line = serde_json::to_string(before).expect("an object can be encoded");
    assert_eq!(object(&line, &files.cluster).as_ref(), Ok(before), "{line}");
}
