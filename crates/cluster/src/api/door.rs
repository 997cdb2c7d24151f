//! The one way to the API server. Behind it stands a client that is replaced, by the next server and by credentials read
//! anew from disk, when a server cannot be reached, does not answer, or does not know us. Whoever asks keeps its place:
//! a watch goes on from where it was, at whichever server.

use super::access::{Access, AccessError};
use http::{Request, Response, StatusCode};
use kube::Client;
use kube::client::Body;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Until the head of an answer: a page of a list is made in far less.
const ANSWER: Duration = Duration::from_secs(20);

#[derive(Clone)]
struct Behind {
    client: Client,
    server: String,
    /// How often it has been replaced.
    turn: usize,
}

pub(crate) struct Door {
    access: Access,
    /// An answer must begin within this time.
    patience: Duration,
    behind: Mutex<Behind>,
    turning: tokio::sync::Mutex<()>,
}

#[derive(Debug, thiserror::Error)]
#[error("{server}: no answer within {} s", waited.as_secs())]
struct NoAnswer {
    server: String,
    waited: Duration,
}

impl Door {
    pub(crate) async fn open(access: Access, patience: Duration) -> Result<Arc<Door>, AccessError> {
        let behind = build(&access, 0).await?;
        let door = Door { access, patience: patience.min(ANSWER), behind: behind.into(), turning: ().into() };
        Ok(Arc::new(door))
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
        self.access.servers()
    }

    fn behind(&self) -> Behind {
        self.behind.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    async fn send(&self, request: Request<Body>) -> Result<Response<Body>, tower::BoxError> {
        let behind = self.behind();
        let answer = match tokio::time::timeout(self.patience, behind.client.send(request)).await {
            Ok(answer) => answer.map_err(tower::BoxError::from),
            Err(_) => Err(NoAnswer { server: behind.server, waited: self.patience }.into()),
        };
        let elsewhere = match &answer {
            Ok(answer) if answer.status() == StatusCode::UNAUTHORIZED => true,
            Ok(answer) => answer.status().is_server_error() && self.access.servers() > 1,
            Err(_) => true,
        };
        if elsewhere {
            self.turn(behind.turn).await;
        }
        answer
    }

    /// The next server, and who we are read anew. Several may find out at once that one does not answer; one turns.
    pub(crate) async fn turn(&self, seen: usize) {
        let _one = self.turning.lock().await;
        if self.behind().turn != seen {
            return;
        }
        match build(&self.access, seen + 1).await {
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
    Ok(Behind { client, server: uri.to_string().trim_end_matches('/').to_owned(), turn })
}
