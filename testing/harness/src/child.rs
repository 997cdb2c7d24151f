//! The child process that makes socket calls: reads one request per line from stdin, makes the call, writes the
//! response, and ends with its stdin.

use std::{
    collections::HashMap,
    io::{BufRead, Write, stdin, stdout},
    sync::Arc,
    time::Instant,
};

use crate::{
    echo_server::{EchoServer, EchoService},
    errno::Errno,
    load::RunningLoad,
    probe::RunningProbe,
    protocol::{ChildRequest, ChildResponse, ChildValue, Slot},
    socket::{self, Socket},
};

/// Does not return, because the child of a test binary must not run that binary's own `main`.
pub fn main() -> ! {
    let mut state = State::default();
    for line in stdin().lock().lines() {
        let Ok(line) = line else { break };
        let response = match serde_json::from_str(&line) {
            Ok(request) => state.handle(request),
            Err(error) => {
                eprintln!("harness child: {error} in {line}");
                std::process::exit(2);
            }
        };
        let text = serde_json::to_string(&response).expect("a response always serializes");
        if writeln!(stdout(), "{text}").and_then(|()| stdout().flush()).is_err() {
            break;
        }
    }
    std::process::exit(0)
}

#[derive(Default)]
struct State {
    sockets: HashMap<Slot, Arc<Socket>>,
    next: Slot,
    servers: HashMap<Slot, EchoServer>,
    load: Option<RunningLoad>,
    probes: HashMap<Slot, RunningProbe>,
}

impl State {
    fn handle(&mut self, request: ChildRequest) -> ChildResponse {
        let start = Instant::now();
        let result = self.run(request);
        ChildResponse { nanos: start.elapsed().as_nanos() as u64, result }
    }

    fn run(&mut self, request: ChildRequest) -> Result<ChildValue, Errno> {
        match request {
            ChildRequest::Socket { family, socket_type } => {
                self.next += 1;
                self.sockets.insert(self.next, Arc::new(socket::open(family, socket_type)?));
                Ok(ChildValue::Slot(self.next))
            }
            ChildRequest::Close { slot } => self.sockets.remove(&slot).map(|_| ChildValue::Done).ok_or(Errno::EBADF),
            ChildRequest::Serve(service) => self.serve(service),
            ChildRequest::ServerCounts { slot } => self.servers.get(&slot).map(counts).ok_or(Errno::EBADF),
            ChildRequest::StopServer { slot } => {
                self.servers.remove(&slot).map(|_| ChildValue::Done).ok_or(Errno::EBADF)
            }
            ChildRequest::StartLoad(config) => {
                self.load = Some(config.start());
                Ok(ChildValue::Done)
            }
            ChildRequest::StopLoad { now } => {
                self.load.take().map(|load| ChildValue::LoadReport(load.stop(now))).ok_or(Errno::EINVAL)
            }
            ChildRequest::StartProbe { slot, config } => {
                self.probes.insert(slot, config.start(self.socket(slot)?));
                Ok(ChildValue::Done)
            }
            ChildRequest::StopProbe { slot, ms } => {
                let probe = self.probes.remove(&slot).ok_or(Errno::EINVAL)?;
                Ok(ChildValue::ProbeReport(probe.stop(ms)))
            }
            request => self.call(request),
        }
    }

    fn serve(&mut self, service: EchoService) -> Result<ChildValue, Errno> {
        let server = service.start_here().map_err(|error| {
            eprintln!("harness child: {error:#}");
            error.downcast::<std::io::Error>().map_or(Errno::EINVAL, Errno::from)
        })?;
        self.next += 1;
        self.servers.insert(self.next, server);
        Ok(ChildValue::Slot(self.next))
    }

    /// Handles the requests that are one system call on one socket.
    fn call(&self, request: ChildRequest) -> Result<ChildValue, Errno> {
        match request {
            ChildRequest::Set { slot, option } => self.socket(slot)?.set(option).map(|()| ChildValue::Done),
            ChildRequest::Bind { slot, to } => self.socket(slot)?.bind(to).map(|()| ChildValue::Done),
            ChildRequest::Connect { slot, to, method } => {
                self.socket(slot)?.connect(to, method).map(|()| ChildValue::Done)
            }
            ChildRequest::Disconnect { slot } => self.socket(slot)?.disconnect().map(|()| ChildValue::Done),
            ChildRequest::Send { slot, to, bytes, method } => {
                self.socket(slot)?.send(to, &bytes, method).map(ChildValue::Count)
            }
            ChildRequest::SendFrom { slot, source, to, bytes } => {
                self.socket(slot)?.send_from(source, to, &bytes).map(ChildValue::Count)
            }
            ChildRequest::FastOpen { slot, to, bytes } => {
                self.socket(slot)?.fast_open(to, &bytes).map(ChildValue::Count)
            }
            ChildRequest::Receive { slot, method } => {
                let (from, bytes) = self.socket(slot)?.receive(method)?;
                Ok(ChildValue::Received { from, bytes })
            }
            ChildRequest::Poll { slot, write, ms } => {
                let (ready, error) = self.socket(slot)?.poll(write, ms)?;
                Ok(ChildValue::Ready { ready, error })
            }
            ChildRequest::Peer { slot } => self.socket(slot)?.peer().map(ChildValue::Address),
            ChildRequest::Local { slot } => self.socket(slot)?.local().map(ChildValue::Address),
            ChildRequest::Cookie { slot } => self.socket(slot)?.cookie().map(ChildValue::Cookie),
            _ => Err(Errno::ENOSYS),
        }
    }

    fn socket(&self, slot: Slot) -> Result<Arc<Socket>, Errno> {
        self.sockets.get(&slot).cloned().ok_or(Errno::EBADF)
    }
}

fn counts(server: &EchoServer) -> ChildValue {
    ChildValue::ServerCounts {
        connections: server.connections(),
        requests: server.requests(),
        datagrams: server.datagrams(),
    }
}
