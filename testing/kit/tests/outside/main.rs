//! Hosts outside the cluster. The tests use the running cluster with kube-proxy on its nodes, which `make test-outside`
//! starts and stops.

mod claim;
mod direct;
mod edge;
mod node_ports;
mod outside_agent;
mod policy;
mod route_changes;

#[path = "../cluster/fixture.rs"]
#[allow(dead_code)] // These tests use only a part of the fixture.
mod fixture;
mod host_routes;
mod three_clusters;
