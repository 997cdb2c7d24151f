//! Real sockets on the real kernel: what a program sees when it dials a service, in private cgroups and namespaces.

#[path = "../support/ground.rs"]
mod ground;

mod agent;
mod coexist;
mod identity;
mod kind;
mod program;
mod record;
mod refuse;
mod stale;
mod trap;
