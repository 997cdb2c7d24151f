//! Hosts outside the cluster. The cluster is the one that runs, with kube-proxy on its nodes: `make test-outside` starts and
//! ends it.

mod claim;
mod direct;
mod edge;
mod flap;
mod node;
mod policy;
mod stand;

#[path = "../cluster/field.rs"]
#[allow(dead_code)] // What the other tests need is not all needed here.
mod field;
mod ground;
mod several;
