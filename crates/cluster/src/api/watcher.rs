//! Lists and watches one kind: lists it page by page, and watches it from the version of the list on. A watch that
//! ends, fails or is silent for too long continues from the last version. Everything is listed again only if the server
//! no longer has that version.
//!
//! This is not kube's own watcher because that one waits five minutes for a silent server, and requests a version
//! forever that the server does not know (one from before a restore of etcd).

use super::failover::FailoverClient;
use super::missing_kind::{self, MissingKindCheck};
use super::update::{WatchUpdate, WatchedKind};
use crate::backoff::Backoff;
use crate::kind::ResourceKind;
use crate::wire::{Page, Trimmed};
use futures::StreamExt;
use kube::Client;
use kube::api::{ListParams, WatchEvent, WatchParams};
use kube::core::{Request, Status};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use tokio::sync::mpsc::Sender;

/// Objects per page. A page has a few megabytes at most.
const PAGE_SIZE: u32 = 500;
/// The server ends a watch after a random time in this range, in seconds. That spreads the watches over all servers
/// when servers are added or removed.
const WATCH_SECONDS: std::ops::Range<u32> = 240..290;
/// A watch that ends sooner counts as a failure.
const MIN_WATCH: Duration = Duration::from_secs(1);
/// Everything is listed again after the server has rejected this many requests in a row.
const MAX_REJECTIONS: u32 = 3;

/// The objects of a kind that are requested.
#[derive(Clone, Debug, Default)]
pub(crate) struct Selector {
    pub(crate) labels: Option<String>,
    pub(crate) fields: Option<String>,
}

pub(crate) struct KindWatcher {
    pub(crate) client: Arc<FailoverClient>,
    pub(crate) selector: Selector,
    /// A watch without events for this time is opened again. Most servers send a bookmark every minute.
    pub(crate) idle_timeout: Duration,
    pub(crate) updates: Sender<WatchUpdate>,
    /// Notified when a kind has been listed. Kinds that failed or were missing are then tried again at once.
    pub(crate) any_listed: Arc<Notify>,
    /// The cluster generation of the client at the last list.
    pub(crate) cluster_generation: usize,
}

enum WatchError {
    /// The receiver of the updates was dropped.
    Closed,
    /// The server no longer has the version that the watch would continue from.
    Expired(String),
    /// The server answered with an error status.
    Rejected(Box<Status>),
    Failed(String),
}

impl WatchError {
    /// The delay that the server demands.
    fn retry_after(&self) -> Duration {
        let WatchError::Rejected(status) = self else { return Duration::ZERO };
        let seconds = status.details.as_ref().map_or(0, |details| details.retry_after_seconds);
        Duration::from_secs(u64::from(seconds).min(60))
    }

    fn message(&self) -> String {
        match self {
            WatchError::Closed => "the receiver was dropped".into(),
            WatchError::Rejected(status) => rejection_message(status),
            WatchError::Expired(why) | WatchError::Failed(why) => why.clone(),
        }
    }

    fn is_not_found(&self) -> bool {
        matches!(self, WatchError::Rejected(status) if status.code == 404)
    }

    fn is_denied(&self) -> bool {
        matches!(self, WatchError::Rejected(status) if status.code == 401 || status.code == 403)
    }
}

impl From<kube::Error> for WatchError {
    fn from(error: kube::Error) -> WatchError {
        match error {
            kube::Error::Api(status) => WatchError::from(status),
            other => WatchError::Failed(error_chain(&other)),
        }
    }
}

impl From<Box<Status>> for WatchError {
    fn from(status: Box<Status>) -> WatchError {
        let is_expired = status.code == 410 || status.reason == "Expired" || status.reason == "Gone";
        if is_expired { WatchError::Expired(status.message.clone()) } else { WatchError::Rejected(status) }
    }
}

impl<T> From<tokio::sync::mpsc::error::SendError<T>> for WatchError {
    fn from(_: tokio::sync::mpsc::error::SendError<T>) -> WatchError {
        WatchError::Closed
    }
}

impl KindWatcher {
    /// Runs until the receiver of the updates is dropped.
    pub(crate) async fn run<K: WatchedKind>(mut self) {
        let client = self.client.kube_client();
        let (mut backoff, mut missing_backoff) = (Backoff::default(), Backoff::for_missing_kind());
        let (mut version, mut rejections) = (None, 0);
        let mut missing = MissingKindCheck::default();
        loop {
            if version.is_none() {
                self.cluster_generation = self.client.cluster_generation();
            }
            let Err(error) = self.list_and_watch::<K>(&client, &mut version, &mut backoff).await else { continue };
            // A 404 after a successful list may be a transient failure of the server.
            if K::OPTIONAL && error.is_not_found() && version.is_none() {
                rejections = 0;
                if self.handle_missing::<K>(&client, &mut missing, &mut missing_backoff).await.is_err() {
                    return;
                }
                continue;
            }
            missing = MissingKindCheck::default();
            if version.is_none() && self.drop_field_selector::<K>(&error) {
                continue;
            }
            rejections = if matches!(error, WatchError::Rejected(_)) { rejections + 1 } else { 0 };
            if rejections >= MAX_REJECTIONS || matches!(error, WatchError::Expired(_)) {
                version = None;
            }
            if self.report::<K>(&error).await.is_err() {
                return;
            }
            let delay = backoff.next();
            match error.retry_after() {
                Duration::ZERO => self.sleep_until_listed(delay).await,
                retry_after => tokio::time::sleep(delay.max(retry_after)).await,
            }
        }
    }

    /// Sleeps, and wakes early when another kind has been listed.
    async fn sleep_until_listed(&self, delay: Duration) {
        let _ = tokio::time::timeout(delay, self.any_listed.notified()).await;
    }

    /// Lists the kind once, from the first server that succeeds. The error is that of the last server.
    pub(crate) async fn list_once<K: WatchedKind>(mut self) -> Result<(), String> {
        let (client, mut tries) = (self.client.kube_client(), self.client.servers());
        loop {
            let server = self.client.server();
            let Err(error) = self.list::<K>(&client).await else { return Ok(()) };
            if K::OPTIONAL && error.is_not_found() {
                let finished = WatchUpdate::ListFinished(K::KIND);
                return self.updates.send(finished).await.map_err(|_| WatchError::Closed.message());
            }
            if self.drop_field_selector::<K>(&error) {
                continue;
            }
            tries -= 1;
            if tries == 0 {
                return Err(format!("{server} {}: {}", K::PATH, error.message()));
            }
        }
    }

    /// Handles a 404 of a kind that may not be installed. Once discovery confirms that it is missing, an empty list is
    /// reported. The kind is looked for again with a long backoff, and when another kind has been listed.
    async fn handle_missing<K: WatchedKind>(
        &self,
        client: &Client,
        missing: &mut MissingKindCheck,
        backoff: &mut Backoff,
    ) -> Result<(), WatchError> {
        if !missing.is_confirmed() {
            let is_undiscovered = missing_kind::is_undiscovered(client, K::PATH, self.idle_timeout).await;
            missing.record(is_undiscovered, Instant::now());
        }
        if missing.is_confirmed() {
            let empty_list = [WatchUpdate::ListStarted, WatchUpdate::ListFinished, WatchUpdate::Healthy];
            for update in empty_list {
                self.updates.send(update(K::KIND)).await?;
            }
            self.sleep_until_listed(backoff.next()).await;
            return Ok(());
        }
        if missing.is_likely() {
            self.updates.send(WatchUpdate::NotInstalled(K::KIND)).await?;
        }
        self.sleep_until_listed(missing.delay()).await;
        Ok(())
    }

    /// Servers before 1.31 do not know the field that excludes headless Services. Such Services are then skipped by the
    /// converter.
    fn drop_field_selector<K: WatchedKind>(&mut self, error: &WatchError) -> bool {
        let is_unknown = matches!(error, WatchError::Rejected(status) if status.code == 400);
        let Some(fields) = self.selector.fields.take_if(|_| is_unknown && K::KIND == ResourceKind::Service) else {
            return false;
        };
        tracing::info!(
            fields,
            "the API server does not support the field selector; headless Services are skipped here"
        );
        true
    }

    async fn report<K: WatchedKind>(&self, error: &WatchError) -> Result<(), WatchError> {
        match error {
            WatchError::Closed => return Err(WatchError::Closed),
            WatchError::Expired(why) => {
                tracing::debug!(kind = K::KIND.as_str(), why, "the version expired; listing everything again");
                return Ok(());
            }
            WatchError::Rejected(_) | WatchError::Failed(_) => {}
        }
        let message = format!("{} {}: {}", self.client.server(), K::PATH, error.message());
        let is_denied = error.is_denied();
        Ok(self.updates.send(WatchUpdate::Failed { kind: K::KIND, error: message, is_denied }).await?)
    }

    /// Lists the kind unless there is a version to continue from, and watches it once.
    async fn list_and_watch<K: WatchedKind>(
        &self,
        client: &Client,
        version: &mut Option<String>,
        backoff: &mut Backoff,
    ) -> Result<(), WatchError> {
        let from = match version.take() {
            Some(from) => from,
            None => self.list::<K>(client).await?,
        };
        let from = version.insert(from);
        self.watch::<K>(client, from, backoff).await
    }

    /// Returns the version of the list.
    async fn list<K: WatchedKind>(&self, client: &Client) -> Result<String, WatchError> {
        let Selector { labels, fields } = self.selector.clone();
        let limit = Some(PAGE_SIZE);
        let mut params = ListParams { label_selector: labels, field_selector: fields, limit, ..ListParams::default() };
        self.updates.send(WatchUpdate::ListStarted(K::KIND)).await?;
        self.client.reset_verification();
        loop {
            let request = Request::new(K::PATH).list(&params).map_err(|error| WatchError::Failed(error.to_string()))?;
            let connection = self.client.connection_number();
            let Ok(page) = tokio::time::timeout(self.idle_timeout, client.request::<Page<K>>(request)).await else {
                self.client.fail_over(connection).await;
                return Err(WatchError::Failed(format!("no response within {} s", self.idle_timeout.as_secs())));
            };
            let page = page?;
            let objects = page.items.into_iter().flatten().map(|Trimmed(object)| object.into_object()).collect();
            self.updates.send(WatchUpdate::ListPage(objects)).await?;
            let more = page.metadata.continue_.filter(|token| !token.is_empty());
            if more.is_some() {
                params.continue_token = more;
                continue;
            }
            // An edge cache may answer 200 without a list.
            let version = page.metadata.resource_version.filter(|version| !version.is_empty());
            let version = version.ok_or_else(|| WatchError::Failed("the list has no resourceVersion".into()))?;
            self.updates.send(WatchUpdate::ListFinished(K::KIND)).await?;
            self.any_listed.notify_waiters();
            return Ok(version);
        }
    }

    /// Watches until the server ends the watch, which it does every few minutes.
    async fn watch<K: WatchedKind>(
        &self,
        client: &Client,
        version: &mut String,
        backoff: &mut Backoff,
    ) -> Result<(), WatchError> {
        let Selector { labels, fields } = self.selector.clone();
        let timeout = Some(fastrand::u32(WATCH_SECONDS));
        let params = WatchParams { label_selector: labels, field_selector: fields, timeout, ..WatchParams::default() };
        let request =
            Request::new(K::PATH).watch(&params, version).map_err(|error| WatchError::Failed(error.to_string()))?;
        self.client.reset_verification();
        let (start, connection) = (Instant::now(), self.client.connection_number());
        let mut events = std::pin::pin!(client.request_events::<Trimmed<K>>(request).await?);
        // The versions of another cluster are unrelated, and a watch from a future version would stay silent.
        if self.client.cluster_generation() != self.cluster_generation {
            return Err(WatchError::Expired("another cluster than the one that was listed answers".into()));
        }
        self.updates.send(WatchUpdate::Healthy(K::KIND)).await?;
        loop {
            let Ok(event) = tokio::time::timeout(self.idle_timeout, events.next()).await else {
                // This need not be a failure, because bookmarks are optional. The next watch uses a new connection,
                // and fails if the server does not answer.
                self.client.fail_over(connection).await;
                return Ok(());
            };
            let Some(event) = event else { break };
            self.handle_event(event?, version).await?;
            backoff.reset();
        }
        if start.elapsed() < MIN_WATCH {
            Err(WatchError::Failed("the watch was closed at once".into()))
        } else {
            Ok(())
        }
    }

    async fn handle_event<K: WatchedKind>(
        &self,
        event: WatchEvent<Trimmed<K>>,
        version: &mut String,
    ) -> Result<(), WatchError> {
        let (object, is_deleted) = match event {
            WatchEvent::Added(Trimmed(object)) | WatchEvent::Modified(Trimmed(object)) => (object, false),
            WatchEvent::Deleted(Trimmed(object)) => (object, true),
            WatchEvent::Bookmark(bookmark) => {
                *version = bookmark.metadata.resource_version;
                return Ok(());
            }
            WatchEvent::Error(status) => return Err(status.into()),
        };
        if let Some(now) = object.meta().resource_version.clone().filter(|now| !now.is_empty()) {
            *version = now;
        }
        let object = object.into_object();
        let update = match is_deleted {
            true => WatchUpdate::Deleted(object),
            false => WatchUpdate::Upserted(object, Instant::now()),
        };
        Ok(self.updates.send(update).await?)
    }
}

fn rejection_message(status: &Status) -> String {
    let next = match status.code {
        401 => "; check that the token or certificate is still valid (it is read again at every retry)",
        403 => "; grant the account `get`, `list` and `watch`",
        _ => "",
    };
    format!("{} ({}){next}", status.message, status.code)
}

/// The messages of the error and its sources: the first one alone is often no more than "error sending request".
fn error_chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let message = cause.to_string();
        if !text.contains(&message) {
            text.push_str(": ");
            text.push_str(&message);
        }
        next = cause.source();
    }
    text
}
