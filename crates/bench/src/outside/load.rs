//! What the application on the host does: holds many connections at once, and dials as fast as it can.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpSocket, TcpStream},
    runtime::Runtime,
    task::JoinSet,
};

use super::{site::NODES, way::Way};
use crate::{
    cluster::server::{REQUEST, answerer},
    stats::Samples,
};

/// Dials under way.
const AT_ONCE: usize = 128;
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Debug, Clone, Copy)]
pub struct Amount {
    /// Connections at the same time.
    pub held: usize,
    /// Dials that are reset: no port waits afterwards.
    pub reset: usize,
    /// Dials that are closed in order by the application, whose port then waits a minute.
    pub closed: usize,
}

/// Of one way.
#[derive(Debug, Default, Clone)]
pub struct Figures {
    /// Least of all rounds.
    pub held: usize,
    /// Of those held, that still answered when all were there.
    pub alive: usize,
    /// Seconds until all were there or had failed.
    pub filled: Samples,
    /// Dials per second that succeeded, a sample a round.
    pub reset: Samples,
    pub closed: Samples,
    pub failed: Failures,
}

/// Number of each kind of failure, by what was tried.
pub type Failures = BTreeMap<(&'static str, String), usize>;

impl Figures {
    pub fn merge(&mut self, new: Figures) {
        let first = self.filled.len() == 0;
        self.held = if first { new.held } else { self.held.min(new.held) };
        self.alive = if first { new.alive } else { self.alive.min(new.alive) };
        self.filled.extend(&new.filled);
        self.reset.extend(&new.reset);
        self.closed.extend(&new.closed);
        new.failed.into_iter().for_each(|(what, number)| *self.failed.entry(what).or_default() += number);
    }

    pub fn failures(&self, of: &str) -> usize {
        self.failed.iter().filter(|((what, _), _)| *what == of).map(|(_, number)| number).sum()
    }
}

/// Both ends of all connections are files of this process.
pub fn allow_files(number: u64) -> Result<()> {
    let now = getrlimit(Resource::Nofile);
    if now.current.is_none_or(|limit| limit >= number) {
        return Ok(());
    }
    let maximum = now.maximum.map(|limit| limit.max(number));
    let set = setrlimit(Resource::Nofile, Rlimit { current: Some(number), maximum });
    ensure!(set.is_ok(), "{number} open files are needed, and {:?} allowed: ulimit -n {number}", now.maximum);
    Ok(())
}

pub fn measure(way: Way, amount: Amount) -> Result<Figures> {
    let runtime = runtime()?;
    let mut figures = Figures::default();
    runtime.block_on(async {
        let rate = dial_all(way, "reset", amount.reset, Close::Reset, &mut figures.failed).await;
        figures.reset.push(rate);
        hold(way, amount.held, &mut figures).await;
        let rate = dial_all(way, "closed", amount.closed, Close::InOrder, &mut figures.failed).await;
        figures.closed.push(rate);
    });
    Ok(figures)
}

/// Every address that the application will dial, once.
pub fn try_all(way: Way) -> Result<()> {
    runtime()?.block_on(async {
        for number in 0..NODES.len() {
            ask(&mut open(way, number).await?).await?;
        }
        Ok(())
    })
}

fn runtime() -> Result<Runtime> {
    Ok(tokio::runtime::Builder::new_current_thread().enable_all().build()?)
}

async fn hold(way: Way, number: usize, figures: &mut Figures) {
    let start = Instant::now();
    let opened = in_parallel(number, |index| open(way, index)).await;
    figures.filled.push(start.elapsed().as_millis() as u64);
    let mut streams = count("held", opened, &mut figures.failed);
    figures.held = streams.len();
    for stream in &mut streams {
        match ask(stream).await {
            Ok(()) => figures.alive += 1,
            Err(error) => *figures.failed.entry(("alive", error.to_string())).or_default() += 1,
        }
    }
    streams.iter().for_each(reset);
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Close {
    Reset,
    InOrder,
}

/// Dials per second; those that failed took their time as well.
async fn dial_all(way: Way, what: &'static str, number: usize, close: Close, failed: &mut Failures) -> u64 {
    let start = Instant::now();
    let one = |index| async move {
        let stream = open(way, index).await?;
        if close == Close::Reset {
            reset(&stream);
        }
        Ok(())
    };
    let done = count(what, in_parallel(number, one).await, failed).len();
    (done as f64 / start.elapsed().as_secs_f64()).round() as u64
}

async fn in_parallel<T, F>(number: usize, one: impl Fn(usize) -> F) -> Vec<Result<T>>
where
    T: Send + 'static,
    F: Future<Output = Result<T>> + Send + 'static,
{
    let (mut tasks, mut results) = (JoinSet::new(), Vec::with_capacity(number));
    for index in 0..number {
        if tasks.len() == AT_ONCE {
            results.extend(tasks.join_next().await.map(|done| done.expect("no dial panics")));
        }
        tasks.spawn(one(index));
    }
    while let Some(done) = tasks.join_next().await {
        results.push(done.expect("no dial panics"));
    }
    results
}

fn count<T>(what: &'static str, results: Vec<Result<T>>, failed: &mut Failures) -> Vec<T> {
    let mut good = Vec::with_capacity(results.len());
    for result in results {
        match result {
            Ok(value) => good.push(value),
            Err(error) => *failed.entry((what, error.to_string())).or_default() += 1,
        }
    }
    good
}

async fn open(way: Way, index: usize) -> Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    Ok(tokio::time::timeout(PATIENCE, socket.connect(way.target(index).into())).await??)
}

fn reset(stream: &TcpStream) {
    let _ = stream.set_zero_linger(); // It may have been closed from the other side.
}

async fn ask(stream: &mut TcpStream) -> Result<()> {
    stream.write_all(REQUEST).await?;
    let (mut text, mut filled) = ([0; 512], 0);
    while answerer(&text[..filled]).is_none() {
        let read = tokio::time::timeout(PATIENCE, stream.read(&mut text[filled..])).await??;
        ensure!(read > 0, "the answer was cut short");
        filled += read;
    }
    Ok(())
}
