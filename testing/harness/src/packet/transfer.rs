//! Transfers of many bytes, which need path MTU discovery, over TCP; and large datagrams over UDP.
//!
//! A request begins with two numbers of four bytes: how many bytes follow, and how many bytes to send back.

use std::{
    io::{ErrorKind, Read, Write},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use socket2::{Domain, Socket, Type};

use crate::netns::NetworkNamespace;

const HEADER: usize = 8;
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Transfers of the tests take milliseconds. Without path MTU discovery they never end.
const TIMEOUT: Duration = Duration::from_secs(8);

/// Serves transfers until it is dropped.
#[derive(Debug)]
pub struct TransferServer {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl TransferServer {
    pub fn start(namespace: &NetworkNamespace, addresses: &[SocketAddr]) -> Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let mut server = TransferServer { stop: stop.clone(), threads: Vec::new() };
        for &at in addresses {
            let (listener, datagrams) = namespace.run_in(|| (TcpListener::bind(at), UdpSocket::bind(at)))?;
            let (listener, datagrams) = (listener?, datagrams?);
            listener.set_nonblocking(true)?;
            datagrams.set_read_timeout(Some(POLL_INTERVAL))?;
            let (tcp, udp) = (stop.clone(), stop.clone());
            server.threads.push(thread::spawn(move || accept(&listener, &tcp)));
            server.threads.push(thread::spawn(move || reply(&datagrams, &udp)));
        }
        Ok(server)
    }
}

impl Drop for TransferServer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}

fn accept(listener: &TcpListener, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        match listener.accept() {
            Ok((stream, _)) => drop(thread::spawn(move || serve(stream))),
            Err(_) => thread::sleep(POLL_INTERVAL),
        }
    }
}

fn serve(mut stream: TcpStream) -> std::io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    let mut header = [0; HEADER];
    stream.read_exact(&mut header)?;
    let (up, down) = lengths(&header);
    stream.read_exact(&mut vec![0; up])?;
    stream.write_all(&vec![0; down])
}

fn reply(socket: &UdpSocket, stop: &AtomicBool) {
    let mut request = vec![0; 65536];
    while !stop.load(Ordering::Relaxed) {
        match socket.recv_from(&mut request) {
            Ok((count, peer)) if count >= HEADER => {
                let (up, down) = lengths(&request);
                if up + HEADER == count {
                    let _ = socket.send_to(&vec![0; down], peer);
                }
            }
            Ok(_) => {}
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(error) => eprintln!("harness: transfer server: {error}"),
        }
    }
}

fn lengths(header: &[u8]) -> (usize, usize) {
    let number = |bytes: &[u8]| u32::from_be_bytes(bytes.try_into().expect("four bytes")) as usize;
    (number(&header[..4]), number(&header[4..HEADER]))
}

/// A request with `up` further bytes for an answer of `down` bytes.
pub(super) fn request(up: usize, down: usize) -> Vec<u8> {
    let header = [up as u32, down as u32].map(u32::to_be_bytes).concat();
    [header, vec![0; up]].concat()
}

/// Sends `up` bytes over a new TCP connection and receives `down` bytes.
pub fn transfer(from: &NetworkNamespace, source: IpAddr, to: SocketAddr, up: usize, down: usize) -> Result<()> {
    let mut socket = from.run_in(|| Socket::new(Domain::for_address(to), Type::STREAM, None))??;
    socket.bind(&SocketAddr::new(source, 0).into())?;
    socket.connect_timeout(&to.into(), TIMEOUT).with_context(|| format!("cannot connect to {to}"))?;
    socket.set_read_timeout(Some(TIMEOUT))?;
    socket.set_write_timeout(Some(TIMEOUT))?;
    socket.write_all(&request(up, down)).with_context(|| format!("cannot send {up} bytes to {to}"))?;
    let mut answer = Vec::new();
    socket.read_to_end(&mut answer).with_context(|| format!("{} of {down} bytes came from {to}", answer.len()))?;
    ensure!(answer.len() == down, "{} of {down} bytes came from {to}", answer.len());
    Ok(())
}
