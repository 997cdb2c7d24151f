//! Names that are not ours, asked of others: one datagram each way, a connection where the answer does not fit, the next
//! server where one is silent or cannot. Nothing is remembered: whoever is asked has a cache.

use hickory_proto::op::{Edns, Message, Query, ResponseCode};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

/// Askers give up after five seconds; two servers can be tried until then.
const PATIENCE: Duration = Duration::from_secs(2);
/// Questions under way. More than this is no use of a host, and each holds a socket.
const UNDER_WAY: usize = 128;
/// What every path takes without fragments.
const PAYLOAD: u16 = 1232;
/// More than we say that we take, for servers that do not listen.
const BUFFER: usize = 4096;

pub struct Forward {
    servers: Vec<SocketAddr>,
    under_way: Arc<Semaphore>,
}

/// One of those that may be under way.
pub(crate) struct Turn {
    forward: Arc<Forward>,
    _one: OwnedSemaphorePermit,
}

impl Forward {
    /// `None`: nobody to ask.
    pub fn new(servers: Vec<SocketAddr>) -> Option<Arc<Forward>> {
        let under_way = Arc::new(Semaphore::new(UNDER_WAY));
        (!servers.is_empty()).then(|| Arc::new(Forward { servers, under_way }))
    }

    /// `None`: too many are under way.
    pub(crate) fn turn(self: &Arc<Forward>) -> Option<Turn> {
        let one = self.under_way.clone().try_acquire_owned().ok()?;
        Some(Turn { forward: self.clone(), _one: one })
    }
}

impl Turn {
    /// The first answer of worth; of servers that all cannot, what the last one said.
    pub(crate) async fn ask(self, query: &Query, request: &Message) -> Option<Message> {
        let question = question(query, request);
        let mut last = None;
        for server in &self.forward.servers {
            match exchange(*server, &question).await {
                Ok(said) if is_of_use(&said) => return Some(said),
                Ok(said) => last = Some(said),
                Err(error) => tracing::debug!("name server {server}: {error}"),
            }
        }
        last
    }
}

fn is_of_use(said: &Message) -> bool {
    !matches!(said.metadata.response_code, ResponseCode::ServFail | ResponseCode::Refused | ResponseCode::NotImp)
}

/// With an id of our own: the asker's is no secret. EDNS only if the asker speaks it: where a server does not, the asker
/// finds out and asks again.
fn question(query: &Query, request: &Message) -> Message {
    let mut question = Message::query();
    question.metadata.recursion_desired = request.metadata.recursion_desired;
    question.metadata.checking_disabled = request.metadata.checking_disabled;
    question.add_query(query.clone());
    question.edns = request.edns.as_ref().map(|asked| {
        let mut edns = Edns::new();
        edns.set_max_payload(PAYLOAD);
        edns.set_dnssec_ok(asked.flags().dnssec_ok);
        edns
    });
    question
}

async fn exchange(server: SocketAddr, question: &Message) -> io::Result<Message> {
    let bytes = question.to_vec().map_err(io::Error::other)?;
    let said = limited(by_datagram(server, question, &bytes)).await?;
    if said.metadata.truncation { limited(by_connection(server, question, &bytes)).await } else { Ok(said) }
}

async fn limited<T>(work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    timeout(PATIENCE, work).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

async fn by_datagram(server: SocketAddr, question: &Message, bytes: &[u8]) -> io::Result<Message> {
    let any: IpAddr = if server.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0)).await?;
    socket.connect(server).await?;
    socket.send(bytes).await?;
    let mut buffer = vec![0; BUFFER];
    loop {
        let size = socket.recv(&mut buffer).await?;
        // What is no answer to this question is somebody's attempt to give one: wait for the real one.
        if let Some(said) = Message::from_vec(&buffer[..size]).ok().filter(|said| answers(said, question)) {
            return Ok(said);
        }
    }
}

async fn by_connection(server: SocketAddr, question: &Message, bytes: &[u8]) -> io::Result<Message> {
    let mut stream = TcpStream::connect(server).await?;
    let size = u16::try_from(bytes.len()).map_err(io::Error::other)?;
    stream.write_all(&[&size.to_be_bytes(), bytes].concat()).await?;
    let mut buffer = vec![0; stream.read_u16().await?.into()];
    stream.read_exact(&mut buffer).await?;
    let said = Message::from_vec(&buffer).map_err(io::Error::other)?;
    if answers(&said, question) { Ok(said) } else { Err(io::Error::other("an answer to another question")) }
}

/// A server that cannot read a question may leave it out of its answer.
fn answers(said: &Message, question: &Message) -> bool {
    let is_answer = said.metadata.message_type == hickory_proto::op::MessageType::Response;
    let about = said.queries == question.queries
        || said.queries.is_empty() && said.metadata.response_code == ResponseCode::FormErr;
    is_answer && said.metadata.id == question.metadata.id && about
}
