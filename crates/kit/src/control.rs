//! The control plane: etcd and Kubernetes' three programs, outside the nodes.

use anyhow::{Result, bail};

use crate::{
    cache::Cache,
    namespace::Place,
    part::{self, Part},
    plan::{API_PORT, CONTROL, DOMAIN, SERVICES},
    state,
};

/// In the order in which they start.
pub const PARTS: [&str; 5] = ["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "addon"];
const STORE: &str = "http://127.0.0.1:2379";
const PEERS: &str = "http://127.0.0.1:2380";

pub fn part(name: &str, cache: &Cache) -> Result<Part> {
    let words = match name {
        "etcd" => etcd(cache),
        "kube-apiserver" => api_server(cache),
        "kube-controller-manager" => controller_manager(cache),
        "kube-scheduler" => scheduler(cache),
        "addon" => vec![part::program()?.display().to_string(), "addon".into()],
        _ => bail!("the control plane has no part {name:?}: it has {}", PARTS.join(", ")),
    };
    Part::new(Place::Control, name, words)
}

fn words(program: String, options: &[(&str, String)]) -> Vec<String> {
    let options = options.iter().map(|(name, value)| format!("--{name}={value}"));
    [program].into_iter().chain(options).collect()
}

/// What it stores is gone with the cluster: it need not reach the disk.
fn etcd(cache: &Cache) -> Vec<String> {
    let program = cache.debian("usr/bin/etcd").display().to_string();
    words(
        program,
        &[
            ("name", "kit".into()),
            ("data-dir", state::path("etcd").display().to_string()),
            ("listen-client-urls", STORE.into()),
            ("advertise-client-urls", STORE.into()),
            ("listen-peer-urls", PEERS.into()),
            ("initial-advertise-peer-urls", PEERS.into()),
            ("initial-cluster", format!("kit={PEERS}")),
            ("unsafe-no-fsync", "true".into()),
            ("log-level", "warn".into()),
        ],
    )
}

fn pki(file: &str) -> String {
    state::path("pki").join(file).display().to_string()
}

fn api_server(cache: &Cache) -> Vec<String> {
    words(
        cache.program("kube-apiserver").display().to_string(),
        &[
            ("etcd-servers", STORE.into()),
            ("advertise-address", CONTROL[0].to_string()),
            ("secure-port", API_PORT.to_string()),
            ("service-cluster-ip-range", SERVICES.join(",")),
            ("allow-privileged", "true".into()),
            ("authorization-mode", "Node,RBAC".into()),
            // It stands outside the nodes, where nobody resolves services: webhooks are called at their pods.
            ("enable-aggregator-routing", "true".into()),
            ("enable-admission-plugins", "NodeRestriction".into()),
            ("client-ca-file", pki("ca.crt")),
            ("tls-cert-file", pki("apiserver.crt")),
            ("tls-private-key-file", pki("apiserver.key")),
            ("kubelet-client-certificate", pki("kubelet-client.crt")),
            ("kubelet-client-key", pki("kubelet-client.key")),
            ("kubelet-preferred-address-types", "InternalIP".into()),
            ("service-account-issuer", format!("https://kubernetes.default.svc.{DOMAIN}")),
            ("service-account-key-file", pki("sa.pub")),
            ("service-account-signing-key-file", pki("sa.key")),
            ("requestheader-client-ca-file", pki("front-proxy-ca.crt")),
            ("requestheader-allowed-names", "front-proxy-client".into()),
            ("requestheader-extra-headers-prefix", "X-Remote-Extra-".into()),
            ("requestheader-group-headers", "X-Remote-Group".into()),
            ("requestheader-username-headers", "X-Remote-User".into()),
            ("proxy-client-cert-file", pki("front-proxy-client.crt")),
            ("proxy-client-key-file", pki("front-proxy-client.key")),
            ("v", "1".into()),
        ],
    )
}

/// Kubeconfigs under which a program is a client, and asks who its own clients are.
fn identity(name: &str) -> [(&'static str, String); 3] {
    let file = state::kubeconfig(name).display().to_string();
    ["kubeconfig", "authentication-kubeconfig", "authorization-kubeconfig"].map(|option| (option, file.clone()))
}

fn controller_manager(cache: &Cache) -> Vec<String> {
    let name = "kube-controller-manager";
    let own = [
        ("service-account-private-key-file", pki("sa.key")),
        ("root-ca-file", pki("ca.crt")),
        ("use-service-account-credentials", "true".into()),
        ("cluster-signing-cert-file", pki("ca.crt")),
        ("cluster-signing-key-file", pki("ca.key")),
        ("service-cluster-ip-range", SERVICES.join(",")),
        // The plan gives each node its range of pods, before the node is there.
        ("allocate-node-cidrs", "false".into()),
        ("leader-elect", "false".into()),
        ("v", "1".into()),
    ];
    words(cache.program(name).display().to_string(), &[&identity(name)[..], &own].concat())
}

fn scheduler(cache: &Cache) -> Vec<String> {
    let name = "kube-scheduler";
    let own = [("leader-elect", "false".into()), ("v", "1".into())];
    words(cache.program(name).display().to_string(), &[&identity(name)[..], &own].concat())
}
