//! What a host keeps of its grant: a kubeconfig, and beside it the token, which is replaced as it is renewed; in a folder
//! that belongs to this cluster alone. The kubeconfig carries a mark of ours: only tokens of such a file are renewed,
//! whoever else writes kubeconfigs looks after them himself.

use crate::code::Code;
use crate::token::{Token, TokenError};
use crate::{authority, file, request};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// The name of the kubeconfig's extension that makes it one of ours.
pub const MARK: &str = "beeline.dev/join";

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark {
    /// What the cluster is known by.
    pub uid: String,
    /// All API servers; the kubeconfig itself has room for one.
    pub servers: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credential {
    kubeconfig: PathBuf,
    token: PathBuf,
    pub mark: Mark,
}

#[derive(Debug, thiserror::Error)]
pub enum CredentialError {
    #[error("{}: {source}", path.display())]
    File { path: PathBuf, source: std::io::Error },
    #[error("{}: {source}", path.display())]
    Kubeconfig { path: PathBuf, source: Box<kube::config::KubeconfigError> },
    #[error("{}: {source}", path.display())]
    Token { path: PathBuf, source: TokenError },
    #[error("{} was not made by `beeline join`", path.display())]
    Foreign { path: PathBuf },
    #[error("no client for {server}: {source}")]
    Client { server: String, source: Box<kube::Error> },
}

impl Credential {
    /// Writes both files; what stood there before is replaced, the token last: it is what a running agent looks at.
    pub fn write(kubeconfig: &Path, name: &str, code: &Code, token: &Token) -> Result<Credential, CredentialError> {
        let mark = Mark { uid: code.uid.clone(), servers: code.servers.clone() };
        let credential = Credential { kubeconfig: kubeconfig.to_owned(), token: beside(kubeconfig), mark };
        let failed = |source| CredentialError::File { path: kubeconfig.to_owned(), source };
        file::private_dir(kubeconfig.parent().unwrap_or(Path::new("."))).map_err(failed)?;
        let text = format!("{:#}\n", credential.content(name, code));
        file::write(kubeconfig, text.as_bytes(), 0o600).map_err(failed)?;
        credential.replace(token)?;
        Ok(credential)
    }

    /// JSON is YAML, and has no two ways to be read. The token's path is relative: the files may be moved together.
    fn content(&self, name: &str, code: &Code) -> Value {
        let mut cluster = json!({ "server": code.servers.first() });
        if !code.authorities.is_empty() {
            cluster["certificate-authority-data"] = json!(STANDARD.encode(authority::pem(&code.authorities)));
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
            "extensions": [{ "name": MARK, "extension": self.mark }],
        })
    }

    pub fn open(kubeconfig: &Path) -> Result<Credential, CredentialError> {
        let file = read(kubeconfig)?;
        let foreign = || CredentialError::Foreign { path: kubeconfig.to_owned() };
        let mark = file.extensions.iter().flatten().find(|named| named.name == MARK).ok_or_else(foreign)?;
        let mark: Mark = serde_json::from_value(mark.extension.clone()).map_err(|_| foreign())?;
        let user = file.auth_infos.first().and_then(|named| named.auth_info.as_ref());
        // It has become absolute when the file was read.
        let token = user.and_then(|user| user.token_file.clone()).ok_or_else(foreign)?;
        Ok(Credential { kubeconfig: kubeconfig.to_owned(), token: token.into(), mark })
    }

    pub fn token(&self) -> Result<Token, CredentialError> {
        let text = std::fs::read_to_string(&self.token)
            .map_err(|source| CredentialError::File { path: self.token.clone(), source })?;
        Token::parse(&text).map_err(|source| CredentialError::Token { path: self.token.clone(), source })
    }

    pub fn replace(&self, token: &Token) -> Result<(), CredentialError> {
        file::write(&self.token, token.text().as_bytes(), 0o600)
            .map_err(|source| CredentialError::File { path: self.token.clone(), source })
    }

    /// Both files go, and their folder if nothing else is in it; what is not there is gone already.
    pub fn remove(kubeconfig: &Path) -> Result<(), CredentialError> {
        for path in [beside(kubeconfig), kubeconfig.to_owned()] {
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

    /// Everything read anew; `turn`: which of the servers.
    pub async fn client(&self, turn: usize) -> Result<Client, CredentialError> {
        let failed = |source| CredentialError::Kubeconfig { path: self.kubeconfig.clone(), source: Box::new(source) };
        let file = read(&self.kubeconfig)?;
        let mut config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await.map_err(failed)?;
        if let Some(Ok(server)) = self.mark.servers.get(turn % self.mark.servers.len().max(1)).map(|url| url.parse()) {
            config.cluster_url = server;
        }
        config.connect_timeout = Some(request::CONNECT);
        config.default_retry = false;
        let server = config.cluster_url.to_string();
        Client::try_from(config).map_err(|source| CredentialError::Client { server, source: Box::new(source) })
    }
}

fn read(path: &Path) -> Result<Kubeconfig, CredentialError> {
    let failed = |source| CredentialError::Kubeconfig { path: path.to_owned(), source: Box::new(source) };
    Kubeconfig::read_from(path).map_err(failed)
}

fn beside(kubeconfig: &Path) -> PathBuf {
    kubeconfig.with_file_name("token")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::token::tests::token;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn what_was_written_is_found_again_and_only_ours_is_ours() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("clusters/shop/kubeconfig");
        let code = Code {
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
        assert_eq!(written.token().unwrap(), own, "the code's own is not kept");
        for entry in std::fs::read_dir(path.parent().unwrap()).unwrap() {
            assert_eq!(entry.unwrap().metadata().unwrap().permissions().mode() & 0o777, 0o600);
        }
        assert_eq!(std::fs::metadata(path.parent().unwrap()).unwrap().permissions().mode() & 0o777, 0o700);
        let text = std::fs::read_to_string(&path).unwrap().replace(MARK, "example.net/other");
        let other = dir.path().join("other");
        std::fs::write(&other, text).unwrap();
        assert!(matches!(Credential::open(&other), Err(CredentialError::Foreign { .. })));
        Credential::remove(&path).unwrap();
        Credential::remove(&path).unwrap();
        assert!(!path.parent().unwrap().exists());
    }
}
