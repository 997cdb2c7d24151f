//! Joining a host outside a cluster to it. An administrator runs `beeline grant`, which creates a ServiceAccount for the
//! host (it may read what an agent outside reads, and renew its own token) and prints a join code. The host runs
//! `beeline join` with that code: the code is checked and stored as a kubeconfig. The agent then renews the token.
#![forbid(unsafe_code)]

mod admin_client;
mod atomic_file;
mod ca_bundle;
mod clock;
mod credential;
mod grant;
mod host_name;
mod host_object;
mod join_code;
mod list_summary;
mod pod_reachability;
mod preflight;
mod request;
mod token;
mod token_renewer;
mod token_state;

pub use admin_client::{AdminClient, AdminClientError};
pub use atomic_file::write_atomic;
pub use credential::{Credential, CredentialError, JoinExtension, KUBECONFIG_EXTENSION};
pub use grant::{DEFAULT_NAMESPACE, GrantError, GrantLifetimes, MIN_TOKEN_LIFETIME, grant, revoke};
pub use host_name::{HostName, HostNameError};
pub use join_code::{JoinCode, JoinCodeError, check_join_code};
pub use pod_reachability::PodReachability;
pub use preflight::{Preflight, PreflightError};
pub use token::{Token, TokenError};
pub use token_renewer::{DEFAULT_RENEW_FRACTION, TokenRenewer};
pub use token_state::{TokenReport, TokenState, admin_command};
