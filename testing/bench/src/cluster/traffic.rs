//! What an application in the pod gets: connect(), requests over fresh connections, requests over kept ones. Dials of a
//! service and of a pod itself take turns, so that both meet the same noise.

use std::{
    net::SocketAddrV4,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpSocket, TcpStream},
};

use super::{
    probe,
    server::{REQUEST, answerer},
    site::Site,
    world::{ENDPOINTS, pod_address, service_address},
};
use crate::stats::{Samples, turns};

/// Connections at once.
const CONNECTIONS: usize = 8;
const PATIENCE: Duration = Duration::from_secs(5);

/// How much of it.
#[derive(Debug, Clone, Copy)]
pub struct Amount {
    /// Timed connect()s, of each kind.
    pub connects: usize,
    /// Stretches of requests, of each kind.
    pub stretches: usize,
    pub stretch: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    Service,
    Pod,
}

impl Target {
    pub const ALL: [Target; 2] = [Target::Service, Target::Pod];

    fn address(self, services: u32) -> SocketAddrV4 {
        match self {
            // The first one's endpoints come and go.
            Self::Service => service_address(fastrand::u32(1..services)),
            Self::Pod => pod_address(fastrand::u32(ENDPOINTS..services * ENDPOINTS)),
        }
    }
}

/// Each for [`Target::ALL`] in that order.
#[derive(Debug, Default, Clone)]
pub struct Traffic {
    pub connect: [Samples; 2],
    /// Requests per second, one sample a stretch.
    pub fresh: [Samples; 2],
    pub kept: [Samples; 2],
    /// Dials and requests that failed, and how many there were.
    pub failed: u64,
    pub tried: u64,
}

impl Traffic {
    pub fn merge(&mut self, other: &Traffic) {
        for (own, new) in
            [(&mut self.connect, &other.connect), (&mut self.fresh, &other.fresh), (&mut self.kept, &other.kept)]
        {
            own.iter_mut().zip(new).for_each(|(own, new)| own.extend(new));
        }
        self.failed += other.failed;
        self.tried += other.tried;
    }

    fn note(&mut self, tally: Tally) {
        self.failed += tally.failed;
        self.tried += tally.done + tally.failed;
    }
}

pub fn measure(site: &Site, services: u32, amount: Amount) -> Result<Traffic> {
    thread::scope(|scope| {
        let measuring = scope.spawn(|| {
            site.client.enter()?;
            measure_here(services, amount)
        });
        measuring.join().expect("the pod's client does not panic")
    })
}

fn measure_here(services: u32, amount: Amount) -> Result<Traffic> {
    let mut traffic = Traffic::default();
    connects(&mut traffic, services, amount.connects);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    for which in turns(Target::ALL.len(), amount.stretches, fastrand::u64(..)) {
        let tally = runtime.block_on(fresh(Target::ALL[which], services, amount.stretch));
        traffic.fresh[which].push(tally.rate());
        traffic.note(tally);
        let tally = runtime.block_on(kept(Target::ALL[which], services, amount.stretch))?;
        traffic.kept[which].push(tally.rate());
        traffic.note(tally);
    }
    Ok(traffic)
}

fn connects(traffic: &mut Traffic, services: u32, number: usize) {
    for which in turns(Target::ALL.len(), number, fastrand::u64(..)) {
        traffic.tried += 1;
        match connect(Target::ALL[which].address(services)) {
            Ok(took) => traffic.connect[which].push(took.as_nanos() as u64),
            Err(_) => traffic.failed += 1,
        }
    }
}

fn connect(address: SocketAddrV4) -> rustix::io::Result<Duration> {
    let socket = probe::socket()?;
    rustix::net::sockopt::set_socket_timeout(&socket, rustix::net::sockopt::Timeout::Send, Some(PATIENCE))?;
    let start = Instant::now();
    rustix::net::connect(&socket, &address)?;
    Ok(start.elapsed())
}

#[derive(Debug, Default, Clone, Copy)]
struct Tally {
    done: u64,
    failed: u64,
    took: Duration,
}

impl Tally {
    /// Whole requests per second.
    fn rate(&self) -> u64 {
        (self.done as f64 / self.took.as_secs_f64()).round() as u64
    }
}

/// Every request dials anew.
async fn fresh(target: Target, services: u32, stretch: Duration) -> Tally {
    let start = Instant::now();
    let one = || async move {
        let (mut done, mut failed) = (0, 0);
        while start.elapsed() < stretch {
            match ask_anew(target.address(services)).await {
                Ok(()) => done += 1,
                Err(_) => failed += 1,
            }
        }
        (done, failed)
    };
    let counts = futures::future::join_all((0..CONNECTIONS).map(|_| one())).await;
    sum(&counts, start.elapsed())
}

async fn ask_anew(address: SocketAddrV4) -> Result<()> {
    tokio::time::timeout(PATIENCE, async { ask(&mut open(address).await?).await }).await?
}

/// Dialled before the clock starts; each connection serves to the end.
async fn kept(target: Target, services: u32, stretch: Duration) -> Result<Tally> {
    let mut streams = Vec::new();
    for _ in 0..CONNECTIONS {
        let address = target.address(services);
        streams.push(tokio::time::timeout(PATIENCE, open(address)).await?.with_context(|| format!("dial {address}"))?);
    }
    let start = Instant::now();
    let one = |mut stream: TcpStream| async move {
        let mut done = 0;
        while start.elapsed() < stretch {
            match tokio::time::timeout(PATIENCE, ask(&mut stream)).await {
                Ok(Ok(())) => done += 1,
                _ => return (done, 1),
            }
        }
        (done, 0)
    };
    let counts = futures::future::join_all(streams.into_iter().map(one)).await;
    Ok(sum(&counts, start.elapsed()))
}

fn sum(counts: &[(u64, u64)], took: Duration) -> Tally {
    let total = |of: fn(&(u64, u64)) -> u64| counts.iter().map(of).sum();
    Tally { done: total(|count| count.0), failed: total(|count| count.1), took }
}

async fn open(address: SocketAddrV4) -> Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.set_zero_linger()?;
    socket.set_nodelay(true)?;
    Ok(socket.connect(address.into()).await?)
}

async fn ask(stream: &mut TcpStream) -> Result<()> {
    stream.write_all(REQUEST).await?;
    let (mut text, mut filled) = ([0; 512], 0);
    while answerer(&text[..filled]).is_none() {
        let read = stream.read(&mut text[filled..]).await?;
        anyhow::ensure!(read > 0, "the answer was cut short");
        filled += read;
    }
    Ok(())
}
