//! The credential files of a joined host: a kubeconfig and, in the same directory, the token, which each renewal
//! replaces. Every cluster has its own directory. `beeline join` adds an extension to the kubeconfig; tokens of other
//! kubeconfigs are not renewed, because their owner manages them.

use crate::join_code::JoinCode;
use crate::token::{Token, TokenError};
use crate::{atomic_file, ca_bundle, request};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// The name of the kubeconfig extension that marks a file written by `beeline join`.
pub const KUBECONFIG_EXTENSION: &str = "beeline.dev/join";

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinExtension {
    /// The UID of the namespace kube-system, which identifies the cluster.
    pub uid: String,
    /// All API servers. The kubeconfig itself can hold only one.
    pub servers: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credential {
    kubeconfig: PathBuf,
    token: PathBuf,
    pub extension: JoinExtension,
}

#[derive(Debug, thiserror::Error)]
pub enum CredentialError {
    #[error("cannot access the file {}: {source}", path.display())]
    File { path: PathBuf, source: std::io::Error },
    #[error("cannot read the kubeconfig {}: {source}", path.display())]
    Kubeconfig { path: PathBuf, source: Box<kube::config::KubeconfigError> },
    #[error("invalid token in {}: {source}", path.display())]
    Token { path: PathBuf, source: TokenError },
    #[error("the kubeconfig {} was not written by `beeline join`", path.display())]
    Foreign { path: PathBuf },
    #[error("cannot create a client for {server}: {source}")]
    Client { server: String, source: Box<kube::Error> },
}

impl Credential {
    /// Writes or replaces both files. The token is last, because a running agent watches it.
    pub fn write(kubeconfig: &Path, name: &str, code: &JoinCode, token: &Token) -> Result<Credential, CredentialError> {
        let extension = JoinExtension { uid: code.uid.clone(), servers: code.servers.clone() };
        let credential = Credential { kubeconfig: kubeconfig.to_owned(), token: token_path(kubeconfig), extension };
        let failed = |source| CredentialError::File { path: kubeconfig.to_owned(), source };
        atomic_file::create_private_dir(kubeconfig.parent().unwrap_or(Path::new("."))).map_err(failed)?;
        let text = format!("{:#}\n", credential.content(name, code));
        atomic_file::write_atomic(kubeconfig, text.as_bytes(), 0o600).map_err(failed)?;
        credential.replace(token)?;
        Ok(credential)
    }

    /// The kubeconfig as JSON, which is valid YAML. The token's path is relative, so that the directory can be moved.
    fn content(&self, name: &str, code: &JoinCode) -> Value {
        let mut cluster = json!({ "server": code.servers.first() });
        if !code.authorities.is_empty() {
            cluster["certificate-authority-data"] = json!(STANDARD.encode(ca_bundle::to_pem(&code.authorities)));
        }
        if let Some(server_name) = &code.server_name {
            cluster["tls-server-name"] = json!(server_name);
        }
        let (account, token) = (&code.token.account, self.token.file_name().unwrap_or_default().to_string_lossy());
        json!({
            "apiVersion": "v1", "kind": "Config", "current-context": name,
            "clusters": [{ "name": name, "cluster": cluster }],
            "users": [{ "name": account, "user": { "tokenFile": token } }],
            "contexts": [{ "name": name, "context": { "cluster": name, "user": account } }],
            "extensions": [{ "name": KUBECONFIG_EXTENSION, "extension": self.extension }],
        })
    }

    pub fn open(kubeconfig: &Path) -> Result<Credential, CredentialError> {
        let file = read(kubeconfig)?;
        let foreign = || CredentialError::Foreign { path: kubeconfig.to_owned() };
        let extension =
            file.extensions.iter().flatten().find(|named| named.name == KUBECONFIG_EXTENSION).ok_or_else(foreign)?;
        let extension: JoinExtension = serde_json::from_value(extension.extension.clone()).map_err(|_| foreign())?;
        let user = file.auth_infos.first().and_then(|named| named.auth_info.as_ref());
        // Reading the kubeconfig has made this path absolute.
        let token = user.and_then(|user| user.token_file.clone()).ok_or_else(foreign)?;
        Ok(Credential { kubeconfig: kubeconfig.to_owned(), token: token.into(), extension })
    }

    pub fn token(&self) -> Result<Token, CredentialError> {
        let text = std::fs::read_to_string(&self.token)
            .map_err(|source| CredentialError::File { path: self.token.clone(), source })?;
        Token::parse(&text).map_err(|source| CredentialError::Token { path: self.token.clone(), source })
    }

    pub fn replace(&self, token: &Token) -> Result<(), CredentialError> {
        atomic_file::write_atomic(&self.token, token.text().as_bytes(), 0o600)
            .map_err(|source| CredentialError::File { path: self.token.clone(), source })
    }

    /// Removes both files, and their directory if it is then empty. Missing files are no error.
    pub fn remove(kubeconfig: &Path) -> Result<(), CredentialError> {
        for path in [token_path(kubeconfig), kubeconfig.to_owned()] {
            match std::fs::remove_file(&path) {
                Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
                    return Err(CredentialError::File { path, source });
                }
                _ => {}
            }
        }
        let _ = kubeconfig.parent().map(std::fs::remove_dir);
        Ok(())
    }

    /// A client from the files as they are now. `attempt` selects the API server, in rotation.
    pub async fn client(&self, attempt: usize) -> Result<Client, CredentialError> {
        let failed = |source| CredentialError::Kubeconfig { path: self.kubeconfig.clone(), source: Box::new(source) };
        let file = read(&self.kubeconfig)?;
        let mut config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await.map_err(failed)?;
        if let Some(Ok(server)) =
            self.extension.servers.get(attempt % self.extension.servers.len().max(1)).map(|url| url.parse())
        {
            config.cluster_url = server;
        }
        config.connect_timeout = Some(request::CONNECT_TIMEOUT);
        config.default_retry = false;
        let server = config.cluster_url.to_string();
        Client::try_from(config).map_err(|source| CredentialError::Client { server, source: Box::new(source) })
    }
}

fn read(path: &Path) -> Result<Kubeconfig, CredentialError> {
    let failed = |source| CredentialError::Kubeconfig { path: path.to_owned(), source: Box::new(source) };
    Kubeconfig::read_from(path).map_err(failed)
}

fn token_path(kubeconfig: &Path) -> PathBuf {
    kubeconfig.with_file_name("token")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::token::tests::token;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn written_credentials_are_read_back_and_other_kubeconfigs_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("clusters/shop/kubeconfig");
        let code = JoinCode {
            cluster: "shop".into(),
            uid: "4b7c".into(),
            servers: vec!["https://192.0.2.1:6443".into(), "https://192.0.2.2:6443".into()],
            server_name: None,
            authorities: vec![vec![1, 2, 3]],
            token: token("beeline-hosts", "vm-1", 1_000, 4_600),
            lifetime: std::time::Duration::from_secs(7_200),
        };
        let own = token("beeline-hosts", "vm-1", 1_000, 8_200);
        let written = Credential::write(&path, "shop", &code, &own).unwrap();
        assert_eq!(Credential::open(&path).unwrap(), written);
        assert_eq!(written.token().unwrap(), own, "the token of the code is not stored");
        for entry in std::fs::read_dir(path.parent().unwrap()).unwrap() {
            assert_eq!(entry.unwrap().metadata().unwrap().permissions().mode() & 0o777, 0o600);
        }
        assert_eq!(std::fs::metadata(path.parent().unwrap()).unwrap().permissions().mode() & 0o777, 0o700);
        let text = std::fs::read_to_string(&path).unwrap().replace(KUBECONFIG_EXTENSION, "example.net/other");
        let other = dir.path().join("other");
        std::fs::write(&other, text).unwrap();
        assert!(matches!(Credential::open(&other), Err(CredentialError::Foreign { .. })));
        Credential::remove(&path).unwrap();
        Credential::remove(&path).unwrap();
        assert!(!path.parent().unwrap().exists());
    }
}
