//! The edge node e1 with edgecore, whose cache is the source, and the agent.

use crate::cloud::Cloud;
use crate::cluster::{TIMEOUT, program};
use beeline_harness::{Client, DialKind, DialRequest, Errno, RunningProgram, TestNetwork};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const BEELINE: &str = env!("CARGO_BIN_EXE_beeline");

/// Fields are dropped in this order, after `Drop` has removed the pins.
pub struct Edge<'a> {
    agent: Option<RunningProgram>,
    core: RunningProgram,
    client: Client,
    network: &'a TestNetwork,
    dir: PathBuf,
    pins: PathBuf,
}

impl<'a> Edge<'a> {
    /// Starts edgecore, which joins with a token of cloudcore. There is no kubelet; the test creates the pods.
    pub async fn join(cloud: &Cloud<'a>) -> Edge<'a> {
        let (network, dir) = (cloud.cluster.network, cloud.cluster.dir.path().join("e1"));
        std::fs::create_dir_all(&dir).unwrap();
        let config = config(&dir, &network.outside.v4.to_string(), &cloud.token().await);
        std::fs::write(dir.join("edgecore.yaml"), config.to_string()).unwrap();
        let core = network.node().program(program("edgecore")).unwrap();
        let core = core.args(["--config".as_ref(), dir.join("edgecore.yaml").as_os_str()]).spawn().unwrap();
        let pins = PathBuf::from(format!("/sys/fs/bpf/beeline-edge-{}", std::process::id()));
        Edge { agent: None, core, client: network.node().client().unwrap(), network, dir, pins }
    }

    // ---- the cache ----

    /// The response of the cache; `None` if there is none or it is not JSON.
    pub fn get(&self, path: &str) -> Option<Value> {
        let curl = self.network.node().program("curl").unwrap().limit(TIMEOUT);
        let output = curl.args(["-sS", "-m", "60", &format!("http://127.0.0.1:10550{path}")]).run().unwrap();
        serde_json::from_str(&output.stdout).ok()
    }

    /// Bytes sent and received on the link so far, by all programs.
    pub fn bytes_on_link(&self) -> u64 {
        let counts = self.network.node().program("cat").unwrap().args(["/proc/net/dev"]).run().unwrap().stdout;
        let line = counts.lines().find_map(|line| line.trim().strip_prefix("eth0:")).expect("e1 has eth0");
        let columns: Vec<u64> = line.split_whitespace().map(|word| word.parse().unwrap()).collect();
        columns[0] + columns[8]
    }

    // ---- the agent ----

    pub fn start(&mut self) -> &mut RunningProgram {
        let at = |name: &str| self.dir.join(name).display().to_string();
        let (state, snapshot) = (at("state"), at("snapshot"));
        let program = self.network.node().program(BEELINE).unwrap();
        let program = program.args(["agent", "--host-role", "edge", "--node-name", "e1", "--max-services", "256"]);
        let program = program.args(["--state-dir", &state, "--snapshot-dir", &snapshot, "--socket", &self.socket()]);
        let program =
            program.args([Path::new("--cgroup"), self.network.cgroup().path(), Path::new("--pin-dir"), &self.pins]);
        self.agent.insert(program.spawn().unwrap())
    }

    fn socket(&self) -> String {
        self.dir.join("agent.sock").display().to_string()
    }

    /// Kills the agent.
    pub fn kill(&mut self) {
        self.agent.take().expect("the agent is running").kill().unwrap();
    }

    /// Ends the agent and removes its pins, as a reboot does.
    pub fn remove_pins(&mut self) {
        self.agent = None;
        beeline_datapath::program::cleanup(&self.pins).unwrap();
    }

    pub fn remove_snapshot(&self) {
        std::fs::remove_dir_all(self.dir.join("snapshot")).unwrap();
    }

    fn run_json(&self, words: &[&str]) -> Value {
        let location = ["-o", "json", "--socket", &self.socket(), "--pin-dir", self.pins.to_str().unwrap()];
        let output = self.network.node().program(BEELINE).unwrap().args(words).args(location).run().unwrap();
        serde_json::from_str(&output.stdout).unwrap_or(Value::Null)
    }

    /// The entry of the cluster in `beeline status`.
    pub fn status(&self) -> Value {
        self.run_json(&["status"])["clusters"][0].clone()
    }

    pub fn error(&self) -> String {
        self.status()["error"].as_str().unwrap_or_default().to_owned()
    }

    pub fn explain(&self, at: &str) -> Value {
        self.run_json(&["explain", at])
    }

    // ---- dials ----

    /// The name of the server that answers, or the error.
    pub fn dial(&self, at: &str) -> Result<String, Errno> {
        let outcome = self.client.dial(&DialRequest::new(DialKind::Tcp, at.parse().unwrap())).unwrap();
        outcome.errno().map_or_else(|| Ok(outcome.name().to_owned()), Err)
    }

    /// The names of all servers that answer in many dials. No dial may fail.
    pub fn answers(&self, at: &str) -> Vec<String> {
        let mut all: Vec<String> = (0..60).map(|_| self.dial(at).unwrap_or_else(|e| panic!("{at}: {e}"))).collect();
        all.sort();
        all.dedup();
        all
    }

    pub async fn wait_until(&self, what: &str, mut condition: impl FnMut(&Edge) -> bool) {
        let start = Instant::now();
        while !condition(self) {
            let log = || self.agent.as_ref().map(RunningProgram::stderr).unwrap_or_default();
            assert!(start.elapsed() < TIMEOUT, "{what}: not within {TIMEOUT:?}; {:#}\n{}", self.status(), log());
            tokio::time::sleep(Duration::from_millis(250)).await;
        }
        println!("{what}: after {:.1} s", start.elapsed().as_secs_f32());
    }
}

impl Drop for Edge<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let agent = self.agent.as_ref().map(RunningProgram::stderr).unwrap_or_default();
            eprintln!(
                "log of the agent:
{agent}\nlog of edgecore:
{}",
                self.core.stderr()
            );
        }
        self.agent = None;
        let _ = beeline_datapath::program::cleanup(&self.pins);
    }
}

/// The configuration of edgecore. Heartbeats are sent every 5 s instead of 15 s, because edgecore reconnects after two missed
/// heartbeats.
fn config(dir: &Path, cloud: &str, token: &str) -> Value {
    let at = |name: &str| dir.join(name).display().to_string();
    let hub = json!({
        "enable": true, "heartbeat": 5, "token": token, "httpServer": format!("https://{cloud}:10002"),
        "websocket": { "enable": true, "server": format!("{cloud}:10000"),
            "handshakeTimeout": 30, "readDeadline": 15, "writeDeadline": 15 },
        "tlsCaFile": at("ca.crt"), "tlsCertFile": at("server.crt"), "tlsPrivateKeyFile": at("server.key"),
    });
    json!({
        "apiVersion": "edgecore.config.kubeedge.io/v1alpha2", "kind": "EdgeCore",
        "database": { "aliasName": "default", "driverName": "sqlite3", "dataSource": at("edgecore.db") },
        "modules": {
            "edgeHub": hub,
            "edged": { "enable": false, "hostnameOverride": "e1", "rootDirectory": at("kubelet") },
            "metaManager": { "enable": true, "metaServer": { "enable": true } },
            "deviceTwin": { "enable": false, "dmiSockPath": at("dmi/") },
            "eventBus": { "enable": false },
        },
    })
}
