//! KubeEdge's edge cache (MetaServer) as a source of facts: plain HTTP on the edge host itself, which asks the cloud while
//! it can and answers from a small database while it cannot.
//!
//! It looks like an API server and is not quite one, so it has a follower of its own:
//! - With nothing in its database it answers 200 and an empty list without a resourceVersion. That is no answer.
//! - Its database lacks what was only listed and never watched, and a cloud that was just started loses the first word of
//!   a watch on the way: a list from it (told by the `selfLink` that only those have) can add, and take nothing away.
//! - Its watch ignores the resourceVersion that it is asked for: it begins with an ADDED for everything that it has, also
//!   for what was deleted in the cloud while the link was down. `Sieve` tells what is news.
//! - It sends no bookmarks, says nothing of what it missed, and a watch may be deaf after a cut: everything is listed and
//!   watched anew every ten minutes, and after each cut, which `link` notices.
//! - It knows no field selector but name and namespace: asked for the pods of a node it says that there are none.
//! - On the way from the cloud EndpointSlices may be rewritten to 127.0.0.1:10550 (KubeEdge does so to lead pods to this
//!   very cache, and not only for its own Service), so v1 Endpoints are read instead.
//!
//! Every byte of it may come over a radio link. Read are Services, Endpoints (where names are answered also those of
//! Services without a ClusterIP), and, one by one and every half an hour, the Nodes that those name: a watch of Nodes would carry every node's heartbeat. That a node
//! is not ready is seen sooner by its Endpoints, which leave. Pods and policies are not read.

mod book;
mod cache;
mod follow;
mod link;
mod sieve;

use crate::api::{LoadError, Passport};
use crate::convert::{Claim, Convert};
use crate::folder::Batch;
use crate::snapshot::Snapshot;
use book::Book;
pub use cache::Traffic;
use cache::{Cache, CacheError};
use follow::{News, Way, follow, follow_nodes};
use http::Uri;
use k8s_openapi::api::core::v1::{Endpoints, Service};
use link::{Link, feel};
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Where KubeEdge puts it.
pub const EDGE_CACHE: &str = "http://127.0.0.1:10550";
const UNDER_WAY: usize = 64;

/// How often what is asked for again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rhythm {
    /// Everything is listed anew.
    pub list: Duration,
    /// Whether the cloud is there.
    pub pulse: Duration,
    /// A Node is read again.
    pub node: Duration,
}

impl Default for Rhythm {
    fn default() -> Rhythm {
        Rhythm { list: Duration::from_secs(600), pulse: Duration::from_secs(20), node: Duration::from_secs(1800) }
    }
}

#[derive(Clone, Debug)]
pub struct Edge {
    pub server: Uri,
    pub cluster: String,
    /// Of this host.
    pub node: String,
    pub claim: Claim,
    pub rhythm: Rhythm,
    pub traffic: Arc<Traffic>,
    /// `None`: whichever cluster answers is believed.
    pub passport: Option<Passport>,
}

impl Edge {
    /// Where a cache is, as a URL says it: on this host. It asks nobody who he is, and what it says goes into the kernel.
    pub fn parse(url: &str) -> Option<Uri> {
        let uri: Uri = url.parse().ok()?;
        let host = uri.host()?.trim_start_matches('[').trim_end_matches(']');
        let here = host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
        (here && uri.scheme_str() == Some("http")).then_some(uri)
    }

    /// All that the cache says now, listed once and not followed.
    pub async fn load(self) -> Result<Snapshot, LoadError> {
        let (tx, mut batches) = channel::<Batch>(UNDER_WAY);
        let mut snapshot = Snapshot::default();
        let take = async {
            while let Some(batch) = batches.recv().await {
                batch.facts.into_iter().for_each(|fact| snapshot.apply(fact));
                snapshot.refusals = batch.refusals.to_vec();
                if batch.synced {
                    return Ok(snapshot);
                }
                // Of the other kind the database may be about to answer.
                batch.error.filter(|_| !batch.second_hand).map_or(Ok(()), |why| Err(LoadError::List(why)))?;
            }
            Err(LoadError::List("the edge cache ended".into()))
        };
        tokio::select! {
            taken = take => taken,
            Err(error) = self.watch(tx) => Err(LoadError::List(error.to_string())),
        }
    }

    /// Sends what the cache says and then every change of it, until nobody listens any more.
    pub async fn watch(self, batches: Sender<Batch>) -> Result<(), CacheError> {
        let cache = Cache::open(&self.server, self.traffic.clone(), self.passport.clone())?;
        let (news, heard) = channel(UNDER_WAY);
        let (needs, needed) = watch::channel(BTreeSet::from([self.node.as_str().into()]));
        let (feels, link) = watch::channel(Link::default());
        let way = || Way {
            cache: cache.clone(),
            rhythm: self.rhythm,
            names: self.claim.names,
            link: link.clone(),
            news: news.clone(),
        };
        let mut tasks = JoinSet::new();
        tasks.spawn(follow::<Service>(way()));
        tasks.spawn(follow::<Endpoints>(way()));
        tasks.spawn(feel(cache.clone(), self.rhythm.pulse, feels));
        tasks.spawn(follow_nodes(cache.clone(), self.rhythm.node, needed, news.clone()));
        let book = Book::new(Convert::new(&self.cluster, self.claim), self.node.as_str().into());
        tokio::select! {
            () = keep(book, heard, &needs, &self.server, &batches) => {}
            () = batches.closed() => {}
        }
        tasks.shutdown().await;
        Ok(())
    }
}

/// What has come in is taken in at once, and told at once.
async fn keep(
    mut book: Book,
    mut heard: Receiver<News>,
    needs: &watch::Sender<BTreeSet<beeline_model::Name>>,
    server: &Uri,
    batches: &Sender<Batch>,
) {
    let server = server.to_string().trim_end_matches('/').to_owned();
    while let Some(first) = heard.recv().await {
        book.take(first);
        while let Ok(more) = heard.try_recv() {
            book.take(more);
        }
        needs.send_if_modified(|before| {
            let now = book.needed();
            std::mem::replace(before, now) != *before
        });
        if let Some(batch) = book.batch(&server)
            && batches.send(batch).await.is_err()
        {
            return;
        }
    }
}
