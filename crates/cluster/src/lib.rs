//! Kubernetes, turned into facts: `convert` says what an object means; an API server and a folder of manifests are the two
//! sources of objects.
//! Nothing of Kubernetes' own types goes further than this crate.
#![forbid(unsafe_code)]

mod api;
mod check;
mod convert;
mod default;
mod document;
mod edge;
mod files;
mod folder;
mod index;
mod kind;
mod manifest;
mod mirror;
mod object;
mod orphan;
pub mod policy;
mod snapshot;
mod tree;
mod watch;

pub use api::{
    Access, AccessError, Echo, LoadError, Nodes, PATIENCE, Passport, Pods, REPORT, Reports, Role, STARTUP_TAINT,
    Server, connect, read_report, report_name,
};
pub use check::check;
pub use convert::published::{
    MANAGED_BY, MANAGER, NODES as NODES_LABEL, POLICY as POLICY_LABEL, node_slice_object, policy_slice_object,
};
pub use convert::{Claim, Convert, Converted, Unserved};
pub use edge::{EDGE_CACHE, Edge, Rhythm, Traffic};
pub use files::FolderError;
pub use folder::{Batch, Folder, parse};
pub use manifest::Format;
pub use snapshot::{Snapshot, diff};
