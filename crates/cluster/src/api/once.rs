//! All that an API server says now, listed once and not followed: for whoever plans and does not serve.

use super::access::AccessError;
use super::book::Book;
use super::door::Door;
use super::{Server, UNDER_WAY};
use crate::convert::Convert;
use crate::snapshot::Snapshot;
use k8s_openapi::api::core::v1::{Node, Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
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
        let door = Door::open(self.access.clone(), self.patience).await?;
        let (news, mut heard) = channel(UNDER_WAY);
        let [services, slices, nodes, pods] = self.selectors();
        let services = self.follow(&door, services, &news).once::<Service>();
        let slices = self.follow(&door, slices, &news).once::<EndpointSlice>();
        let nodes = self.follow(&door, nodes, &news).once::<Node>();
        let pods = self.follow(&door, pods, &news).once::<Pod>();
        drop(news);
        let mut book = Book::new(Convert::new(&self.cluster, self.claim), &self.node);
        let take = async {
            while let Some(news) = heard.recv().await {
                book.take(news);
            }
        };
        let lists = async { tokio::try_join!(services, slices, nodes, pods) };
        let (listed, ()) = tokio::join!(lists, take);
        listed.map_err(LoadError::List)?;
        let batch = book.batch(door.server()).unwrap_or_default();
        let mut snapshot = Snapshot { refusals: batch.refusals, ..Snapshot::default() };
        batch.facts.into_iter().for_each(|fact| snapshot.apply(fact));
        Ok(snapshot)
    }
}
