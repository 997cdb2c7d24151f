//! The addresses of the API servers and the credentials. They are read from disk again after every failure, so that a
//! rotated token, certificate or kubeconfig takes effect without a restart.

use super::connector::ServerAddresses;
use beeline_model::Address;
use http::Uri;
use kube::config::{KubeConfigOptions, Kubeconfig};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::{self, PemObject};
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// A server that does not accept a connection within this time counts as failed.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Clone, Debug)]
pub enum Access {
    Kubeconfig {
        path: PathBuf,
        /// `None` means the current context of the file.
        context: Option<String>,
    },
    /// The service account of the pod.
    InCluster {
        /// Tried in turn. If empty, the Service address from the environment is used.
        servers: Vec<Uri>,
        /// The folder with `token` and `ca.crt`.
        account: PathBuf,
    },
}

#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    #[error("kubeconfig {}: {source}", path.display())]
    Kubeconfig { path: PathBuf, source: Box<kube::config::KubeconfigError> },
    #[error("cannot read {}: {source}; run in a pod with a service account, or use --kubeconfig", path.display())]
    Account { path: PathBuf, source: std::io::Error },
    #[error(
        "KUBERNETES_SERVICE_HOST and _PORT are not set: run in a pod, or use --api-server, --kubeconfig or --manifests"
    )]
    NoEnvironment,
    #[error("invalid API server {0}: expected a URL such as https://192.0.2.1:6443")]
    Server(String),
    #[error("the credentials {access} are not available after {} s: check whether a credential plugin of the kubeconfig (exec) hangs", waited.as_secs())]
    Slow { access: String, waited: Duration },
    #[error("cannot create a client for {server}: {source}")]
    Client { server: Uri, source: Box<kube::Error> },
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Access::Kubeconfig { path, context: None } => write!(f, "of {}", path.display()),
            Access::Kubeconfig { path, context: Some(context) } => write!(f, "of {} ({context})", path.display()),
            Access::InCluster { servers, .. } if servers.is_empty() => f.write_str("in cluster"),
            Access::InCluster { servers, .. } => {
                let all: Vec<String> = servers.iter().map(Uri::to_string).collect();
                f.write_str(&all.join(" "))
            }
        }
    }
}

impl Access {
    pub fn in_cluster(servers: &[String]) -> Result<Access, AccessError> {
        let servers = servers.iter().map(|text| parse_server(text)).collect::<Result<_, _>>()?;
        Ok(Access::InCluster { servers, account: SERVICE_ACCOUNT.into() })
    }

    /// Whether the API server is reached at its Service address.
    pub fn is_service(&self) -> bool {
        matches!(self, Access::InCluster { servers, .. } if servers.is_empty())
    }

    /// Checks that the files exist and can be parsed. The server is not contacted.
    pub async fn check(&self) -> Result<(), AccessError> {
        self.load(0).await.map(drop)
    }

    /// The servers to choose from, as far as they are listed: a kubeconfig that `beeline join` did not write names one
    /// server by its context.
    pub(crate) fn urls(&self) -> Vec<Uri> {
        match self {
            Access::InCluster { servers, .. } => servers.clone(),
            Access::Kubeconfig { path, .. } => {
                Kubeconfig::read_from(path).map_or_else(|_| Vec::new(), |file| servers_of(&file))
            }
        }
    }

    /// The addresses of the servers whose URLs contain them. Nothing is contacted.
    pub fn server_addresses(&self) -> Vec<(Address, u16)> {
        let addresses = ServerAddresses::default();
        self.urls().iter().for_each(|server| addresses.add(server));
        if let Access::Kubeconfig { path, .. } = self
            && let Ok(file) = Kubeconfig::read_from(path)
        {
            let servers = file.clusters.iter().filter_map(|named| named.cluster.as_ref()?.server.as_deref());
            servers.filter_map(|server| server.parse().ok()).for_each(|server: Uri| addresses.add(&server));
        }
        addresses.list()
    }

    /// The number of servers to choose from.
    pub(crate) fn servers(&self) -> usize {
        match self {
            Access::InCluster { servers, .. } => servers.len().max(1),
            Access::Kubeconfig { path, .. } => {
                Kubeconfig::read_from(path).map_or(0, |file| servers_of(&file).len()).max(1)
            }
        }
    }

    /// The configuration for server `number`, modulo the number of servers.
    pub(crate) async fn load(&self, number: usize) -> Result<kube::Config, AccessError> {
        let mut config = match self {
            Access::Kubeconfig { path, context } => from_kubeconfig(path, context.clone(), number).await?,
            Access::InCluster { servers, account } => {
                let server = servers.get(number % servers.len().max(1)).cloned();
                from_account(account, server.map_or_else(from_environment, Ok)?)?
            }
        };
        config.connect_timeout = Some(CONNECT_TIMEOUT);
        // The watcher decides about retries.
        config.default_retry = false;
        Ok(config)
    }
}

fn parse_server(text: &str) -> Result<Uri, AccessError> {
    let uri: Option<Uri> = text.parse().ok();
    let is_complete = |uri: &Uri| matches!(uri.scheme_str(), Some("https" | "http")) && uri.host().is_some();
    uri.filter(is_complete).ok_or_else(|| AccessError::Server(text.to_owned()))
}

/// The extension in a kubeconfig of `beeline join` that lists all API servers: a kubeconfig itself has only one.
const JOIN_EXTENSION: &str = "beeline.dev/join";

async fn from_kubeconfig(path: &Path, context: Option<String>, number: usize) -> Result<kube::Config, AccessError> {
    let failed = |source| AccessError::Kubeconfig { path: path.to_owned(), source: Box::new(source) };
    let file = Kubeconfig::read_from(path).map_err(failed)?;
    let servers = servers_of(&file);
    let options = KubeConfigOptions { context, ..KubeConfigOptions::default() };
    let mut config = kube::Config::from_custom_kubeconfig(file, &options).await.map_err(failed)?;
    if let Some(server) = servers.get(number % servers.len().max(1)) {
        config.cluster_url = server.clone();
    }
    Ok(config)
}

fn servers_of(file: &Kubeconfig) -> Vec<Uri> {
    let joined = file.extensions.iter().flatten().find(|named| named.name == JOIN_EXTENSION);
    let servers = joined.and_then(|named| named.extension["servers"].as_array());
    servers.into_iter().flatten().filter_map(|url| url.as_str()?.parse().ok()).collect()
}

fn from_account(account: &Path, server: Uri) -> Result<kube::Config, AccessError> {
    let (token, authority) = (account.join("token"), account.join("ca.crt"));
    for path in [&token, &authority] {
        std::fs::metadata(path).map_err(|source| AccessError::Account { path: path.clone(), source })?;
    }
    let mut config = kube::Config::new(server);
    // The file is read again when it changes. The certificates are set too, because kube would otherwise load those of
    // the system, which an image may lack.
    config.root_cert = Some(certificates(&authority)?);
    config.root_cert_file = Some(authority);
    config.auth_info.token_file = Some(token.display().to_string());
    Ok(config)
}

fn certificates(path: &Path) -> Result<Vec<Vec<u8>>, AccessError> {
    let failed = |why: pem::Error| AccessError::Account {
        path: path.to_owned(),
        source: std::io::Error::other(why.to_string()),
    };
    let all = CertificateDer::pem_file_iter(path).map_err(failed)?;
    all.map(|one| one.map(|der| der.to_vec()).map_err(failed)).collect()
}

fn from_environment() -> Result<Uri, AccessError> {
    let read = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
    let host = read("KUBERNETES_SERVICE_HOST").ok_or(AccessError::NoEnvironment)?;
    let port = read("KUBERNETES_SERVICE_PORT").ok_or(AccessError::NoEnvironment)?;
    let host = if host.contains(':') { format!("[{host}]") } else { host };
    format!("https://{host}:{port}").parse().map_err(|_| AccessError::NoEnvironment)
}
