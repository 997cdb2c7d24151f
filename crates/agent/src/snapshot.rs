//! The last good facts of a cluster on disk: what serves when no API server answers at the start, also after a reboot,
//! when the kernel holds nothing. As soon as the cluster speaks again its own word replaces it, fact by fact; only what a
//! complete list does not name any more goes.

mod archive;
mod clock;
mod file;
mod flaw;
mod memory;

pub use archive::{Archive, Keeping};
pub use clock::{Clock, Host, Moment};
pub use file::{Header, LARGEST, Loaded, Place, Recalled, Terms};
pub use flaw::Flaw;
pub use memory::{Job, Memory, Report, Search, Standing};
