//! Pods that are dialled: one answer to every request, which names the pod. All of them by one listener in a thread, or
//! one in a process of its own.

use std::{fs::File, net::Ipv4Addr, sync::mpsc, thread};

use anyhow::{Context, Result};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

use super::world::POD_PORT;
use crate::ground::{self, Netns};

pub const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: bench\r\n\r\n";
const END: &[u8] = b"\r\n\r\n";
/// No dial is to fail because the thread was not scheduled for a moment.
const BACKLOG: u32 = 4096;

/// Serves in this network as long as the process lives; listens when it returns.
pub fn start(pods: &Netns) -> Result<()> {
    let namespace = File::open(pods.file())?;
    let (tell, told) = mpsc::channel();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    thread::Builder::new().name("pods".into()).spawn(move || {
        runtime.block_on(async {
            let listening = ground::enter(&namespace).and_then(|()| listen(Ipv4Addr::UNSPECIFIED));
            let (listener, said) = listening.map_or_else(|error| (None, Err(error)), |it| (Some(it), Ok(())));
            let _ = tell.send(said);
            if let Some(listener) = listener {
                accept(listener).await;
            }
        });
    })?;
    told.recv().context("the thread of the pods is gone")?
}

/// One pod, as long as the process lives.
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
    socket.listen(BACKLOG).context("listen as the pods")
}

async fn accept(listener: TcpListener) {
    loop {
        // A dialler that has gone again is none of our business.
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

/// Who answered; none while the answer is not whole.
pub fn answerer(text: &[u8]) -> Option<Ipv4Addr> {
    let text = std::str::from_utf8(text).ok()?;
    let (head, body) = text.split_once("\r\n\r\n")?;
    let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: ")?.parse::<usize>().ok())?;
    (body.len() == length).then(|| body.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_names_the_pod_once_it_is_whole() {
        let text = answer("10.128.0.17");
        assert_eq!(answerer(&text), Some(Ipv4Addr::new(10, 128, 0, 17)));
        assert_eq!(answerer(&text[..text.len() - 1]), None, "10.128.0.1 did not answer");
    }
}
