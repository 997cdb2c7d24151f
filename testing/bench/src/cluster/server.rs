//! Server pods, which answer every request with their address. One listener in a thread serves all pods, or a process
//! serves one pod.

use std::{fs::File, net::Ipv4Addr, sync::mpsc, thread};

use anyhow::{Context, Result};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

use super::objects::POD_PORT;
use crate::isolation::{self, BenchNamespace};

pub const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: bench\r\n\r\n";
const END: &[u8] = b"\r\n\r\n";
/// Large enough that no dial fails while the thread is not scheduled.
const BACKLOG: u32 = 4096;

/// Serves in this network namespace until the process ends. The server listens when this returns.
pub fn start(pods: &BenchNamespace) -> Result<()> {
    let namespace = File::open(pods.file())?;
    let (notify, result) = mpsc::channel();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    thread::Builder::new().name("pods".into()).spawn(move || {
        runtime.block_on(async {
            let listening = isolation::enter(&namespace).and_then(|()| listen(Ipv4Addr::UNSPECIFIED));
            let (listener, status) =
                listening.map_or_else(|error| (None, Err(error)), |listener| (Some(listener), Ok(())));
            let _ = notify.send(status);
            if let Some(listener) = listener {
                accept(listener).await;
            }
        });
    })?;
    result.recv().context("the server thread has ended")?
}

/// Serves one pod until the process ends.
pub fn serve(pod: Ipv4Addr) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        accept(listen(pod)?).await;
        Ok(())
    })
}

fn listen(address: Ipv4Addr) -> Result<TcpListener> {
    let socket = tokio::net::TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.bind((address, POD_PORT).into())?;
    socket.listen(BACKLOG).context("cannot listen as the pods")
}

async fn accept(listener: TcpListener) {
    loop {
        // A client that has already closed its connection is ignored.
        if let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(answer_all(stream));
        }
    }
}

async fn answer_all(mut stream: TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let answer = answer(&stream.local_addr()?.ip().to_string());
    let (mut text, mut filled) = ([0; 512], 0);
    while filled < text.len() {
        let read = stream.read(&mut text[filled..]).await?;
        filled += read;
        if read == 0 {
            return Ok(());
        }
        if text[..filled].ends_with(END) {
            stream.write_all(&answer).await?;
            filled = 0;
        }
    }
    Ok(())
}

fn answer(pod: &str) -> Vec<u8> {
    format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{pod}", pod.len()).into_bytes()
}

/// Address of the pod that answered; None while the answer is incomplete.
pub fn parse_answer(text: &[u8]) -> Option<Ipv4Addr> {
    let text = std::str::from_utf8(text).ok()?;
    let (head, body) = text.split_once("\r\n\r\n")?;
    let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: ")?.parse::<usize>().ok())?;
    (body.len() == length).then(|| body.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_parsed_only_when_complete() {
        let text = answer("10.128.0.17");
        assert_eq!(parse_answer(&text), Some(Ipv4Addr::new(10, 128, 0, 17)));
        assert_eq!(parse_answer(&text[..text.len() - 1]), None, "10.128.0.1 did not answer");
    }
}
