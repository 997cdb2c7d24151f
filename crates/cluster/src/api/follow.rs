//! Follows one kind: lists it page by page, then watches it from there, for ever. A watch that ends, fails or falls
//! silent goes on from the last version seen; only when the server no longer has that version is everything listed anew.
//!
//! Written out here, and not taken from kube's runtime, because that one waits five minutes for a silent server, and
//! asks for ever for a version that the server does not know (one from before an etcd restore).

use super::absence::{self, Absence};
use super::door::Door;
use super::lean::{Lean, Page};
use super::news::{Followed, News};
use super::pause::Pause;
use crate::kind::Kind;
use futures::StreamExt;
use kube::Client;
use kube::api::{ListParams, WatchEvent, WatchParams};
use kube::core::{Request, Status};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use tokio::sync::mpsc::Sender;

/// Objects a page: a few megabytes of text at most.
const PAGE: u32 = 500;
/// The server ends a watch after about this long, which spreads watches over servers that come and go.
const WATCH: std::ops::Range<u32> = 240..290;
/// A watch that ends sooner was not really one.
const SHORT: Duration = Duration::from_secs(1);
/// So often a server may refuse to go on from where we were, before everything is listed anew.
const REFUSALS: u32 = 3;

/// What of a kind is wanted.
#[derive(Clone, Debug, Default)]
pub(crate) struct Selector {
    pub(crate) labels: Option<String>,
    pub(crate) fields: Option<String>,
}

pub(crate) struct Follow {
    pub(crate) door: Arc<Door>,
    pub(crate) selector: Selector,
    /// A watch that says nothing for this long may be dead: another one is opened. Most servers send a bookmark a minute.
    pub(crate) patience: Duration,
    pub(crate) news: Sender<News>,
    /// Some kind has been listed: what failed or was missing may be there, too.
    pub(crate) found: Arc<Notify>,
    /// Of the door, when it was last listed.
    pub(crate) era: usize,
}

enum Ended {
    /// Nobody listens any more.
    Nobody,
    /// The server no longer has what we would go on from.
    Stale(String),
    /// It answered, and would not.
    Refused(Box<Status>),
    Failed(String),
}

impl Ended {
    /// How long the server itself asks us to wait.
    fn least(&self) -> Duration {
        let Ended::Refused(status) = self else { return Duration::ZERO };
        let seconds = status.details.as_ref().map_or(0, |details| details.retry_after_seconds);
        Duration::from_secs(u64::from(seconds).min(60))
    }

    fn why(&self) -> String {
        match self {
            Ended::Nobody => "nobody listens".into(),
            Ended::Refused(status) => say(status),
            Ended::Stale(why) | Ended::Failed(why) => why.clone(),
        }
    }

    /// There is no such resource.
    fn is_absent(&self) -> bool {
        matches!(self, Ended::Refused(status) if status.code == 404)
    }

    fn is_denied(&self) -> bool {
        matches!(self, Ended::Refused(status) if status.code == 401 || status.code == 403)
    }
}

impl From<kube::Error> for Ended {
    fn from(error: kube::Error) -> Ended {
        match error {
            kube::Error::Api(status) => Ended::from(status),
            other => Ended::Failed(chain(&other)),
        }
    }
}

impl From<Box<Status>> for Ended {
    fn from(status: Box<Status>) -> Ended {
        let gone = status.code == 410 || status.reason == "Expired" || status.reason == "Gone";
        if gone { Ended::Stale(status.message.clone()) } else { Ended::Refused(status) }
    }
}

impl<T> From<tokio::sync::mpsc::error::SendError<T>> for Ended {
    fn from(_: tokio::sync::mpsc::error::SendError<T>) -> Ended {
        Ended::Nobody
    }
}

impl Follow {
    /// Ends when nobody listens any more.
    pub(crate) async fn run<K: Followed>(mut self) {
        let client = self.door.client();
        let (mut pause, mut search, mut version, mut refused) = (Pause::default(), Pause::search(), None, 0);
        let mut absence = Absence::default();
        loop {
            if version.is_none() {
                self.era = self.door.era();
            }
            let Err(ended) = self.round::<K>(&client, &mut version, &mut pause).await else { continue };
            // A server that once had it may have lost it for a moment only.
            if K::OPTIONAL && ended.is_absent() && version.is_none() {
                refused = 0;
                if self.miss::<K>(&client, &mut absence, &mut search).await.is_err() {
                    return;
                }
                continue;
            }
            absence = Absence::default();
            if version.is_none() && self.widen::<K>(&ended) {
                continue;
            }
            refused = if matches!(ended, Ended::Refused(_)) { refused + 1 } else { 0 };
            if refused >= REFUSALS || matches!(ended, Ended::Stale(_)) {
                version = None;
            }
            if self.tell::<K>(&ended).await.is_err() {
                return;
            }
            let wait = pause.next();
            match ended.least() {
                Duration::ZERO => self.rest(wait).await,
                least => tokio::time::sleep(wait.max(least)).await,
            }
        }
    }

    /// Cut short where others were listed meanwhile.
    async fn rest(&self, wait: Duration) {
        let _ = tokio::time::timeout(wait, self.found.notified()).await;
    }

    /// The list alone, of the first server that gives it; else what the last one said.
    pub(crate) async fn once<K: Followed>(mut self) -> Result<(), String> {
        let (client, mut tries) = (self.door.client(), self.door.servers());
        loop {
            let server = self.door.server();
            let Err(ended) = self.list::<K>(&client).await else { return Ok(()) };
            if K::OPTIONAL && ended.is_absent() {
                return self.news.send(News::Done(K::KIND)).await.map_err(|_| Ended::Nobody.why());
            }
            if self.widen::<K>(&ended) {
                continue;
            }
            tries -= 1;
            if tries == 0 {
                return Err(format!("{server} {}: {}", K::PATH, ended.why()));
            }
        }
    }

    /// Where nobody has installed it there is none; but only discovery can say so. Looks again now and then, and when
    /// others have been listed.
    async fn miss<K: Followed>(&self, client: &Client, absence: &mut Absence, search: &mut Pause) -> Result<(), Ended> {
        if !absence.is_sure() {
            let unserved = absence::is_unserved(client, K::PATH, self.patience).await;
            absence.look(unserved, Instant::now());
        }
        if absence.is_sure() {
            for news in [News::Begin(K::KIND), News::Done(K::KIND), News::Well(K::KIND)] {
                self.news.send(news).await?;
            }
            self.rest(search.next()).await;
            return Ok(());
        }
        if absence.is_likely() {
            self.news.send(News::Absent(K::KIND)).await?;
        }
        self.rest(absence.wait()).await;
        Ok(())
    }

    /// A server before 1.31 does not know the field by which headless Services are left out: then it is done here.
    fn widen<K: Followed>(&mut self, ended: &Ended) -> bool {
        let unknown = matches!(ended, Ended::Refused(status) if status.code == 400);
        let Some(fields) = self.selector.fields.take_if(|_| unknown && K::KIND == Kind::Service) else { return false };
        tracing::info!("this API server cannot select by {fields}: what is not for us is left out here");
        true
    }

    async fn tell<K: Followed>(&self, ended: &Ended) -> Result<(), Ended> {
        match ended {
            Ended::Nobody => return Err(Ended::Nobody),
            Ended::Stale(why) => {
                tracing::debug!(kind = ?K::KIND, "lists everything anew: {why}");
                return Ok(());
            }
            Ended::Refused(_) | Ended::Failed(_) => {}
        }
        let text = format!("{} {}: {}", self.door.server(), K::PATH, ended.why());
        Ok(self.news.send(News::Failed { kind: K::KIND, why: text, denied: ended.is_denied() }).await?)
    }

    async fn round<K: Followed>(
        &self,
        client: &Client,
        version: &mut Option<String>,
        pause: &mut Pause,
    ) -> Result<(), Ended> {
        let from = match version.take() {
            Some(from) => from,
            None => self.list::<K>(client).await?,
        };
        let from = version.insert(from);
        self.watch::<K>(client, from, pause).await
    }

    /// The version that the list stands for.
    async fn list<K: Followed>(&self, client: &Client) -> Result<String, Ended> {
        let Selector { labels, fields } = self.selector.clone();
        let mut params =
            ListParams { label_selector: labels, field_selector: fields, limit: Some(PAGE), ..ListParams::default() };
        self.news.send(News::Begin(K::KIND)).await?;
        self.door.doubt();
        loop {
            let request = Request::new(K::PATH).list(&params).map_err(|bad| Ended::Failed(bad.to_string()))?;
            let behind = self.door.now();
            let Ok(page) = tokio::time::timeout(self.patience, client.request::<Page<K>>(request)).await else {
                return Err(self.silent(behind).await);
            };
            let page = page?;
            let objects = page.items.into_iter().flatten().map(|Lean(object)| object.object()).collect();
            self.news.send(News::Listed(objects)).await?;
            let more = page.metadata.continue_.filter(|token| !token.is_empty());
            if more.is_some() {
                params.continue_token = more;
                continue;
            }
            // An edge cache may answer 200 and nothing: that is no list.
            let version = page.metadata.resource_version.filter(|version| !version.is_empty());
            let version =
                version.ok_or_else(|| Ended::Failed("a list without a resourceVersion is no answer".into()))?;
            self.news.send(News::Done(K::KIND)).await?;
            self.found.notify_waiters();
            return Ok(version);
        }
    }

    /// `Ok`: the server ended it, as it does every few minutes.
    async fn watch<K: Followed>(&self, client: &Client, version: &mut String, pause: &mut Pause) -> Result<(), Ended> {
        let Selector { labels, fields } = self.selector.clone();
        let timeout = Some(fastrand::u32(WATCH));
        let params = WatchParams { label_selector: labels, field_selector: fields, timeout, ..WatchParams::default() };
        let request = Request::new(K::PATH).watch(&params, version).map_err(|bad| Ended::Failed(bad.to_string()))?;
        self.door.doubt();
        let (start, behind) = (Instant::now(), self.door.now());
        let mut events = std::pin::pin!(client.request_events::<Lean<K>>(request).await?);
        // Its versions are its own, and a watch from one that is yet to come would only be silent.
        if self.door.era() != self.era {
            return Err(Ended::Stale("another cluster has taken the place of the one that was listed".into()));
        }
        self.news.send(News::Well(K::KIND)).await?;
        loop {
            let Ok(event) = tokio::time::timeout(self.patience, events.next()).await else {
                // Nothing may have happened, and bookmarks are a courtesy: a server that does not answer the next watch,
                // by a connection of its own, is in trouble.
                self.door.turn(behind).await;
                return Ok(());
            };
            let Some(event) = event else { break };
            self.hear(event?, version).await?;
            pause.reset();
        }
        if start.elapsed() < SHORT { Err(Ended::Failed("the watch was closed at once".into())) } else { Ok(()) }
    }

    async fn hear<K: Followed>(&self, event: WatchEvent<Lean<K>>, version: &mut String) -> Result<(), Ended> {
        let (object, gone) = match event {
            WatchEvent::Added(Lean(object)) | WatchEvent::Modified(Lean(object)) => (object, false),
            WatchEvent::Deleted(Lean(object)) => (object, true),
            WatchEvent::Bookmark(mark) => {
                *version = mark.metadata.resource_version;
                return Ok(());
            }
            WatchEvent::Error(status) => return Err(status.into()),
        };
        if let Some(now) = object.meta().resource_version.clone().filter(|now| !now.is_empty()) {
            *version = now;
        }
        let object = object.object();
        let news = if gone { News::Gone(object) } else { News::Changed(object, Instant::now()) };
        Ok(self.news.send(news).await?)
    }

    async fn silent(&self, behind: usize) -> Ended {
        self.door.turn(behind).await;
        Ended::Failed(format!("silent for {} s", self.patience.as_secs()))
    }
}

fn say(status: &Status) -> String {
    let next = match status.code {
        401 => "; are token or certificate of ours still valid? They are read again with every try",
        403 => "; give our account get, list and watch of it",
        _ => "",
    };
    format!("{} ({}){next}", status.message, status.code)
}

/// The whole chain: the first link alone is often no more than "error sending request".
fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let said = cause.to_string();
        if !text.contains(&said) {
            text.push_str(": ");
            text.push_str(&said);
        }
        next = cause.source();
    }
    text
}
