//! Peers that only connect must not block the agent's listeners, use up its file descriptors, or end it. The agents run with
//! a limit of 1,024 open files.

mod fixture;

use fixture::{AgentFixture, BEELINE, TestService, wait_until};
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit, setrlimit};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

const HEALTH: &str = "127.0.0.1:10256";
const METRICS: &str = "127.0.0.1:10249";
const HEALTH_CHECK: &str = "127.0.0.1:32123";
const DNS: &str = "127.0.0.55:53";
const OPEN_FILES: u64 = 1024;
const IDLE_CONNECTIONS: usize = 1100;
/// docs/security.md promises an answer within this time.
const ANSWER_TIME: Duration = Duration::from_secs(5);
/// After this time the agent has closed every idle connection.
const IDLE_TIME: Duration = Duration::from_secs(30);

/// The test holds the other ends of all connections.
fn allow_many_files() {
    let limit = getrlimit(Resource::Nofile);
    let all = Rlimit { current: limit.maximum, maximum: limit.maximum };
    setrlimit(Resource::Nofile, all).unwrap();
    let needed = 6 * IDLE_CONNECTIONS as u64;
    assert!(limit.maximum.is_none_or(|most| most > needed), "needs `ulimit -Hn` above {needed}");
}

/// An agent with every kind of listener.
fn start(fixture: &mut AgentFixture) {
    let (near, more) = (
        TestService::new("near", 1),
        "  type: LoadBalancer\n  externalTrafficPolicy: Local\n  healthCheckNodePort: 32123\n",
    );
    fixture.write_file("near.yaml", near.service(more));
    let script = fixture.manifests().path().with_file_name("limited");
    std::fs::write(&script, format!("#!/bin/sh\nulimit -n {OPEN_FILES}\nexec {BEELINE} \"$@\"\n")).unwrap();
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    fixture.start_binary(&script, &["--dns-address", DNS]);
    wait_until("the healthCheckNodePort is bound", || get(fixture, HEALTH_CHECK, "/").is_some());
}

fn pid(fixture: &mut AgentFixture) -> u32 {
    fixture.running().pid()
}

fn open_files(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count()
}

/// The response to a GET in the node's network namespace.
fn get(fixture: &AgentFixture, at: &str, path: &str) -> Option<String> {
    let (at, request) = (at.parse::<SocketAddr>().unwrap(), format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n"));
    let exchange = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect_timeout(&at, ANSWER_TIME)?;
        stream.set_read_timeout(Some(ANSWER_TIME))?;
        stream.write_all(request.as_bytes())?;
        let mut start = [0; 15];
        stream.read_exact(&mut start)?;
        Ok(String::from_utf8_lossy(&start).into_owned())
    };
    fixture.network.node().run_in(exchange).unwrap().ok()
}

/// The length of the answer to a DNS query by TCP, for the address of near.test.svc.cluster.local.
fn query_dns(fixture: &AgentFixture) -> Option<u16> {
    let mut query = vec![0, 7, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in ["near", "test", "svc", "cluster", "local"] {
        query.push(label.len() as u8);
        query.extend(label.bytes());
    }
    query.extend([0, 0, 1, 0, 1]);
    let exchange = || -> std::io::Result<u16> {
        let mut stream = TcpStream::connect_timeout(&DNS.parse().unwrap(), ANSWER_TIME)?;
        stream.set_read_timeout(Some(ANSWER_TIME))?;
        stream.write_all(&[&(query.len() as u16).to_be_bytes(), &query[..]].concat())?;
        let mut length = [0; 2];
        stream.read_exact(&mut length)?;
        Ok(u16::from_be_bytes(length))
    };
    fixture.network.node().run_in(exchange).unwrap().ok()
}

/// Every kind of request is answered, each within the documented time.
fn assert_answers(fixture: &AgentFixture) {
    let timed = |what: &str, answered: &dyn Fn() -> bool| {
        let start = Instant::now();
        assert!(answered(), "{what}: no answer");
        assert!(start.elapsed() < ANSWER_TIME, "{what}: answered after {:?}", start.elapsed());
    };
    let ok = |response: Option<String>| response.is_some_and(|text| text == "HTTP/1.1 200 OK");
    timed("/livez", &|| ok(get(fixture, HEALTH, "/livez")));
    timed("/metrics", &|| ok(get(fixture, METRICS, "/metrics")));
    timed("healthCheckNodePort", &|| get(fixture, HEALTH_CHECK, "/").is_some_and(|text| text.contains(" 503 ")));
    timed("DNS", &|| query_dns(fixture).is_some_and(|length| length > 40));
    timed("beeline status", &|| fixture.beeline(&["status"]).status.success());
}

/// Whether the agent closed the connection.
fn is_closed(stream: &mut impl Read) -> bool {
    match stream.read(&mut [0; 64]) {
        Ok(size) => size == 0,
        Err(error) => error.kind() != ErrorKind::WouldBlock,
    }
}

#[test]
fn idle_connections_block_no_listener_and_are_closed() {
    let _alone = fixture::run_alone();
    allow_many_files();
    let mut fixture = AgentFixture::new();
    start(&mut fixture);
    let agent = pid(&mut fixture);
    let mut held: Vec<TcpStream> = Vec::new();
    for at in [HEALTH, METRICS, HEALTH_CHECK, DNS] {
        let connect = || (0..IDLE_CONNECTIONS).map(|_| TcpStream::connect(at)).collect::<Result<Vec<_>, _>>();
        held.extend(fixture.network.node().run_in(connect).unwrap().unwrap_or_else(|error| panic!("{at}: {error}")));
    }
    let socket = || UnixStream::connect(fixture.socket()).unwrap();
    let mut held_unix: Vec<UnixStream> = (0..IDLE_CONNECTIONS).map(|_| socket()).collect();
    assert_answers(&fixture);
    let used = open_files(agent);
    assert!(used + 200 < OPEN_FILES as usize, "{used} files are open: too few are left for the agent's own work");
    // The other listeners are still bound, and what was idle is closed.
    held.iter().for_each(|stream| stream.set_nonblocking(true).unwrap());
    held_unix.iter().for_each(|stream| stream.set_nonblocking(true).unwrap());
    let start = Instant::now();
    wait_until("idle connections are closed", || {
        held.retain_mut(|stream| !is_closed(stream));
        held_unix.retain_mut(|stream| !is_closed(stream));
        held.is_empty() && held_unix.is_empty()
    });
    assert!(start.elapsed() < IDLE_TIME, "closed after {:?}", start.elapsed());
    assert_answers(&fixture);
    assert_eq!(fixture.status()["pid"], agent, "the agent did not restart");
    let log = fixture.stop();
    assert!(!log.contains("Too many open files"), "{log}");
}

/// Fewer descriptors than the agent has open: every accept fails with EMFILE.
#[test]
fn exhausted_descriptors_do_not_end_the_agent() {
    let _alone = fixture::run_alone();
    let mut fixture = AgentFixture::new();
    start(&mut fixture);
    let agent = pid(&mut fixture);
    let process = Pid::from_raw(agent as i32).unwrap();
    let limit = |current| Rlimit { current: Some(current), maximum: Some(OPEN_FILES) };
    prlimit(Some(process), Resource::Nofile, limit(3)).unwrap();
    let waiting: Vec<UnixStream> = (0..20).map(|_| UnixStream::connect(fixture.socket()).unwrap()).collect();
    let connect = || [HEALTH, METRICS, HEALTH_CHECK, DNS].map(TcpStream::connect);
    let refused = fixture.network.node().run_in(connect).unwrap();
    fixture.running().wait_for("cannot accept a connection", fixture::TIMEOUT).unwrap();
    std::thread::sleep(Duration::from_secs(1));
    prlimit(Some(process), Resource::Nofile, limit(OPEN_FILES)).unwrap();
    drop((waiting, refused));
    assert_answers(&fixture);
    assert_eq!(fixture.status()["pid"], agent, "the agent did not restart");
    let log = fixture.stop();
    let lines = log.lines().filter(|line| line.contains("cannot accept a connection")).count();
    assert!((1..20).contains(&lines), "{lines} lines of the log report the errors");
}

fn resident_bytes(pid: u32) -> usize {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").trim().parse::<usize>().unwrap() * 1024
}

#[test]
fn a_request_without_an_end_is_refused_and_not_buffered() {
    let _alone = fixture::run_alone();
    let mut fixture = AgentFixture::new();
    start(&mut fixture);
    let agent = pid(&mut fixture);
    let before = resident_bytes(agent);
    for monitored in [false, true] {
        let mut stream = UnixStream::connect(fixture.socket()).unwrap();
        if monitored {
            stream.write_all(b"{\"request\":\"monitor\"}\n").unwrap();
        }
        stream.set_write_timeout(Some(ANSWER_TIME)).unwrap();
        let block = vec![b' '; 1 << 20];
        let written = (0..64).take_while(|_| stream.write_all(&block).is_ok()).count();
        if monitored {
            assert_eq!(written, 64, "what a monitor sends is dropped");
        } else {
            let mut answer = String::new();
            let _ = stream.read_to_string(&mut answer);
            assert!(answer.contains("longer than 16384 bytes"), "{answer:?} after {written} MiB");
        }
    }
    let grown = resident_bytes(agent).saturating_sub(before);
    assert!(grown < 16 << 20, "the agent's memory grew by {grown} bytes");
    assert!(fixture.beeline(&["status"]).status.success());
}

#[test]
fn the_unit_allows_as_many_files_as_the_agent_asks_for() {
    let path: PathBuf = [env!("CARGO_MANIFEST_DIR"), "../../deploy/systemd/beeline.service"].iter().collect();
    let unit = std::fs::read_to_string(path).unwrap();
    assert!(unit.lines().any(|line| line == "LimitNOFILE=65536"), "{unit}");
}
