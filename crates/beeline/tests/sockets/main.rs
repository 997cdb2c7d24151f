//! Dials of services through real sockets, with an agent in private cgroups and network namespaces.

#[path = "../fixture/mod.rs"]
mod fixture;

mod accepted;
mod address_kinds;
mod agent;
mod agent_dial;
mod capability;
mod coexist;
mod identity;
mod message_batch;
mod passed_sockets;
mod python;
mod real_programs;
mod refusal;
mod share;
mod shared_port;
mod socket_calls;
mod socket_kinds;
mod socket_record;
mod stale_udp;
mod udp_grace;
