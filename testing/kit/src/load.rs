//! Load generator: dials agnhost's `netexec`, each time on a new socket. The answer contains the server's name and the
//! client address that it sees, which shows whether a node was in between.
//!
//! `kit load` runs in the client's location, because the socket hooks identify a process by its cgroup.
//! [`LoadGenerator`] controls such a process. `kit dial` dials one target and prints the result of each dial.

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

use crate::component;

/// A dial without an answer within this time has failed.
pub const TIMEOUT: Duration = Duration::from_secs(3);
/// Pause between two dials, because the cluster shares the machine's processors.
const PAUSE: Duration = Duration::from_millis(5);
const REQUEST: &[u8] = b"GET /hostname HTTP/1.1\r\nHost: kit\r\n\r\n\
                     GET /clientip HTTP/1.1\r\nHost: kit\r\nConnection: close\r\n\r\n";

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DialProtocol {
    Tcp,
    Udp,
}

/// `tcp/10.97.0.10:80`, `udp/[fd00::1]:80`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DialTarget {
    pub protocol: DialProtocol,
    pub at: SocketAddr,
}

/// A failed dial. Times are in seconds since the epoch.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DialFailure {
    pub target: String,
    pub from: f64,
    pub until: f64,
    pub error: String,
}

/// The server that answered, and the client address that it sees.
struct DialAnswer {
    name: String,
    sees: IpAddr,
}

/// Results of a load. `answers` counts by target and server, such as `web-1 sees 172.31.0.101`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct DialReport {
    pub dials: u64,
    pub slowest_ms: u64,
    pub answers: BTreeMap<String, BTreeMap<String, u64>>,
    pub failures: Vec<DialFailure>,
}

impl DialTarget {
    pub fn tcp(at: SocketAddr) -> DialTarget {
        DialTarget { protocol: DialProtocol::Tcp, at }
    }

    /// This address over TCP and UDP.
    pub fn both(at: SocketAddr) -> [DialTarget; 2] {
        [DialProtocol::Tcp, DialProtocol::Udp].map(|protocol| DialTarget { protocol, at })
    }

    fn dial(&self) -> io::Result<DialAnswer> {
        let (name, seen) = match self.protocol {
            DialProtocol::Tcp => self.request_tcp()?,
            DialProtocol::Udp => self.request_udp()?,
        };
        let seen: SocketAddr = seen.trim().parse().map_err(|_| unexpected(&seen))?;
        Ok(DialAnswer { name: name.trim().to_owned(), sees: seen.ip().to_canonical() })
    }

    fn request_tcp(&self) -> io::Result<(String, String)> {
        let mut stream = TcpStream::connect_timeout(&self.at, TIMEOUT)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.write_all(REQUEST)?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        let (name, rest) = body(&text).ok_or_else(|| unexpected(&text))?;
        let (seen, _) = body(rest).ok_or_else(|| unexpected(rest))?;
        Ok((name.to_owned(), seen.to_owned()))
    }

    fn request_udp(&self) -> io::Result<(String, String)> {
        let any: IpAddr = if self.at.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        let socket = UdpSocket::bind((any, 0))?;
        socket.set_read_timeout(Some(TIMEOUT))?;
        socket.connect(self.at)?;
        let request = |word: &[u8]| {
            let mut buffer = [0; 512];
            socket.send(word)?;
            let length = socket.recv(&mut buffer)?;
            Ok::<_, io::Error>(String::from_utf8_lossy(&buffer[..length]).into_owned())
        };
        Ok((request(b"hostname\n")?, request(b"clientip\n")?))
    }
}

/// Splits the body of the first response from the following response.
fn body(text: &str) -> Option<(&str, &str)> {
    let (head, rest) = text.split_once("\r\n\r\n")?;
    let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: "))?.parse().ok()?;
    rest.split_at_checked(length)
}

fn unexpected(text: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, format!("unexpected response from netexec: {text:?}"))
}

impl fmt::Display for DialTarget {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let protocol = if self.protocol == DialProtocol::Tcp { "tcp" } else { "udp" };
        write!(f, "{protocol}/{}", self.at)
    }
}

impl fmt::Display for DialAnswer {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{} sees {}", self.name, self.sees)
    }
}

impl FromStr for DialTarget {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<DialTarget> {
        let invalid = || anyhow!("{text:?} is not a target: use tcp/10.97.0.10:80 or udp/[fd00::1]:53");
        let (protocol, at) = text.split_once('/').ok_or_else(invalid)?;
        let protocol = match protocol {
            "tcp" => DialProtocol::Tcp,
            "udp" => DialProtocol::Udp,
            _ => return Err(invalid()),
        };
        Ok(DialTarget { protocol, at: at.parse().map_err(|_| invalid())? })
    }
}

impl DialReport {
    fn add(&mut self, target: &DialTarget) {
        let from = SystemTime::now();
        let outcome = target.dial();
        let until = SystemTime::now();
        self.dials += 1;
        let took = until.duration_since(from).unwrap_or_default().as_millis();
        self.slowest_ms = self.slowest_ms.max(u64::try_from(took).unwrap_or(u64::MAX));
        match outcome {
            Ok(answer) => {
                *self.answers.entry(target.to_string()).or_default().entry(answer.to_string()).or_default() += 1
            }
            Err(error) => self.failures.push(DialFailure {
                target: target.to_string(),
                from: seconds(from),
                until: seconds(until),
                error: describe(&error),
            }),
        }
    }

    fn merge(mut self, other: DialReport) -> DialReport {
        self.dials += other.dials;
        self.slowest_ms = self.slowest_ms.max(other.slowest_ms);
        for (target, servers) in other.answers {
            let own = self.answers.entry(target).or_default();
            servers.into_iter().for_each(|(server, count)| *own.entry(server).or_default() += count);
        }
        self.failures.extend(other.failures);
        self
    }

    /// Servers that answered at this target, each with the client address that it saw.
    pub fn servers(&self, target: &DialTarget) -> Vec<&str> {
        let servers = self.answers.get(&target.to_string());
        servers.into_iter().flat_map(|servers| servers.keys().map(String::as_str)).collect()
    }
}

fn seconds(time: SystemTime) -> f64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

/// A timeout is EAGAIN where it was set on the socket, and ETIMEDOUT elsewhere.
fn describe(error: &io::Error) -> String {
    match error.kind() {
        ErrorKind::TimedOut | ErrorKind::WouldBlock => format!("timed out after {} s", TIMEOUT.as_secs()),
        ErrorKind::ConnectionRefused => "refused".into(),
        _ => error.to_string(),
    }
}

/// Dials each target in a thread of its own, `times` times or until stdin ends, so that a target that does not answer
/// does not delay the others.
pub fn run(targets: &[DialTarget], times: Option<u32>) -> DialReport {
    let stop = AtomicBool::new(false);
    let go_on = |done: u32| times.map_or_else(|| !stop.load(Ordering::Relaxed), |times| done < times);
    thread::scope(|scope| {
        let dial = |target: DialTarget| {
            let mut report = DialReport::default();
            for _ in (0..).take_while(|done| go_on(*done)) {
                report.add(&target);
                thread::sleep(if times.is_none() { PAUSE } else { Duration::ZERO });
            }
            report
        };
        let threads: Vec<_> = targets.iter().map(|target| scope.spawn(move || dial(*target))).collect();
        if times.is_none() {
            let _ = io::copy(&mut io::stdin(), &mut io::sink()); // Waits for the end of stdin only.
            stop.store(true, Ordering::Relaxed);
        }
        threads
            .into_iter()
            .map(|thread| thread.join().expect("no thread panics"))
            .fold(DialReport::default(), DialReport::merge)
    })
}

/// Prefix of a line about a failed dial. The reason follows.
pub const FAILED: &str = "failed: ";

/// Dials in a loop and prints one line per dial with the server's name, until stdout is closed.
pub fn print_each(target: DialTarget) -> Result<()> {
    loop {
        let line = target.dial().map_or_else(|error| format!("{FAILED}{}", describe(&error)), |answer| answer.name);
        if writeln!(io::stdout(), "{line}").is_err() {
            return Ok(());
        }
        thread::sleep(2 * PAUSE); // Tests run many of these at once.
    }
}

/// A process that dials until it is stopped or its parent ends.
pub struct LoadGenerator(Child);

impl LoadGenerator {
    /// `command` is the prefix that runs a program in the client's location.
    pub fn start(command: Command, targets: &[DialTarget]) -> Result<LoadGenerator> {
        let child = load_command(command, targets, None)?.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        child.map(LoadGenerator).context("cannot start the load generator")
    }

    pub fn stop(mut self) -> Result<DialReport> {
        drop(self.0.stdin.take());
        let output = self.0.wait_with_output().context("cannot wait for the load generator")?;
        ensure!(output.status.success(), "the load generator exited with {}", output.status);
        Ok(serde_json::from_slice(&output.stdout)?)
    }
}

/// Dials each target this many times.
pub fn dial_times(command: Command, targets: &[DialTarget], times: u32) -> Result<DialReport> {
    let text = crate::subprocess::run(&mut load_command(command, targets, Some(times))?)?;
    Ok(serde_json::from_str(&text)?)
}

fn load_command(mut command: Command, targets: &[DialTarget], times: Option<u32>) -> Result<Command> {
    command.arg(component::program()?).arg("load").args(times.map(|times| format!("--times={times}")));
    command.args(targets.iter().map(ToString::to_string));
    Ok(command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_parse_and_print_unchanged() {
        for text in ["tcp/10.97.0.10:80", "udp/[fd00::1]:53"] {
            assert_eq!(text.parse::<DialTarget>().unwrap().to_string(), text);
        }
        for bad in ["10.97.0.10:80", "sctp/10.97.0.10:80", "tcp/host:80", "tcp/10.97.0.10"] {
            assert!(bad.parse::<DialTarget>().is_err(), "{bad:?} was parsed as a target");
        }
    }

    #[test]
    fn two_responses_on_one_connection_are_split() {
        let text = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nweb-1HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n::";
        let (name, rest) = body(text).unwrap();
        assert_eq!((name, body(rest).unwrap().0), ("web-1", "::"));
        assert!(body("HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nweb-1").is_none(), "cut short");
    }
}
