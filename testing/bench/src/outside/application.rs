//! A process of the application on the host. It reads one request per line from stdin and writes one response per line.
//! It inherits its cgroup from its parent.

use std::{
    collections::BTreeMap,
    io::{self, BufRead, Write},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpSocket, TcpStream},
    runtime::Runtime,
    task::JoinSet,
};

use super::{network::NODES, path::DialPath, processes::PROCESSES};
use crate::cluster::server::{REQUEST, parse_answer};

/// Number of concurrent dials of the whole application.
const CONCURRENCY: usize = 128;
const TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ApplicationRequest {
    /// Dials whose connections are reset, so that no port is in TIME_WAIT.
    Reset(usize),
    /// Dials whose connections are closed normally, so that their ports are in TIME_WAIT for a minute.
    Close(usize),
    /// Connections that stay open.
    Hold(usize),
    /// Sends a request over each open connection.
    Check,
    /// Resets all open connections.
    Release,
}

/// Number of failures by reason.
pub type FailureCounts = BTreeMap<String, usize>;

#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApplicationResponse {
    pub succeeded: usize,
    pub failed: FailureCounts,
}

impl ApplicationResponse {
    pub fn merge(&mut self, other: ApplicationResponse) {
        self.succeeded += other.succeeded;
        other.failed.into_iter().for_each(|(reason, number)| *self.failed.entry(reason).or_default() += number);
    }

    /// Counts the results and returns the successful ones.
    fn count<T>(&mut self, results: Vec<Result<T>>) -> Vec<T> {
        let mut succeeded = Vec::with_capacity(results.len());
        for result in results {
            match result {
                Ok(value) => succeeded.push(value),
                Err(error) => *self.failed.entry(error.to_string()).or_default() += 1,
            }
        }
        self.succeeded += succeeded.len();
        succeeded
    }
}

#[derive(Debug, Clone, Copy, clap::Args)]
pub struct ApplicationArgs {
    #[arg(value_enum)]
    path: DialPath,
    /// Number of this process
    process: usize,
}

/// Serves requests until stdin ends.
pub fn serve(arguments: ApplicationArgs) -> Result<()> {
    let (runtime, mut open_connections) = (runtime()?, Vec::new());
    for line in io::stdin().lock().lines() {
        let request = serde_json::from_str(&line?).context("cannot parse a request")?;
        let done = runtime.block_on(arguments.handle(request, &mut open_connections));
        let mut out = io::stdout();
        writeln!(out, "{}", serde_json::to_string(&done)?)?;
        out.flush()?;
    }
    Ok(())
}

/// Dials every address of the path once.
pub fn try_all(path: DialPath) -> Result<()> {
    runtime()?.block_on(async {
        for number in 0..NODES.len() {
            send_request(&mut open(path, number).await?).await?;
        }
        Ok(())
    })
}

fn runtime() -> Result<Runtime> {
    Ok(tokio::runtime::Builder::new_current_thread().enable_all().build()?)
}

impl ApplicationArgs {
    async fn handle(self, request: ApplicationRequest, open_connections: &mut Vec<TcpStream>) -> ApplicationResponse {
        let mut done = ApplicationResponse::default();
        match request {
            ApplicationRequest::Reset(number) => {
                let one = async |path, index| open(path, index).await.map(|stream| reset(&stream));
                done.count(self.in_parallel(number, one).await);
            }
            ApplicationRequest::Close(number) => {
                done.count(self.in_parallel(number, async |path, index| open(path, index).await.map(drop)).await);
            }
            ApplicationRequest::Hold(number) => {
                open_connections.extend(done.count(self.in_parallel(number, open).await))
            }
            ApplicationRequest::Check => {
                for stream in open_connections {
                    done.count(vec![send_request(stream).await]);
                }
            }
            ApplicationRequest::Release => {
                done.succeeded = open_connections.len();
                open_connections.drain(..).for_each(|stream| reset(&stream));
            }
        }
        done
    }

    async fn in_parallel<T, F>(self, number: usize, one: impl Fn(DialPath, usize) -> F) -> Vec<Result<T>>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let (mut tasks, mut results) = (JoinSet::new(), Vec::with_capacity(number));
        for index in 0..number {
            if tasks.len() == CONCURRENCY / PROCESSES {
                results.extend(tasks.join_next().await.map(|done| done.expect("no dial panics")));
            }
            tasks.spawn(one(self.path, self.process + index));
        }
        while let Some(done) = tasks.join_next().await {
            results.push(done.expect("no dial panics"));
        }
        results
    }
}

async fn open(path: DialPath, index: usize) -> Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    Ok(tokio::time::timeout(TIMEOUT, socket.connect(path.target(index).into())).await??)
}

fn reset(stream: &TcpStream) {
    let _ = stream.set_zero_linger(); // The peer may have closed the connection.
}

async fn send_request(stream: &mut TcpStream) -> Result<()> {
    stream.write_all(REQUEST).await?;
    let (mut text, mut filled) = ([0; 512], 0);
    while parse_answer(&text[..filled]).is_none() {
        let read = tokio::time::timeout(TIMEOUT, stream.read(&mut text[filled..])).await??;
        ensure!(read > 0, "the answer was incomplete");
        filled += read;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_counted_by_reason() {
        let mut all = ApplicationResponse::default();
        for _ in 0..2 {
            let mut one = ApplicationResponse::default();
            assert_eq!(one.count(vec![Ok(1), Err(anyhow::anyhow!("no port")), Ok(2)]), [1, 2]);
            all.merge(one);
        }
        assert_eq!(all, ApplicationResponse { succeeded: 4, failed: [("no port".to_owned(), 2)].into() });
    }
}
