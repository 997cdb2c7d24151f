//! Reads Kubernetes objects and converts them to the types of `beeline_model`.
//!
//! Three sources deliver objects: an API server, the edge cache of KubeEdge, and a folder of manifests. `convert`
//! defines what an object means, identically for all of them. Kubernetes' own types are used in this crate only.
#![forbid(unsafe_code)]

mod api;
mod backoff;
mod convert;
mod defaults;
mod document;
#[cfg(feature = "outside")]
mod edge;
mod files;
mod folder;
mod folder_watcher;
mod invariants;
mod kind;
mod list_tracker;
mod manifest;
mod manifest_index;
mod manifest_object;
mod mirrored_endpoints;
mod object_check;
mod orphans;
mod parser;
pub mod policy;
mod policy_check;
mod rate_limiter;
mod readiness;
mod refusals;
mod snapshot;
mod source_key;
mod wire;

pub use api::{
    Access, AccessError, ApiServerSource, ClusterIdCheck, Feedback, LoadError, NodeScope, PodScope, REPORT_LABEL,
    ReportSettings, STARTUP_TAINT, SourceRole, WATCH_IDLE_TIMEOUT, connect, read_report, report_name,
};
pub use convert::published::{
    MANAGED_BY, MANAGER, NODES as NODES_LABEL, POLICY as POLICY_LABEL, node_slice_object, policy_slice_object,
};
pub use convert::{Converted, Converter, ServiceFilter, Unserved};
#[cfg(feature = "outside")]
pub use edge::{DEFAULT_EDGE_CACHE_URL, EdgeCacheSource, EdgeIntervals, TrafficCounter, check_edge_answers};
pub use files::FolderError;
pub use folder::{ChangeBatch, FolderSource, parse_manifests};
pub use invariants::check_conversion;
pub use manifest::ManifestFormat;
pub use object_check::check_object;
#[doc(hidden)]
pub use policy_check::check_policy_object;
pub use rate_limiter::RateLimiter;
pub use snapshot::{Snapshot, diff};
