//! A host that joins, with a directory as its root, and the kubeconfig of the administrator.

use crate::agent::BEELINE;
use crate::cluster::Cluster;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use beeline_join::{Credential, JoinCode, Token};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::{Command, Output};

pub struct Host {
    pub root: PathBuf,
    pub admin: String,
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

pub fn beeline(args: &[&str]) -> Output {
    Command::new(BEELINE).args(args).output().unwrap()
}

/// Runs a command that must fail, and returns its error message.
pub fn run_failing(args: &[&str]) -> String {
    let output = beeline(args);
    assert!(!output.status.success(), "{args:?} should fail: {}", text(&output.stdout));
    text(&output.stderr)
}

/// Runs a command that must succeed, and returns its output.
pub fn run_ok(args: &[&str]) -> String {
    let output = beeline(args);
    assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

impl Host {
    pub fn new(cluster: &Cluster) -> Host {
        let admin = cluster.write_kubeconfig(json!({ "tokenFile": cluster.path("account/token") }));
        Host { root: cluster.dir.path().join("root"), admin: admin.display().to_string() }
    }

    pub fn grant(&self) -> JoinCode {
        let message = run_ok(&[
            "grant",
            "vm-1",
            "--kubeconfig",
            &self.admin,
            "--token-lifetime",
            "20m",
            "--code-lifetime",
            "10m",
        ]);
        let lines: Vec<&str> = message.lines().collect();
        let [line] = lines[..] else { panic!("one line: {message}") };
        JoinCode::decode(line.strip_prefix("beeline join ").expect("the command to run on the host")).unwrap()
    }

    fn join_args(&self, code: &JoinCode) -> Vec<String> {
        let root = self.root.display().to_string();
        ["join", &code.encode(), "--no-start", "--root", &root].map(str::to_owned).to_vec()
    }

    pub fn join(&self) -> String {
        self.join_with(&self.grant())
    }

    pub fn join_with(&self, code: &JoinCode) -> String {
        let args = self.join_args(code);
        run_ok(&args.iter().map(String::as_str).collect::<Vec<_>>())
    }

    pub fn join_failing(&self, code: &JoinCode, more: &[&str]) -> String {
        let args = self.join_args(code);
        run_failing(&args.iter().map(String::as_str).chain(more.iter().copied()).collect::<Vec<_>>())
    }

    pub fn revoke(&self) -> String {
        run_ok(&["revoke", "vm-1", "--kubeconfig", &self.admin])
    }

    pub fn path(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }

    pub fn kubeconfig(&self) -> PathBuf {
        self.path("var/lib/beeline/clusters/test/kubeconfig")
    }

    pub fn snapshot(&self, name: &str) -> PathBuf {
        self.path("var/lib/beeline/snapshot").join(name)
    }

    pub fn credential(&self) -> Credential {
        Credential::open(&self.kubeconfig()).unwrap()
    }

    pub fn token(&self) -> Token {
        self.credential().token().unwrap()
    }

    /// Writes the configuration with absolute paths outside of the root directory, and returns its path.
    pub fn configuration(&self) -> String {
        let own = std::fs::read_to_string(self.path("etc/beeline/config.yaml")).unwrap();
        let path = self.root.join("outside.yaml");
        std::fs::write(&path, own.replace("/var/lib", &format!("{}/var/lib", self.root.display()))).unwrap();
        path.display().to_string()
    }

    /// Sends a request with the host's credentials to the last of its servers. Returns the status code and the response.
    pub async fn request(&self, method: &str, path: &str, body: &Value) -> (u16, String) {
        let credential = self.credential();
        let client = credential.client(credential.extension.servers.len() - 1).await.unwrap();
        let request = http::Request::builder().method(method).uri(path).header("content-type", "application/json");
        let body = if method == "GET" { Vec::new() } else { body.to_string().into_bytes() };
        match client.request_text(request.body(body).unwrap()).await {
            Ok(text) => (200, text),
            Err(kube::Error::Api(status)) => (status.code, status.message.clone()),
            Err(other) => panic!("{method} {path}: {other}"),
        }
    }
}

/// An expired token: the same claims, issued two hours ago for one hour, signed with the key of the API server.
pub fn expired_token(cluster: &Cluster, token: &Token) -> Token {
    let parts: Vec<&str> = token.text().split('.').collect();
    let mut claims: Value = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(parts[1]).unwrap()).unwrap();
    let now = jiff::Timestamp::now().as_second();
    (claims["iat"], claims["nbf"], claims["exp"]) = (json!(now - 7200), json!(now - 7200), json!(now - 3600));
    let signed = format!("{}.{}", parts[0], URL_SAFE_NO_PAD.encode(claims.to_string()));
    let (file, key) = (cluster.path("unsigned"), cluster.path("account.key"));
    std::fs::write(&file, &signed).unwrap();
    let made = Command::new("openssl").args(["dgst", "-sha256", "-sign", &key, &file]).output().unwrap();
    assert!(made.status.success(), "{}", text(&made.stderr));
    Token::parse(&format!("{signed}.{}", URL_SAFE_NO_PAD.encode(made.stdout))).unwrap()
}
