//! The one way to the API server. Behind it stands a client that is replaced, by the next server and by credentials read
//! anew from disk, when a server cannot be reached, does not answer, or does not know us. Whoever asks keeps its place:
//! a watch goes on from where it was, at whichever server.

use super::access::{Access, AccessError};
use super::identity::Passport;
use http::{Request, Response, StatusCode};
use kube::Client;
use kube::client::Body;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

/// Until the head of an answer: a page of a list is made in far less.
const ANSWER: Duration = Duration::from_secs(20);

#[derive(Clone)]
struct Behind {
    client: Client,
    server: String,
    /// How many there are to try.
    servers: usize,
    /// How often it has been replaced.
    turn: usize,
    /// It is the cluster that it should be.
    proven: Arc<AtomicBool>,
}

pub(crate) struct Door {
    access: Access,
    /// An answer must begin within this time.
    patience: Duration,
    behind: Mutex<Behind>,
    /// The next one, while it is made.
    turning: tokio::sync::Mutex<Option<Making>>,
    /// `None`: whoever answers is believed.
    passport: Option<Passport>,
    /// The cluster that was last accepted behind this door.
    proving: tokio::sync::Mutex<Option<String>>,
    /// How often another one was accepted than before.
    era: AtomicUsize,
}

#[derive(Debug, thiserror::Error)]
#[error("{server}: no answer within {} s", waited.as_secs())]
struct NoAnswer {
    server: String,
    waited: Duration,
}

/// A kubeconfig may name a plugin that gives the credentials: a program that is waited for, and that may wait for a
/// network. Only a thread of its own may do that.
struct Making(JoinHandle<Result<Behind, AccessError>>);

impl Making {
    fn begin(access: &Access, turn: usize) -> Making {
        let (access, runtime) = (access.clone(), Handle::current());
        Making(tokio::task::spawn_blocking(move || runtime.block_on(build(&access, turn))))
    }

    /// `None`: not yet; it goes on.
    async fn wait(&mut self) -> Option<Result<Behind, AccessError>> {
        match tokio::time::timeout(ANSWER, &mut self.0).await.ok()? {
            Ok(made) => Some(made),
            Err(bad) if bad.is_panic() => std::panic::resume_unwind(bad.into_panic()),
            // The runtime itself ends.
            Err(_) => None,
        }
    }
}

/// A door that is being made.
pub(crate) struct Opening {
    access: Access,
    patience: Duration,
    passport: Option<Passport>,
    making: Making,
}

impl Opening {
    pub(crate) fn begin(access: Access, patience: Duration, passport: Option<Passport>) -> Opening {
        let making = Making::begin(&access, 0);
        Opening { access, patience: patience.min(ANSWER), passport, making }
    }

    /// An error that says so where it takes long: it goes on then.
    pub(crate) async fn wait(&mut self) -> Result<Arc<Door>, AccessError> {
        let made = self.making.wait().await.unwrap_or_else(|| Err(slow(&self.access)))?;
        Ok(Arc::new(Door {
            access: self.access.clone(),
            patience: self.patience,
            behind: made.into(),
            turning: None.into(),
            passport: self.passport.clone(),
            proving: None.into(),
            era: AtomicUsize::new(0),
        }))
    }
}

fn slow(access: &Access) -> AccessError {
    AccessError::Slow { access: access.to_string(), waited: ANSWER }
}

impl Door {
    pub(crate) async fn open(
        access: Access,
        patience: Duration,
        passport: Option<Passport>,
    ) -> Result<Arc<Door>, AccessError> {
        Opening::begin(access, patience, passport).wait().await
    }

    /// A client that always goes through the door.
    pub(crate) fn client(self: &Arc<Door>) -> Client {
        let door = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let door = door.clone();
            async move { door.send(request).await }
        });
        Client::new(service, "default")
    }

    pub(crate) fn server(&self) -> String {
        self.behind().server
    }

    /// How many there are to try.
    pub(crate) fn servers(&self) -> usize {
        self.behind().servers
    }

    fn behind(&self) -> Behind {
        self.behind.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    async fn send(&self, request: Request<Body>) -> Result<Response<Body>, tower::BoxError> {
        let behind = self.behind();
        let answer = match tokio::time::timeout(self.patience, self.pass(&behind, request)).await {
            Ok(answer) => answer,
            Err(_) => Err(NoAnswer { server: behind.server, waited: self.patience }.into()),
        };
        let elsewhere = match &answer {
            Ok(answer) if answer.status() == StatusCode::UNAUTHORIZED => true,
            Ok(answer) => answer.status().is_server_error() && self.servers() > 1,
            Err(_) => true,
        };
        if elsewhere {
            self.turn(behind.turn).await;
        }
        answer
    }

    async fn pass(&self, behind: &Behind, request: Request<Body>) -> Result<Response<Body>, tower::BoxError> {
        self.prove(behind).await?;
        Ok(behind.client.send(request).await?)
    }

    async fn prove(&self, behind: &Behind) -> Result<(), tower::BoxError> {
        let Some(passport) = self.passport.as_ref().filter(|_| !behind.proven.load(Ordering::Acquire)) else {
            return Ok(());
        };
        let mut accepted = self.proving.lock().await;
        if !behind.proven.load(Ordering::Acquire) {
            let (uid, _) = passport.show(&behind.client).await?;
            if accepted.as_ref().is_some_and(|before| *before != uid) {
                self.era.fetch_add(1, Ordering::AcqRel);
            }
            *accepted = Some(uid);
            behind.proven.store(true, Ordering::Release);
        }
        Ok(())
    }

    /// Another number: another cluster. What was listed of the one before says nothing of it.
    pub(crate) fn era(&self) -> usize {
        self.era.load(Ordering::Acquire)
    }

    /// Behind the same address there may be another cluster by now: it is asked again before the next answer is believed.
    pub(crate) fn doubt(&self) {
        self.behind().proven.store(false, Ordering::Release);
    }

    /// The next server, and who we are read anew. Several may find out at once that one does not answer; one turns.
    pub(crate) async fn turn(&self, seen: usize) {
        let mut turning = self.turning.lock().await;
        if self.behind().turn != seen {
            return;
        }
        // One that takes longer than anybody waits is waited for by the next one who comes, not begun again.
        let made = turning.get_or_insert_with(|| Making::begin(&self.access, seen + 1)).wait().await;
        if made.is_some() {
            *turning = None;
        }
        match made.unwrap_or_else(|| Err(slow(&self.access))) {
            Ok(behind) => *self.behind.lock().unwrap_or_else(PoisonError::into_inner) = behind,
            Err(error) => tracing::warn!("credentials cannot be read anew, the earlier ones stay: {error}"),
        }
    }

    /// Which one is behind the door now, to say later that it went silent.
    pub(crate) fn now(&self) -> usize {
        self.behind().turn
    }
}

async fn build(access: &Access, turn: usize) -> Result<Behind, AccessError> {
    let config = access.load(turn).await?;
    let uri = config.cluster_url.clone();
    let failed = |source| AccessError::Client { server: uri.clone(), source: Box::new(source) };
    let client = Client::try_from(config).map_err(failed)?;
    let server = uri.to_string().trim_end_matches('/').to_owned();
    Ok(Behind { client, server, servers: access.servers(), turn, proven: Arc::default() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    /// Of a plugin that waits for a file, and not for ever.
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
    async fn a_plugin_that_hangs_holds_nobody_else_up() {
        let dir = tempfile::tempdir().unwrap();
        let mut opening = Opening::begin(kubeconfig(dir.path()), ANSWER, None);
        // There is one thread: if that is held up, what is waited for comes before the plugin is let go.
        let others = async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            std::fs::write(dir.path().join("go"), "").unwrap();
            "others"
        };
        let first = tokio::select! { biased; _ = opening.wait() => "plugin", others = others => others };
        assert_eq!(first, "others");
        assert_eq!(opening.wait().await.unwrap().server(), "http://127.0.0.1:1");
    }
}
