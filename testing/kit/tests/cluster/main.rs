//! Beeline in a real Kubernetes: three nodes, real kubelets and pods, no kube-proxy. The cluster is the one that runs
//! (`make test-cluster` starts and ends it); every test has a namespace of its own.

mod deploy;
mod dns;
mod fault;
mod field;
mod follow;
mod identity;
mod kind;
mod plugin;
mod policy;
mod rollout;
mod steer;
mod steward;
mod storm;
