//! What needs the whole cluster's knowledge, done once and not on every node: admission of policies, the backends of
//! BalancingPolicies and the nodes' addresses published as EndpointSlices, and the status of every policy. Traffic never
//! waits for it.
#![forbid(unsafe_code)]
