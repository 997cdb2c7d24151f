//! Dials of services through real sockets, with an agent in private cgroups and network namespaces.

#[path = "../fixture/mod.rs"]
mod fixture;

mod address_kinds;
mod agent;
mod agent_dial;
mod coexist;
mod identity;
mod real_programs;
mod refusal;
mod share;
mod socket_calls;
mod socket_record;
mod stale_udp;
