//! The control plane, which runs outside the nodes: etcd, kube-apiserver, kube-controller-manager and kube-scheduler.

use std::path::PathBuf;

use anyhow::{Result, bail};

use crate::{
    address_plan::{API_PORT, CONTROL, DOMAIN, SERVICES},
    cache::Cache,
    component::{self, Component},
    namespace::Location,
    state,
};

/// Components in the order in which they start.
pub const COMPONENTS: [&str; 5] = ["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "addon"];

/// Ports, Service ranges and directories of a control plane.
pub struct ControlPlaneConfig {
    /// Client port of etcd. The peer port is the next one.
    pub etcd_port: u16,
    pub api_port: u16,
    pub service_ranges: [&'static str; 2],
    pub certificate_dir: PathBuf,
    /// Database of etcd.
    pub data_dir: PathBuf,
}

impl ControlPlaneConfig {
    fn first() -> ControlPlaneConfig {
        ControlPlaneConfig {
            etcd_port: 2379,
            api_port: API_PORT,
            service_ranges: SERVICES,
            certificate_dir: state::path("pki"),
            data_dir: state::path("etcd"),
        }
    }

    fn certificate(&self, file: &str) -> String {
        self.certificate_dir.join(file).display().to_string()
    }

    fn etcd_url(&self, offset: u16) -> String {
        format!("http://127.0.0.1:{}", self.etcd_port + offset)
    }
}

pub fn component(name: &str, cache: &Cache) -> Result<Component> {
    let arguments = match name {
        "etcd" => etcd(&ControlPlaneConfig::first(), cache),
        "kube-apiserver" => api_server(&ControlPlaneConfig::first(), cache),
        "kube-controller-manager" => controller_manager(cache),
        "kube-scheduler" => scheduler(cache),
        "addon" => vec![component::program()?.display().to_string(), "addon".into()],
        _ => bail!("the control plane has no component {name:?}: it has {}", COMPONENTS.join(", ")),
    };
    Component::new(Location::ControlPlane, name, arguments)
}

fn command_line(program: String, options: &[(&str, String)]) -> Vec<String> {
    let options = options.iter().map(|(name, value)| format!("--{name}={value}"));
    [program].into_iter().chain(options).collect()
}

/// etcd runs without fsync, because its data is removed with the cluster.
pub fn etcd(config: &ControlPlaneConfig, cache: &Cache) -> Vec<String> {
    let (clients, peers) = (config.etcd_url(0), config.etcd_url(1));
    let program = cache.debian("usr/bin/etcd").display().to_string();
    command_line(
        program,
        &[
            ("name", "kit".into()),
            ("data-dir", config.data_dir.display().to_string()),
            ("listen-client-urls", clients.clone()),
            ("advertise-client-urls", clients),
            ("listen-peer-urls", peers.clone()),
            ("initial-advertise-peer-urls", peers.clone()),
            ("initial-cluster", format!("kit={peers}")),
            ("unsafe-no-fsync", "true".into()),
            ("log-level", "warn".into()),
        ],
    )
}

pub fn api_server(config: &ControlPlaneConfig, cache: &Cache) -> Vec<String> {
    let pki = |file: &str| config.certificate(file);
    command_line(
        cache.program("kube-apiserver").display().to_string(),
        &[
            ("etcd-servers", config.etcd_url(0)),
            ("advertise-address", CONTROL[0].to_string()),
            ("secure-port", config.api_port.to_string()),
            ("service-cluster-ip-range", config.service_ranges.join(",")),
            ("allow-privileged", "true".into()),
            ("authorization-mode", "Node,RBAC".into()),
            // The API server runs outside the nodes, where no Service address is resolved, so webhooks are called at
            // their pods.
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

/// Options for the kubeconfig with which a program calls the API server and delegates authentication of its clients.
fn identity(name: &str) -> [(&'static str, String); 3] {
    let file = state::kubeconfig(name).display().to_string();
    ["kubeconfig", "authentication-kubeconfig", "authorization-kubeconfig"].map(|option| (option, file.clone()))
}

fn controller_manager(cache: &Cache) -> Vec<String> {
    let name = "kube-controller-manager";
    let pki = |file: &str| ControlPlaneConfig::first().certificate(file);
    let own = [
        ("service-account-private-key-file", pki("sa.key")),
        ("root-ca-file", pki("ca.crt")),
        ("use-service-account-credentials", "true".into()),
        ("cluster-signing-cert-file", pki("ca.crt")),
        ("cluster-signing-key-file", pki("ca.key")),
        ("service-cluster-ip-range", SERVICES.join(",")),
        // The address plan gives each node its pod range before the node registers.
        ("allocate-node-cidrs", "false".into()),
        ("leader-elect", "false".into()),
        ("v", "1".into()),
    ];
    command_line(cache.program(name).display().to_string(), &[&identity(name)[..], &own].concat())
}

fn scheduler(cache: &Cache) -> Vec<String> {
    let name = "kube-scheduler";
    let own = [("leader-elect", "false".into()), ("v", "1".into())];
    command_line(cache.program(name).display().to_string(), &[&identity(name)[..], &own].concat())
}
