//! The client of the edge cache: lists, watches and single objects. Every byte that is read is counted.

use crate::api::{ClusterIdCheck, ClusterIdError};
use crate::wire::{Page, Trimmed, TrimmedKind};
use futures::{AsyncBufReadExt, Stream, StreamExt};
use http::{Request, Uri};
use k8s_openapi::api::core::v1::Service;
use kube::Client;
use kube::core::WatchEvent;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::Mutex;

/// The cache tries the cloud for ten seconds before it reads its database, which is slow.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);
/// A list that contains nothing and so costs little. Cloudcore always serves it, because it does not start before it
/// can list Services.
const PROBE_PATH: &str = "/api/v1/services?labelSelector=beeline.dev%2Fnothing";

/// Counts the bytes that were read from the edge cache.
#[derive(Debug, Default)]
pub struct TrafficCounter(AtomicU64);

impl TrafficCounter {
    pub fn bytes(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn add(&self, bytes: usize) {
        self.0.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

#[derive(Debug, thiserror::Error)]
pub enum EdgeCacheError {
    #[error("cannot create a client for the edge cache {0}: {1}")]
    Client(Uri, Box<kube::Error>),
    #[error("no response within {} s", RESPONSE_TIMEOUT.as_secs())]
    Timeout,
    #[error("{0}")]
    Request(Box<kube::Error>),
    #[error("unparseable response: {0}")]
    Unparseable(String),
    #[error("the list has no resourceVersion: the cache is empty, and the cloud cannot be reached")]
    EmptyCache,
    #[error(
        "the cloud cannot be reached: the cache answers from its database, and the last known state stays in effect"
    )]
    CloudUnreachable,
    #[error(
        "the cloud is reachable but returns nothing: cloudcore may not list this kind, or does not know it; \
         in the cloud: kubectl apply -f deploy/edge/cloudcore.yaml (the package has it below /usr/share/doc/beeline)"
    )]
    NotPermitted,
    #[error("{0}")]
    WrongCluster(String),
}

impl From<kube::Error> for EdgeCacheError {
    fn from(error: kube::Error) -> EdgeCacheError {
        EdgeCacheError::Request(Box::new(error))
    }
}

#[derive(Clone)]
pub(crate) struct EdgeCacheClient {
    client: Client,
    server: Arc<str>,
    traffic: Arc<TrafficCounter>,
    cluster_id_check: Option<ClusterIdCheck>,
    verification: Arc<Mutex<Verification>>,
}

/// Whether the cache belongs to the expected cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Verification {
    #[default]
    Unverified,
    /// Verified before, and to be verified again: the host may have been joined to another cloud.
    Outdated,
    Verified,
}

pub(crate) struct List<K> {
    pub(crate) objects: Vec<K>,
    pub(crate) version: Option<u64>,
    /// The list comes from the database, not from the cloud.
    pub(crate) from_cache: bool,
}

impl EdgeCacheClient {
    pub(crate) fn new(
        server: &Uri,
        traffic: Arc<TrafficCounter>,
        cluster_id_check: Option<ClusterIdCheck>,
    ) -> Result<EdgeCacheClient, EdgeCacheError> {
        let mut config = kube::Config::new(server.clone());
        config.default_retry = false;
        let failed = |error| EdgeCacheError::Client(server.clone(), Box::new(error));
        let client = Client::try_from(config).map_err(failed)?;
        let server = server.to_string().trim_end_matches('/').into();
        Ok(EdgeCacheClient { client, server, traffic, cluster_id_check, verification: Arc::default() })
    }

    pub(crate) fn server(&self) -> &str {
        &self.server
    }

    /// Verifies the cluster before a response is used. `Some` if the cache was verified before and cannot be verified
    /// now, with the reason.
    async fn verify(&self) -> Result<Option<String>, EdgeCacheError> {
        let mut verification = self.verification.lock().await;
        let is_verified = *verification == Verification::Verified;
        let Some(check) = self.cluster_id_check.as_ref().filter(|_| !is_verified) else { return Ok(None) };
        let verified = tokio::time::timeout(RESPONSE_TIMEOUT, check.verify(&self.client)).await;
        match verified.map_err(|_| EdgeCacheError::Timeout)? {
            Ok((_, bytes)) => {
                self.traffic.add(bytes);
                *verification = Verification::Verified;
                Ok(None)
            }
            Err(error @ ClusterIdError::WrongCluster(_)) => {
                *verification = Verification::Unverified;
                Err(EdgeCacheError::WrongCluster(error.to_string()))
            }
            Err(error) if *verification == Verification::Outdated => Ok(Some(error.to_string())),
            Err(error) => Err(EdgeCacheError::WrongCluster(error.to_string())),
        }
    }

    /// Verifies the cluster again before the next response is used.
    pub(crate) async fn reset_verification(&self) {
        let mut verification = self.verification.lock().await;
        if *verification == Verification::Verified {
            *verification = Verification::Outdated;
        }
    }

    /// Returns the response, and why the cluster could not be verified again.
    async fn read(&self, path: &str) -> Result<(String, Option<String>), EdgeCacheError> {
        let unverified = self.verify().await?;
        let request = Request::get(path).body(Vec::new());
        let request = request.map_err(|error| EdgeCacheError::Unparseable(error.to_string()))?;
        let response = tokio::time::timeout(RESPONSE_TIMEOUT, self.client.request_text(request)).await;
        let response = response.map_err(|_| EdgeCacheError::Timeout).and_then(|text| Ok(text?));
        if response.is_err() {
            self.reset_verification().await;
        }
        let text = response?;
        self.traffic.add(text.len());
        Ok((text, unverified))
    }

    /// Lists a kind in one request: the database does not support pages.
    pub(crate) async fn list<K: TrimmedKind>(&self, path: &str) -> Result<List<K>, EdgeCacheError> {
        self.reset_verification().await;
        self.list_unverified::<K>(path).await
    }

    /// Does not force a new verification.
    async fn list_unverified<K: TrimmedKind>(&self, path: &str) -> Result<List<K>, EdgeCacheError> {
        let (text, unverified) = self.read(path).await?;
        let list = parse_list(&text)?;
        // While the cloud is unreachable, the database answers. It need not contain the namespace that identifies the
        // cluster, so an earlier verification is sufficient.
        match unverified.filter(|_| !list.from_cache) {
            Some(why) => Err(EdgeCacheError::WrongCluster(why)),
            None => Ok(list),
        }
    }

    /// Whether the cloud answers. The cluster is not verified again, because this is called often and links may be
    /// metered; it is verified before any object is used.
    pub(crate) async fn reaches_cloud(&self) -> bool {
        self.list_unverified::<Service>(PROBE_PATH).await.is_ok_and(|list| !list.from_cache)
    }

    pub(crate) async fn get<K: TrimmedKind>(&self, path: &str) -> Result<K, EdgeCacheError> {
        let (text, _) = self.read(path).await?;
        let Trimmed(object) = parse(&text)?;
        Ok(object)
    }

    /// The events of a watch until the cache ends it.
    pub(crate) async fn watch<K: TrimmedKind>(
        &self,
        path: &str,
    ) -> Result<impl Stream<Item = Result<WatchEvent<Trimmed<K>>, EdgeCacheError>> + use<K>, EdgeCacheError> {
        self.verify().await?;
        let request = Request::get(path).body(Vec::new());
        let request = request.map_err(|error| EdgeCacheError::Unparseable(error.to_string()))?;
        let opened = tokio::time::timeout(RESPONSE_TIMEOUT, self.client.request_stream(request)).await;
        let opened = opened.map_err(|_| EdgeCacheError::Timeout).and_then(|opened| Ok(opened?));
        if opened.is_err() {
            self.reset_verification().await;
        }
        let (lines, traffic) = (opened?.lines(), self.traffic.clone());
        Ok(lines.map(move |line| {
            let line = line.map_err(|error| EdgeCacheError::Unparseable(error.to_string()))?;
            traffic.add(line.len() + 1);
            parse(&line)
        }))
    }
}

pub(crate) fn parse_list<K: TrimmedKind>(text: &str) -> Result<List<K>, EdgeCacheError> {
    let page: Page<K> = parse(text)?;
    let version = page.metadata.resource_version.filter(|version| !version.is_empty());
    let version = version.ok_or(EdgeCacheError::EmptyCache)?.parse().ok();
    let from_cache = page.metadata.self_link.is_some_and(|link| !link.is_empty());
    let objects = page.items.into_iter().flatten().map(|Trimmed(object)| object).collect();
    Ok(List { objects, version, from_cache })
}

pub(crate) fn parse<T: serde::de::DeserializeOwned>(text: &str) -> Result<T, EdgeCacheError> {
    serde_json::from_str(text).map_err(|error| EdgeCacheError::Unparseable(error.to_string()))
}
