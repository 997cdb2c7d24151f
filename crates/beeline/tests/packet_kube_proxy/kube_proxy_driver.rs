//! Runs kube-proxy on node-1. Its API server runs on the outside host.

use crate::cluster::{Cluster, NODES, SERVICES, SLICES, TIMEOUT, TOKEN, program};
use crate::suite::driver::{Driver, DriverKind};
use crate::suite::fixture::PacketFixture;
use crate::suite::manifest::ManifestFile;
use beeline_harness::RunningProgram;
use beeline_harness::packet::{POD_RANGES, PacketNetwork};
use serde_json::{Value, json};
use std::sync::{Mutex, PoisonError};
use tokio::runtime::Runtime;

/// kube-proxy prints this once it has read all objects.
const STARTED: &str = "Caches are synced";

struct KubeProxyDriver<'a> {
    proxy: Option<RunningProgram>,
    cluster: Cluster<'a>,
    network: &'a PacketNetwork,
    runtime: &'a Runtime,
}

/// Calls `test` with a fixture whose kube-proxy runs. The thread is in the namespace of the outside host, where the API
/// server listens.
pub fn with_fixture(test: fn(&mut PacketFixture<'_>)) {
    static LOCK: Mutex<()> = Mutex::new(());
    let _alone = LOCK.lock().unwrap_or_else(PoisonError::into_inner);
    let network = PacketNetwork::new().unwrap();
    let run = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let outside = &network.cluster.outside;
        let cluster = runtime.block_on(Cluster::start_at(&network.cluster, outside, outside.v4, 0));
        let mut driver = KubeProxyDriver { proxy: None, cluster, network: &network, runtime: &runtime };
        PacketFixture::nodes(&network).iter().for_each(|node| driver.apply(node));
        driver.start();
        test(&mut PacketFixture::new(&network, &mut driver));
    };
    network.cluster.outside.run_in(run).unwrap();
}

impl KubeProxyDriver<'_> {
    fn config(&self) -> String {
        let kubeconfig = self.cluster.write_kubeconfig(json!({ "token": TOKEN }));
        let config = json!({
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "mode": "nftables",
            "hostnameOverride": self.network.cluster.node().name,
            "clientConnection": { "kubeconfig": kubeconfig },
            "clusterCIDR": POD_RANGES.join(","),
            // The size of the conntrack table belongs to the machine.
            "conntrack": { "maxPerCore": 0, "min": 0 },
        });
        let path = self.cluster.path("kube-proxy.json");
        std::fs::write(&path, config.to_string()).unwrap();
        path
    }

    /// Creates the object, or replaces the fields that it has. Server-side apply refuses the two addresses of a Node,
    /// because they have the same type.
    async fn put(&self, object: &Value) {
        let (collection, name) = (collection(object), object["metadata"]["name"].as_str().unwrap());
        let path = format!("{collection}/{name}");
        let mut done = self.cluster.request("PATCH", &path, object).await;
        if matches!(&done, Err(kube::Error::Api(status)) if status.code == 404) {
            done = self.cluster.request("POST", collection, object).await;
        }
        done.unwrap_or_else(|e| panic!("write {path}: {e}: {object}"));
        if !object["status"].is_null() {
            self.cluster.patch(&format!("{path}/status"), json!({ "status": object["status"] })).await;
        }
    }
}

/// The path of an object's collection in the API.
fn collection(object: &Value) -> &'static str {
    match object["kind"].as_str().unwrap() {
        "Service" => SERVICES,
        "EndpointSlice" => SLICES,
        "Node" => NODES,
        kind => panic!("unknown kind {kind}"),
    }
}

impl Driver for KubeProxyDriver<'_> {
    fn kind(&self) -> DriverKind {
        DriverKind::KubeProxy
    }

    fn apply(&mut self, file: &ManifestFile) {
        file.documents().iter().for_each(|object| self.runtime.block_on(self.put(object)));
    }

    fn delete(&mut self, file: &ManifestFile) {
        for object in file.documents() {
            let path = format!("{}/{}", collection(object), object["metadata"]["name"].as_str().unwrap());
            self.runtime.block_on(self.cluster.delete(&path));
        }
    }

    fn kill(&mut self) {
        self.proxy = None;
    }

    fn start(&mut self) {
        let config = format!("--config={}", self.config());
        let proxy = self.network.cluster.node().program(program("kube-proxy")).unwrap().args([&config, "--v=2"]);
        let mut proxy = proxy.spawn().unwrap();
        proxy.wait_for(STARTED, TIMEOUT).unwrap();
        self.proxy = Some(proxy);
    }

    fn log(&mut self) -> String {
        self.proxy.as_ref().map(RunningProgram::stderr).unwrap_or_default()
    }
}
