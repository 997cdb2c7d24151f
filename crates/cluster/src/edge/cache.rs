//! The line to the edge cache: lists, watches and single objects, every byte of them counted.

use crate::api::{IdentityError, Lean, Page, Passport, Reduced};
use futures::{AsyncBufReadExt, Stream, StreamExt};
use http::{Request, Uri};
use k8s_openapi::api::core::v1::Service;
use kube::Client;
use kube::core::WatchEvent;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::Mutex;

/// It tries the cloud for ten seconds before it looks into its database, and its database is slow.
const ANSWER: Duration = Duration::from_secs(30);
/// Matches nothing, and so costs next to nothing. Cloudcore itself does not start before it can list Services.
const PULSE: &str = "/api/v1/services?labelSelector=beeline.dev%2Fnothing";

/// What has been read, in bytes.
#[derive(Debug, Default)]
pub struct Traffic(AtomicU64);

impl Traffic {
    pub fn bytes(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn add(&self, bytes: usize) {
        self.0.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

#[derive(Debug, thiserror::Error)]
pub enum CacheError {
    #[error("no client for the edge cache {0}: {1}")]
    Client(Uri, Box<kube::Error>),
    #[error("no answer within {} s", ANSWER.as_secs())]
    Silent,
    #[error("{0}")]
    Failed(Box<kube::Error>),
    #[error("it answers what nobody can read: {0}")]
    Garbled(String),
    #[error("a list without a resourceVersion is no answer: the cache has nothing, and the cloud cannot be reached")]
    NoAnswer,
    #[error("the cloud cannot be reached: the cache answers from its database, and what was heard before holds")]
    CutOff,
    #[error(
        "the cloud is reached and gives nothing: cloudcore may not list this, or knows no such kind; \
         in the cloud: kubectl apply -f deploy/edge/cloudcore.yaml (the package has it below /usr/share/doc/beeline)"
    )]
    Withheld,
    #[error("{0}")]
    Stranger(String),
}

impl From<kube::Error> for CacheError {
    fn from(error: kube::Error) -> CacheError {
        CacheError::Failed(Box::new(error))
    }
}

#[derive(Clone)]
pub(crate) struct Cache {
    client: Client,
    server: Arc<str>,
    traffic: Arc<Traffic>,
    passport: Option<Passport>,
    trust: Arc<Mutex<Trust>>,
}

/// In whoever answers at that port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Trust {
    #[default]
    None,
    /// It was the right cluster once, and may be another by now: a host can be joined to another cloud.
    Once,
    Now,
}

pub(crate) struct List<K> {
    pub(crate) objects: Vec<K>,
    pub(crate) version: Option<u64>,
    /// From the database, not from the cloud.
    pub(crate) cached: bool,
}

impl Cache {
    pub(crate) fn open(server: &Uri, traffic: Arc<Traffic>, passport: Option<Passport>) -> Result<Cache, CacheError> {
        let mut config = kube::Config::new(server.clone());
        config.default_retry = false;
        let failed = |error| CacheError::Client(server.clone(), Box::new(error));
        let client = Client::try_from(config).map_err(failed)?;
        let server = server.to_string().trim_end_matches('/').into();
        Ok(Cache { client, server, traffic, passport, trust: Arc::default() })
    }

    pub(crate) fn server(&self) -> &str {
        &self.server
    }

    /// Nothing is believed before it is known whose it is. `Some`: it was right once, and cannot be asked now, for this
    /// reason.
    async fn show(&self) -> Result<Option<String>, CacheError> {
        let mut trust = self.trust.lock().await;
        let Some(passport) = self.passport.as_ref().filter(|_| *trust != Trust::Now) else { return Ok(None) };
        let asked = tokio::time::timeout(ANSWER, passport.show(&self.client)).await;
        match asked.map_err(|_| CacheError::Silent)? {
            Ok((_, bytes)) => {
                self.traffic.add(bytes);
                *trust = Trust::Now;
                Ok(None)
            }
            Err(why @ IdentityError::Stranger(_)) => {
                *trust = Trust::None;
                Err(CacheError::Stranger(why.to_string()))
            }
            Err(why) if *trust == Trust::Once => Ok(Some(why.to_string())),
            Err(why) => Err(CacheError::Stranger(why.to_string())),
        }
    }

    /// Asked again before the next answer is believed.
    pub(crate) async fn doubt(&self) {
        let mut trust = self.trust.lock().await;
        if *trust == Trust::Now {
            *trust = Trust::Once;
        }
    }

    /// With the doubt about whose it is.
    async fn read(&self, path: &str) -> Result<(String, Option<String>), CacheError> {
        let doubt = self.show().await?;
        let request = Request::get(path).body(Vec::new()).map_err(|bad| CacheError::Garbled(bad.to_string()))?;
        let answer = tokio::time::timeout(ANSWER, self.client.request_text(request)).await;
        let answer = answer.map_err(|_| CacheError::Silent).and_then(|text| Ok(text?));
        if answer.is_err() {
            self.doubt().await;
        }
        let text = answer?;
        self.traffic.add(text.len());
        Ok((text, doubt))
    }

    /// In one piece: the database knows no pages.
    pub(crate) async fn list<K: Reduced>(&self, path: &str) -> Result<List<K>, CacheError> {
        self.doubt().await;
        self.look::<K>(path).await
    }

    async fn look<K: Reduced>(&self, path: &str) -> Result<List<K>, CacheError> {
        let (text, doubt) = self.read(path).await?;
        let page: Page<K> = serde_json::from_str(&text).map_err(|bad| CacheError::Garbled(bad.to_string()))?;
        let version = page.metadata.resource_version.filter(|version| !version.is_empty());
        let version = version.ok_or(CacheError::NoAnswer)?.parse().ok();
        let cached = page.metadata.self_link.is_some_and(|link| !link.is_empty());
        // While the cloud is away its database answers, which need not hold the namespace that is asked for.
        if let Some(why) = doubt.filter(|_| !cached) {
            return Err(CacheError::Stranger(why));
        }
        let objects = page.items.into_iter().flatten().map(|Lean(object)| object).collect();
        Ok(List { objects, version, cached })
    }

    /// Whether it is the cloud that answers. Whose it is was asked when something was last believed, and will be when something
    /// is: this is asked often, and links are metered.
    pub(crate) async fn reaches_cloud(&self) -> bool {
        self.look::<Service>(PULSE).await.is_ok_and(|list| !list.cached)
    }

    pub(crate) async fn get<K: Reduced>(&self, path: &str) -> Result<K, CacheError> {
        let (text, _) = self.read(path).await?;
        let Lean(object) = serde_json::from_str(&text).map_err(|bad| CacheError::Garbled(bad.to_string()))?;
        Ok(object)
    }

    /// Events until the cache ends it.
    pub(crate) async fn watch<K: Reduced>(
        &self,
        path: &str,
    ) -> Result<impl Stream<Item = Result<WatchEvent<Lean<K>>, CacheError>> + use<K>, CacheError> {
        self.show().await?;
        let request = Request::get(path).body(Vec::new()).map_err(|bad| CacheError::Garbled(bad.to_string()))?;
        let opened = tokio::time::timeout(ANSWER, self.client.request_stream(request)).await;
        let opened = opened.map_err(|_| CacheError::Silent).and_then(|opened| Ok(opened?));
        if opened.is_err() {
            self.doubt().await;
        }
        let (lines, traffic) = (opened?.lines(), self.traffic.clone());
        Ok(lines.map(move |line| {
            let line = line.map_err(|error| CacheError::Garbled(error.to_string()))?;
            traffic.add(line.len() + 1);
            serde_json::from_str(&line).map_err(|bad| CacheError::Garbled(bad.to_string()))
        }))
    }
}
