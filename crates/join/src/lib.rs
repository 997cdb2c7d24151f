//! How a host comes to a cluster, stays known to it, and leaves. An administrator grants: an account of the host's own,
//! which may read what an agent outside reads and renew its own token, packed into a code. The host joins with that code:
//! it is checked, written down as a kubeconfig, and renewed from then on.
#![forbid(unsafe_code)]

mod administrator;
mod authority;
mod clock;
mod code;
mod contact;
mod credential;
mod file;
mod grant;
mod host;
mod listing;
mod object;
mod pods;
mod renew;
mod request;
mod standing;
mod token;

pub use administrator::{Administrator, AdministratorError};
pub use code::{Code, CodeError};
pub use contact::{Contact, ContactError};
pub use credential::{Credential, CredentialError, MARK, Mark};
pub use file::write;
pub use grant::{GrantError, LEAST_LIFETIME, NAMESPACE, Terms, grant, revoke};
pub use host::{HostName, HostNameError};
pub use pods::Pods;
pub use renew::{HALF, Renewal};
pub use standing::{Report, Standing, command};
pub use token::{Token, TokenError};
