//! A cluster beside the cluster: an etcd and a kube-apiserver of its own, with the same ranges of Services and of pods, as
//! two clusters that were set up apart have them. Its nodes are hosts, with the real kube-proxy; its pods are hosts behind
//! these.
//!
//! ```no_run
//! # fn main() -> anyhow::Result<()> {
//! # let (node, pod): (kit::Host, kit::Host) = ("h4".parse()?, "h5".parse()?);
//! let twin = kit::twin::Twin::start(2)?;
//! let member = twin.join(node, pod, ["10.245.1.7".parse()?, "fd00:10:245:1::7".parse()?])?;
//! # Ok(()) }
//! ```

use std::{fs, net::IpAddr, path::PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::{
    cache::Cache,
    call, certificate,
    control::{self, Seat},
    host::{Outside, Road},
    kubeconfig::{self, HOST_GROUP},
    manifest,
    namespace::Place,
    part::{self, Part},
    plan::{API_PORT, CONTROL, Host, OTHER_SERVICES, SERVICES},
    proxy::{self, Mode},
    state,
    wait::{self, Patience},
};

/// One that runs; it ends when this is dropped, or with the first cluster.
pub struct Twin {
    seat: Seat,
    number: u8,
    cache: Cache,
    pub store: Part,
    pub server: Part,
}

/// A node of it, with one pod.
pub struct Member {
    pub proxy: Part,
    pub web: Part,
    pub pod: Outside,
    pub node: Outside,
}

impl Twin {
    /// `number` is 2 or 3: the first cluster is number 1.
    pub fn start(number: u8) -> Result<Twin> {
        Twin::start_with(number, SERVICES)
    }

    /// With Services in [`OTHER_SERVICES`]; its pods' range is the same.
    pub fn start_apart(number: u8) -> Result<Twin> {
        Twin::start_with(number, OTHER_SERVICES)
    }

    fn start_with(number: u8, ranges: [&'static str; 2]) -> Result<Twin> {
        ensure!((2..=3).contains(&number), "cluster {number}: there is room for 2 and 3 beside the first");
        let cache = Cache::open()?;
        let seat = seat(number, ranges);
        let authority = certificate::make(&seat.keys)?;
        let part = |name: &str, words| Part::new(Place::Control, &format!("{name}-{number}"), words);
        let store = part("etcd", control::etcd(&seat, &cache))?;
        let server = part("kube-apiserver", control::api_server(&seat, &cache))?;
        let twin = Twin { seat, number, cache, store, server };
        kubeconfig::save(&authority, &twin.url(), &twin.user("admin"), "admin", Some("system:masters"))?;
        kubeconfig::save(&authority, &twin.url(), &twin.user("agent"), "beeline-agent", Some(HOST_GROUP))?;
        let _ = fs::remove_dir_all(&twin.seat.files);
        let _ = fs::remove_dir_all(twin.kept());
        twin.begin()?;
        twin.grant()?;
        Ok(twin)
    }

    /// Starts what was stopped, and waits for it.
    pub fn begin(&self) -> Result<()> {
        self.store.start()?;
        self.server.start()?;
        self.wait_until_ready()
    }

    pub fn end(&self) -> Result<()> {
        self.server.kill()?;
        self.store.stop()
    }

    /// It has lost its database, and begins with an empty one: it is another cluster at the same address.
    pub fn wipe(&self) -> Result<()> {
        self.end()?;
        fs::rename(&self.seat.files, self.kept()).context("put the database aside")?;
        self.begin()?;
        self.grant()
    }

    fn grant(&self) -> Result<()> {
        self.apply(&manifest::rights())?;
        self.apply_text(manifest::HOST_ROLE)
    }

    /// What [`Twin::wipe`] put aside is its database again.
    pub fn restore(&self) -> Result<()> {
        self.end()?;
        fs::remove_dir_all(&self.seat.files).context("remove the new database")?;
        fs::rename(self.kept(), &self.seat.files).context("bring the database back")?;
        self.begin()
    }

    fn kept(&self) -> PathBuf {
        self.seat.files.with_extension("kept")
    }

    pub fn url(&self) -> String {
        format!("https://{}:{}", CONTROL[0], self.seat.port)
    }

    /// Of a user who may do all, or of one who may do what an agent may.
    pub fn kubeconfig(&self, of_agent: bool) -> PathBuf {
        state::kubeconfig(&self.user(if of_agent { "agent" } else { "admin" }))
    }

    fn user(&self, name: &str) -> String {
        format!("twin-{}-{name}", self.number)
    }

    pub fn wait_until_ready(&self) -> Result<()> {
        wait::until(Patience::new(format!("API server {}", self.number), 90, self.server.log()), || {
            self.store.require_running()?;
            self.server.require_running()?;
            Ok(self.kubectl(&["get", "--raw=/readyz", "--request-timeout=2s"]).ok().map(drop))
        })
    }

    pub fn kubectl(&self, words: &[&str]) -> Result<String> {
        call::run(self.kubectl_command()?.args(words))
    }

    pub fn apply(&self, objects: &Value) -> Result<()> {
        self.apply_text(&objects.to_string())
    }

    fn apply_text(&self, text: &str) -> Result<()> {
        let words = ["apply", "--server-side", "-f", "-"];
        call::run_with_input(self.kubectl_command()?.args(words), text.as_bytes()).map(drop)
    }

    fn kubectl_command(&self) -> Result<std::process::Command> {
        let mut command = std::process::Command::new(part::program()?);
        command
            .args(["control", "--"])
            .arg(self.cache.program("kubectl"))
            .arg("--kubeconfig")
            .arg(self.kubeconfig(false));
        Ok(command)
    }

    /// Makes `node` a node of it, and `pod` a pod there that answers with its name at port 8080.
    pub fn join(&self, node: Host, pod: Host, addresses: [IpAddr; 2]) -> Result<Member> {
        let node = Outside::make(node, Road::Lone)?;
        let pod = Outside::make(pod, Road::Pod { of: node.host, addresses })?;
        let agnhost = self.cache.program("agnhost").display().to_string();
        let web =
            pod.part("web", vec![agnhost, "netexec".into(), "--http-port=8080".into(), "--udp-port=8080".into()])?;
        web.start()?;
        self.register(node.host)?;
        let proxy = self.proxy(&node)?;
        proxy.start()?;
        Ok(Member { proxy, web, pod, node })
    }

    fn proxy(&self, node: &Outside) -> Result<Part> {
        let file = node.files().join("kube-proxy.json");
        let settings = proxy::settings(&node.host.name(), Mode::Nftables, &self.kubeconfig(false));
        state::write(&file, serde_json::to_vec_pretty(&settings)?)?;
        let program = self.cache.program("kube-proxy").display().to_string();
        node.part("kube-proxy", vec![program, format!("--config={}", file.display()), "--v=2".into()])
    }

    /// There is no kubelet to fill in what a node is.
    fn register(&self, node: Host) -> Result<()> {
        let addresses: Vec<Value> =
            node.addresses().iter().map(|address| json!({"type": "InternalIP", "address": address})).collect();
        let ready = json!({
            "type": "Ready", "status": "True", "reason": "Kit", "message": "",
            "lastHeartbeatTime": "2026-01-01T00:00:00Z", "lastTransitionTime": "2026-01-01T00:00:00Z",
        });
        let object = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node.name()}});
        self.apply(&object)?;
        let patch = json!({"status": {"addresses": addresses, "conditions": [ready]}}).to_string();
        self.kubectl(&["patch", "node", &node.name(), "--subresource=status", "--type=merge", "-p", &patch])?;
        Ok(())
    }
}

impl Drop for Twin {
    fn drop(&mut self) {
        let _ = self.server.kill(); // `kit down` ends it as well.
        let _ = self.store.kill();
    }
}

fn seat(number: u8, ranges: [&'static str; 2]) -> Seat {
    let (dir, above) = (state::path(&format!("twin-{number}")), u16::from(number) - 1);
    Seat { store: 2379 + 10 * above, port: API_PORT + above, ranges, keys: dir.join("pki"), files: dir.join("etcd") }
}
