//! What the metrics of the agent and of the controller have in common: the two text formats, and the metrics of the build
//! and of the process.
#![forbid(unsafe_code)]

mod format;
mod process;

pub use format::MetricsFormat;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct BuildLabels {
    version: &'static str,
    commit: &'static str,
}

/// A registry with the metrics of the build and of this process. `commit` is the one that the binary was built from.
pub fn registry(commit: &'static str) -> Registry {
    let mut registry = Registry::default();
    let family: Family<BuildLabels, Gauge> = Family::default();
    family.get_or_create(&BuildLabels { version: env!("CARGO_PKG_VERSION"), commit }).set(1);
    registry.register("beeline_build_info", "Version and commit of the running binary; the value is always 1", family);
    process::register(&mut registry);
    registry
}
