//! Who grants: a kubeconfig with rights to make accounts and roles, as kubectl has one.

use crate::host::HostName;
use crate::request::{self, RequestError};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::Value;
use std::path::{Path, PathBuf};

pub struct Administrator {
    pub(crate) client: Client,
    /// As the kubeconfig calls it.
    pub cluster: String,
    pub servers: Vec<String>,
    pub(crate) server_name: Option<String>,
    pub(crate) authorities: Vec<Vec<u8>>,
}

#[derive(Debug, thiserror::Error)]
pub enum AdministratorError {
    #[error("{}: {source}; give a kubeconfig by --kubeconfig or KUBECONFIG", path.display())]
    Kubeconfig { path: PathBuf, source: Box<kube::config::KubeconfigError> },
    #[error(
        "the kubeconfig does not check the API server's certificate (insecure-skip-tls-verify), and a host must: \
         name the authority there (certificate-authority-data)"
    )]
    Insecure,
    #[error("--api-server {0}: a URL such as https://192.0.2.1:6443")]
    Server(String),
    #[error("no client for {server}: {source}")]
    Client { server: String, source: Box<kube::Error> },
}

impl Administrator {
    /// `path`, else KUBECONFIG, else ~/.kube/config. `servers`: what hosts shall use instead of the kubeconfig's server.
    pub async fn load(
        path: Option<&Path>,
        context: Option<String>,
        servers: &[String],
    ) -> Result<Administrator, AdministratorError> {
        let at = path.map_or_else(|| PathBuf::from("kubeconfig"), Path::to_owned);
        let failed = |source| AdministratorError::Kubeconfig { path: at.clone(), source: Box::new(source) };
        let file = path.map_or_else(Kubeconfig::read, Kubeconfig::read_from).map_err(failed)?;
        let cluster = cluster_name(&file, context.as_deref());
        let options = KubeConfigOptions { context, ..KubeConfigOptions::default() };
        let mut config = Config::from_custom_kubeconfig(file, &options).await.map_err(failed)?;
        config.connect_timeout = Some(request::CONNECT);
        if config.accept_invalid_certs {
            return Err(AdministratorError::Insecure);
        }
        let own = config.cluster_url.to_string();
        let servers = if servers.is_empty() { vec![own.clone()] } else { servers.to_vec() };
        let servers = servers.iter().map(|url| checked(url)).collect::<Result<_, _>>()?;
        let (server_name, authorities) = (config.tls_server_name.clone(), config.root_cert.clone().unwrap_or_default());
        let client = Client::try_from(config);
        let client = client.map_err(|source| AdministratorError::Client { server: own, source: Box::new(source) })?;
        Ok(Administrator { client, cluster, servers, server_name, authorities })
    }

    /// A host elsewhere would reach itself.
    pub fn loopback(&self) -> Option<&str> {
        self.servers.iter().map(String::as_str).find(|url| is_loopback(url))
    }

    pub(crate) async fn uid(&self) -> Result<String, RequestError> {
        uid(&self.client).await
    }
}

/// What a cluster is known by.
pub(crate) async fn uid(client: &Client) -> Result<String, RequestError> {
    let namespace = request::get(client, "/api/v1/namespaces/kube-system").await?;
    let uid = namespace.pointer("/metadata/uid").and_then(Value::as_str);
    uid.map(str::to_owned).ok_or_else(|| RequestError::Failed("the namespace kube-system has no UID".into()))
}

fn cluster_name(file: &Kubeconfig, context: Option<&str>) -> String {
    let context = context.or(file.current_context.as_deref()).unwrap_or_default();
    let found = file.contexts.iter().find(|named| named.name == context).and_then(|named| named.context.as_ref());
    let name = found.map_or(context, |context| context.cluster.as_str());
    HostName::tidy(name).unwrap_or_else(|| "cluster".into())
}

fn checked(text: &str) -> Result<String, AdministratorError> {
    let uri: Option<http::Uri> = text.parse().ok();
    let whole = |uri: &http::Uri| uri.scheme_str() == Some("https") && uri.host().is_some();
    let uri = uri.filter(whole).ok_or_else(|| AdministratorError::Server(text.to_owned()))?;
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
    fn servers_are_urls_that_a_host_can_use() {
        assert_eq!(checked("https://192.0.2.1:6443/").unwrap(), "https://192.0.2.1:6443");
        for bad in ["192.0.2.1:6443", "http://192.0.2.1", "https://", "fish"] {
            assert!(checked(bad).is_err(), "{bad}");
        }
        assert!(is_loopback("https://127.0.0.1:6443") && is_loopback("https://[::1]:6443"));
        assert!(is_loopback("https://localhost") && !is_loopback("https://192.0.2.1:6443"));
    }
}
