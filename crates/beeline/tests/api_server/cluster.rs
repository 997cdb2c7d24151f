//! etcd and kube-apiserver in a private network namespace, and functions to create objects in them.

use crate::source_reader::SourceReader;
use beeline_cluster::{Access, ApiServerSource, NodeScope, PodScope, ServiceFilter, SourceRole};
use beeline_harness::{RunningProgram, TestHost, TestNetwork};
use kube::Client;
use serde_json::{Value, json};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Timeout of all waits; long, because the machine may be busy.
pub const TIMEOUT: Duration = Duration::from_secs(120);
pub const TOKEN: &str = "first-token";
pub const API: &str = "https://127.0.0.1:6443";

fn etcd_url(number: u16) -> String {
    format!("http://127.0.0.1:{}", 2379 + number * 10)
}

pub fn program(name: &str) -> PathBuf {
    let home = || PathBuf::from(std::env::var_os("HOME").unwrap_or_default()).join(".cache/beeline");
    let cache = std::env::var_os("BEELINE_CACHE").map_or_else(home, PathBuf::from);
    let kit = std::env::var_os("BEELINE_KIT_BIN").map_or_else(|| cache.join("kit/bin"), PathBuf::from);
    let path = std::env::var_os("PATH").unwrap_or_default();
    // The kit has programs from Debian packages, such as etcd, in a separate directory.
    let own = [kit.clone(), cache.join("kit/debian/usr/bin")];
    let mut places = own.into_iter().chain(std::env::split_paths(&path));
    let found = places.find(|dir| dir.join(name).is_file()).map(|dir| dir.join(name));
    found.unwrap_or_else(|| {
        panic!(
            "{name} is neither in {} nor on the path: these tests need the programs of the kit; set BEELINE_KIT_BIN to their directory",
            kit.display()
        )
    })
}

/// Makes the tests run one after the other. Parallel API servers would only slow each other down.
fn run_alone() -> MutexGuard<'static, ()> {
    static LOCK: Mutex<()> = Mutex::new(());
    LOCK.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Fields are dropped in this order.
pub struct Cluster<'a> {
    api: Option<RunningProgram>,
    etcd: RunningProgram,
    pub dir: TempDir,
    /// Key prefix of the objects in etcd. Another prefix makes another cluster at the next start of the API server.
    pub registry: &'static str,
    pub network: &'a TestNetwork,
    /// The host on which the programs run and listen.
    host: &'a TestHost,
    address: Ipv4Addr,
    /// Number of the cluster, which determines its ports. Several clusters can share a namespace.
    number: u16,
}

/// Runs the test in the node's namespace, with a cluster there.
pub fn with_cluster(test: impl AsyncFnOnce(&mut Cluster<'_>) + Send) {
    let _alone = run_alone();
    let network = TestNetwork::new(2).unwrap();
    let run = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut cluster = Cluster::start(&network, 0).await;
            test(&mut cluster).await;
        });
    };
    network.node().namespace.run_in(run).unwrap();
}

/// As `with_cluster`, with two clusters that have the same ranges.
pub fn with_two_clusters(test: impl AsyncFnOnce(&mut Cluster<'_>, &mut Cluster<'_>) + Send) {
    let _alone = run_alone();
    let network = TestNetwork::new(2).unwrap();
    let run = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (mut first, mut second) = (Cluster::start(&network, 0).await, Cluster::start(&network, 1).await);
            test(&mut first, &mut second).await;
        });
    };
    network.node().namespace.run_in(run).unwrap();
}

impl<'a> Cluster<'a> {
    async fn start(network: &'a TestNetwork, number: u16) -> Cluster<'a> {
        Cluster::start_at(network, network.node(), Ipv4Addr::LOCALHOST, number).await
    }

    pub async fn start_at(network: &'a TestNetwork, host: &'a TestHost, address: Ipv4Addr, number: u16) -> Cluster<'a> {
        let dir = tempfile::tempdir().unwrap();
        let data = format!("--data-dir={}", dir.path().join("etcd").display());
        let (url, peer) = (etcd_url(number), format!("http://127.0.0.1:{}", 2380 + number * 10));
        let own = ["--listen-client-urls", &url, "--advertise-client-urls", &url, "--unsafe-no-fsync"];
        let peers = ["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer];
        let all = format!("--initial-cluster=default={peer}");
        let etcd = host.program(program("etcd")).unwrap().args([data.as_str(), all.as_str()]).args(own).args(peers);
        let etcd = etcd.spawn().unwrap();
        let mut cluster = Cluster { api: None, etcd, dir, registry: "/registry", network, host, address, number };
        cluster.make_keys();
        cluster.make_identity("first");
        cluster.trust_identity("first");
        cluster.set_tokens(&[TOKEN]);
        cluster.start_api().await;
        cluster.write_account(TOKEN);
        cluster
    }

    fn make_keys(&self) {
        let key = self.path("account.key");
        let made = std::process::Command::new("openssl").args(["genrsa", "-out", &key, "2048"]).output();
        let made = made.expect("openssl makes the key of the service accounts: install openssl");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    }

    /// Creates a self-signed client certificate.
    pub fn make_identity(&self, name: &str) {
        let (key, certificate) = (self.path(&format!("{name}.key")), self.path(&format!("{name}.crt")));
        let args =
            ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/O=system:masters/CN=agent"];
        let made =
            std::process::Command::new("openssl").args(args).args(["-keyout", &key, "-out", &certificate]).output();
        let made = made.expect("openssl makes client certificates: install openssl");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    }

    /// Sets the client certificate that the next API server accepts.
    pub fn trust_identity(&self, name: &str) {
        std::fs::copy(self.path(&format!("{name}.crt")), self.path("clients.crt")).unwrap();
    }

    /// Writes a kubeconfig for this user.
    pub fn write_kubeconfig(&self, user: Value) -> PathBuf {
        let file = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "test",
            "contexts": [{ "name": "test", "context": { "cluster": "test", "user": "test" } }],
            "clusters": [{
                "name": "test",
                "cluster": { "server": self.url(), "certificate-authority": self.path("account/ca.crt") },
            }],
            "users": [{ "name": "test", "user": user }],
        });
        std::fs::write(self.path("kubeconfig"), file.to_string()).unwrap();
        self.dir.path().join("kubeconfig")
    }

    pub fn url(&self) -> String {
        format!("https://{}:{}", self.address, 6443 + self.number)
    }

    pub fn path(&self, name: &str) -> String {
        self.dir.path().join(name).display().to_string()
    }

    /// Sets the tokens that the next API server accepts.
    pub fn set_tokens(&self, tokens: &[&str]) {
        let lines: String = tokens.iter().map(|token| format!("{token},tester,1,\"system:masters\"\n")).collect();
        std::fs::write(self.path("tokens"), lines).unwrap();
    }

    pub async fn start_api(&mut self) {
        let args = [
            format!("--etcd-servers={}", etcd_url(self.number)),
            format!("--etcd-prefix={}", self.registry),
            format!("--bind-address={}", self.address),
            format!("--advertise-address={}", self.host.v4),
            format!("--secure-port={}", 6443 + self.number),
            format!("--cert-dir={}", self.path("pki")),
            format!("--client-ca-file={}", self.path("clients.crt")),
            format!("--token-auth-file={}", self.path("tokens")),
            format!("--service-account-key-file={}", self.path("account.key")),
            format!("--service-account-signing-key-file={}", self.path("account.key")),
            "--service-account-issuer=https://kubernetes.default.svc".into(),
            "--service-cluster-ip-range=10.96.0.0/16,fd00:96::/112".into(),
            "--authorization-mode=RBAC".into(),
            "--disable-admission-plugins=ServiceAccount".into(),
        ];
        let program = self.host.program(program("kube-apiserver")).unwrap().args(args);
        self.api = Some(program.spawn().unwrap());
        let start = Instant::now();
        while !self.is_ready().await {
            let log = || self.api.as_ref().map(RunningProgram::stderr).unwrap_or_default();
            assert!(start.elapsed() < TIMEOUT, "the API server is not ready: {}\n{}", log(), self.etcd.stderr());
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    async fn is_ready(&self) -> bool {
        if !Path::new(&self.path("pki/apiserver.crt")).exists() {
            return false;
        }
        let client = self.client().await;
        let request = http::Request::get("/readyz").body(Vec::new()).unwrap();
        client.request_text(request).await.is_ok()
    }

    /// Kills the API server.
    pub fn stop_api(&mut self) {
        self.api = None;
    }

    /// Writes the service account files that are mounted into the pod of an agent.
    pub fn write_account(&self, token: &str) -> PathBuf {
        let account = self.dir.path().join("account");
        std::fs::create_dir_all(&account).unwrap();
        std::fs::copy(self.path("pki/apiserver.crt"), account.join("ca.crt")).unwrap();
        std::fs::write(account.join("token.new"), token).unwrap();
        std::fs::rename(account.join("token.new"), account.join("token")).unwrap();
        account
    }

    pub fn access(&self, servers: &[&str]) -> Access {
        let servers = servers.iter().map(|url| url.parse().unwrap()).collect();
        Access::InCluster { servers, account: self.dir.path().join("account") }
    }

    pub fn server(&self) -> ApiServerSource {
        ApiServerSource {
            access: self.access(&[API]),
            cluster: "local".into(),
            node: "node-1".into(),
            nodes: NodeScope::Own,
            pods: PodScope::Own,
            service_filter: ServiceFilter::default(),
            clear_taint: false,
            idle_timeout: beeline_cluster::WATCH_IDLE_TIMEOUT,
            role: SourceRole::Agent,
            controller_namespace: "kube-system".into(),
            report_namespace: "beeline-reports".into(),
            reports: None,
            watch_service_cidrs: false,
            verify_cluster: false,
            post_events: true,
            cluster_id_check: None,
        }
    }

    pub fn start_reader(&self) -> SourceReader {
        SourceReader::start(self.server())
    }

    // ---- requests of an administrator ----

    async fn client_with(&self, token: &str) -> Client {
        let mut config = kube::Config::new(self.url().parse().unwrap());
        config.root_cert_file = Some(self.path("pki/apiserver.crt").into());
        config.auth_info.token = Some(token.to_owned().into());
        Client::try_from(config).unwrap()
    }

    pub async fn client(&self) -> Client {
        let token = std::fs::read_to_string(self.path("tokens")).unwrap();
        self.client_with(token.split(',').next().unwrap()).await
    }

    pub async fn request(&self, method: &str, path: &str, body: &Value) -> Result<Value, kube::Error> {
        let client = self.client().await;
        let kind = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
        let request = http::Request::builder().method(method).uri(path).header("content-type", kind);
        client.request(request.body(serde_json::to_vec(body).unwrap()).unwrap()).await
    }

    pub async fn create(&self, path: &str, object: Value) {
        self.request("POST", path, &object).await.unwrap_or_else(|e| panic!("create at {path}: {e}"));
    }

    pub async fn patch(&self, path: &str, patch: Value) {
        self.request("PATCH", path, &patch).await.unwrap_or_else(|e| panic!("patch {path}: {e}"));
    }

    pub async fn delete(&self, path: &str) {
        self.request("DELETE", path, &json!({})).await.unwrap_or_else(|e| panic!("delete {path}: {e}"));
    }

    pub async fn get(&self, path: &str) -> Value {
        let client = self.client().await;
        client.request(http::Request::get(path).body(Vec::new()).unwrap()).await.unwrap()
    }

    pub async fn create_service(&self, name: &str, cluster_ip: &str) {
        let spec = json!({ "clusterIP": cluster_ip, "ports": [{ "name": "http", "port": 80 }] });
        self.create(SERVICES, json!({ "metadata": { "name": name }, "spec": spec })).await;
    }

    /// Creates a slice with a ready endpoint on node-1 per address, port 8080.
    pub async fn create_slice(&self, service: &str, name: &str, addresses: &[&str]) {
        let endpoint = |ip: &&str| json!({ "addresses": [ip], "nodeName": "node-1", "conditions": { "ready": true } });
        let endpoints: Vec<Value> = addresses.iter().map(endpoint).collect();
        let slice = json!({
            "metadata": { "name": name, "labels": { "kubernetes.io/service-name": service } },
            "addressType": "IPv4",
            "endpoints": endpoints,
            "ports": [{ "name": "http", "port": 8080, "protocol": "TCP" }],
        });
        self.create(SLICES, slice).await;
    }

    pub async fn create_node(&self, name: &str, address: &str, taints: Value) {
        self.create(NODES, json!({ "metadata": { "name": name }, "spec": { "taints": taints } })).await;
        let status = json!({ "status": { "addresses": [{ "type": "InternalIP", "address": address }] } });
        self.patch(&format!("{NODES}/{name}/status"), status).await;
    }

    // ---- direct access to etcd ----

    pub async fn etcd(&self, path: &str, body: Value) -> Value {
        let client = Client::try_from(kube::Config::new(etcd_url(self.number).parse().unwrap())).unwrap();
        let request = http::Request::post(path).body(serde_json::to_vec(&body).unwrap()).unwrap();
        client.request(request).await.unwrap_or_else(|e| panic!("etcd {path}: {e}"))
    }

    /// Removes all old revisions from etcd.
    pub async fn compact(&self) {
        let status = self.etcd("/v3/maintenance/status", json!({})).await;
        let revision = status["header"]["revision"].as_str().unwrap().to_owned();
        self.etcd("/v3/kv/compaction", json!({ "revision": revision, "physical": true })).await;
    }
}

pub const SERVICES: &str = "/api/v1/namespaces/default/services";
pub const SLICES: &str = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";
pub const NODES: &str = "/api/v1/nodes";
