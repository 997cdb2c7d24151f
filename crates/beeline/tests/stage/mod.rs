//! The stage of the endurance tests: a node, a folder of manifests, and an agent that is started, stopped, killed and
//! replaced while clients dial without pause. All of it is gone again on drop, also after a panic.
#![allow(dead_code)] // Each test has a use for a part of it.

use beeline_datapath::Kernel;
use beeline_datapath::object::{MapSet, RECORDS, TABLES};
use beeline_datapath::pin::PinDir;
use beeline_harness::{Client, Dial, Kind, Lab, Place, Running, Server, Service, Storm, StormKind, Tally};
use beeline_model::row::Rows;
use rustix::process::Signal;
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tempfile::TempDir;

pub const BEELINE: &str = env!("CARGO_BIN_EXE_beeline");
/// The port of every service.
pub const PORT: u16 = 80;
/// What takes a second on a quiet machine is awaited for much longer: a busy machine is no failure.
pub const PATIENCE: Duration = Duration::from_secs(60);
const METRICS: &str = "127.0.0.1:10249";

/// BEELINE_LONG=1: as long as it takes, instead of as long as `make test` may take.
pub fn is_long() -> bool {
    std::env::var_os("BEELINE_LONG").is_some_and(|v| v == "1")
}

/// Storms side by side would only slow each other down.
pub fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Fields are dropped in this order, after `Drop` has ended the agent and removed its pins.
pub struct Stage {
    agent: Option<Running>,
    servers: Vec<Server>,
    dir: TempDir,
    pub folder: Folder,
    pub pin_dir: PathBuf,
    pub lab: Lab,
}

impl Stage {
    /// A node with two pods and an empty folder; nothing runs yet.
    pub fn new() -> Stage {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let pin_dir = PathBuf::from(format!("/sys/fs/bpf/beeline-stage-{}-{number}", std::process::id()));
        let (lab, dir) = (Lab::new(2).unwrap(), tempfile::tempdir().unwrap());
        let folder = Folder(dir.path().join("manifests"));
        std::fs::create_dir(&folder.0).unwrap();
        Stage { agent: None, servers: Vec::new(), dir, folder, pin_dir, lab }
    }

    // ---- backends ----

    /// `count` backends of one service, all in pod-a, from 10.244.1.`first` on; they answer by the service's name.
    pub fn serve(&mut self, name: &str, first: u8, count: u8) -> Vec<Ipv4Addr> {
        let addresses: Vec<Ipv4Addr> = (first..first + count).map(|last| Ipv4Addr::new(10, 244, 1, last)).collect();
        let pod = self.lab.pod(0);
        pod.add_addresses(addresses.iter().map(|a| IpAddr::from(*a))).unwrap();
        let at = addresses.iter().map(|a| SocketAddr::from((*a, target_port(name))));
        self.servers.push(Service::new(name, at).banner().start(&pod.namespace).unwrap());
        addresses
    }

    // ---- the agent ----

    /// Starts it and waits until it serves.
    pub fn start(&mut self, args: &[&str]) {
        self.start_binary(Path::new(BEELINE), args);
    }

    pub fn start_binary(&mut self, binary: &Path, args: &[&str]) {
        self.spawn(binary, args);
        self.agent().wait_for("serving", PATIENCE).unwrap();
    }

    /// Does not wait.
    pub fn spawn(&mut self, binary: &Path, args: &[&str]) {
        assert!(self.agent.is_none(), "an agent runs already");
        let program = self.lab.node().program(binary).unwrap().args(["agent", "--node-name", "node-1"]);
        let program = program.args(["--manifests".as_ref(), self.folder.0.as_os_str()]);
        let program = program.args(["--cgroup".as_ref(), self.lab.cgroup().path().as_os_str()]);
        let program = program.args(self.place()).args(args).env("BEELINE_LOG", "debug");
        self.agent = Some(program.spawn().unwrap());
    }

    /// By a file of options, and waits until it serves.
    pub fn start_by(&mut self, config: &Path, args: &[&str]) {
        assert!(self.agent.is_none(), "an agent runs already");
        let program =
            self.lab.node().program(BEELINE).unwrap().args(["agent".as_ref(), "--config".as_ref(), config.as_os_str()]);
        let program = program.args(["--cgroup".as_ref(), self.lab.cgroup().path().as_os_str()]);
        let program = program.args(self.place()).args(args).env("BEELINE_LOG", "debug");
        self.agent = Some(program.spawn().unwrap());
        self.agent().wait_for("serving", PATIENCE).unwrap();
    }

    /// Where the CLI finds the agent and its tables.
    pub fn place(&self) -> Vec<String> {
        let show = |path: &Path| path.display().to_string();
        let socket = self.dir.path().join("agent.sock");
        ["--pin-dir".into(), show(&self.pin_dir), "--socket".into(), show(&socket)].into()
    }

    pub fn agent(&mut self) -> &mut Running {
        self.agent.as_mut().expect("an agent runs")
    }

    /// SIGTERM, as systemd and the kubelet do it. Gives its log.
    pub fn stop(&mut self) -> String {
        let agent = self.agent.take().expect("an agent runs");
        agent.signal(Signal::TERM).unwrap();
        let output = agent.finish(PATIENCE).unwrap();
        assert!(output.status.success(), "it ended with {}: {}", output.status, output.stderr);
        output.stderr
    }

    /// kill -9. Gives its log.
    pub fn kill(&mut self) -> String {
        let mut agent = self.agent.take().expect("an agent runs");
        agent.kill().unwrap();
        agent.stderr()
    }

    pub fn cli(&self, args: &[&str]) -> Value {
        let output = Command::new(BEELINE).args(args).args(["-o", "json"]).args(self.place()).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("beeline {args:?}: {e}: {error}"))
    }

    pub fn status(&self) -> Value {
        self.cli(&["status"])
    }

    /// Reasons of what is refused now, with their subjects.
    pub fn refusals(&self) -> Vec<(String, String)> {
        let status = self.status();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let all = status["refusals"].as_array().expect("an agent that answers");
        all.iter().map(|r| (text(&r["reason"]), text(&r["subject"]))).collect()
    }

    /// `/metrics`, asked inside the node.
    pub fn metrics(&self) -> String {
        let ask = || -> std::io::Result<String> {
            let (mut stream, mut text) = (TcpStream::connect(METRICS)?, String::new());
            stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n")?;
            stream.read_to_string(&mut text)?;
            Ok(text)
        };
        self.lab.node().run_in(ask).unwrap().unwrap()
    }

    /// The value of one row of the metrics, labels included; 0 where there is none.
    pub fn metric(&self, row: &str) -> u64 {
        let text = self.metrics();
        let value = text.lines().find_map(|line| line.strip_prefix(row)?.strip_prefix(' '));
        value.map_or(0, |value| value.parse().unwrap())
    }

    // ---- dials ----

    /// Dials these services without pause until `Toll::of`; an answer may take five seconds.
    pub fn storm(&self, from: &Place, kind: StormKind, services: &[Target]) -> Storming {
        self.storm_with(from, kind, services, 5_000)
    }

    pub fn storm_with(&self, from: &Place, kind: StormKind, services: &[Target], patience_ms: u64) -> Storming {
        let client = from.client().unwrap();
        let targets = services.iter().map(|t| SocketAddr::from((t.address, PORT)));
        client.storm(Storm { limit_ms: 3_600_000, patience_ms, ..Storm::new(kind, targets) }).unwrap();
        let expected = services.iter().map(|t| (SocketAddr::from((t.address, PORT)), t.name.clone())).collect();
        Storming { client, kind, expected }
    }

    /// One datagram from this place: who answered, "" if nobody did.
    pub fn ask(&self, from: &Place, target: &Target) -> String {
        let dial = Dial::new(Kind::UdpSendTo, (target.address, PORT).into()).patience_ms(500);
        from.client().unwrap().dial(&dial).unwrap().name().to_owned()
    }

    // ---- the kernel, as the pins show it ----

    /// Names of the folders of tables that are pinned.
    pub fn generations(&self) -> Vec<String> {
        let all = std::fs::read_dir(&self.pin_dir).unwrap().flatten();
        all.map(|e| e.file_name().to_string_lossy().into_owned()).filter(|name| name.starts_with("tables-")).collect()
    }

    /// The live maps; of this binary's own layout only.
    pub fn maps(&self) -> MapSet {
        let pins = PinDir::read_only(&self.pin_dir);
        let meta = pins.meta().expect("an agent has pinned its tables");
        let mut maps = MapSet::pinned(&pins.tables(meta.generation), &TABLES).unwrap();
        maps.extend(MapSet::pinned(&pins.records(), &RECORDS).unwrap());
        maps
    }

    pub fn rows(&self) -> Rows {
        Kernel::new(&self.maps()).unwrap().rows().unwrap()
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.agent = None;
        let _ = beeline_datapath::program::cleanup(&self.pin_dir);
    }
}

/// The manifests that the agent follows.
#[derive(Clone, Debug)]
pub struct Folder(pub PathBuf);

impl Folder {
    /// Whole at once, as a rename makes it.
    pub fn put(&self, file: &str, text: impl AsRef<[u8]>) {
        let aside = self.0.with_file_name("aside");
        std::fs::write(&aside, text).unwrap();
        std::fs::rename(&aside, self.0.join(file)).unwrap();
    }

    pub fn remove(&self, file: &str) {
        std::fs::remove_file(self.0.join(file)).unwrap();
    }
}

/// What a service is dialled by, and who must answer.
#[derive(Clone, Debug)]
pub struct Target {
    pub name: String,
    pub address: Ipv4Addr,
}

impl Target {
    pub fn new(name: &str, last: u8) -> Target {
        Target { name: name.into(), address: Ipv4Addr::new(10, 96, 0, last) }
    }

    /// Service and slice in one file, TCP and UDP.
    pub fn manifest(&self, endpoints: &[Ipv4Addr]) -> String {
        format!("{}---\n{}", self.service(""), self.slice(endpoints))
    }

    /// `more`: further lines of the spec, indented by two.
    pub fn service(&self, more: &str) -> String {
        let Target { name, address } = self;
        format!(
            "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: stage}}\nspec:\n  clusterIP: {address}\n\
             {more}  ports:\n  - {{name: t, port: {PORT}, protocol: TCP}}\n  - {{name: u, port: {PORT}, protocol: UDP}}\n"
        )
    }

    pub fn slice(&self, endpoints: &[Ipv4Addr]) -> String {
        let (name, port) = (&self.name, target_port(&self.name));
        let line = |a: &Ipv4Addr| format!("- addresses: [{a}]\n  conditions: {{ready: true}}\n");
        let endpoints: String = endpoints.iter().map(line).collect();
        let endpoints = if endpoints.is_empty() { "[]\n".into() } else { format!("\n{endpoints}") };
        format!(
            "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata:\n  name: {name}-1\n  namespace: stage\n  \
             labels: {{kubernetes.io/service-name: {name}}}\naddressType: IPv4\nports:\n\
             - {{name: t, port: {port}, protocol: TCP}}\n- {{name: u, port: {port}, protocol: UDP}}\nendpoints: {endpoints}"
        )
    }
}

/// The port of a service's backends, by its name alone: another port is another service's backend.
pub fn target_port(name: &str) -> u16 {
    let sum = name.bytes().fold(7u16, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
    20_000 + sum % 20_000
}

/// Clients that dial without pause.
pub struct Storming {
    client: Client,
    kind: StormKind,
    expected: BTreeMap<SocketAddr, String>,
}

/// What came of storms, with the numbers that make a zero mean something.
#[derive(Debug, Default)]
pub struct Toll {
    pub dials: u64,
    pub failed: u64,
    /// Answered by another service.
    pub wrong: u64,
    pub slowest: Duration,
    pub said: Vec<String>,
}

impl Storming {
    pub fn end(self, toll: &mut Toll) {
        let tally: Tally = self.client.storm_end().unwrap();
        toll.dials += tally.dials;
        toll.failed += tally.failed();
        toll.slowest = toll.slowest.max(Duration::from_nanos(tally.slowest_ns));
        for (target, answers) in &tally.answers {
            let stranger = |who: &&String| who.split(' ').next() != Some(self.expected[target].as_str());
            toll.wrong += answers.iter().filter(|(who, _)| stranger(who)).map(|(_, times)| times).sum::<u64>();
        }
        for (target, failures) in &tally.failures {
            toll.said.push(format!("{:?} to {target}: {failures:?}", self.kind));
        }
    }
}

impl Toll {
    pub fn of(storms: Vec<Storming>) -> Toll {
        let mut toll = Toll::default();
        storms.into_iter().for_each(|storm| storm.end(&mut toll));
        toll
    }

    /// Says the zeros with their denominator, then insists on them.
    pub fn must_be_clean(&self, what: &str, at_least: u64) {
        let Toll { dials, failed, wrong, slowest, said } = self;
        println!("{what}: {failed} of {dials} dials failed, {wrong} reached another service; slowest {slowest:?}");
        assert_eq!((*failed, *wrong), (0, 0), "{said:#?}");
        assert!(*dials >= at_least, "only {dials} dials: too few to mean anything");
    }
}

/// Whatever ends the main part of a test ends its threads too: a scope waits for them even in a panic.
pub struct StopOnDrop<'a>(pub &'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Asks until it holds.
pub fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < end, "{what}: not within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
