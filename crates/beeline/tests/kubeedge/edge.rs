//! The edge node e1: edgecore, which has the cache, and the agent.

use crate::cloud::Cloud;
use crate::cluster::{PATIENCE, program};
use beeline_harness::{Client, Dial, Errno, Kind, Lab, Running};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const BEELINE: &str = env!("CARGO_BIN_EXE_beeline");

/// Fields are dropped in this order, after the pins are gone.
pub struct Edge<'a> {
    agent: Option<Running>,
    core: Running,
    client: Client,
    lab: &'a Lab,
    dir: PathBuf,
    pins: PathBuf,
}

impl<'a> Edge<'a> {
    /// Edgecore joins with a token of cloudcore's. No kubelet: pods are made by hand.
    pub async fn join(cloud: &Cloud<'a>) -> Edge<'a> {
        let (lab, dir) = (cloud.cluster.lab, cloud.cluster.dir.path().join("e1"));
        std::fs::create_dir_all(&dir).unwrap();
        let config = config(&dir, &lab.outside.v4.to_string(), &cloud.token().await);
        std::fs::write(dir.join("edgecore.yaml"), config.to_string()).unwrap();
        let core = lab.node().program(program("edgecore")).unwrap();
        let core = core.args(["--config".as_ref(), dir.join("edgecore.yaml").as_os_str()]).spawn().unwrap();
        let pins = PathBuf::from(format!("/sys/fs/bpf/beeline-edge-{}", std::process::id()));
        Edge { agent: None, core, client: lab.node().client().unwrap(), lab, dir, pins }
    }

    // ---- the cache ----

    /// What the cache answers; `None`: not yet, or not JSON.
    pub fn ask(&self, path: &str) -> Option<Value> {
        let curl = self.lab.node().program("curl").unwrap().limit(PATIENCE);
        let output = curl.args(["-sS", "-m", "60", &format!("http://127.0.0.1:10550{path}")]).run().unwrap();
        serde_json::from_str(&output.stdout).ok()
    }

    /// What went over the link so far, to and fro, and of whatever.
    pub fn carried(&self) -> u64 {
        let counts = self.lab.node().program("cat").unwrap().args(["/proc/net/dev"]).run().unwrap().stdout;
        let line = counts.lines().find_map(|line| line.trim().strip_prefix("eth0:")).expect("e1 has eth0");
        let of: Vec<u64> = line.split_whitespace().map(|word| word.parse().unwrap()).collect();
        of[0] + of[8]
    }

    // ---- the agent ----

    pub fn start(&mut self) -> &mut Running {
        let at = |name: &str| self.dir.join(name).display().to_string();
        let (state, snapshot) = (at("state"), at("snapshot"));
        let program = self.lab.node().program(BEELINE).unwrap();
        let program = program.args(["agent", "--stand", "edge", "--node-name", "e1", "--max-services", "256"]);
        let program = program.args(["--state-dir", &state, "--snapshot-dir", &snapshot, "--socket", &self.socket()]);
        let program =
            program.args([Path::new("--cgroup"), self.lab.cgroup().path(), Path::new("--pin-dir"), &self.pins]);
        self.agent.insert(program.spawn().unwrap())
    }

    fn socket(&self) -> String {
        self.dir.join("agent.sock").display().to_string()
    }

    /// Ends the agent as a crash does.
    pub fn kill(&mut self) {
        self.agent.take().expect("an agent runs").kill().unwrap();
    }

    /// The host is started anew: nothing of ours is in the kernel.
    pub fn forget(&mut self) {
        self.agent = None;
        beeline_datapath::program::cleanup(&self.pins).unwrap();
    }

    pub fn forget_snapshot(&self) {
        std::fs::remove_dir_all(self.dir.join("snapshot")).unwrap();
    }

    fn tell(&self, words: &[&str]) -> Value {
        let place = ["-o", "json", "--socket", &self.socket(), "--pin-dir", self.pins.to_str().unwrap()];
        let output = self.lab.node().program(BEELINE).unwrap().args(words).args(place).run().unwrap();
        serde_json::from_str(&output.stdout).unwrap_or(Value::Null)
    }

    /// What `status` says of the cluster.
    pub fn status(&self) -> Value {
        self.tell(&["status"])["clusters"][0].clone()
    }

    pub fn error(&self) -> String {
        self.status()["error"].as_str().unwrap_or_default().to_owned()
    }

    pub fn explain(&self, at: &str) -> Value {
        self.tell(&["explain", at])
    }

    // ---- dials ----

    /// Who answers, or what the dial failed with.
    pub fn dial(&self, at: &str) -> Result<String, Errno> {
        let outcome = self.client.dial(&Dial::new(Kind::Tcp, at.parse().unwrap())).unwrap();
        outcome.errno().map_or_else(|| Ok(outcome.name().to_owned()), Err)
    }

    /// All who answer in many dials, each once; none may fail.
    pub fn answers(&self, at: &str) -> Vec<String> {
        let mut all: Vec<String> = (0..60).map(|_| self.dial(at).unwrap_or_else(|e| panic!("{at}: {e}"))).collect();
        all.sort();
        all.dedup();
        all
    }

    pub async fn until(&self, what: &str, mut so: impl FnMut(&Edge) -> bool) {
        let start = Instant::now();
        while !so(self) {
            let log = || self.agent.as_ref().map(Running::stderr).unwrap_or_default();
            assert!(start.elapsed() < PATIENCE, "not so after {PATIENCE:?}: {what}; {:#}\n{}", self.status(), log());
            tokio::time::sleep(Duration::from_millis(250)).await;
        }
        println!("{what}: after {:.1} s", start.elapsed().as_secs_f32());
    }
}

impl Drop for Edge<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let agent = self.agent.as_ref().map(Running::stderr).unwrap_or_default();
            eprintln!("the agent said:\n{agent}\nedgecore said:\n{}", self.core.stderr());
        }
        self.agent = None;
        let _ = beeline_datapath::program::cleanup(&self.pins);
    }
}

/// Heartbeats every 5 s instead of 15: after a cut edgecore tries again after two of them.
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
