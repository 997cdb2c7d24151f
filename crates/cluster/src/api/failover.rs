//! The client of the API server with failover. Its connection is replaced, by the next server and by credentials that
//! are read again from disk, when a server cannot be reached, does not answer, or rejects the credentials. A watch
//! continues at the new server from the version that it has reached.

use super::access::{Access, AccessError};
use super::cluster_id::ClusterIdCheck;
use super::connector::{self, ServerAddresses};
use beeline_model::Address;
use http::{Request, Response, StatusCode};
use kube::Client;
use kube::client::Body;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

/// The maximum time until the head of a response, and for building a connection. A page of a list takes far less.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(20);

#[derive(Clone)]
struct Connection {
    client: Client,
    server: String,
    /// The number of servers to choose from.
    servers: usize,
    /// Counts the connections. The next connection uses the next server.
    number: usize,
    /// The server belongs to the expected cluster.
    is_verified: Arc<AtomicBool>,
}

pub(crate) struct FailoverClient {
    access: Access,
    response_timeout: Duration,
    connection: Mutex<Connection>,
    /// The next connection while it is being built.
    next: tokio::sync::Mutex<Option<ConnectionBuild>>,
    /// The addresses of all servers, as far as they are known.
    addresses: ServerAddresses,
    /// `None` accepts any cluster.
    cluster_id_check: Option<ClusterIdCheck>,
    /// The UID of the cluster that was accepted last.
    accepted_uid: tokio::sync::Mutex<Option<String>>,
    /// How often another cluster than before was accepted.
    cluster_generation: AtomicUsize,
}

#[derive(Debug, thiserror::Error)]
#[error("{server}: no response within {} s", timeout.as_secs())]
struct NoResponse {
    server: String,
    timeout: Duration,
}

/// Builds a connection in a thread of its own. The kubeconfig may name a credential plugin, a program that may wait for
/// the network and that kube waits for synchronously.
struct ConnectionBuild(JoinHandle<Result<Connection, AccessError>>);

impl ConnectionBuild {
    fn start(access: &Access, number: usize, addresses: &ServerAddresses) -> ConnectionBuild {
        let (access, addresses, runtime) = (access.clone(), addresses.clone(), Handle::current());
        ConnectionBuild(tokio::task::spawn_blocking(move || runtime.block_on(build(&access, number, addresses))))
    }

    /// `None` after the timeout. The build continues.
    async fn wait(&mut self) -> Option<Result<Connection, AccessError>> {
        match tokio::time::timeout(RESPONSE_TIMEOUT, &mut self.0).await.ok()? {
            Ok(built) => Some(built),
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            // The runtime shuts down.
            Err(_) => None,
        }
    }
}

/// A client whose first connection is being built.
pub(crate) struct PendingClient {
    access: Access,
    response_timeout: Duration,
    cluster_id_check: Option<ClusterIdCheck>,
    addresses: ServerAddresses,
    build: ConnectionBuild,
}

impl PendingClient {
    pub(crate) fn start(access: Access, timeout: Duration, cluster_id_check: Option<ClusterIdCheck>) -> PendingClient {
        let addresses = ServerAddresses::default();
        let build = ConnectionBuild::start(&access, 0, &addresses);
        PendingClient { access, response_timeout: timeout.min(RESPONSE_TIMEOUT), cluster_id_check, addresses, build }
    }

    /// Returns `AccessError::Slow` after the timeout. The build continues, and can be waited for again.
    pub(crate) async fn wait(&mut self) -> Result<Arc<FailoverClient>, AccessError> {
        let connection = self.build.wait().await.unwrap_or_else(|| Err(slow(&self.access)))?;
        Ok(Arc::new(FailoverClient {
            access: self.access.clone(),
            response_timeout: self.response_timeout,
            connection: connection.into(),
            next: None.into(),
            addresses: self.addresses.clone(),
            cluster_id_check: self.cluster_id_check.clone(),
            accepted_uid: None.into(),
            cluster_generation: AtomicUsize::new(0),
        }))
    }
}

fn slow(access: &Access) -> AccessError {
    AccessError::Slow { access: access.to_string(), waited: RESPONSE_TIMEOUT }
}

impl FailoverClient {
    pub(crate) async fn connect(
        access: Access,
        timeout: Duration,
        cluster_id_check: Option<ClusterIdCheck>,
    ) -> Result<Arc<FailoverClient>, AccessError> {
        PendingClient::start(access, timeout, cluster_id_check).wait().await
    }

    /// A kube client whose requests all pass through this client.
    pub(crate) fn kube_client(self: &Arc<FailoverClient>) -> Client {
        let failover = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let failover = failover.clone();
            async move { failover.send(request).await }
        });
        Client::new(service, "default")
    }

    pub(crate) fn server(&self) -> String {
        self.connection().server
    }

    /// The addresses of the servers, as far as they are known.
    pub(crate) fn addresses(&self) -> Vec<(Address, u16)> {
        self.addresses.list()
    }

    /// The number of servers to choose from.
    pub(crate) fn servers(&self) -> usize {
        self.connection().servers
    }

    fn connection(&self) -> Connection {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    async fn send(&self, request: Request<Body>) -> Result<Response<Body>, tower::BoxError> {
        let connection = self.connection();
        let sent = tokio::time::timeout(self.response_timeout, self.verify_and_send(&connection, request)).await;
        let response = match sent {
            Ok(response) => response,
            Err(_) => Err(NoResponse { server: connection.server, timeout: self.response_timeout }.into()),
        };
        let fails_over = match &response {
            Ok(response) if response.status() == StatusCode::UNAUTHORIZED => true,
            Ok(response) => response.status().is_server_error() && self.servers() > 1,
            Err(_) => true,
        };
        if fails_over {
            self.fail_over(connection.number).await;
        }
        response
    }

    async fn verify_and_send(
        &self,
        connection: &Connection,
        request: Request<Body>,
    ) -> Result<Response<Body>, tower::BoxError> {
        self.verify(connection).await?;
        Ok(connection.client.send(request).await?)
    }

    async fn verify(&self, connection: &Connection) -> Result<(), tower::BoxError> {
        let is_verified = || connection.is_verified.load(Ordering::Acquire);
        let Some(check) = self.cluster_id_check.as_ref().filter(|_| !is_verified()) else { return Ok(()) };
        let mut accepted = self.accepted_uid.lock().await;
        if !is_verified() {
            let (uid, _) = check.verify(&connection.client).await?;
            if accepted.as_ref().is_some_and(|before| *before != uid) {
                self.cluster_generation.fetch_add(1, Ordering::AcqRel);
            }
            *accepted = Some(uid);
            connection.is_verified.store(true, Ordering::Release);
        }
        Ok(())
    }

    /// Another number means that another cluster answers. Lists of the previous cluster do not apply to it.
    pub(crate) fn cluster_generation(&self) -> usize {
        self.cluster_generation.load(Ordering::Acquire)
    }

    /// Verifies the cluster again before the next response is used: another cluster may answer at the same address.
    pub(crate) fn reset_verification(&self) {
        self.connection().is_verified.store(false, Ordering::Release);
    }

    /// Replaces connection `failed` by one to the next server, with credentials that are read again. Several requests
    /// may find at once that a server does not answer; only the first of them replaces the connection.
    pub(crate) async fn fail_over(&self, failed: usize) {
        let mut next = self.next.lock().await;
        if self.connection().number != failed {
            return;
        }
        // A build that exceeds the timeout is continued by the next caller, not started again.
        let built =
            next.get_or_insert_with(|| ConnectionBuild::start(&self.access, failed + 1, &self.addresses)).wait().await;
        if built.is_some() {
            *next = None;
        }
        match built.unwrap_or_else(|| Err(slow(&self.access))) {
            Ok(connection) => *self.connection.lock().unwrap_or_else(PoisonError::into_inner) = connection,
            Err(error) => tracing::warn!(%error, "cannot read the credentials again; the previous ones stay in use"),
        }
    }

    /// The number of the current connection, to be passed to `fail_over`.
    pub(crate) fn connection_number(&self) -> usize {
        self.connection().number
    }
}

async fn build(access: &Access, number: usize, addresses: ServerAddresses) -> Result<Connection, AccessError> {
    let config = access.load(number).await?;
    let uri = config.cluster_url.clone();
    access.urls().iter().chain([&uri]).for_each(|server| addresses.add(server));
    let failed = |source| AccessError::Client { server: uri.clone(), source: Box::new(source) };
    let client = connector::client(config, addresses).map_err(failed)?;
    let server = uri.to_string().trim_end_matches('/').to_owned();
    Ok(Connection { client, server, servers: access.servers(), number, is_verified: Arc::default() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    /// A kubeconfig with a credential plugin that waits for a file, for 10 s at most.
    fn kubeconfig(dir: &Path) -> Access {
        let plugin = format!(
            "for i in $(seq 100); do test -e {}/go && break; sleep 0.1; done; \
             echo '{{\"apiVersion\":\"client.authentication.k8s.io/v1\",\"kind\":\"ExecCredential\",\"status\":{{\"token\":\"t\"}}}}'",
            dir.display()
        );
        let file = serde_json::json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{ "name": "c", "cluster": { "server": "http://127.0.0.1:1" } }],
            "contexts": [{ "name": "c", "context": { "cluster": "c", "user": "u" } }],
            "users": [{ "name": "u", "user": { "exec": {
                "apiVersion": "client.authentication.k8s.io/v1", "command": "sh", "args": ["-c", plugin],
                "interactiveMode": "Never",
            } } }],
        });
        let path = dir.join("kubeconfig");
        std::fs::write(&path, file.to_string()).unwrap();
        Access::Kubeconfig { path, context: None }
    }

    #[tokio::test]
    async fn a_hanging_credential_plugin_does_not_block_other_tasks() {
        let dir = tempfile::tempdir().unwrap();
        let mut pending = PendingClient::start(kubeconfig(dir.path()), RESPONSE_TIMEOUT, None);
        // The runtime has one thread. If the plugin blocked it, the plugin would end before the other task.
        let other = async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            std::fs::write(dir.path().join("go"), "").unwrap();
            "other task"
        };
        let first = tokio::select! { biased; _ = pending.wait() => "plugin", first = other => first };
        assert_eq!(first, "other task");
        assert_eq!(pending.wait().await.unwrap().server(), "http://127.0.0.1:1");
    }
}
