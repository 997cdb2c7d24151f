//! etcd and kube-apiserver without controllers, and a client that writes objects.

use std::{
    future::Future,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use futures::{StreamExt, TryStreamExt, stream};
use kit::cache::Cache;
use kube::Client;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use super::{
    network::API_ADDRESS,
    objects::{self, NODE_PATH, SERVICES},
    process::BenchProcess,
};
use crate::isolation::BenchNamespace;

const STORE: &str = "http://127.0.0.1:2379";
const PEERS: &str = "http://127.0.0.1:2380";
const TOKEN: &str = "bench";
const START: Duration = Duration::from_secs(120);
/// Number of concurrent writes.
const CONCURRENCY: usize = 32;

fn api() -> String {
    format!("https://{API_ADDRESS}:6443")
}

/// Fields are dropped in this order.
pub struct ControlPlane {
    client: Client,
    runtime: Runtime,
    server: BenchProcess,
    store: BenchProcess,
    directory: PathBuf,
}

/// Times of one write.
#[derive(Debug, Clone, Copy)]
pub struct WriteTimes {
    pub sent: Instant,
    pub answered: Instant,
}

impl ControlPlane {
    /// Starts etcd and the API server, and moves the calling thread into the control plane's network namespace.
    pub fn start(netns: &BenchNamespace, cgroup: &Path, cache: &Cache, directory: &Path, logs: &Path) -> Result<Self> {
        let mut store = start_store(netns, cgroup, cache, directory, logs)?;
        let mut server = start_server(netns, cgroup, cache, directory, logs)?;
        netns.enter()?;
        let end = Instant::now() + START;
        let certificate = directory.join("pki/apiserver.crt");
        let runtime = runtime(netns)?;
        let client = loop {
            store.require_running()?;
            server.require_running()?;
            ensure!(Instant::now() < end, "the API server did not become ready: {}", server.log_tail());
            if certificate.exists()
                && let Ok(client) = runtime.block_on(connect(&certificate))
            {
                break client;
            }
            std::thread::sleep(Duration::from_millis(100));
        };
        Ok(Self { client, runtime, server, store, directory: directory.into() })
    }

    /// Writes an administrator's kubeconfig for the contenders.
    pub fn write_kubeconfig(&self) -> Result<PathBuf> {
        let file = self.directory.join("kubeconfig");
        let certificate = self.directory.join("pki/apiserver.crt");
        let text = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "bench",
            "contexts": [{"name": "bench", "context": {"cluster": "bench", "user": "bench"}}],
            "clusters": [{"name": "bench", "cluster": {"server": api(), "certificate-authority": certificate}}],
            "users": [{"name": "bench", "user": {"token": TOKEN}}],
        });
        std::fs::write(&file, text.to_string()).with_context(|| format!("cannot write {}", file.display()))?;
        Ok(file)
    }

    pub fn create_node(&self, name: &str, address: &str) -> Result<()> {
        self.write("POST", NODE_PATH, &json!({"metadata": {"name": name}}))?;
        let ready = json!({"type": "Ready", "status": "True"});
        let addresses = json!([{"type": "InternalIP", "address": address}]);
        let status = json!({"status": {"addresses": addresses, "conditions": [ready]}});
        self.write("PATCH", &format!("{NODE_PATH}/{name}/status"), &status).map(drop)
    }

    pub fn write(&self, method: &'static str, path: &str, body: &Value) -> Result<WriteTimes> {
        self.runtime.block_on(request(self.client.clone(), method, path.into(), body.clone()))
    }

    pub fn read(&self, path: &str) -> Result<String> {
        let request = http::Request::get(path).body(Vec::new())?;
        self.runtime.block_on(self.client.request_text(request)).with_context(|| format!("GET {path}"))
    }

    /// Sends many writes concurrently, in any order.
    pub fn write_all(&self, method: &'static str, writes: impl Iterator<Item = (String, Value)>) -> Result<()> {
        let send = |(path, body)| request(self.client.clone(), method, path, body);
        self.runtime.block_on(in_parallel(writes.map(send)))
    }

    /// Returns an error if etcd or the API server has ended.
    pub fn require_running(&mut self) -> Result<()> {
        self.store.require_running()?;
        self.server.require_running()
    }

    pub fn add_slices(&self, numbers: std::ops::Range<u32>) -> Result<()> {
        self.write_all("POST", numbers.map(|number| (objects::SLICE_PATH.to_owned(), objects::slice(number))))
    }

    /// Creates these services and their slices. The last service is created after all others.
    pub fn add_services(&self, numbers: std::ops::Range<u32>) -> Result<()> {
        let Some(last) = numbers.clone().last() else { return Ok(()) };
        self.add_slices(numbers.clone())?;
        let path = objects::SERVICE_PATH.to_owned();
        let others = (numbers.start..last).map(|number| (path.clone(), objects::service(number)));
        self.write_all("POST", others)?;
        self.write("POST", objects::SERVICE_PATH, &objects::service(last)).map(drop)
    }
}

async fn in_parallel<F>(writes: impl Iterator<Item = F>) -> Result<()>
where
    F: Future<Output = Result<WriteTimes>>,
{
    stream::iter(writes).buffer_unordered(CONCURRENCY).try_for_each(|_| async { Ok(()) }).await
}

async fn request(client: Client, method: &'static str, path: String, body: Value) -> Result<WriteTimes> {
    let kind = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
    let request = http::Request::builder().method(method).uri(&path).header("content-type", kind);
    let request = request.body(serde_json::to_vec(&body)?)?;
    let sent = Instant::now();
    let answer = client.request_text(request).await;
    let answered = Instant::now();
    answer.with_context(|| format!("{method} {path}"))?;
    Ok(WriteTimes { sent, answered })
}

async fn connect(certificate: &Path) -> Result<Client> {
    let mut config = kube::Config::new(api().parse()?);
    config.root_cert_file = Some(certificate.into());
    config.auth_info.token = Some(TOKEN.to_owned().into());
    let client = Client::try_from(config)?;
    client.request_text(http::Request::get("/readyz").body(Vec::new())?).await?;
    Ok(client)
}

/// A runtime whose worker thread is in the control plane's network namespace and keeps idle connections alive.
fn runtime(netns: &BenchNamespace) -> Result<Runtime> {
    let namespace = Arc::new(std::fs::File::open(netns.file())?);
    let enter = move || crate::isolation::enter(&namespace).expect("the control plane's network namespace exists");
    Ok(tokio::runtime::Builder::new_multi_thread().worker_threads(1).on_thread_start(enter).enable_all().build()?)
}

fn start_store(
    netns: &BenchNamespace,
    cgroup: &Path,
    cache: &Cache,
    directory: &Path,
    logs: &Path,
) -> Result<BenchProcess> {
    let words = [
        cache.debian("usr/bin/etcd").display().to_string(),
        format!("--data-dir={}", directory.join("etcd").display()),
        format!("--listen-client-urls={STORE}"),
        format!("--advertise-client-urls={STORE}"),
        format!("--listen-peer-urls={PEERS}"),
        format!("--initial-advertise-peer-urls={PEERS}"),
        format!("--initial-cluster=default={PEERS}"),
        // The data is removed with the bench.
        "--unsafe-no-fsync".into(),
        "--log-level=warn".into(),
    ];
    BenchProcess::start("etcd", &cgroup.join("etcd"), netns, &words, &[], &logs.join("etcd.log"))
}

fn start_server(
    netns: &BenchNamespace,
    cgroup: &Path,
    cache: &Cache,
    directory: &Path,
    logs: &Path,
) -> Result<BenchProcess> {
    let file = |name: &str| directory.join(name).display().to_string();
    std::fs::write(file("tokens"), format!("{TOKEN},bench,1,\"system:masters\"\n"))?;
    make_keys(&file("account"))?;
    let words = [
        cache.program("kube-apiserver").display().to_string(),
        format!("--etcd-servers={STORE}"),
        format!("--advertise-address={API_ADDRESS}"),
        "--secure-port=6443".into(),
        format!("--cert-dir={}", file("pki")),
        format!("--token-auth-file={}", file("tokens")),
        format!("--service-account-key-file={}", file("account.pub")),
        format!("--service-account-signing-key-file={}", file("account.key")),
        "--service-account-issuer=https://kubernetes.default.svc".into(),
        format!("--service-cluster-ip-range={SERVICES}"),
        "--authorization-mode=RBAC".into(),
        "--disable-admission-plugins=ServiceAccount".into(),
    ];
    let cgroup = cgroup.join("kube-apiserver");
    BenchProcess::start("kube-apiserver", &cgroup, netns, &words, &[], &logs.join("kube-apiserver.log"))
}

/// Creates the service account keys that the API server requires.
fn make_keys(file: &str) -> Result<()> {
    let key = rcgen::KeyPair::generate()?;
    std::fs::write(format!("{file}.key"), key.serialize_pem()).with_context(|| format!("cannot write {file}.key"))?;
    std::fs::write(format!("{file}.pub"), key.public_key_pem()).with_context(|| format!("cannot write {file}.pub"))
}
