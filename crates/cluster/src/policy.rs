//! The custom resources LocalRedirectPolicy and BalancingPolicy of the group `beeline.dev`. Everything that can be
//! checked in one object is in the schema, in CEL rules or in defaults, so that the API server refuses an invalid
//! policy with a message that says what to write instead. Checks that need other objects are done by the webhook.

mod balance;
mod definition;
mod frontend;
mod port;
mod redirect;
mod rule;
mod schema;
mod selector;
mod status;

pub use balance::{
    AddressEndpoint, BalancingBackend, BalancingConfig, BalancingPolicy, BalancingPolicySpec, Mode, ServiceEndpoint,
};
pub use definition::{definition_yaml, definitions};
pub use frontend::{AddressMatcher, Frontend, FrontendPort, ServiceMatcher};
pub use port::{AddressPort, EndpointPort, Transport};
pub use redirect::{ConnectLimit, LocalBackend, LocalRedirectConfig, LocalRedirectPolicy, LocalRedirectPolicySpec};
pub use selector::{LabelRequirement, LabelSelector, Operator};
pub use status::{ACCEPTED, NodeCount, PROGRAMMED, PolicyStatus};

pub const GROUP: &str = "beeline.dev";
pub const API_VERSION: &str = "beeline.dev/v1alpha1";
/// Policy names are limited so that the name of every port fits into the kernel's table of names.
pub const MAX_NAME: usize = 63;
pub const MAX_PORTS: usize = 64;
pub const MAX_ADDRESSES: usize = 256;
/// Addresses times ports of one policy, which must not be able to fill the tables of every node.
pub const MAX_TARGETS: usize = 4096;
pub const MAX_LABELS: usize = 16;
pub const MAX_VALUES: usize = 64;
pub const MAX_RATE: i32 = 1_000_000_000;
