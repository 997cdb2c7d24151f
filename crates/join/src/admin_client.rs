//! The administrator's API client, which creates accounts and roles. Its credentials are a kubeconfig, as for kubectl.

use crate::host_name::HostName;
use crate::request::{self, RequestError};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::Value;
use std::path::{Path, PathBuf};

pub struct AdminClient {
    pub(crate) client: Client,
    /// The cluster's name in the kubeconfig, made valid as a cluster name.
    pub cluster: String,
    /// URLs of the API servers that the host shall use.
    pub servers: Vec<String>,
    pub(crate) server_name: Option<String>,
    pub(crate) authorities: Vec<Vec<u8>>,
}

#[derive(Debug, thiserror::Error)]
pub enum AdminClientError {
    #[error("cannot read the kubeconfig {}: {source}; pass another one with --kubeconfig or KUBECONFIG", path.display())]
    Kubeconfig { path: PathBuf, source: Box<kube::config::KubeconfigError> },
    #[error(
        "the kubeconfig skips the check of the API server's certificate (insecure-skip-tls-verify), which a host must do: \
         set certificate-authority-data in the kubeconfig"
    )]
    Insecure,
    #[error("--api-server {0} is not an https URL such as https://192.0.2.1:6443")]
    Server(String),
    #[error("cannot create a client for {server}: {source}")]
    Client { server: String, source: Box<kube::Error> },
}

impl AdminClient {
    /// Reads `path`, or else KUBECONFIG, or else ~/.kube/config. `servers` replaces the kubeconfig's server in the join
    /// code; if it is empty, hosts use the kubeconfig's server.
    pub async fn load(
        path: Option<&Path>,
        context: Option<String>,
        servers: &[String],
    ) -> Result<AdminClient, AdminClientError> {
        let shown_path = path.map_or_else(|| PathBuf::from("kubeconfig"), Path::to_owned);
        let failed = |source| AdminClientError::Kubeconfig { path: shown_path.clone(), source: Box::new(source) };
        let file = path.map_or_else(Kubeconfig::read, Kubeconfig::read_from).map_err(failed)?;
        let cluster = cluster_name(&file, context.as_deref());
        let options = KubeConfigOptions { context, ..KubeConfigOptions::default() };
        let mut config = Config::from_custom_kubeconfig(file, &options).await.map_err(failed)?;
        config.connect_timeout = Some(request::CONNECT_TIMEOUT);
        if config.accept_invalid_certs {
            return Err(AdminClientError::Insecure);
        }
        let kubeconfig_server = config.cluster_url.to_string();
        let servers = if servers.is_empty() { vec![kubeconfig_server.clone()] } else { servers.to_vec() };
        let servers = servers.iter().map(|url| check_server(url)).collect::<Result<_, _>>()?;
        let (server_name, authorities) = (config.tls_server_name.clone(), config.root_cert.clone().unwrap_or_default());
        let client = Client::try_from(config);
        let client = client
            .map_err(|source| AdminClientError::Client { server: kubeconfig_server, source: Box::new(source) })?;
        Ok(AdminClient { client, cluster, servers, server_name, authorities })
    }

    /// The first server URL with a loopback address, which another host would resolve to itself.
    pub fn loopback_server(&self) -> Option<&str> {
        self.servers.iter().map(String::as_str).find(|url| is_loopback(url))
    }

    pub(crate) async fn cluster_uid(&self) -> Result<String, RequestError> {
        cluster_uid(&self.client).await
    }
}

/// The UID of the namespace kube-system, which identifies a cluster.
pub(crate) async fn cluster_uid(client: &Client) -> Result<String, RequestError> {
    let namespace = request::get(client, "/api/v1/namespaces/kube-system").await?;
    let uid = namespace.pointer("/metadata/uid").and_then(Value::as_str);
    uid.map(str::to_owned).ok_or_else(|| RequestError::Failed("the namespace kube-system has no UID".into()))
}

fn cluster_name(file: &Kubeconfig, context: Option<&str>) -> String {
    let context = context.or(file.current_context.as_deref()).unwrap_or_default();
    let found = file.contexts.iter().find(|named| named.name == context).and_then(|named| named.context.as_ref());
    let name = found.map_or(context, |context| context.cluster.as_str());
    HostName::sanitize(name).unwrap_or_else(|| "cluster".into())
}

fn check_server(text: &str) -> Result<String, AdminClientError> {
    let uri: Option<http::Uri> = text.parse().ok();
    let is_https = |uri: &http::Uri| uri.scheme_str() == Some("https") && uri.host().is_some();
    let uri = uri.filter(is_https).ok_or_else(|| AdminClientError::Server(text.to_owned()))?;
    Ok(uri.to_string().trim_end_matches('/').to_owned())
}

fn is_loopback(url: &str) -> bool {
    let uri: Option<http::Uri> = url.parse().ok();
    let host = uri.as_ref().and_then(http::Uri::host).unwrap_or_default().trim_matches(['[', ']']);
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn api_servers_must_be_https_urls() {
        assert_eq!(check_server("https://192.0.2.1:6443/").unwrap(), "https://192.0.2.1:6443");
        for bad in ["192.0.2.1:6443", "http://192.0.2.1", "https://", "fish"] {
            assert!(check_server(bad).is_err(), "{bad}");
        }
        assert!(is_loopback("https://127.0.0.1:6443") && is_loopback("https://[::1]:6443"));
        assert!(is_loopback("https://localhost") && !is_loopback("https://192.0.2.1:6443"));
    }
}
