//! Errors of netlink requests.

use std::io;

pub type Result<T> = std::result::Result<T, Error>;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A system call on the netlink socket failed.
    #[error("netlink: cannot {action}")]
    Socket {
        action: &'static str,
        #[source]
        source: io::Error,
    },
    /// The kernel answered a request with an error.
    #[error("netlink: the kernel refused to {action}: {hint}")]
    Refused {
        action: &'static str,
        hint: &'static str,
        #[source]
        source: io::Error,
    },
    /// The kernel answered, but not with what the protocol promises.
    #[error("netlink: unexpected answer to the request to {action}")]
    Protocol { action: &'static str },
    /// Another program changed the table at the same time, again and again.
    #[error(
        "nftables: table inet {table} changed {attempts} times while it was written; find the program that does it"
    )]
    Contended { table: String, attempts: usize },
}

impl Error {
    pub(crate) fn refused(action: &'static str, errno: i32) -> Self {
        Error::Refused { action, hint: hint(errno), source: io::Error::from_raw_os_error(errno) }
    }

    /// The error number with which the kernel refused this request; `None` for other requests and other errors.
    pub(crate) fn errno_of(&self, request: &str) -> Option<i32> {
        match self {
            Error::Refused { action, source, .. } if *action == request => source.raw_os_error(),
            _ => None,
        }
    }
}

/// What to do about an error number that users meet.
fn hint(errno: i32) -> &'static str {
    match errno {
        libc::EPERM => "CAP_NET_ADMIN is needed, and a table with an owner can be changed by its owner only",
        libc::ENOENT | libc::EOPNOTSUPP | libc::EAFNOSUPPORT => {
            "the object does not exist, or the kernel lacks one of the modules nf_tables, nft_chain_nat, nft_ct, \
             nft_reject_inet, nf_conntrack_netlink: load them with modprobe"
        }
        _ => "see the error number",
    }
}
