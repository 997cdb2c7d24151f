//! Additional clusters beside the first one: an etcd and a kube-apiserver each, with the same Service and pod ranges,
//! as independently installed clusters often have. Their nodes are hosts with kube-proxy; their pods are hosts behind
//! those.
//!
//! ```no_run
//! # fn main() -> anyhow::Result<()> {
//! # let (node, pod): (kit::HostId, kit::HostId) = ("h4".parse()?, "h5".parse()?);
//! let cluster = kit::extra_cluster::ExtraCluster::start(2)?;
//! let extra_node = cluster.join(node, pod, ["10.245.1.7".parse()?, "fd00:10:245:1::7".parse()?])?;
//! # Ok(()) }
//! ```

use std::{fs, net::IpAddr, path::PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::{
    address_plan::{API_PORT, CONTROL, HostId, OTHER_SERVICES, SERVICES},
    cache::Cache,
    certificate,
    component::{self, Component},
    control_plane::{self, ControlPlaneConfig},
    host::{HostRoute, OutsideHost},
    kubeconfig::{self, HOST_GROUP},
    manifest,
    namespace::Location,
    proxy::{self, ProxyMode},
    state, subprocess,
    wait::{self, Timeout},
};

/// A running extra cluster. It is stopped when the value is dropped, or with the first cluster.
pub struct ExtraCluster {
    config: ControlPlaneConfig,
    number: u8,
    cache: Cache,
    pub etcd: Component,
    pub api_server: Component,
}

/// A node of an extra cluster, with one pod.
pub struct ExtraNode {
    pub proxy: Component,
    pub web: Component,
    pub pod: OutsideHost,
    pub node: OutsideHost,
}

impl ExtraCluster {
    /// Starts cluster number 2 or 3; the kit's own cluster is number 1.
    pub fn start(number: u8) -> Result<ExtraCluster> {
        ExtraCluster::start_with(number, SERVICES)
    }

    /// Starts a cluster with the Service ranges [`OTHER_SERVICES`]. Its pod ranges are those of the first cluster.
    pub fn start_with_other_services(number: u8) -> Result<ExtraCluster> {
        ExtraCluster::start_with(number, OTHER_SERVICES)
    }

    fn start_with(number: u8, ranges: [&'static str; 2]) -> Result<ExtraCluster> {
        ensure!((2..=3).contains(&number), "cluster {number}: an extra cluster has the number 2 or 3");
        let cache = Cache::open()?;
        let config = config(number, ranges);
        let authority = certificate::make(&config.certificate_dir)?;
        let component =
            |name: &str, arguments| Component::new(Location::ControlPlane, &format!("{name}-{number}"), arguments);
        let etcd = component("etcd", control_plane::etcd(&config, &cache))?;
        let api_server = component("kube-apiserver", control_plane::api_server(&config, &cache))?;
        let cluster = ExtraCluster { config, number, cache, etcd, api_server };
        kubeconfig::save(&authority, &cluster.url(), &cluster.user("admin"), "admin", Some("system:masters"))?;
        kubeconfig::save(&authority, &cluster.url(), &cluster.user("agent"), "beeline-agent", Some(HOST_GROUP))?;
        let _ = fs::remove_dir_all(&cluster.config.data_dir);
        let _ = fs::remove_dir_all(cluster.backup_dir());
        cluster.resume()?;
        cluster.grant_roles()?;
        Ok(cluster)
    }

    /// Starts etcd and the API server, and waits until the API server is ready.
    pub fn resume(&self) -> Result<()> {
        self.etcd.start()?;
        self.api_server.start()?;
        self.wait_until_ready()
    }

    pub fn stop(&self) -> Result<()> {
        self.api_server.kill()?;
        self.etcd.stop()
    }

    /// Restarts with an empty database, so that another cluster answers at the same address. The old one is kept.
    pub fn wipe_database(&self) -> Result<()> {
        self.stop()?;
        fs::rename(&self.config.data_dir, self.backup_dir()).context("cannot move the database away")?;
        self.resume()?;
        self.grant_roles()
    }

    fn grant_roles(&self) -> Result<()> {
        self.apply(&manifest::roles())?;
        self.apply_text(manifest::HOST_ROLE)
    }

    /// Restarts with the database that [`ExtraCluster::wipe_database`] kept.
    pub fn restore_database(&self) -> Result<()> {
        self.stop()?;
        fs::remove_dir_all(&self.config.data_dir).context("cannot remove the new database")?;
        fs::rename(self.backup_dir(), &self.config.data_dir).context("cannot move the database back")?;
        self.resume()
    }

    fn backup_dir(&self) -> PathBuf {
        self.config.data_dir.with_extension("kept")
    }

    pub fn url(&self) -> String {
        format!("https://{}:{}", CONTROL[0], self.config.api_port)
    }

    /// Kubeconfig of an administrator, or of a user with an agent's permissions.
    pub fn kubeconfig(&self, of_agent: bool) -> PathBuf {
        state::kubeconfig(&self.user(if of_agent { "agent" } else { "admin" }))
    }

    fn user(&self, name: &str) -> String {
        format!("cluster-{}-{name}", self.number)
    }

    pub fn wait_until_ready(&self) -> Result<()> {
        wait::until(Timeout::new(format!("API server {}", self.number), 90, self.api_server.log()), || {
            self.etcd.require_running()?;
            self.api_server.require_running()?;
            Ok(self.kubectl(&["get", "--raw=/readyz", "--request-timeout=2s"]).ok().map(drop))
        })
    }

    pub fn kubectl(&self, arguments: &[&str]) -> Result<String> {
        subprocess::run(self.kubectl_command()?.args(arguments))
    }

    pub fn apply(&self, objects: &Value) -> Result<()> {
        self.apply_text(&objects.to_string())
    }

    fn apply_text(&self, text: &str) -> Result<()> {
        let arguments = ["apply", "--server-side", "-f", "-"];
        subprocess::run_with_input(self.kubectl_command()?.args(arguments), text.as_bytes()).map(drop)
    }

    fn kubectl_command(&self) -> Result<std::process::Command> {
        let mut command = std::process::Command::new(component::program()?);
        command
            .args(["control", "--"])
            .arg(self.cache.program("kubectl"))
            .arg("--kubeconfig")
            .arg(self.kubeconfig(false));
        Ok(command)
    }

    /// Makes `node` a node of this cluster, and `pod` a pod on it that answers with its name at port 8080.
    pub fn join(&self, node: HostId, pod: HostId, addresses: [IpAddr; 2]) -> Result<ExtraNode> {
        let node = OutsideHost::create(node, HostRoute::Isolated)?;
        let pod = OutsideHost::create(pod, HostRoute::Pod { of: node.host, addresses })?;
        let agnhost = self.cache.program("agnhost").display().to_string();
        let web =
            pod.component("web", vec![agnhost, "netexec".into(), "--http-port=8080".into(), "--udp-port=8080".into()])?;
        web.start()?;
        self.register(node.host)?;
        let proxy = self.proxy(&node)?;
        proxy.start()?;
        Ok(ExtraNode { proxy, web, pod, node })
    }

    fn proxy(&self, node: &OutsideHost) -> Result<Component> {
        let file = node.files().join("kube-proxy.json");
        let settings = proxy::settings(&node.host.name(), ProxyMode::Nftables, &self.kubeconfig(false));
        state::write(&file, serde_json::to_vec_pretty(&settings)?)?;
        let program = self.cache.program("kube-proxy").display().to_string();
        node.component("kube-proxy", vec![program, format!("--config={}", file.display()), "--v=2".into()])
    }

    /// Creates the Node object with its status, because there is no kubelet that does it.
    fn register(&self, node: HostId) -> Result<()> {
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

impl Drop for ExtraCluster {
    fn drop(&mut self) {
        let _ = self.api_server.kill(); // `kit down` stops it too.
        let _ = self.etcd.kill();
    }
}

fn config(number: u8, ranges: [&'static str; 2]) -> ControlPlaneConfig {
    let (dir, offset) = (state::path(&format!("cluster-{number}")), u16::from(number) - 1);
    ControlPlaneConfig {
        etcd_port: 2379 + 10 * offset,
        api_port: API_PORT + offset,
        service_ranges: ranges,
        certificate_dir: dir.join("pki"),
        data_dir: dir.join("etcd"),
    }
}
