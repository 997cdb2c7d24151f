//! The application on the host, one process of it: does what it is told by lines on its standard input, and answers each
//! with a line. The hooks see it by its cgroup, which it has from whoever started it.

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

use super::{crew::CREW, site::NODES, way::Way};
use crate::cluster::server::{REQUEST, answerer};

/// Dials under way in the whole application.
const AT_ONCE: usize = 128;
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Order {
    /// So many dials that are reset: no port waits afterwards.
    Reset(usize),
    /// So many dials that are closed in order, whose port then waits a minute.
    Close(usize),
    /// So many connections that stay.
    Hold(usize),
    /// Asks each that stayed.
    Ask,
    /// Resets each that stayed.
    LetGo,
}

/// Why, and how often.
pub type Reasons = BTreeMap<String, usize>;

#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Done {
    pub good: usize,
    pub failed: Reasons,
}

impl Done {
    pub fn merge(&mut self, other: Done) {
        self.good += other.good;
        other.failed.into_iter().for_each(|(why, number)| *self.failed.entry(why).or_default() += number);
    }

    /// What succeeded, and in `self` how often what did not.
    fn sort<T>(&mut self, results: Vec<Result<T>>) -> Vec<T> {
        let mut good = Vec::with_capacity(results.len());
        for result in results {
            match result {
                Ok(value) => good.push(value),
                Err(error) => *self.failed.entry(error.to_string()).or_default() += 1,
            }
        }
        self.good += good.len();
        good
    }
}

#[derive(Debug, Clone, Copy, clap::Args)]
pub struct Role {
    #[arg(value_enum)]
    way: Way,
    /// Which of the application's processes this is
    member: usize,
}

/// Until whoever gives the orders is gone.
pub fn serve(role: Role) -> Result<()> {
    let (runtime, mut held) = (runtime()?, Vec::new());
    for line in io::stdin().lock().lines() {
        let order = serde_json::from_str(&line?).context("an order")?;
        let done = runtime.block_on(role.obey(order, &mut held));
        let mut out = io::stdout();
        writeln!(out, "{}", serde_json::to_string(&done)?)?;
        out.flush()?;
    }
    Ok(())
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

impl Role {
    async fn obey(self, order: Order, held: &mut Vec<TcpStream>) -> Done {
        let mut done = Done::default();
        match order {
            Order::Reset(number) => {
                let one = async |way, index| open(way, index).await.map(|stream| reset(&stream));
                done.sort(self.in_parallel(number, one).await);
            }
            Order::Close(number) => {
                done.sort(self.in_parallel(number, async |way, index| open(way, index).await.map(drop)).await);
            }
            Order::Hold(number) => held.extend(done.sort(self.in_parallel(number, open).await)),
            Order::Ask => {
                for stream in held {
                    done.sort(vec![ask(stream).await]);
                }
            }
            Order::LetGo => {
                done.good = held.len();
                held.drain(..).for_each(|stream| reset(&stream));
            }
        }
        done
    }

    async fn in_parallel<T, F>(self, number: usize, one: impl Fn(Way, usize) -> F) -> Vec<Result<T>>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let (mut tasks, mut results) = (JoinSet::new(), Vec::with_capacity(number));
        for index in 0..number {
            if tasks.len() == AT_ONCE / CREW {
                results.extend(tasks.join_next().await.map(|done| done.expect("no dial panics")));
            }
            tasks.spawn(one(self.way, self.member + index));
        }
        while let Some(done) = tasks.join_next().await {
            results.push(done.expect("no dial panics"));
        }
        results
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_failed_is_counted_by_reason_over_all_processes() {
        let mut all = Done::default();
        for _ in 0..2 {
            let mut one = Done::default();
            assert_eq!(one.sort(vec![Ok(1), Err(anyhow::anyhow!("no port")), Ok(2)]), [1, 2]);
            all.merge(one);
        }
        assert_eq!(all, Done { good: 4, failed: [("no port".to_owned(), 2)].into() });
    }
}
