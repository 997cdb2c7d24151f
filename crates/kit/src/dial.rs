//! Dials one address without pause and says of each dial who answered, or why nobody did. It is a program of its own because
//! the socket hooks see a process by its cgroup.

use std::{
    io::{self, Read, Write},
    net::{SocketAddr, TcpStream, UdpSocket},
    thread::sleep,
    time::Duration,
};

use anyhow::Result;

use crate::storm::{PATIENCE, Protocol, Target};

/// What follows is why.
pub const FAILED: &str = "failed: ";

/// Two cores have other things to do.
const BREATH: Duration = Duration::from_millis(10);

/// A line a dial, until nobody reads them.
pub fn run(target: Target) -> Result<()> {
    loop {
        let line = match ask(target) {
            Ok(name) => name,
            Err(error) => format!("{FAILED}{error}"),
        };
        if writeln!(io::stdout(), "{line}").is_err() {
            return Ok(());
        }
        sleep(BREATH);
    }
}

fn ask(Target { protocol, at }: Target) -> io::Result<String> {
    match protocol {
        Protocol::Tcp => ask_tcp(at),
        Protocol::Udp => ask_udp(at),
    }
}

fn ask_tcp(at: SocketAddr) -> io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&at, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(b"GET /hostname HTTP/1.0\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    let body = text.split_once("\r\n\r\n").map(|(_, body)| body.trim()).filter(|body| !body.is_empty());
    body.map(str::to_owned).ok_or_else(|| io::Error::other(format!("answered {text:?}")))
}

fn ask_udp(at: SocketAddr) -> io::Result<String> {
    let own: SocketAddr = if at.is_ipv6() { "[::]:0" } else { "0.0.0.0:0" }.parse().expect("an address");
    let socket = UdpSocket::bind(own)?;
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.connect(at)?;
    socket.send(b"hostname")?;
    let mut buffer = [0; 512];
    let size = socket.recv(&mut buffer)?;
    Ok(String::from_utf8_lossy(&buffer[..size]).trim().to_owned())
}
