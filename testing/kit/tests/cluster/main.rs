//! Beeline in a real Kubernetes cluster: three nodes with kubelets and pods, without kube-proxy. The tests use the
//! running cluster, which `make test-cluster` starts and stops. Every test has a namespace of its own.

mod address_kinds;
mod chart;
mod controller;
mod dns;
mod fault;
mod fixture;
mod identity;
mod load;
mod object_changes;
mod plugin;
mod policies;
mod rollout;
mod traffic_policy;
