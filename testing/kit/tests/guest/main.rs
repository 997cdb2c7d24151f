//! Beeline and virtual machines: a Debian guest with systemd that installs the package and joins, and a guest whose
//! connections are opened by passt on a node. The tests use the running cluster, which `make test-vm` starts and stops.

mod dials;
#[path = "../cluster/fixture.rs"]
#[allow(dead_code)] // These tests use only a part of the fixture.
mod fixture;
mod host;
mod join;
mod machine;
mod package;
mod passt;
