//! Beeline and virtual machines: a Debian guest with systemd that joins by the package, and one whose dials its node makes
//! for it. The cluster is the one that runs; `make test-vm` starts and ends it.

mod dials;
#[path = "../cluster/field.rs"]
#[allow(dead_code)] // What the other tests need is not all needed here.
mod field;
mod host;
mod join;
mod machine;
mod package;
mod passt;
