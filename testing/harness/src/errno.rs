//! An errno that serializes as a number and prints as its C name.

use std::{fmt, io};

use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Errno(pub i32);

macro_rules! names {
    ($($name:ident),* $(,)?) => {
        impl Errno {
            $(pub const $name: Errno = Errno(libc::$name);)*

            /// The C name, or "" for a number that is not in the list below.
            pub fn name(self) -> &'static str {
                match self.0 {
                    $(libc::$name => stringify!($name),)*
                    _ => "",
                }
            }
        }
    };
}

names!(
    EACCES,
    EADDRINUSE,
    EADDRNOTAVAIL,
    EAFNOSUPPORT,
    EAGAIN,
    EALREADY,
    EBADF,
    ECANCELED,
    ECONNABORTED,
    ECONNREFUSED,
    ECONNRESET,
    EDESTADDRREQ,
    EHOSTUNREACH,
    EINPROGRESS,
    EINTR,
    EINVAL,
    EISCONN,
    EMFILE,
    ENETUNREACH,
    ENOBUFS,
    ENODEV,
    ENOENT,
    ENOMEM,
    ENOPROTOOPT,
    ENOSYS,
    ENOTCONN,
    EOPNOTSUPP,
    EPERM,
    EPIPE,
    EPROTONOSUPPORT,
    ETIMEDOUT,
);

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            "" => write!(f, "errno {}", self.0),
            name => f.write_str(name),
        }
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl From<rustix::io::Errno> for Errno {
    fn from(errno: rustix::io::Errno) -> Self {
        Errno(errno.raw_os_error())
    }
}

impl From<io::Error> for Errno {
    /// An error without an OS error number (bad address, short write) becomes EINVAL.
    fn from(error: io::Error) -> Self {
        Errno(error.raw_os_error().unwrap_or(libc::EINVAL))
    }
}
