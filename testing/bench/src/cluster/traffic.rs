//! Traffic of an application in the client pod: connect(), requests over new connections, requests over persistent
//! ones. Dials to a service and to a pod alternate, so that both are affected by the same noise.

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
    network::BenchNetwork,
    objects::{ENDPOINTS, pod_address, service_address},
    probe,
    server::{REQUEST, parse_answer},
};
use crate::stats::{Samples, random_rounds};

/// Number of concurrent connections.
const CONNECTIONS: usize = 8;
const TIMEOUT: Duration = Duration::from_secs(5);

/// Amount of traffic to measure.
#[derive(Debug, Clone, Copy)]
pub struct TrafficConfig {
    /// Number of timed connect() calls of each kind.
    pub connects: usize,
    /// Number of request intervals of each kind, and their duration.
    pub intervals: usize,
    pub interval: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TrafficTarget {
    Service,
    Pod,
}

impl TrafficTarget {
    pub const ALL: [TrafficTarget; 2] = [TrafficTarget::Service, TrafficTarget::Pod];

    fn address(self, services: u32) -> SocketAddrV4 {
        match self {
            // The endpoints of the first service change.
            Self::Service => service_address(fastrand::u32(1..services)),
            Self::Pod => pod_address(fastrand::u32(ENDPOINTS..services * ENDPOINTS)),
        }
    }
}

/// Results in the order of [`TrafficTarget::ALL`].
#[derive(Debug, Default, Clone)]
pub struct Traffic {
    pub connect: [Samples; 2],
    /// Requests per second, one sample per interval.
    pub fresh: [Samples; 2],
    pub kept: [Samples; 2],
    /// Number of failed dials and requests, and of all.
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

    fn record(&mut self, counts: RequestCounts) {
        self.failed += counts.failed;
        self.tried += counts.done + counts.failed;
    }
}

pub fn measure(network: &BenchNetwork, services: u32, config: TrafficConfig) -> Result<Traffic> {
    thread::scope(|scope| {
        let measuring = scope.spawn(|| {
            network.client.enter()?;
            measure_here(services, config)
        });
        measuring.join().expect("the measuring thread does not panic")
    })
}

fn measure_here(services: u32, config: TrafficConfig) -> Result<Traffic> {
    let mut traffic = Traffic::default();
    connects(&mut traffic, services, config.connects);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    for which in random_rounds(TrafficTarget::ALL.len(), config.intervals, fastrand::u64(..)) {
        let counts = runtime.block_on(fresh(TrafficTarget::ALL[which], services, config.interval));
        traffic.fresh[which].push(counts.rate());
        traffic.record(counts);
        let counts = runtime.block_on(kept(TrafficTarget::ALL[which], services, config.interval))?;
        traffic.kept[which].push(counts.rate());
        traffic.record(counts);
    }
    Ok(traffic)
}

fn connects(traffic: &mut Traffic, services: u32, number: usize) {
    for which in random_rounds(TrafficTarget::ALL.len(), number, fastrand::u64(..)) {
        traffic.tried += 1;
        match connect(TrafficTarget::ALL[which].address(services)) {
            Ok(took) => traffic.connect[which].push(took.as_nanos() as u64),
            Err(_) => traffic.failed += 1,
        }
    }
}

fn connect(address: SocketAddrV4) -> rustix::io::Result<Duration> {
    let socket = probe::socket()?;
    rustix::net::sockopt::set_socket_timeout(&socket, rustix::net::sockopt::Timeout::Send, Some(TIMEOUT))?;
    let start = Instant::now();
    rustix::net::connect(&socket, &address)?;
    Ok(start.elapsed())
}

#[derive(Debug, Default, Clone, Copy)]
struct RequestCounts {
    done: u64,
    failed: u64,
    took: Duration,
}

impl RequestCounts {
    /// Requests per second, rounded.
    fn rate(&self) -> u64 {
        (self.done as f64 / self.took.as_secs_f64()).round() as u64
    }
}

/// Every request uses a new connection.
async fn fresh(target: TrafficTarget, services: u32, interval: Duration) -> RequestCounts {
    let start = Instant::now();
    let one = || async move {
        let (mut done, mut failed) = (0, 0);
        while start.elapsed() < interval {
            match request_on_new_connection(target.address(services)).await {
                Ok(()) => done += 1,
                Err(_) => failed += 1,
            }
        }
        (done, failed)
    };
    let counts = futures::future::join_all((0..CONNECTIONS).map(|_| one())).await;
    sum(&counts, start.elapsed())
}

async fn request_on_new_connection(address: SocketAddrV4) -> Result<()> {
    tokio::time::timeout(TIMEOUT, async { send_request(&mut open(address).await?).await }).await?
}

/// All requests of a connection use the same stream, which is opened before the measurement.
async fn kept(target: TrafficTarget, services: u32, interval: Duration) -> Result<RequestCounts> {
    let mut streams = Vec::new();
    for _ in 0..CONNECTIONS {
        let address = target.address(services);
        streams.push(
            tokio::time::timeout(TIMEOUT, open(address)).await?.with_context(|| format!("cannot dial {address}"))?,
        );
    }
    let start = Instant::now();
    let one = |mut stream: TcpStream| async move {
        let mut done = 0;
        while start.elapsed() < interval {
            match tokio::time::timeout(TIMEOUT, send_request(&mut stream)).await {
                Ok(Ok(())) => done += 1,
                _ => return (done, 1),
            }
        }
        (done, 0)
    };
    let counts = futures::future::join_all(streams.into_iter().map(one)).await;
    Ok(sum(&counts, start.elapsed()))
}

fn sum(counts: &[(u64, u64)], took: Duration) -> RequestCounts {
    let total = |of: fn(&(u64, u64)) -> u64| counts.iter().map(of).sum();
    RequestCounts { done: total(|count| count.0), failed: total(|count| count.1), took }
}

async fn open(address: SocketAddrV4) -> Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.set_zero_linger()?;
    socket.set_nodelay(true)?;
    Ok(socket.connect(address.into()).await?)
}

async fn send_request(stream: &mut TcpStream) -> Result<()> {
    stream.write_all(REQUEST).await?;
    let (mut text, mut filled) = ([0; 512], 0);
    while parse_answer(&text[..filled]).is_none() {
        let read = stream.read(&mut text[filled..]).await?;
        anyhow::ensure!(read > 0, "the answer was incomplete");
        filled += read;
    }
    Ok(())
}
