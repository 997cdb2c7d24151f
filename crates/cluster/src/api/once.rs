//! All that an API server says now, listed once and not followed: for whoever plans and does not serve.

use super::access::AccessError;
use super::book::Book;
use super::door::Door;
use super::follow::Selector;
use super::{Pods, Read, Server, UNDER_WAY};
use crate::convert::Convert;
use crate::policy::{BalancingPolicySpec, LocalRedirectPolicySpec};
use crate::snapshot::Snapshot;
use k8s_openapi::api::core::v1::{Namespace, Node, Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::ServiceCIDR;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::Notify;
use tokio::sync::mpsc::channel;

#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error(transparent)]
    Access(#[from] AccessError),
    /// With the server, what was asked for, and why not.
    #[error("the objects cannot be listed: {0}")]
    List(String),
}

impl Server {
    /// The first kind that cannot be listed is an error: half of the objects would give a plan that no node has.
    pub async fn load(self) -> Result<Snapshot, LoadError> {
        let door = Door::open(self.access.clone(), self.patience, self.passport.clone()).await?;
        let (news, mut heard) = channel(UNDER_WAY);
        let [services, slices, nodes, pods] = self.selectors();
        let found = Arc::new(Notify::new());
        let follow = |selector| self.follow(&door, selector, &news, &found);
        let services = follow(services).once::<Service>();
        let slices = follow(slices).once::<EndpointSlice>();
        let nodes = follow(nodes).once::<Node>();
        let local = self.pods != Pods::None;
        let pods = local.then(|| follow(pods).once::<Pod>());
        let redirects = local.then(|| follow(Selector::default()).once::<Read<LocalRedirectPolicySpec>>());
        let balancing = follow(Selector::default()).once::<Read<BalancingPolicySpec>>();
        let namespaces = (self.pods == Pods::All).then(|| follow(Selector::default()).once::<Namespace>());
        let ranges = self.ranges.then(|| follow(Selector::default()).once::<ServiceCIDR>());
        let (pods, redirects, namespaces, ranges) = (some(pods), some(redirects), some(namespaces), some(ranges));
        drop(news);
        let followed = self.followed();
        let mut book =
            Book::new(Convert::new(&self.cluster, self.claim.clone()), &self.node, &followed, self.published());
        let take = async {
            while let Some(news) = heard.recv().await {
                book.take(news, Instant::now());
            }
        };
        let lists = async { tokio::try_join!(services, slices, nodes, pods, redirects, balancing, namespaces, ranges) };
        let (listed, ()) = tokio::join!(lists, take);
        listed.map_err(LoadError::List)?;
        let batch = book.batch(door.server()).unwrap_or_default();
        let mut snapshot = Snapshot { refusals: batch.refusals.to_vec(), ..Snapshot::default() };
        batch.facts.into_iter().for_each(|fact| snapshot.apply(fact));
        Ok(snapshot)
    }
}

/// What is not wanted is listed at once.
async fn some(list: Option<impl Future<Output = Result<(), String>>>) -> Result<(), String> {
    match list {
        Some(list) => list.await,
        None => Ok(()),
    }
}
