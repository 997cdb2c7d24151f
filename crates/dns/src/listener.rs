//! The UDP and TCP sockets of one DNS address.
//!
//! hickory-server has such loops too, but it accepts any number of connections (each is a file descriptor of the agent),
//! spawns a task for each datagram, and drops the EDNS record of a response that does not fit. Here a burst of queries
//! waits in the socket's buffer, the clusters' names are answered in the loop, and only forwarded queries get a task.

use crate::query_handler::{ForwardedQuery, QueryAction, QueryHandler};
use crate::wire::{self, DnsTransport};
use beeline_listener::{AcceptErrors, ConnectionLimiter, ConnectionLimits, ConnectionSlot};
use ipnet::IpNet;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::task::JoinSet;
use tokio::time::timeout;

/// A TCP connection without a query, or with an unread response, for this long is closed.
const IDLE_TIMEOUT: Duration = Duration::from_secs(5);
/// Limit of concurrent TCP connections of one address. A further connection replaces one without a query in progress.
pub const MAX_CONNECTIONS: usize = 64;
/// Limit of one client. On loopback all clients of the host have the same address.
const MAX_CONNECTIONS_PER_CLIENT: usize = 16;

#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {at} ({protocol}): {source}")]
pub struct DnsBindError {
    at: SocketAddr,
    protocol: &'static str,
    source: io::Error,
}

impl DnsBindError {
    /// Another process listens on the address.
    pub fn is_taken(&self) -> bool {
        self.source.kind() == io::ErrorKind::AddrInUse
    }

    /// No interface has the address, perhaps because the interface is not up yet.
    pub fn is_absent(&self) -> bool {
        self.source.kind() == io::ErrorKind::AddrNotAvailable
    }

    pub fn is_denied(&self) -> bool {
        self.source.kind() == io::ErrorKind::PermissionDenied
    }
}

#[derive(Debug, thiserror::Error)]
#[error("the DNS server ended unexpectedly")]
pub struct DnsServeError;

/// The bound sockets of one DNS address.
pub struct DnsSocket {
    udp: UdpSocket,
    tcp: TcpListener,
    filter: ClientFilter,
}

/// Which clients may send queries.
#[derive(Clone, Debug)]
struct ClientFilter {
    at: IpAddr,
    clients: Arc<[IpNet]>,
}

impl ClientFilter {
    /// A loopback address serves only this host. Packets of other hosts can arrive there by route_localnet and are
    /// dropped. Other addresses serve only the listed clients. A dropped query gets no response, because its source
    /// address may be forged.
    fn allows(&self, from: IpAddr) -> bool {
        match self.at.is_loopback() {
            true => from.is_loopback(),
            false => from == self.at || self.clients.iter().any(|net| net.contains(&from)),
        }
    }

    fn limits(&self) -> ConnectionLimits {
        let per_peer = if self.at.is_loopback() { MAX_CONNECTIONS } else { MAX_CONNECTIONS_PER_CLIENT };
        ConnectionLimits { total: MAX_CONNECTIONS, per_peer }
    }

    fn udp(&self) -> DnsTransport {
        DnsTransport::Udp(if self.at.is_loopback() { wire::MAX_PAYLOAD } else { wire::MAX_UNFRAGMENTED_PAYLOAD })
    }
}

impl DnsSocket {
    /// `clients` may send queries if `at` is not a loopback address.
    pub async fn bind(at: SocketAddr, clients: &[IpNet]) -> Result<DnsSocket, DnsBindError> {
        let error = |protocol| move |source| DnsBindError { at, protocol, source };
        let udp = UdpSocket::bind(at).await.map_err(error("UDP"))?;
        let tcp = TcpListener::bind(at).await.map_err(error("TCP"))?;
        Ok(DnsSocket { udp, tcp, filter: ClientFilter { at: at.ip(), clients: clients.into() } })
    }

    /// Serves until the future is dropped.
    pub async fn serve(self, handler: QueryHandler) -> Result<(), DnsServeError> {
        let DnsSocket { udp, tcp, filter } = self;
        tokio::join!(serve_udp(udp, &handler, &filter), serve_tcp(tcp, &handler, &filter));
        Err(DnsServeError)
    }
}

async fn serve_udp(socket: UdpSocket, handler: &QueryHandler, filter: &ClientFilter) {
    let socket = Arc::new(socket);
    let mut forwarded = JoinSet::new();
    let mut errors = AcceptErrors::new("DNS by UDP");
    // One byte more than the limit, so that a query that is too long is not mistaken for a complete one.
    let mut buffer = vec![0; usize::from(wire::MAX_PAYLOAD) + 1];
    loop {
        let received = tokio::select! {
            received = socket.recv_from(&mut buffer) => received,
            Some(_) = forwarded.join_next() => continue,
        };
        match received {
            Ok((size, from)) if filter.allows(from.ip()) => match handler.handle(&buffer[..size], filter.udp()) {
                QueryAction::Ignore => {}
                // A client that does not get the response retries.
                QueryAction::Respond(bytes) => drop(socket.send_to(&bytes, from).await),
                QueryAction::Forward(query) => drop(forwarded.spawn(forward_udp(socket.clone(), *query, from))),
            },
            Ok(_) => {}
            Err(error) => errors.pause(&error).await,
        }
    }
}

async fn forward_udp(socket: Arc<UdpSocket>, query: ForwardedQuery, to: SocketAddr) {
    if let Some(bytes) = query.run().await {
        drop(socket.send_to(&bytes, to).await);
    }
}

async fn serve_tcp(listener: TcpListener, handler: &QueryHandler, filter: &ClientFilter) {
    let limiter = ConnectionLimiter::new(filter.limits());
    let mut errors = AcceptErrors::new("DNS by TCP");
    let mut connections = JoinSet::new();
    loop {
        match listener.accept().await {
            Ok((stream, from)) if filter.allows(from.ip()) => {
                if let Some(slot) = limiter.acquire(from.ip()) {
                    let number = slot.number();
                    limiter.set_abort(number, connections.spawn(serve_connection(stream, handler.clone(), slot)));
                }
            }
            Ok(_) => {}
            Err(error) => errors.pause(&error).await,
        }
        while connections.try_join_next().is_some() {}
    }
}

/// Answers one query after the other until the connection is idle or closed.
async fn serve_connection(mut stream: TcpStream, handler: QueryHandler, slot: ConnectionSlot<IpAddr>) {
    while let Ok(Ok(bytes)) = timeout(IDLE_TIMEOUT, read_message(&mut stream)).await {
        slot.set_busy(true);
        let response = match handler.handle(&bytes, DnsTransport::Tcp) {
            QueryAction::Ignore => None,
            QueryAction::Respond(response) => Some(response),
            QueryAction::Forward(query) => query.run().await,
        };
        let Some(response) = response else { return };
        if !matches!(timeout(IDLE_TIMEOUT, write_message(&mut stream, &response)).await, Ok(Ok(()))) {
            return;
        }
        slot.set_busy(false);
    }
}

async fn read_message(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let size = stream.read_u16().await?;
    if size > wire::MAX_PAYLOAD {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut bytes = vec![0; size.into()];
    stream.read_exact(&mut bytes).await?;
    Ok(bytes)
}

async fn write_message(stream: &mut TcpStream, bytes: &[u8]) -> io::Result<()> {
    let size = u16::try_from(bytes.len()).map_err(io::Error::other)?;
    stream.write_all(&[&size.to_be_bytes(), bytes].concat()).await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filter(at: &str, clients: &[&str]) -> ClientFilter {
        ClientFilter { at: at.parse().unwrap(), clients: clients.iter().map(|net| net.parse().unwrap()).collect() }
    }

    /// With route_localnet (kube-proxy sets it, and some container engines) packets of other hosts reach loopback.
    #[test]
    fn other_hosts_are_not_answered_on_loopback() {
        for (at, clients, from, allowed) in [
            ("127.0.0.55", &[][..], "127.0.0.1", true),
            ("127.0.0.55", &[], "127.0.0.55", true),
            ("127.0.0.55", &[], "192.0.2.2", false),
            ("127.0.0.55", &["192.0.2.0/24"], "192.0.2.2", false),
            ("::1", &[], "::1", true),
            ("::1", &[], "2001:db8::2", false),
            ("172.17.0.1", &["172.17.0.0/16"], "172.17.0.2", true),
            ("172.17.0.1", &["172.17.0.0/16"], "172.17.0.1", true),
            ("172.17.0.1", &["172.17.0.0/16"], "192.0.2.2", false),
        ] {
            assert_eq!(filter(at, clients).allows(from.parse().unwrap()), allowed, "{from} at {at}");
        }
    }
}
