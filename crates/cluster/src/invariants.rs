//! Invariants of the conversion for every input, however broken. The fuzzer runs them over random bytes, and the tests
//! run them over the corpus of the fuzzer.

use crate::object_check::check_object;
use crate::{Converter, ManifestFormat, ServiceFilter, Snapshot, diff, parse_manifests};
use beeline_model::change::Change;

/// Panics if an invariant does not hold.
#[doc(hidden)]
pub fn check_conversion(input: &[u8]) {
    for format in [ManifestFormat::Yaml, ManifestFormat::Json] {
        for dns_names in [false, true] {
            check_format(input, format, ServiceFilter { dns_names, ..ServiceFilter::default() });
        }
    }
}

fn check_format(input: &[u8], format: ManifestFormat, filter: ServiceFilter) {
    let mut converter = Converter::new("local", filter);
    let snapshot = parse_manifests(input, format, &mut converter);
    let again = parse_manifests(input, format, &mut converter);
    assert_eq!(snapshot, again, "the result does not depend on what was converted before");
    let mut rebuilt = Snapshot { refusals: snapshot.refusals.clone(), ..Snapshot::default() };
    diff(&Snapshot::default(), &snapshot).into_iter().for_each(|change| rebuilt.apply(change));
    assert_eq!(snapshot, rebuilt, "applying the diff gives the snapshot");
    for change in snapshot.into_changes() {
        match change {
            Change::Upsert(object) => check_object(&object).unwrap_or_else(|rule| panic!("{rule}: {object:?}")),
            Change::Delete(key) => panic!("{key} is deleted in a new snapshot"),
        }
    }
}
