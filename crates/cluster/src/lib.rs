//! Kubernetes, turned into facts: `convert` says what an object means, a folder of manifests is one source of objects.
//! Nothing of Kubernetes' own types goes further than this crate.
#![forbid(unsafe_code)]

mod check;
mod convert;
mod default;
mod document;
mod files;
mod folder;
mod index;
mod kind;
mod manifest;
mod mirror;
mod object;
mod orphan;
mod snapshot;
mod tree;
mod watch;

pub use check::check;
pub use convert::{Claim, Convert, Converted, Unserved};
pub use files::FolderError;
pub use folder::{Batch, Folder, parse};
pub use manifest::Format;
pub use snapshot::{Snapshot, diff};
