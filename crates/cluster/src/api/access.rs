//! How the API server is reached and who we are: read from disk anew whenever something fails, so that a rotated token,
//! certificate or kubeconfig is taken up without a restart.

use http::Uri;
use kube::config::{KubeConfigOptions, Kubeconfig};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::{self, PemObject};
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// A server that does not even accept within this time is as good as gone.
const CONNECT: Duration = Duration::from_secs(5);

#[derive(Clone, Debug)]
pub enum Access {
    Kubeconfig {
        path: PathBuf,
        /// `None`: the file's current one.
        context: Option<String>,
    },
    /// The pod's own service account.
    InCluster {
        /// Tried in turn; empty: the address from the environment, which is a service's.
        servers: Vec<Uri>,
        /// Where `token` and `ca.crt` are.
        account: PathBuf,
    },
}

#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    #[error("kubeconfig {}: {source}", path.display())]
    Kubeconfig { path: PathBuf, source: Box<kube::config::KubeconfigError> },
    #[error("{} cannot be read: {source}; a pod with a service account has it, elsewhere give a kubeconfig", path.display())]
    Account { path: PathBuf, source: std::io::Error },
    #[error(
        "KUBERNETES_SERVICE_HOST and _PORT are not set: run in a pod, or give --api-server, --kubeconfig or --manifests"
    )]
    NoEnvironment,
    #[error("API server {0}: a URL such as https://192.0.2.1:6443")]
    Server(String),
    #[error("the credentials {access} are not there after {} s: does a plugin of the kubeconfig (exec) hang?", waited.as_secs())]
    Slow { access: String, waited: Duration },
    #[error("no client for {server}: {source}")]
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

    /// By the service address that every pod is told.
    pub fn is_service(&self) -> bool {
        matches!(self, Access::InCluster { servers, .. } if servers.is_empty())
    }

    /// Whether all that it names is there. Says nothing about the server.
    pub async fn check(&self) -> Result<(), AccessError> {
        self.load(0).await.map(drop)
    }

    /// How many servers there are to try.
    pub(crate) fn servers(&self) -> usize {
        match self {
            Access::InCluster { servers, .. } => servers.len().max(1),
            Access::Kubeconfig { path, .. } => {
                Kubeconfig::read_from(path).map_or(0, |file| servers_of(&file).len()).max(1)
            }
        }
    }

    /// `turn`: which of the servers.
    pub(crate) async fn load(&self, turn: usize) -> Result<kube::Config, AccessError> {
        let mut config = match self {
            Access::Kubeconfig { path, context } => from_kubeconfig(path, context.clone(), turn).await?,
            Access::InCluster { servers, account } => {
                let server = servers.get(turn % servers.len().max(1)).cloned();
                from_account(account, server.map_or_else(from_environment, Ok)?)?
            }
        };
        config.connect_timeout = Some(CONNECT);
        // What to do about a refusal is decided in one place.
        config.default_retry = false;
        Ok(config)
    }
}

fn parse_server(text: &str) -> Result<Uri, AccessError> {
    let uri: Option<Uri> = text.parse().ok();
    let whole = |uri: &Uri| matches!(uri.scheme_str(), Some("https" | "http")) && uri.host().is_some();
    uri.filter(whole).ok_or_else(|| AccessError::Server(text.to_owned()))
}

/// The extension of a kubeconfig that `beeline join` made: it names all API servers, where a kubeconfig has one.
const JOINED: &str = "beeline.dev/join";

async fn from_kubeconfig(path: &Path, context: Option<String>, turn: usize) -> Result<kube::Config, AccessError> {
    let failed = |source| AccessError::Kubeconfig { path: path.to_owned(), source: Box::new(source) };
    let file = Kubeconfig::read_from(path).map_err(failed)?;
    let servers = servers_of(&file);
    let options = KubeConfigOptions { context, ..KubeConfigOptions::default() };
    let mut config = kube::Config::from_custom_kubeconfig(file, &options).await.map_err(failed)?;
    if let Some(server) = servers.get(turn % servers.len().max(1)) {
        config.cluster_url = server.clone();
    }
    Ok(config)
}

fn servers_of(file: &Kubeconfig) -> Vec<Uri> {
    let joined = file.extensions.iter().flatten().find(|named| named.name == JOINED);
    let servers = joined.and_then(|named| named.extension["servers"].as_array());
    servers.into_iter().flatten().filter_map(|url| url.as_str()?.parse().ok()).collect()
}

fn from_account(account: &Path, server: Uri) -> Result<kube::Config, AccessError> {
    let (token, authority) = (account.join("token"), account.join("ca.crt"));
    for path in [&token, &authority] {
        std::fs::metadata(path).map_err(|source| AccessError::Account { path: path.clone(), source })?;
    }
    let mut config = kube::Config::new(server);
    // The file is read again as it changes; with the certificates themselves the system's own, which an image may lack,
    // are not asked for.
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
