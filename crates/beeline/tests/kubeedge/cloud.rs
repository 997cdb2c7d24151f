//! The cloud side: an API server with the controllers for endpoints and aggregated roles, cloudcore, and a node with
//! kube-proxy.

use crate::cluster::{Cluster, NODES, SERVICES, TIMEOUT, TOKEN, program};
use beeline_harness::{RunningProgram, TestNetwork};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::time::Instant;

const CONTROLLERS: &str = "clusterrole-aggregation-controller,endpoints-controller,endpointslice-controller";
pub const PODS: &str = "/api/v1/namespaces/default/pods";

/// Fields are dropped in this order.
pub struct Cloud<'a> {
    core: Option<RunningProgram>,
    proxy: Option<RunningProgram>,
    _controllers: RunningProgram,
    pub cluster: Cluster<'a>,
}

/// A file that the kit copied from the KubeEdge module.
fn kubeedge(name: &str) -> PathBuf {
    program("edgecore").parent().unwrap().with_file_name("edge").join(name)
}

impl<'a> Cloud<'a> {
    /// Starts everything except cloudcore.
    pub async fn start(network: &'a TestNetwork) -> Cloud<'a> {
        let cluster = Cluster::start_at(network, &network.outside, network.outside.v4, 0).await;
        let admin = kubeconfig(&cluster, "admin", TOKEN);
        let controllers = network.outside.program(program("kube-controller-manager")).unwrap();
        let key = format!("--service-account-private-key-file={}", cluster.path("account.key"));
        let only = [format!("--kubeconfig={admin}"), format!("--controllers={CONTROLLERS}"), key];
        let controllers = controllers.args(only).args(["--leader-elect=false"]).spawn().unwrap();
        let cloud = Cloud { core: None, proxy: None, _controllers: controllers, cluster };
        cloud.apply(&kubeedge("crds"));
        cloud.create_account().await;
        cloud
    }

    /// Creates the service account of cloudcore, as the chart of KubeEdge does.
    async fn create_account(&self) {
        self.cluster.create("/api/v1/namespaces", json!({ "metadata": { "name": "kubeedge" } })).await;
        let accounts = "/api/v1/namespaces/kubeedge/serviceaccounts";
        self.cluster.create(accounts, json!({ "metadata": { "name": "cloudcore" } })).await;
        let request = json!({ "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {} });
        let response = self.cluster.request("POST", &format!("{accounts}/cloudcore/token"), &request).await.unwrap();
        kubeconfig(&self.cluster, "cloudcore", response["status"]["token"].as_str().unwrap());
    }

    /// Starts kube-proxy on c1, whose Node must exist.
    pub fn start_proxy(&mut self) {
        self.proxy = Some(proxy(&self.cluster));
    }

    pub fn apply(&self, path: &Path) {
        let kubectl = self.cluster.network.outside.program(program("kubectl")).unwrap().limit(TIMEOUT);
        let admin = format!("--kubeconfig={}", self.cluster.path("admin.json"));
        let output = kubectl.args([admin.as_ref(), "apply".as_ref(), "-R".as_ref(), "-f".as_ref(), path.as_os_str()]);
        let output = output.run().unwrap();
        assert!(output.status.success(), "{output:?}");
    }

    /// Grants the rights of the KubeEdge chart, without these resources.
    pub async fn grant(&self, without: &[&str]) {
        let roles = "/apis/rbac.authorization.k8s.io/v1/clusterroles";
        let gathered = json!({ "matchLabels": { "rbac/aggregate-to-cloudcore": "true" } });
        let role = json!({ "metadata": { "name": "cloudcore" },
            "aggregationRule": { "clusterRoleSelectors": [gathered] }, "rules": [] });
        self.cluster.create(roles, role).await;
        let group = "rbac.authorization.k8s.io";
        let binding = json!({ "metadata": { "name": "cloudcore" },
            "roleRef": { "apiGroup": group, "kind": "ClusterRole", "name": "cloudcore" },
            "subjects": [{ "kind": "ServiceAccount", "name": "cloudcore", "namespace": "kubeedge" }] });
        self.cluster.create("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", binding).await;
        let mut text = std::fs::read_to_string(kubeedge("rbac_cloudcore.yaml")).unwrap();
        for resource in without {
            let quoted = format!("\"{resource}\", ");
            assert!(text.contains(&quoted), "the role of KubeEdge lacks {resource}");
            text = text.replace(&quoted, "");
        }
        let file = self.cluster.dir.path().join("rbac.yaml");
        std::fs::write(&file, text).unwrap();
        self.apply(&file);
    }

    /// Allows cloudcore to list EndpointSlices.
    pub async fn grant_slices(&self) {
        let rule = json!({ "apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"],
            "verbs": ["get", "list", "watch"] });
        let meta = json!({ "name": "slices", "labels": { "rbac/aggregate-to-cloudcore": "true" } });
        let roles = "/apis/rbac.authorization.k8s.io/v1/clusterroles";
        self.cluster.create(roles, json!({ "metadata": meta, "rules": [rule] })).await;
    }

    pub fn connect(&mut self) {
        let (dir, address) = (self.cluster.path("cloudcore"), self.cluster.network.outside.v4.to_string());
        std::fs::create_dir_all(&dir).unwrap();
        let at = |name: &str| format!("{dir}/{name}");
        let hub = json!({
            "advertiseAddress": [address],
            "https": { "enable": true, "address": "0.0.0.0", "port": 10002 },
            "websocket": { "enable": true, "address": "0.0.0.0", "port": 10000 },
            "unixsocket": { "enable": false, "address": format!("unix://{}", at("hub.sock")) },
            "tlsCAFile": at("ca.crt"), "tlsCAKeyFile": at("ca.key"),
            "tlsCertFile": at("server.crt"), "tlsPrivateKeyFile": at("server.key"),
        });
        let config = json!({
            "apiVersion": "cloudcore.config.kubeedge.io/v1alpha1", "kind": "CloudCore",
            "kubeAPIConfig": { "kubeConfig": self.cluster.path("cloudcore.json") },
            "modules": {
                "cloudHub": hub, "dynamicController": { "enable": true },
                "deviceController": { "enable": false }, "iptablesManager": { "enable": false },
            },
        });
        std::fs::write(at("cloudcore.yaml"), config.to_string()).unwrap();
        let core = self.cluster.network.outside.program(program("cloudcore")).unwrap();
        self.core = Some(core.args(["--config", &at("cloudcore.yaml")]).spawn().unwrap());
    }

    /// Kills cloudcore.
    pub fn disconnect(&mut self) {
        self.core = None;
    }

    /// The token with which an edge node joins. Cloudcore creates it at its start.
    pub async fn token(&self) -> String {
        let start = Instant::now();
        let path = "/api/v1/namespaces/kubeedge/secrets/tokensecret";
        loop {
            if let Ok(secret) = self.cluster.request("GET", path, &json!({})).await {
                let text = secret["data"]["tokendata"].as_str().unwrap();
                let bytes = base64::Engine::decode(&base64::engine::general_purpose::STANDARD, text).unwrap();
                return String::from_utf8(bytes).unwrap();
            }
            let log = || self.core.as_ref().map(RunningProgram::stderr).unwrap_or_default();
            assert!(start.elapsed() < TIMEOUT, "cloudcore has not created a token: {}", log());
            tokio::time::sleep(std::time::Duration::from_millis(200)).await;
        }
    }

    // ---- objects ----

    pub async fn node(&self, name: &str, address: &str, labels: Value) {
        self.cluster.create(NODES, json!({ "metadata": { "name": name, "labels": labels } })).await;
        let status = json!({ "status": {
            "addresses": [{ "type": "InternalIP", "address": address }],
            "conditions": [{ "type": "Ready", "status": "True" }],
        } });
        self.cluster.patch(&format!("{NODES}/{name}/status"), status).await;
    }

    /// Creates a running and ready pod.
    pub async fn pod(&self, name: &str, node: &str, address: &str, labels: Value) {
        let spec = json!({ "nodeName": node, "containers": [{ "name": "app", "image": "none" }] });
        self.cluster.create(PODS, json!({ "metadata": { "name": name, "labels": labels }, "spec": spec })).await;
        let status = json!({ "status": {
            "phase": "Running", "podIP": address, "podIPs": [{ "ip": address }],
            "conditions": [{ "type": "Ready", "status": "True" }],
        } });
        self.cluster.patch(&format!("{PODS}/{name}/status"), status).await;
    }

    /// Creates a Service that selects pods by a label with its name. `node_port` 0 means no NodePort.
    pub async fn service(&self, name: &str, ip: &str, port: &str, node_port: u16) {
        let mut spec = json!({ "clusterIP": ip, "selector": { name: "yes" },
            "ports": [{ "name": port, "port": 80, "targetPort": 8080 }] });
        if node_port != 0 {
            spec["type"] = json!("NodePort");
            // With Cluster, c1 could pick a pod of an edge node, which it cannot reach.
            spec["externalTrafficPolicy"] = json!("Local");
            spec["ports"][0]["nodePort"] = json!(node_port);
        }
        self.cluster.create(SERVICES, json!({ "metadata": { "name": name }, "spec": spec })).await;
    }

    /// Adds a pod to a Service, or removes it.
    pub async fn label(&self, pod: &str, service: &str, selected: bool) {
        let label = if selected { json!("yes") } else { Value::Null };
        self.cluster.patch(&format!("{PODS}/{pod}"), json!({ "metadata": { "labels": { service: label } } })).await;
    }
}

impl Drop for Cloud<'_> {
    fn drop(&mut self) {
        let programs =
            [("cloudcore", &self.core), ("kube-proxy", &self.proxy)].map(|(name, part)| (name, part.as_ref()));
        for (name, part) in programs.into_iter().filter(|_| std::thread::panicking()) {
            eprintln!("log of {name}:\n{}", part.map(RunningProgram::stderr).unwrap_or_default());
        }
    }
}

fn kubeconfig(cluster: &Cluster, name: &str, token: &str) -> String {
    let path = cluster.write_kubeconfig(json!({ "token": token }));
    let own = cluster.path(&format!("{name}.json"));
    std::fs::rename(path, &own).unwrap();
    own
}

fn proxy(cluster: &Cluster) -> RunningProgram {
    let config = json!({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration",
        "mode": "nftables", "hostnameOverride": "c1", "clusterCIDR": "10.244.0.0/16",
        "clientConnection": { "kubeconfig": cluster.path("admin.json") },
        // The connection tracking limits of the machine are not changed.
        "conntrack": { "maxPerCore": 0, "min": 0 },
    });
    std::fs::write(cluster.path("proxy-config.json"), config.to_string()).unwrap();
    let proxy = cluster.network.nodes[1].host.program(program("kube-proxy")).unwrap();
    proxy.args([format!("--config={}", cluster.path("proxy-config.json"))]).spawn().unwrap()
}
