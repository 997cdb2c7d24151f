//! etcd and kube-apiserver, and a way to write to them. No controllers: what is in the API is what the bench wrote.

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
    process::Process,
    site::API_ADDRESS,
    world::{self, NODE_PATH, SERVICES},
};
use crate::ground::Netns;

const STORE: &str = "http://127.0.0.1:2379";
const PEERS: &str = "http://127.0.0.1:2380";
const TOKEN: &str = "bench";
const START: Duration = Duration::from_secs(120);
/// Writes under way.
const AT_ONCE: usize = 32;

fn api() -> String {
    format!("https://{API_ADDRESS}:6443")
}

/// Fields go in this order.
pub struct Control {
    client: Client,
    runtime: Runtime,
    server: Process,
    store: Process,
    directory: PathBuf,
}

/// One write, as its writer saw it.
#[derive(Debug, Clone, Copy)]
pub struct Written {
    pub sent: Instant,
    pub answered: Instant,
}

impl Control {
    /// Leaves the calling thread in the control plane's network.
    pub fn start(netns: &Netns, cgroup: &Path, cache: &Cache, directory: &Path, logs: &Path) -> Result<Self> {
        let mut store = start_store(netns, cgroup, cache, directory, logs)?;
        let mut server = start_server(netns, cgroup, cache, directory, logs)?;
        netns.enter()?;
        let end = Instant::now() + START;
        let certificate = directory.join("pki/apiserver.crt");
        let runtime = runtime(netns)?;
        let client = loop {
            store.require_running()?;
            server.require_running()?;
            ensure!(Instant::now() < end, "the API server does not get ready: {}", server.last_words());
            if certificate.exists()
                && let Ok(client) = runtime.block_on(connect(&certificate))
            {
                break client;
            }
            std::thread::sleep(Duration::from_millis(100));
        };
        Ok(Self { client, runtime, server, store, directory: directory.into() })
    }

    /// For the contenders: one user, who may do everything.
    pub fn write_kubeconfig(&self) -> Result<PathBuf> {
        let file = self.directory.join("kubeconfig");
        let certificate = self.directory.join("pki/apiserver.crt");
        let text = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "bench",
            "contexts": [{"name": "bench", "context": {"cluster": "bench", "user": "bench"}}],
            "clusters": [{"name": "bench", "cluster": {"server": api(), "certificate-authority": certificate}}],
            "users": [{"name": "bench", "user": {"token": TOKEN}}],
        });
        std::fs::write(&file, text.to_string()).with_context(|| format!("write {}", file.display()))?;
        Ok(file)
    }

    pub fn create_node(&self, name: &str, address: &str) -> Result<()> {
        self.write("POST", NODE_PATH, &json!({"metadata": {"name": name}}))?;
        let ready = json!({"type": "Ready", "status": "True"});
        let addresses = json!([{"type": "InternalIP", "address": address}]);
        let status = json!({"status": {"addresses": addresses, "conditions": [ready]}});
        self.write("PATCH", &format!("{NODE_PATH}/{name}/status"), &status).map(drop)
    }

    pub fn write(&self, method: &'static str, path: &str, body: &Value) -> Result<Written> {
        self.runtime.block_on(request(self.client.clone(), method, path.into(), body.clone()))
    }

    pub fn read(&self, path: &str) -> Result<String> {
        let request = http::Request::get(path).body(Vec::new())?;
        self.runtime.block_on(self.client.request_text(request)).with_context(|| format!("GET {path}"))
    }

    /// Many at once, in no order.
    pub fn write_all(&self, method: &'static str, writes: impl Iterator<Item = (String, Value)>) -> Result<()> {
        let send = |(path, body)| request(self.client.clone(), method, path, body);
        self.runtime.block_on(in_parallel(writes.map(send)))
    }

    /// Both must still run.
    pub fn require_running(&mut self) -> Result<()> {
        self.store.require_running()?;
        self.server.require_running()
    }

    pub fn add_slices(&self, numbers: std::ops::Range<u32>) -> Result<()> {
        self.write_all("POST", numbers.map(|number| (world::SLICE_PATH.to_owned(), world::slice(number))))
    }

    /// These services and their slices, the last of them when all others are there.
    pub fn add_services(&self, numbers: std::ops::Range<u32>) -> Result<()> {
        let Some(last) = numbers.clone().last() else { return Ok(()) };
        self.add_slices(numbers.clone())?;
        let path = world::SERVICE_PATH.to_owned();
        let others = (numbers.start..last).map(|number| (path.clone(), world::service(number)));
        self.write_all("POST", others)?;
        self.write("POST", world::SERVICE_PATH, &world::service(last)).map(drop)
    }
}

async fn in_parallel<F>(writes: impl Iterator<Item = F>) -> Result<()>
where
    F: Future<Output = Result<Written>>,
{
    stream::iter(writes).buffer_unordered(AT_ONCE).try_for_each(|_| async { Ok(()) }).await
}

async fn request(client: Client, method: &'static str, path: String, body: Value) -> Result<Written> {
    let kind = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
    let request = http::Request::builder().method(method).uri(&path).header("content-type", kind);
    let request = request.body(serde_json::to_vec(&body)?)?;
    let sent = Instant::now();
    let answer = client.request_text(request).await;
    let answered = Instant::now();
    answer.with_context(|| format!("{method} {path}"))?;
    Ok(Written { sent, answered })
}

async fn connect(certificate: &Path) -> Result<Client> {
    let mut config = kube::Config::new(api().parse()?);
    config.root_cert_file = Some(certificate.into());
    config.auth_info.token = Some(TOKEN.to_owned().into());
    let client = Client::try_from(config)?;
    client.request_text(http::Request::get("/readyz").body(Vec::new())?).await?;
    Ok(client)
}

/// Its worker, too, is in the control plane's network, and keeps idle connections alive while the bench does other things.
fn runtime(netns: &Netns) -> Result<Runtime> {
    let namespace = Arc::new(std::fs::File::open(netns.file())?);
    let enter = move || crate::ground::enter(&namespace).expect("the control plane's network is there");
    Ok(tokio::runtime::Builder::new_multi_thread().worker_threads(1).on_thread_start(enter).enable_all().build()?)
}

fn start_store(netns: &Netns, cgroup: &Path, cache: &Cache, directory: &Path, logs: &Path) -> Result<Process> {
    let words = [
        cache.debian("usr/bin/etcd").display().to_string(),
        format!("--data-dir={}", directory.join("etcd").display()),
        format!("--listen-client-urls={STORE}"),
        format!("--advertise-client-urls={STORE}"),
        format!("--listen-peer-urls={PEERS}"),
        format!("--initial-advertise-peer-urls={PEERS}"),
        format!("--initial-cluster=default={PEERS}"),
        // What it stores is gone with the bench.
        "--unsafe-no-fsync".into(),
        "--log-level=warn".into(),
    ];
    Process::start("etcd", &cgroup.join("etcd"), netns, &words, &[], &logs.join("etcd.log"))
}

fn start_server(netns: &Netns, cgroup: &Path, cache: &Cache, directory: &Path, logs: &Path) -> Result<Process> {
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
    Process::start("kube-apiserver", &cgroup, netns, &words, &[], &logs.join("kube-apiserver.log"))
}

/// Of the service accounts; nobody uses one, but the API server wants them.
fn make_keys(file: &str) -> Result<()> {
    let key = rcgen::KeyPair::generate()?;
    std::fs::write(format!("{file}.key"), key.serialize_pem()).with_context(|| format!("write {file}.key"))?;
    std::fs::write(format!("{file}.pub"), key.public_key_pem()).with_context(|| format!("write {file}.pub"))
}
