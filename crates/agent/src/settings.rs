//! What the agent was told, checked: options and configuration file have become this.

use crate::snapshot::Keeping;
use beeline_cluster::{Claim, Edge, Server};
use beeline_datapath::control::EventLevel;
use beeline_model::Name;
use beeline_model::row::Sizes;
use beeline_model::rules::Rules;
use beeline_model::stand::ClusterRules;
use beeline_dns::Zone;
use ipnet::IpNet;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Orphan {
    /// A dead agent means a frozen table.
    Keep,
    /// After this long without an agent dials are left alone.
    Passthrough(Duration),
}

/// Who works out which pods a BalancingPolicy chooses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Controller {
    /// It publishes slices, which are read.
    #[default]
    Watch,
    /// There is none: this agent, from all pods and namespaces.
    None,
}

/// Where the facts come from.
#[derive(Clone, Debug)]
pub enum Origin {
    Folder {
        path: PathBuf,
        claim: Claim,
    },
    Server(Box<Server>),
    /// KubeEdge's, on this very host.
    Edge(Box<Edge>),
}

/// Where the clusters' names are answered, and what of the others.
#[derive(Clone, Debug)]
pub struct Dns {
    /// On loopback, or with `clients`.
    pub address: SocketAddr,
    /// Who may ask from elsewhere.
    pub clients: Vec<IpNet>,
    /// Who is asked for what is not ours; nobody: it is refused.
    pub forward: Vec<SocketAddr>,
    pub views: Vec<DnsView>,
}

/// Where names are answered as somebody dials them who sees a cluster first.
#[derive(Clone, Debug)]
pub struct DnsView {
    pub cluster: Name,
    pub address: SocketAddr,
}

impl Origin {
    pub(crate) const FOLDER: &'static str = "folder";

    /// What it is, and which one.
    pub(crate) fn title(&self) -> (&'static str, String) {
        match self {
            Origin::Folder { path, .. } => (Origin::FOLDER, path.display().to_string()),
            Origin::Server(server) => ("API server", server.access.to_string()),
            Origin::Edge(edge) => ("edge cache", edge.server.to_string()),
        }
    }

    /// Where another one begins, the source begins anew.
    pub(crate) fn is_same(&self, other: &Origin) -> bool {
        match (self, other) {
            (Origin::Folder { path: a, .. }, Origin::Folder { path: b, .. }) => a == b,
            (Origin::Server(a), Origin::Server(b)) => {
                let of = |server: &Server| format!("{:?} {:?} {:?}", server.access, server.nodes, server.pods);
                of(a) == of(b)
            }
            (Origin::Edge(a), Origin::Edge(b)) => a.server == b.server,
            _ => false,
        }
    }
}

/// A cluster that is followed.
#[derive(Clone, Debug)]
pub struct Cluster {
    pub rules: ClusterRules,
    pub origin: Origin,
    /// In which its names stand.
    pub zone: Zone,
}

/// What may change while the agent runs.
#[derive(Clone, Debug, Default)]
pub struct Listing {
    /// In the order in which they own ranges; never none.
    pub clusters: Vec<Cluster>,
    /// Cgroups, and the view that their processes see.
    pub views: Vec<(PathBuf, Name)>,
}

/// The file in which the listing stands, and how it is read.
#[derive(Clone)]
pub struct Reload {
    pub path: PathBuf,
    /// As it was when the settings were made of it.
    pub text: Arc<str>,
    /// With everything that is wrong in it.
    pub read: Arc<dyn Fn() -> anyhow::Result<Listing> + Send + Sync>,
}

impl fmt::Debug for Reload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Reload({})", self.path.display())
    }
}

#[derive(Clone, Debug)]
pub struct Settings {
    pub listing: Listing,
    /// `None`: the listing stays as it is.
    pub reload: Option<Reload>,
    pub rules: Rules,
    /// What is remembered between two runs is kept here.
    pub state_dir: PathBuf,
    /// `None`: no cluster's facts are kept on disk.
    pub snapshot: Option<Keeping>,
    /// Pods that only a default route leads to are knocked at this often.
    pub probe_interval: Duration,
    pub cgroup: PathBuf,
    pub pin_dir: PathBuf,
    /// Where the CLI finds the agent.
    pub socket: PathBuf,
    pub sizes: Sizes,
    pub events: EventLevel,
    pub orphan: Orphan,
    /// `None`: no such listener.
    pub metrics: Option<SocketAddr>,
    pub health: Option<SocketAddr>,
    pub dns: Option<Dns>,
    /// Answer load balancers at the services' healthCheckNodePorts.
    pub probes: bool,
    pub sync_period: Duration,
    /// Processes below these cgroups keep the address that they dialled.
    pub untouched: Vec<PathBuf>,
    /// Addresses of the host were given, and are not looked for.
    pub fixed_addresses: bool,
    pub self_test: bool,
    /// Of the life of a token that `beeline join` wrote, when the next one is asked for.
    pub renew_after: f64,
    /// For the test that proves the grace period needed.
    pub skip_grace: bool,
    pub controller: Controller,
    /// How often at most this node reports what it has programmed; `None`: never.
    pub report: Option<Duration>,
}
