//! A Kubernetes API server as a source of facts: one follower a kind, and one task that owns the book and turns what
//! they say into batches. Objects are reduced while they are read and converted page by page; none is kept.

mod absence;
mod access;
mod allowance;
mod assembly;
mod book;
mod door;
mod follow;
mod identity;
mod lean;
mod news;
mod notice;
mod once;
mod pause;
mod refused;
mod report;
mod taint;
mod trigger;
mod twin;

use crate::convert::published::{MANAGED_BY, MANAGER};
use crate::convert::{Claim, Convert, HEADLESS, PROXY_NAME};
use crate::folder::Batch;
use crate::kind::Kind;
use crate::policy::{BalancingPolicySpec, LocalRedirectPolicySpec};
pub use access::{Access, AccessError};
use beeline_model::fact::Refusal;
use book::{Book, Published};
use door::{Door, Opening};
use follow::{Follow, Selector};
pub(crate) use identity::IdentityError;
pub use identity::Passport;
use k8s_openapi::api::core::v1::{Namespace, Node, Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::ServiceCIDR;
use lean::Read;
pub(crate) use lean::{Lean, Page, Reduced};
use news::News;
pub use once::LoadError;
pub(crate) use pause::Pause;
pub(crate) use refused::Refused;
pub use report::{REPORT, Reports, read_report, report_name};
use std::sync::Arc;
use std::time::{Duration, Instant};
pub use taint::STARTUP_TAINT;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::sync::{Mutex, Notify, watch};
use tokio::task::JoinSet;

/// A watch that says nothing for this long is opened anew.
pub const PATIENCE: Duration = Duration::from_secs(90);
/// Pages and events under way; whoever reads faster than the book is kept waiting.
const UNDER_WAY: usize = 64;
const NOTICES: usize = 256;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Nodes {
    /// Our own only: at thousands of nodes every other one would be a load for the API server.
    #[default]
    Own,
    /// All of them: other nodes' NodePorts are resolved at the source.
    Watch,
    /// Our own, and the others' addresses as the controller publishes them.
    Controller,
}

/// Who asks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Role {
    #[default]
    Agent,
    /// Of the EndpointSlices only those that it publishes itself.
    Controller,
}

/// Whose pods are asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pods {
    /// Our own node's.
    #[default]
    Own,
    /// Everybody's, and the namespaces that they are in: where nobody publishes what policies choose. For small clusters.
    All,
    /// Nobody's, and no LocalRedirectPolicies either: no pod of the cluster runs on this host.
    None,
}

#[derive(Clone, Debug)]
pub struct Server {
    pub access: Access,
    pub cluster: String,
    pub node: String,
    pub nodes: Nodes,
    pub pods: Pods,
    pub claim: Claim,
    /// Take the start-up taint from our node once everything is programmed.
    pub clear_taint: bool,
    pub patience: Duration,
    pub role: Role,
    /// Where the controller publishes nodes.
    pub controller_namespace: String,
    /// Where agents report, and nobody keeps anything else: they may write any Lease there.
    pub report_namespace: String,
    pub reports: Option<Reports>,
    /// ServiceCIDR objects are read: whose an address is must be known where there are several clusters.
    pub ranges: bool,
    /// What is refused is told by Events on the objects.
    pub notices: bool,
    /// `None`: whichever cluster answers is believed.
    pub passport: Option<Passport>,
}

/// A client that turns to the next server, and reads its credentials anew, when it must.
pub async fn connect(access: Access, patience: Duration) -> Result<kube::Client, AccessError> {
    Ok(Door::open(access, patience, None).await?.client())
}

/// What comes back from whoever takes the batches. One watch after the other hears it.
#[derive(Clone, Debug)]
pub struct Echo {
    /// Everything has reached the kernel.
    pub programmed: watch::Receiver<bool>,
    /// What is refused there, though each object for itself was fine: a conflict of two, say.
    pub refused: Arc<Mutex<Receiver<Refusal>>>,
}

impl Echo {
    pub fn new(programmed: watch::Receiver<bool>, refused: Receiver<Refusal>) -> Echo {
        Echo { programmed, refused: Arc::new(Mutex::new(refused)) }
    }
}

/// Of nobody.
impl Default for Echo {
    fn default() -> Echo {
        Echo::new(watch::channel(false).1, channel(1).1)
    }
}

impl Server {
    /// Sends what the API server says and then every change of it, until nobody listens any more. An error only where the
    /// credentials cannot be read at all.
    pub async fn watch(self, batches: Sender<Batch>, echo: Echo) -> Result<(), AccessError> {
        let Some(door) = self.open(&batches).await? else { return Ok(()) };
        let (news, heard) = channel(UNDER_WAY);
        let (notices, posted) = channel(NOTICES);
        let (taint, tainted) = watch::channel(false);
        let mut tasks = JoinSet::new();
        let [services, slices, nodes, pods] = self.selectors();
        let found = Arc::new(Notify::new());
        let follow = |selector| self.follow(&door, selector, &news, &found);
        tasks.spawn(follow(services).run::<Service>());
        tasks.spawn(follow(slices).run::<EndpointSlice>());
        tasks.spawn(follow(nodes).run::<Node>());
        if self.pods != Pods::None {
            tasks.spawn(follow(pods).run::<Pod>());
            tasks.spawn(follow(Selector::default()).run::<Read<LocalRedirectPolicySpec>>());
        }
        tasks.spawn(follow(Selector::default()).run::<Read<BalancingPolicySpec>>());
        if self.pods == Pods::All {
            tasks.spawn(follow(Selector::default()).run::<Namespace>());
        }
        if self.ranges {
            tasks.spawn(follow(Selector::default()).run::<ServiceCIDR>());
        }
        if self.notices {
            tasks.spawn(notice::post(door.client(), self.node.clone(), posted));
            tasks.spawn(notice::look_up(door.client(), self.cluster.clone(), echo.refused, notices.clone()));
        }
        if self.clear_taint {
            tasks.spawn(taint::clear(door.client(), self.node.clone(), tainted, echo.programmed));
        }
        if let Some(reports) = self.reports.clone() {
            let namespace = self.report_namespace.clone();
            tasks.spawn(report::keep(door.client(), namespace, self.node.clone(), reports));
        }
        drop(news);
        let followed = self.followed();
        let published = self.published();
        let book = Book::new(Convert::new(&self.cluster, self.claim), &self.node, &followed, published);
        tokio::select! {
            () = keep(book, heard, &door, &notices, &taint, &batches) => {}
            () = batches.closed() => {}
        }
        tasks.shutdown().await;
        Ok(())
    }

    /// Credentials may take their time, which is told. `None`: nobody listens any more.
    async fn open(&self, batches: &Sender<Batch>) -> Result<Option<Arc<Door>>, AccessError> {
        let mut opening = Opening::begin(self.access.clone(), self.patience, self.passport.clone());
        loop {
            let slow = match opening.wait().await {
                Err(slow @ AccessError::Slow { .. }) => slow,
                opened => return opened.map(Some),
            };
            if batches.send(Batch { error: Some(slow.to_string()), ..Batch::default() }).await.is_err() {
                return Ok(None);
            }
        }
    }

    fn follow(&self, door: &Arc<Door>, selector: Selector, news: &Sender<News>, found: &Arc<Notify>) -> Follow {
        let (door, news, found) = (door.clone(), news.clone(), found.clone());
        Follow { door, selector, patience: self.patience, news, found, era: 0 }
    }

    /// Where everybody's pods are known, backends are worked out here and nobody's word for them is taken.
    fn published(&self) -> Published {
        Published {
            policies: self.pods != Pods::All || self.role == Role::Controller,
            nodes: self.nodes == Nodes::Controller,
            namespace: self.controller_namespace.clone(),
        }
    }

    fn followed(&self) -> Vec<Kind> {
        let mut kinds = vec![Kind::Service, Kind::EndpointSlice, Kind::Node, Kind::Balancing];
        if self.pods != Pods::None {
            kinds.extend([Kind::Pod, Kind::LocalRedirect]);
        }
        kinds.extend(self.ranges.then_some(Kind::ServiceCidr));
        kinds.extend((self.pods == Pods::All).then_some(Kind::Namespace));
        kinds
    }

    fn selectors(&self) -> [Selector; 4] {
        let own = (self.nodes != Nodes::Watch).then(|| format!("metadata.name={}", self.node));
        let pods = (self.pods == Pods::Own).then(|| format!("spec.nodeName={}", self.node));
        let [services, slices] = self.service_selectors();
        [services, slices, Selector { labels: None, fields: own }, Selector { labels: None, fields: pods }]
    }

    fn service_selectors(&self) -> [Selector; 2] {
        if self.claim.names {
            // Every Service has a name, also those that nobody dials here.
            return [Selector::default(), Selector::default()];
        }
        let name = match &self.claim.proxy_name {
            None => format!("!{PROXY_NAME},!{HEADLESS}"),
            Some(name) => format!("{PROXY_NAME}={name},!{HEADLESS}"),
        };
        let slices = match self.role {
            Role::Agent => format!("!{HEADLESS}"),
            Role::Controller => format!("{MANAGED_BY}={MANAGER}"),
        };
        // Servers before 1.31 do not know this field; then headless Services are left out here.
        let services = Selector { labels: Some(name), fields: Some("spec.clusterIP!=None".into()) };
        [services, Selector { labels: Some(slices), fields: None }]
    }
}

/// The book's own loop: what has come in is taken in at once, and told at once.
async fn keep(
    mut book: Book,
    mut heard: Receiver<News>,
    door: &Door,
    notices: &Sender<notice::Notice>,
    taint: &watch::Sender<bool>,
    batches: &Sender<Batch>,
) {
    while let Some(first) = heard.recv().await {
        book.take(first, Instant::now());
        while let Ok(more) = heard.try_recv() {
            book.take(more, Instant::now());
        }
        for notice in book.notices.drain(..) {
            // More than can be posted: the log has them.
            let _ = notices.try_send(notice);
        }
        taint.send_if_modified(|is| std::mem::replace(is, book.tainted) != book.tainted);
        if let Some(batch) = book.batch(door.server())
            && batches.send(batch).await.is_err()
        {
            return;
        }
    }
}
