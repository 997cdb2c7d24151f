//! Where the desk stands: one address, datagrams and connections.
//!
//! hickory-server has such loops too, but takes as many connections as come (each is one of the agent's descriptors),
//! starts a task for each datagram, and cuts EDNS off an answer that does not fit. Here a storm waits in the socket's
//! buffer, own names are answered in place, and only what others are asked for is a task.

use crate::desk::{Desk, Errand, Step};
use crate::wire::{self, By};
use ipnet::IpNet;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

/// A connection that asks nothing, or does not take what it asked for, for this long is closed.
const IDLE: Duration = Duration::from_secs(5);
/// Connections at once; more wait to be accepted.
const CONNECTIONS: usize = 64;
/// After an error of the socket itself (no descriptors left, say): it would only come again at once.
const REST: Duration = Duration::from_millis(100);

#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {at} ({protocol}): {source}")]
pub struct BindError {
    at: SocketAddr,
    protocol: &'static str,
    source: io::Error,
}

impl BindError {
    pub fn is_taken(&self) -> bool {
        self.source.kind() == io::ErrorKind::AddrInUse
    }

    /// The interface is not up yet, perhaps.
    pub fn is_absent(&self) -> bool {
        self.source.kind() == io::ErrorKind::AddrNotAvailable
    }

    pub fn is_denied(&self) -> bool {
        self.source.kind() == io::ErrorKind::PermissionDenied
    }
}

#[derive(Debug, thiserror::Error)]
#[error("the name server ended")]
pub struct ServeError;

/// The address is ours.
pub struct Bound {
    udp: UdpSocket,
    tcp: TcpListener,
    door: Door,
}

/// Who may ask.
#[derive(Clone, Debug)]
struct Door {
    at: IpAddr,
    clients: Arc<[IpNet]>,
}

impl Door {
    /// Loopback is for this host alone, and whoever else comes there (by route_localnet) is a stranger, as is everybody
    /// elsewhere who is not listed. Strangers get no answer at all: it might go to somebody else.
    fn is_open(&self, from: IpAddr) -> bool {
        match self.at.is_loopback() {
            true => from.is_loopback(),
            false => from == self.at || self.clients.iter().any(|net| net.contains(&from)),
        }
    }

    fn by_datagram(&self) -> By {
        By::Datagram(if self.at.is_loopback() { wire::LARGEST } else { wire::PLAIN })
    }
}

impl Bound {
    /// `clients`: who may ask, where that is not loopback.
    pub async fn to(at: SocketAddr, clients: &[IpNet]) -> Result<Bound, BindError> {
        let error = |protocol| move |source| BindError { at, protocol, source };
        let udp = UdpSocket::bind(at).await.map_err(error("UDP"))?;
        let tcp = TcpListener::bind(at).await.map_err(error("TCP"))?;
        Ok(Bound { udp, tcp, door: Door { at: at.ip(), clients: clients.into() } })
    }

    /// Until the runtime ends.
    pub async fn serve(self, desk: Desk) -> Result<(), ServeError> {
        let Bound { udp, tcp, door } = self;
        tokio::join!(datagrams(udp, &desk, &door), connections(tcp, &desk, &door));
        Err(ServeError)
    }
}

async fn datagrams(socket: UdpSocket, desk: &Desk, door: &Door) {
    let socket = Arc::new(socket);
    let mut errands = JoinSet::new();
    // One more, so that one that is too long does not look whole.
    let mut buffer = vec![0; usize::from(wire::LARGEST) + 1];
    loop {
        let heard = tokio::select! {
            heard = socket.recv_from(&mut buffer) => heard,
            Some(_) = errands.join_next() => continue,
        };
        match heard {
            Ok((size, from)) if door.is_open(from.ip()) => match desk.take(&buffer[..size], door.by_datagram()) {
                Step::Nothing => {}
                // Whoever does not take it asks again.
                Step::Say(bytes) => drop(socket.send_to(&bytes, from).await),
                Step::Errand(errand) => drop(errands.spawn(answer(socket.clone(), *errand, from))),
            },
            Ok(_) => {}
            Err(error) => rest(&error).await,
        }
    }
}

async fn answer(socket: Arc<UdpSocket>, errand: Errand, to: SocketAddr) {
    if let Some(bytes) = errand.run().await {
        drop(socket.send_to(&bytes, to).await);
    }
}

async fn connections(listener: TcpListener, desk: &Desk, door: &Door) {
    let free = Arc::new(Semaphore::new(CONNECTIONS));
    let mut talks = JoinSet::new();
    while let Ok(one) = free.clone().acquire_owned().await {
        match listener.accept().await {
            Ok((stream, from)) if door.is_open(from.ip()) => drop(talks.spawn(talk(stream, desk.clone(), one))),
            Ok(_) => {}
            Err(error) => rest(&error).await,
        }
        while talks.try_join_next().is_some() {}
    }
}

async fn rest(error: &io::Error) {
    tracing::warn!("names: {error}");
    sleep(REST).await;
}

/// One question after the other, until there is none for a while.
async fn talk(mut stream: TcpStream, desk: Desk, _one: OwnedSemaphorePermit) {
    while let Ok(Ok(bytes)) = timeout(IDLE, hear(&mut stream)).await {
        let said = match desk.take(&bytes, By::Connection) {
            Step::Nothing => None,
            Step::Say(said) => Some(said),
            Step::Errand(errand) => errand.run().await,
        };
        let Some(said) = said else { return };
        if !matches!(timeout(IDLE, say(&mut stream, &said)).await, Ok(Ok(()))) {
            return;
        }
    }
}

async fn hear(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let size = stream.read_u16().await?;
    if size > wire::LARGEST {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut bytes = vec![0; size.into()];
    stream.read_exact(&mut bytes).await?;
    Ok(bytes)
}

async fn say(stream: &mut TcpStream, said: &[u8]) -> io::Result<()> {
    let size = u16::try_from(said.len()).map_err(io::Error::other)?;
    stream.write_all(&[&size.to_be_bytes(), said].concat()).await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn door(at: &str, clients: &[&str]) -> Door {
        Door { at: at.parse().unwrap(), clients: clients.iter().map(|net| net.parse().unwrap()).collect() }
    }

    /// With route_localnet (kube-proxy sets it, and some container engines) packets of neighbours come to loopback.
    #[test]
    fn neighbours_do_not_come_in_at_loopback() {
        for (at, clients, from, open) in [
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
            assert_eq!(door(at, clients).is_open(from.parse().unwrap()), open, "{from} at {at}");
        }
    }
}
