//! The cluster-wide tasks of Beeline, done once and not on every node: admission of policies, the backends of
//! BalancingPolicies and the nodes' addresses published as EndpointSlices, and the status of every policy. No traffic
//! depends on the controller.
#![forbid(unsafe_code)]

mod address_owner;
mod admission;
mod backend_address;
mod certificate;
mod cluster_state;
mod health;
mod leader_election;
mod node_report;
mod observed_status;
mod pending_changes;
mod policy_finding;
mod policy_slices;
mod policy_target;
mod port_owner;
mod publisher;
mod report_cleanup;
mod report_wait;
mod review_check;
mod rollout;
mod run;
mod scope_authorizer;
mod settings;
mod status;
mod status_writer;
mod validation;
mod webhook;
mod webhook_certificate;
mod webhook_token;
mod write_queue;

#[doc(hidden)]
pub use review_check::check_review;
pub use run::run;
pub use settings::{ControllerSettings, Overlap};
