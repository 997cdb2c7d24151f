//! Tests with the programs of KubeEdge: cloudcore in the cloud, edgecore on an edge node, and an agent there that reads only
//! the cache of edgecore.
//!
//! ```text
//!   outside 172.31.0.1          etcd, kube-apiserver, kube-controller-manager, cloudcore
//!   node-1  172.31.0.11  e1     edgecore, the agent, pod-a
//!   node-2  172.31.0.12  c1     a node in the cloud: kube-proxy, pod-b
//!   node-3  172.31.0.13  e2     another edge node: pod-c
//! ```
//!
//! e1 has a route only to its own pod. `make test-edge` builds the programs (`kit build --edge`).

#[path = "../api_server/cluster.rs"]
#[allow(dead_code)] // The other tests use more of it.
mod cluster;
#[path = "../api_server/source_reader.rs"]
#[allow(dead_code)]
mod source_reader;

mod cloud;
mod edge;
mod edge_node;
