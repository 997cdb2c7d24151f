//! The dialling child: reads ops, makes the calls, tells what came of them, until its stdin ends.

use std::{
    collections::HashMap,
    io::{BufRead, Write, stdin, stdout},
    sync::Arc,
    time::Instant,
};

use crate::{
    errno::Errno,
    op::{Op, Reply, Slot, Value},
    serve::{Server, Service},
    socket::{self, Socket},
    storm::Storming,
    watch::Watching,
};

/// Never returns: the child of a test binary must not go on to that binary's `main`.
pub fn main() -> ! {
    let mut state = State::default();
    for line in stdin().lock().lines() {
        let Ok(line) = line else { break };
        let reply = match serde_json::from_str(&line) {
            Ok(op) => state.answer(op),
            Err(error) => {
                eprintln!("harness-dial: {error} in {line}");
                std::process::exit(2);
            }
        };
        let text = serde_json::to_string(&reply).expect("a reply is plain data");
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
    servers: HashMap<Slot, Server>,
    storm: Option<Storming>,
    watches: HashMap<Slot, Watching>,
}

impl State {
    fn answer(&mut self, op: Op) -> Reply {
        let start = Instant::now();
        let result = self.run(op);
        Reply { nanos: start.elapsed().as_nanos() as u64, result }
    }

    fn run(&mut self, op: Op) -> Result<Value, Errno> {
        match op {
            Op::Socket { family, sort } => {
                self.next += 1;
                self.sockets.insert(self.next, Arc::new(socket::open(family, sort)?));
                Ok(Value::Slot(self.next))
            }
            Op::Close { slot } => self.sockets.remove(&slot).map(|_| Value::Done).ok_or(Errno::EBADF),
            Op::Serve(service) => self.serve(service),
            Op::Hits { slot } => self.servers.get(&slot).map(hits).ok_or(Errno::EBADF),
            Op::ServeEnd { slot } => self.servers.remove(&slot).map(|_| Value::Done).ok_or(Errno::EBADF),
            Op::Storm(storm) => {
                self.storm = Some(storm.start());
                Ok(Value::Done)
            }
            Op::StormEnd { now } => self.storm.take().map(|storm| Value::Tally(storm.end(now))).ok_or(Errno::EINVAL),
            Op::Watch { slot, watch } => {
                self.watches.insert(slot, watch.start(self.socket(slot)?));
                Ok(Value::Done)
            }
            Op::WatchEnd { slot, ms } => {
                let watch = self.watches.remove(&slot).ok_or(Errno::EINVAL)?;
                Ok(Value::Watched(watch.end(ms)))
            }
            op => self.call(op),
        }
    }

    fn serve(&mut self, service: Service) -> Result<Value, Errno> {
        let server = service.start_here().map_err(|error| {
            eprintln!("harness-dial: {error:#}");
            error.downcast::<std::io::Error>().map_or(Errno::EINVAL, Errno::from)
        })?;
        self.next += 1;
        self.servers.insert(self.next, server);
        Ok(Value::Slot(self.next))
    }

    /// The ops that are one system call on one socket.
    fn call(&self, op: Op) -> Result<Value, Errno> {
        match op {
            Op::Set { slot, setting } => self.socket(slot)?.set(setting).map(|()| Value::Done),
            Op::Bind { slot, to } => self.socket(slot)?.bind(to).map(|()| Value::Done),
            Op::Connect { slot, to, by } => self.socket(slot)?.connect(to, by).map(|()| Value::Done),
            Op::Disconnect { slot } => self.socket(slot)?.disconnect().map(|()| Value::Done),
            Op::Send { slot, to, bytes, by } => self.socket(slot)?.send(to, &bytes, by).map(Value::Count),
            Op::FastOpen { slot, to, bytes } => self.socket(slot)?.fast_open(to, &bytes).map(Value::Count),
            Op::Receive { slot, by } => {
                let (from, bytes) = self.socket(slot)?.receive(by)?;
                Ok(Value::Received { from, bytes })
            }
            Op::Poll { slot, write, ms } => {
                let (ready, error) = self.socket(slot)?.poll(write, ms)?;
                Ok(Value::Ready { ready, error })
            }
            Op::Peer { slot } => self.socket(slot)?.peer().map(Value::Address),
            Op::Local { slot } => self.socket(slot)?.local().map(Value::Address),
            Op::Cookie { slot } => self.socket(slot)?.cookie().map(Value::Cookie),
            _ => Err(Errno::ENOSYS),
        }
    }

    fn socket(&self, slot: Slot) -> Result<Arc<Socket>, Errno> {
        self.sockets.get(&slot).cloned().ok_or(Errno::EBADF)
    }
}

fn hits(server: &Server) -> Value {
    Value::Hits { connections: server.connections(), requests: server.requests(), datagrams: server.datagrams() }
}
