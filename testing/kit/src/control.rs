//! The control plane: etcd and Kubernetes' three programs, outside the nodes.

use std::path::PathBuf;

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

/// Where a control plane listens, and keeps what it has.
pub struct Seat {
    /// Of etcd; the next one is for its peers.
    pub store: u16,
    pub port: u16,
    /// Of Services.
    pub ranges: [&'static str; 2],
    pub keys: PathBuf,
    pub files: PathBuf,
}

impl Seat {
    fn first() -> Seat {
        Seat { store: 2379, port: API_PORT, ranges: SERVICES, keys: state::path("pki"), files: state::path("etcd") }
    }

    fn key(&self, file: &str) -> String {
        self.keys.join(file).display().to_string()
    }

    fn store_url(&self, above: u16) -> String {
        format!("http://127.0.0.1:{}", self.store + above)
    }
}

pub fn part(name: &str, cache: &Cache) -> Result<Part> {
    let words = match name {
        "etcd" => etcd(&Seat::first(), cache),
        "kube-apiserver" => api_server(&Seat::first(), cache),
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
pub fn etcd(seat: &Seat, cache: &Cache) -> Vec<String> {
    let (store, peers) = (seat.store_url(0), seat.store_url(1));
    let program = cache.debian("usr/bin/etcd").display().to_string();
    words(
        program,
        &[
            ("name", "kit".into()),
            ("data-dir", seat.files.display().to_string()),
            ("listen-client-urls", store.clone()),
            ("advertise-client-urls", store),
            ("listen-peer-urls", peers.clone()),
            ("initial-advertise-peer-urls", peers.clone()),
            ("initial-cluster", format!("kit={peers}")),
            ("unsafe-no-fsync", "true".into()),
            ("log-level", "warn".into()),
        ],
    )
}

pub fn api_server(seat: &Seat, cache: &Cache) -> Vec<String> {
    let pki = |file: &str| seat.key(file);
    words(
        cache.program("kube-apiserver").display().to_string(),
        &[
            ("etcd-servers", seat.store_url(0)),
            ("advertise-address", CONTROL[0].to_string()),
            ("secure-port", seat.port.to_string()),
            ("service-cluster-ip-range", seat.ranges.join(",")),
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
    let pki = |file: &str| Seat::first().key(file);
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
