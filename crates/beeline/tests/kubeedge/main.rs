//! KubeEdge's own programs: cloudcore in the cloud, edgecore on an edge node, and the agent there, which reads edgecore's
//! cache and nothing else.
//!
//! ```text
//!   outside 172.31.0.1          etcd, kube-apiserver, kube-controller-manager, cloudcore
//!   node-1  172.31.0.11  e1     edgecore, the agent, pod-a
//!   node-2  172.31.0.12  c1     a node in the cloud: kube-proxy, pod-b
//!   node-3  172.31.0.13  e2     another edge node: pod-c
//! ```
//!
//! e1 has no route to any pod but its own. `make test-edge` builds what is needed (`kit build --edge`).

#[path = "../api_server/cluster.rs"]
#[allow(dead_code)] // What the other tests need is not all needed here.
mod cluster;
#[path = "../api_server/listener.rs"]
#[allow(dead_code)]
mod listener;

mod cloud;
mod edge;
mod story;
