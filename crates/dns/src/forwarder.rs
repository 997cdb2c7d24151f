//! Forwards queries for other domains to upstream name servers: by UDP, by TCP if the response is truncated, and to the
//! next server if one does not answer or fails. Responses are not cached here, because the upstream servers cache.

use hickory_proto::op::{Edns, Message, Query, ResponseCode};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

/// Time limit per server. Clients give up after five seconds, so two servers can be tried.
const SERVER_TIMEOUT: Duration = Duration::from_secs(2);
/// Limit of concurrent forwarded queries. Each holds a socket.
const MAX_IN_FLIGHT: usize = 128;
/// EDNS payload size that passes every path without fragmentation.
const PAYLOAD: u16 = 1232;
/// Receive buffer, larger than the announced payload size for servers that ignore it.
const BUFFER: usize = 4096;

pub struct Forwarder {
    servers: Vec<SocketAddr>,
    in_flight: Arc<Semaphore>,
}

/// Permission to forward one query.
pub(crate) struct ForwardPermit {
    forwarder: Arc<Forwarder>,
    _permit: OwnedSemaphorePermit,
}

impl Forwarder {
    /// `None` if there are no upstream servers.
    pub fn new(servers: Vec<SocketAddr>) -> Option<Arc<Forwarder>> {
        let in_flight = Arc::new(Semaphore::new(MAX_IN_FLIGHT));
        (!servers.is_empty()).then(|| Arc::new(Forwarder { servers, in_flight }))
    }

    /// `None` if too many forwarded queries are in flight.
    pub(crate) fn try_acquire(self: &Arc<Forwarder>) -> Option<ForwardPermit> {
        let permit = self.in_flight.clone().try_acquire_owned().ok()?;
        Some(ForwardPermit { forwarder: self.clone(), _permit: permit })
    }
}

impl ForwardPermit {
    /// The first usable response. If all servers fail, the failure of the last one; `None` if none answers.
    pub(crate) async fn forward(self, query: &Query, request: &Message) -> Option<Message> {
        let upstream_query = upstream_query(query, request);
        let mut last = None;
        for server in &self.forwarder.servers {
            match exchange(*server, &upstream_query).await {
                Ok(response) if is_usable(&response) => return Some(response),
                Ok(response) => last = Some(response),
                Err(error) => tracing::debug!(%server, %error, "upstream name server failed"),
            }
        }
        last
    }
}

fn is_usable(response: &Message) -> bool {
    !matches!(response.metadata.response_code, ResponseCode::ServFail | ResponseCode::Refused | ResponseCode::NotImp)
}

/// The query to the upstream server. It has its own random id, because other processes may know the client's id. It has
/// EDNS only if the client's query has EDNS: if the server does not support it, the client finds out and retries.
fn upstream_query(query: &Query, request: &Message) -> Message {
    let mut message = Message::query();
    message.metadata.recursion_desired = request.metadata.recursion_desired;
    message.metadata.checking_disabled = request.metadata.checking_disabled;
    message.add_query(query.clone());
    message.edns = request.edns.as_ref().map(|client_edns| {
        let mut edns = Edns::new();
        edns.set_max_payload(PAYLOAD);
        edns.set_dnssec_ok(client_edns.flags().dnssec_ok);
        edns
    });
    message
}

async fn exchange(server: SocketAddr, query: &Message) -> io::Result<Message> {
    let bytes = query.to_vec().map_err(io::Error::other)?;
    let response = with_timeout(exchange_udp(server, query, &bytes)).await?;
    if response.metadata.truncation { with_timeout(exchange_tcp(server, query, &bytes)).await } else { Ok(response) }
}

async fn with_timeout<T>(work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    timeout(SERVER_TIMEOUT, work).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

async fn exchange_udp(server: SocketAddr, query: &Message, bytes: &[u8]) -> io::Result<Message> {
    let any: IpAddr = if server.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0)).await?;
    socket.connect(server).await?;
    socket.send(bytes).await?;
    let mut buffer = vec![0; BUFFER];
    loop {
        let size = socket.recv(&mut buffer).await?;
        // A message that does not match the query may be spoofed: keep waiting for the real response.
        if let Some(response) =
            Message::from_vec(&buffer[..size]).ok().filter(|response| matches_query(response, query))
        {
            return Ok(response);
        }
    }
}

async fn exchange_tcp(server: SocketAddr, query: &Message, bytes: &[u8]) -> io::Result<Message> {
    let mut stream = TcpStream::connect(server).await?;
    let size = u16::try_from(bytes.len()).map_err(io::Error::other)?;
    stream.write_all(&[&size.to_be_bytes(), bytes].concat()).await?;
    let mut buffer = vec![0; stream.read_u16().await?.into()];
    stream.read_exact(&mut buffer).await?;
    let response = Message::from_vec(&buffer).map_err(io::Error::other)?;
    if matches_query(&response, query) {
        Ok(response)
    } else {
        Err(io::Error::other("the response does not match the query"))
    }
}

/// Whether a message is a response to this query. A server that cannot parse a query may leave it out of its response.
fn matches_query(response: &Message, query: &Message) -> bool {
    let is_response = response.metadata.message_type == hickory_proto::op::MessageType::Response;
    let same_query = response.queries == query.queries
        || response.queries.is_empty() && response.metadata.response_code == ResponseCode::FormErr;
    is_response && response.metadata.id == query.metadata.id && same_query
}
