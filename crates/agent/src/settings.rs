//! The checked settings of the agent, made from the command line and the configuration file.

use crate::dns::Zone;
use crate::packet_path::PacketSettings;
#[cfg(feature = "outside")]
use beeline_cluster::EdgeCacheSource;
use beeline_cluster::{ApiServerSource, ServiceFilter};
use beeline_datapath::control::EventLevel;
use beeline_model::Name;
use beeline_model::cluster::ClusterRules;
use beeline_model::row::Sizes;
use beeline_model::rules::Rules;
use ipnet::IpNet;
use std::collections::BTreeSet;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// What the BPF programs do while no agent runs (`--agent-down-action`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AgentDownAction {
    /// The programs keep resolving from the last tables.
    Keep,
    /// The programs stop resolving when no agent has run for this time.
    Passthrough(Duration),
}

/// Which program selects the pods of a BalancingPolicy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ControllerMode {
    /// A controller selects the pods and publishes them as EndpointSlices, which the agent reads.
    #[default]
    Watch,
    /// This agent selects the pods from all Pods and Namespaces.
    None,
}

/// Where the objects of a cluster are read from.
#[derive(Clone, Debug)]
pub enum SourceSettings {
    Folder {
        path: PathBuf,
        service_filter: ServiceFilter,
    },
    Server(Box<ApiServerSource>),
    /// The MetaServer of KubeEdge on this host.
    #[cfg(feature = "outside")]
    Edge(Box<EdgeCacheSource>),
}

/// The DNS server of the agent.
#[derive(Clone, Debug)]
pub struct DnsSettings {
    /// A loopback address, unless `clients` is set.
    pub address: SocketAddr,
    /// Networks that may query an address that is not on loopback.
    pub clients: Vec<IpNet>,
    /// Servers for names outside of the clusters' domains. Without one such queries are refused.
    pub forward: Vec<SocketAddr>,
    pub views: Vec<DnsView>,
}

/// An address where names are answered as seen in the view of one cluster.
#[derive(Clone, Debug)]
pub struct DnsView {
    pub cluster: Name,
    pub address: SocketAddr,
}

impl SourceSettings {
    pub(crate) const FOLDER: &'static str = "folder";

    /// The kind of the source, and its path or URL.
    pub(crate) fn title(&self) -> (&'static str, String) {
        match self {
            SourceSettings::Folder { path, .. } => (SourceSettings::FOLDER, path.display().to_string()),
            SourceSettings::Server(server) => ("API server", server.access.to_string()),
            #[cfg(feature = "outside")]
            SourceSettings::Edge(edge) => ("edge cache", edge.server.to_string()),
        }
    }

    /// Whether the source can keep running when the settings change to `other`.
    pub(crate) fn is_same(&self, other: &SourceSettings) -> bool {
        match (self, other) {
            (SourceSettings::Folder { path: a, .. }, SourceSettings::Folder { path: b, .. }) => a == b,
            (SourceSettings::Server(a), SourceSettings::Server(b)) => {
                let identity =
                    |server: &ApiServerSource| format!("{:?} {:?} {:?}", server.access, server.nodes, server.pods);
                identity(a) == identity(b)
            }
            #[cfg(feature = "outside")]
            (SourceSettings::Edge(a), SourceSettings::Edge(b)) => a.server == b.server,
            _ => false,
        }
    }
}

/// Where snapshots of the clusters are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotSettings {
    pub dir: PathBuf,
    /// `None` means any age.
    pub max_age: Option<Duration>,
}

/// One cluster that the agent reads.
#[derive(Clone, Debug)]
pub struct ClusterSettings {
    pub rules: ClusterRules,
    pub source: SourceSettings,
    /// The DNS zone of its names.
    pub zone: Zone,
}

/// The part of the settings that may change while the agent runs.
#[derive(Clone, Debug, Default)]
pub struct ClusterList {
    /// In the order of precedence for service addresses that two clusters share. Never empty.
    pub clusters: Vec<ClusterSettings>,
    /// Cgroups of the configuration, each with the view that its processes see.
    pub view_cgroups: Vec<(PathBuf, Name)>,
}

impl ClusterList {
    /// The names of the views that the configuration defines.
    pub(crate) fn view_names(&self) -> BTreeSet<Name> {
        self.clusters.iter().filter_map(|cluster| cluster.rules.view.clone()).collect()
    }
}

/// The configuration file with the cluster list, and how it is read.
#[derive(Clone)]
pub struct ReloadableFile {
    pub path: PathBuf,
    /// Its content when the settings were made from it.
    pub text: Arc<str>,
    /// Reads the file again, with all checks.
    pub read: Arc<dyn Fn() -> anyhow::Result<ClusterList> + Send + Sync>,
}

impl fmt::Debug for ReloadableFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ReloadableFile({})", self.path.display())
    }
}

/// The programs and tables in the kernel.
#[derive(Clone, Debug)]
pub struct KernelSettings {
    pub cgroup: PathBuf,
    pub pin_dir: PathBuf,
    pub sizes: Sizes,
    /// Bytes of socket records that all pods together may use above their reserves.
    pub record_limit: u64,
    pub event_level: EventLevel,
    pub agent_down_action: AgentDownAction,
    /// Processes in or below these cgroups are not served (`--exclude-cgroup`).
    pub excluded_cgroups: Vec<PathBuf>,
    /// Pods with a sidecar proxy of a service mesh are not served (`--sidecar-exclusion`).
    pub sidecar_exclusion: bool,
    pub self_test: bool,
    /// Only for the test that proves that the grace period is needed.
    pub skip_grace: bool,
    /// How long a stale UDP socket whose backend may still answer is kept. Zero means not at all.
    pub udp_grace_period: Duration,
}

/// The sockets on which the agent listens.
#[derive(Clone, Debug)]
pub struct ListenerSettings {
    /// The UNIX socket for the command line.
    pub socket: PathBuf,
    /// `None` means no listener.
    pub metrics_address: Option<SocketAddr>,
    /// `None` means no listener.
    pub health_address: Option<SocketAddr>,
    pub dns: Option<DnsSettings>,
    /// Whether to answer load balancers at the healthCheckNodePorts of Services.
    pub health_check_node_ports: bool,
}

#[derive(Clone, Debug)]
pub struct AgentSettings {
    /// The commit of the running binary, for the metric `beeline_build_info`.
    pub commit: &'static str,
    pub cluster_list: ClusterList,
    /// `None` means that the cluster list cannot change.
    pub reload: Option<ReloadableFile>,
    pub rules: Rules,
    pub kernel: KernelSettings,
    pub listeners: ListenerSettings,
    /// Where the agent keeps files between two runs.
    pub state_dir: PathBuf,
    /// `None` means that no snapshots of clusters are written or read.
    pub snapshot: Option<SnapshotSettings>,
    /// How often pods that only a default route leads to are probed.
    pub probe_interval: Duration,
    pub sync_period: Duration,
    /// Whether the host's addresses are given by option instead of read from its interfaces.
    pub fixed_addresses: bool,
    /// The fraction of a token's lifetime after which it is renewed. Only for tokens that `beeline join` wrote. `None`
    /// means the default.
    pub token_renew_fraction: Option<f64>,
    pub controller: ControllerMode,
    /// Whether a kube-proxy runs on this host too.
    pub beside_kube_proxy: bool,
    /// The shortest interval between two reports of this node to the controller. `None` means no reports.
    pub report_interval: Option<Duration>,
    /// `None` means that packets from outside are not served (`--packet-path off`).
    pub packet_path: Option<PacketSettings>,
}
