//! The identity line of an echo server: `pod-a 10.244.1.2:8080 peer=10.244.1.1:40112`.

use std::{fmt, net::SocketAddr, str::FromStr};

use anyhow::{Context, Error};
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ServerIdentity {
    pub name: String,
    /// The server's own address.
    pub address: SocketAddr,
    /// The client's address as the server sees it.
    pub peer: SocketAddr,
}

impl fmt::Display for ServerIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} peer={}", self.name, self.address, self.peer)
    }
}

impl FromStr for ServerIdentity {
    type Err = Error;

    fn from_str(line: &str) -> Result<Self, Error> {
        let mut words = line.split_whitespace();
        let mut next = || words.next().with_context(|| format!("not an identity line: {line:?}"));
        let (name, address, peer) = (next()?.to_owned(), next()?.parse()?, next()?);
        let peer = peer.strip_prefix("peer=").with_context(|| format!("no peer in {line:?}"))?.parse()?;
        Ok(ServerIdentity { name, address, peer })
    }
}

/// Converts `::ffff:a.b.c.d` to `a.b.c.d`. An AF_INET6 socket reports an IPv4 peer in the first form.
pub fn unmapped(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// Converts `a.b.c.d` to `::ffff:a.b.c.d`, the form in which an AF_INET6 socket dials IPv4. IPv6 stays as it is.
pub fn mapped(address: SocketAddr) -> SocketAddr {
    match address {
        SocketAddr::V4(v4) => SocketAddr::new(v4.ip().to_ipv6_mapped().into(), v4.port()),
        v6 => v6,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_line_parses_and_prints_unchanged() {
        for line in ["pod-a 10.244.1.2:8080 peer=10.244.1.1:40112", "b [fd00::1]:53 peer=[fd00::2]:1"] {
            assert_eq!(line.parse::<ServerIdentity>().unwrap().to_string(), line);
        }
        assert!("HTTP/1.1 400 Bad Request".parse::<ServerIdentity>().is_err());
    }

    #[test]
    fn mapped_and_unmapped_are_inverse() {
        let v4: SocketAddr = "10.1.2.3:80".parse().unwrap();
        assert_eq!(mapped(v4).to_string(), "[::ffff:10.1.2.3]:80");
        assert_eq!(unmapped(mapped(v4)), v4);
    }
}
