//! Dials, each on a new socket, and who answered: agnhost's `netexec`, which tells its own name and whom it sees. Whom it
//! sees tells the way that a dial took: a node that hops shows itself.
//!
//! `kit storm` runs it in the place that dials, because the socket hooks see a process by its cgroup; [`Storm`] is one that
//! goes on until it is told to stop. `kit dial` is the same for one target, and tells of each dial as it ends.

use std::{
    collections::BTreeMap,
    fmt,
    io::{self, ErrorKind, Read, Write},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket},
    process::{Child, Command, Stdio},
    str::FromStr,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, Result, anyhow, ensure};
use serde::{Deserialize, Serialize};

use crate::part;

/// An answer that takes longer is a failed dial.
pub const PATIENCE: Duration = Duration::from_secs(3);
/// Between two dials of a storm: the machine's two processors are also the cluster's.
const PAUSE: Duration = Duration::from_millis(5);
const ASK: &[u8] = b"GET /hostname HTTP/1.1\r\nHost: kit\r\n\r\n\
                     GET /clientip HTTP/1.1\r\nHost: kit\r\nConnection: close\r\n\r\n";

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Protocol {
    Tcp,
    Udp,
}

/// `tcp/10.97.0.10:80`, `udp/[fd00::1]:80`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Target {
    pub protocol: Protocol,
    pub at: SocketAddr,
}

/// A dial that nobody answered. Times are in seconds since 1970.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Failure {
    pub target: String,
    pub from: f64,
    pub until: f64,
    pub error: String,
}

/// Who answered, and whom it sees.
struct Answer {
    name: String,
    sees: IpAddr,
}

/// By target: who answered how often, as `web-1 sees 172.31.0.101`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Tally {
    pub dials: u64,
    pub slowest_ms: u64,
    pub answers: BTreeMap<String, BTreeMap<String, u64>>,
    pub failures: Vec<Failure>,
}

impl Target {
    pub fn tcp(at: SocketAddr) -> Target {
        Target { protocol: Protocol::Tcp, at }
    }

    /// The same address by both protocols.
    pub fn both(at: SocketAddr) -> [Target; 2] {
        [Protocol::Tcp, Protocol::Udp].map(|protocol| Target { protocol, at })
    }

    fn dial(&self) -> io::Result<Answer> {
        let (name, seen) = match self.protocol {
            Protocol::Tcp => self.ask_stream()?,
            Protocol::Udp => self.ask_datagram()?,
        };
        let seen: SocketAddr = seen.trim().parse().map_err(|_| strange(&seen))?;
        Ok(Answer { name: name.trim().to_owned(), sees: seen.ip().to_canonical() })
    }

    fn ask_stream(&self) -> io::Result<(String, String)> {
        let mut stream = TcpStream::connect_timeout(&self.at, PATIENCE)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(ASK)?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        let (name, rest) = body(&text).ok_or_else(|| strange(&text))?;
        let (seen, _) = body(rest).ok_or_else(|| strange(rest))?;
        Ok((name.to_owned(), seen.to_owned()))
    }

    fn ask_datagram(&self) -> io::Result<(String, String)> {
        let any: IpAddr = if self.at.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        let socket = UdpSocket::bind((any, 0))?;
        socket.set_read_timeout(Some(PATIENCE))?;
        socket.connect(self.at)?;
        let ask = |word: &[u8]| {
            let mut buffer = [0; 512];
            socket.send(word)?;
            let length = socket.recv(&mut buffer)?;
            Ok::<_, io::Error>(String::from_utf8_lossy(&buffer[..length]).into_owned())
        };
        Ok((ask(b"hostname\n")?, ask(b"clientip\n")?))
    }
}

/// The body of the first answer, and what follows it.
fn body(text: &str) -> Option<(&str, &str)> {
    let (head, rest) = text.split_once("\r\n\r\n")?;
    let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: "))?.parse().ok()?;
    rest.split_at_checked(length)
}

fn strange(text: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, format!("not what netexec says: {text:?}"))
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let protocol = if self.protocol == Protocol::Tcp { "tcp" } else { "udp" };
        write!(f, "{protocol}/{}", self.at)
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{} sees {}", self.name, self.sees)
    }
}

impl FromStr for Target {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Target> {
        let wrong = || anyhow!("{text:?} is nothing to dial: say tcp/10.97.0.10:80 or udp/[fd00::1]:53");
        let (protocol, at) = text.split_once('/').ok_or_else(wrong)?;
        let protocol = match protocol {
            "tcp" => Protocol::Tcp,
            "udp" => Protocol::Udp,
            _ => return Err(wrong()),
        };
        Ok(Target { protocol, at: at.parse().map_err(|_| wrong())? })
    }
}

impl Tally {
    fn add(&mut self, target: &Target) {
        let from = SystemTime::now();
        let outcome = target.dial();
        let until = SystemTime::now();
        self.dials += 1;
        let took = until.duration_since(from).unwrap_or_default().as_millis();
        self.slowest_ms = self.slowest_ms.max(u64::try_from(took).unwrap_or(u64::MAX));
        match outcome {
            Ok(who) => *self.answers.entry(target.to_string()).or_default().entry(who.to_string()).or_default() += 1,
            Err(error) => self.failures.push(Failure {
                target: target.to_string(),
                from: seconds(from),
                until: seconds(until),
                error: tell(&error),
            }),
        }
    }

    fn merge(mut self, other: Tally) -> Tally {
        self.dials += other.dials;
        self.slowest_ms = self.slowest_ms.max(other.slowest_ms);
        for (target, who) in other.answers {
            let own = self.answers.entry(target).or_default();
            who.into_iter().for_each(|(who, count)| *own.entry(who).or_default() += count);
        }
        self.failures.extend(other.failures);
        self
    }

    /// Who answered at this target, however often.
    pub fn who(&self, target: &Target) -> Vec<&str> {
        self.answers.get(&target.to_string()).into_iter().flat_map(|who| who.keys().map(String::as_str)).collect()
    }
}

fn seconds(time: SystemTime) -> f64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

/// Some kinds differ by call only: a wait that is over is EAGAIN where it was set on the socket.
fn tell(error: &io::Error) -> String {
    match error.kind() {
        ErrorKind::TimedOut | ErrorKind::WouldBlock => format!("silent for {} s", PATIENCE.as_secs()),
        ErrorKind::ConnectionRefused => "refused".into(),
        _ => error.to_string(),
    }
}

/// Each target by a thread of its own, so that one who does not answer keeps nobody waiting: `times` dials, or without
/// pause until the standard input ends.
pub fn run(targets: &[Target], times: Option<u32>) -> Tally {
    let stop = AtomicBool::new(false);
    let go_on = |done: u32| times.map_or_else(|| !stop.load(Ordering::Relaxed), |times| done < times);
    thread::scope(|scope| {
        let dial = |target: Target| {
            let mut tally = Tally::default();
            for _ in (0..).take_while(|done| go_on(*done)) {
                tally.add(&target);
                thread::sleep(if times.is_none() { PAUSE } else { Duration::ZERO });
            }
            tally
        };
        let threads: Vec<_> = targets.iter().map(|target| scope.spawn(move || dial(*target))).collect();
        if times.is_none() {
            let _ = io::copy(&mut io::stdin(), &mut io::sink()); // Its end is all that is waited for.
            stop.store(true, Ordering::Relaxed);
        }
        threads.into_iter().map(|thread| thread.join().expect("no thread panics")).fold(Tally::default(), Tally::merge)
    })
}

/// What follows is why.
pub const FAILED: &str = "failed: ";

/// A line a dial, with the name of who answered, until nobody reads them.
pub fn tell_each(target: Target) -> Result<()> {
    loop {
        let line = target.dial().map_or_else(|error| format!("{FAILED}{}", tell(&error)), |answer| answer.name);
        if writeln!(io::stdout(), "{line}").is_err() {
            return Ok(());
        }
        thread::sleep(2 * PAUSE); // There are many of them at once.
    }
}

/// Somebody who dials until told to stop, or until whoever started it is gone.
pub struct Storm(Child);

impl Storm {
    /// `command` leads to the place that dials.
    pub fn start(command: Command, targets: &[Target]) -> Result<Storm> {
        let child = words(command, targets, None)?.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        child.map(Storm).context("start to dial")
    }

    pub fn stop(mut self) -> Result<Tally> {
        drop(self.0.stdin.take());
        let output = self.0.wait_with_output().context("wait for the last dials")?;
        ensure!(output.status.success(), "the dialler ended with {}", output.status);
        Ok(serde_json::from_slice(&output.stdout)?)
    }
}

/// So many dials to each.
pub fn count(command: Command, targets: &[Target], times: u32) -> Result<Tally> {
    let text = crate::call::run(&mut words(command, targets, Some(times))?)?;
    Ok(serde_json::from_str(&text)?)
}

fn words(mut command: Command, targets: &[Target], times: Option<u32>) -> Result<Command> {
    command.arg(part::program()?).arg("storm").args(times.map(|times| format!("--times={times}")));
    command.args(targets.iter().map(ToString::to_string));
    Ok(command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_read_as_they_are_written() {
        for text in ["tcp/10.97.0.10:80", "udp/[fd00::1]:53"] {
            assert_eq!(text.parse::<Target>().unwrap().to_string(), text);
        }
        for bad in ["10.97.0.10:80", "sctp/10.97.0.10:80", "tcp/host:80", "tcp/10.97.0.10"] {
            assert!(bad.parse::<Target>().is_err(), "{bad:?} was taken for a target");
        }
    }

    #[test]
    fn two_answers_follow_each_other() {
        let text = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nweb-1HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n::";
        let (name, rest) = body(text).unwrap();
        assert_eq!((name, body(rest).unwrap().0), ("web-1", "::"));
        assert!(body("HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nweb-1").is_none(), "cut short");
    }
}
