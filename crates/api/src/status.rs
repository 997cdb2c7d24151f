//! The agent's status, as `beeline status -o json` prints it.

use beeline_model::cluster::PodAccess;
use beeline_model::reach::Reachability;
use beeline_model::refusal::Refusal;
use beeline_model::row::Sizes;
use beeline_model::rules::{HostRole, NoLocalEndpointAction};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::SocketAddr;

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AgentStatus {
    pub version: String,
    pub pid: u32,
    /// The node's name; on a host outside the cluster the host's name.
    pub node: String,
    pub host_role: HostRole,
    /// Whether a kube-proxy runs on this host too (`--beside-kube-proxy`).
    pub beside_kube_proxy: bool,
    /// The source of the objects, where there is only one.
    pub source: Option<SourceStatus>,
    pub clusters: Vec<ClusterStatus>,
    pub views: Vec<ViewStatus>,
    /// Tokens of the clusters that this host joined.
    pub tokens: Vec<TokenStatus>,
    pub kernel: KernelStatus,
    pub counts: ObjectCounts,
    pub last_change: Option<LastChange>,
    pub refusals: Vec<RefusalStatus>,
    /// The event level: off, failures, sample:N or all.
    pub events: String,
    /// The number of open monitor streams. Without one the kernel reports no events.
    #[serde(default)]
    pub monitors: usize,
    pub node_addresses: Vec<String>,
    pub zone: Option<String>,
    /// `None`: the agent runs no DNS server.
    pub dns: Option<DnsStatus>,
    /// Backends of LocalRedirectPolicies that are not used now, because they refuse connections.
    #[serde(default)]
    pub suspended_redirects: Vec<SuspendedRedirect>,
    /// `None`: packets from outside are not served.
    #[serde(default)]
    pub packet_path: Option<PacketPathStatus>,
    /// The addresses of every known node.
    pub nodes: BTreeMap<String, Vec<String>>,
}

impl AgentStatus {
    pub fn cluster(&self, name: &str) -> Option<&ClusterStatus> {
        self.clusters.iter().find(|cluster| cluster.name == name)
    }
}

/// The packet path, which serves packets that arrive from outside the node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PacketPathStatus {
    pub serving: bool,
    /// How the program is attached: tcx or clsact. `None`: it is not.
    pub attachment: Option<String>,
    /// The devices that it is attached to.
    pub devices: Vec<String>,
    /// Whether the nftables table is in place.
    pub table: bool,
    pub table_repairs: u64,
    /// What does not work, and what to do.
    pub problem: Option<String>,
    pub counts: PacketCounts,
}

/// Since the programs were first attached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PacketCounts {
    pub flows: u64,
    pub rejected: u64,
    pub dropped: u64,
    pub failed: u64,
}

/// A backend of a LocalRedirectPolicy that refuses connections.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SuspendedRedirect {
    pub backend: SocketAddr,
    pub since: String,
    /// The number of connects of the agent that it refused.
    pub refused_probes: u32,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SourceStatus {
    /// What is read: an API server, a folder of manifests or an edge cache.
    pub kind: String,
    /// The URL or the path.
    pub name: String,
    pub synced: bool,
    pub error: Option<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterStatus {
    pub name: String,
    /// What is read: an API server, a folder of manifests or an edge cache.
    pub kind: String,
    /// The URL or the path.
    pub server: String,
    pub synced: bool,
    /// When the cluster became synced.
    pub since: Option<String>,
    /// Set while a snapshot is served, because the cluster has not been read since the start: the snapshot's time.
    pub snapshot_time: Option<String>,
    pub error: Option<String>,
    /// Number of objects. `None`: not counted.
    pub objects: Option<usize>,
    pub services: usize,
    pub ranges: Vec<String>,
    /// `configuration`, `ServiceCIDR`, `snapshot` or `unknown`.
    pub ranges_from: String,
    /// How this host reaches the cluster's pods.
    pub pod_access: PodAccess,
    pub view: Option<String>,
    pub refusals: usize,
    /// `None`: no snapshots are written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<SnapshotStatus>,
    /// Bytes read from an edge cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// How each group of pods is reached. Only with `podAccess: auto`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reach: Vec<ReachStatus>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SnapshotStatus {
    pub path: String,
    /// The age of the newest usable file. `None`: there is none.
    pub age_seconds: Option<u64>,
    pub bytes: Option<u64>,
    /// Why the last write failed.
    pub error: Option<String>,
    /// Files that were not used, each with the reason.
    pub rejected: Vec<String>,
}

/// How the pods of one node in one /24 (IPv6: /64) are reached.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReachStatus {
    pub node: Option<String>,
    pub prefix: String,
    pub found: Reachability,
    pub since: String,
    /// The probes that led to this result.
    pub evidence: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TokenStatus {
    pub cluster: String,
    /// The service account: NAMESPACE/NAME. Empty: the credentials cannot be read.
    pub account: String,
    pub expires: String,
    pub renews: String,
    pub error: Option<String>,
    /// Set if the host must join again: what to run where.
    pub rejoin: Option<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ViewStatus {
    pub name: String,
    /// The cluster that has precedence in this view.
    pub first: String,
    /// The view's number in the kernel's tables.
    pub number: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RefusalStatus {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<String>,
    /// The object: `Service default/web`, `file web.yaml document 2`.
    pub subject: String,
    /// The value of the metrics' label `reason`.
    pub reason: String,
    pub message: String,
}

impl RefusalStatus {
    pub fn new(refusal: &Refusal, cluster: Option<String>) -> RefusalStatus {
        RefusalStatus {
            cluster,
            subject: refusal.subject.to_string(),
            reason: refusal.reason.to_string(),
            message: refusal.message.clone(),
        }
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct KernelStatus {
    pub cgroup: String,
    /// The cgroup below which the kubelet creates those of pods. `None`: no cgroup of a known pod was found.
    #[serde(default)]
    pub kubelet_root: Option<String>,
    pub pin_dir: String,
    pub layout: u32,
    pub generation: u32,
    /// What the agent found at its start: `fresh`, `adopted`, `rebuilt` or `resized`.
    pub start: String,
    pub live: bool,
    pub self_test: String,
    pub exact_udp_reaping: bool,
    /// What happens to a dial whose Local set is empty.
    pub no_local_endpoint_action: NoLocalEndpointAction,
    pub sizes: Sizes,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ObjectCounts {
    pub services: usize,
    pub slices: usize,
    pub nodes: usize,
    pub policies: PolicyCounts,
    #[serde(default)]
    pub excluded_pods: ExcludedPodCounts,
    /// Addresses, ports and protocols that can be dialled; the metric `beeline_frontends`.
    pub frontends: usize,
    /// Rows of the frontend table: the frontends, and one row for each ClusterIP that refuses its other ports.
    pub frontend_rows: usize,
    pub sets: usize,
    pub backends: usize,
    /// Services and policies whose last write failed.
    pub pending: usize,
    pub udp_sockets_destroyed: u64,
    /// Dials to a ClusterIP at a port that its Service does not have. No service port counts them.
    pub dials_no_port: u64,
}

/// The pods of this node that are excluded from resolution, by the reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ExcludedPodCounts {
    pub annotation: usize,
    pub sidecar: usize,
    /// By the label of their namespace.
    pub namespace: usize,
    /// Pods with a sidecar that are served, because `--sidecar-exclusion` is off.
    pub served_sidecar: usize,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PolicyCounts {
    pub total: usize,
    /// Accepted, and for this node.
    pub active: usize,
    pub refused: usize,
    /// The controller has not published pods for them.
    pub waiting: usize,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LastChange {
    pub at: String,
    pub services: usize,
    pub writes: usize,
    pub micros: u64,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DnsStatus {
    pub address: String,
    /// The domains that are answered here.
    pub domains: Vec<String>,
    /// The servers that other names are forwarded to. Empty: other names are refused.
    pub forward: Vec<String>,
    pub clusters: Vec<DnsClusterStatus>,
    /// By cluster: the address that answers with this cluster's precedence.
    pub views: BTreeMap<String, String>,
    pub services: usize,
    pub answered: u64,
    pub missing: u64,
    pub failed: u64,
    /// Addresses that cannot be bound yet, with the reason.
    pub bind_errors: Vec<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DnsClusterStatus {
    pub name: String,
    pub domains: Vec<String>,
    pub services: usize,
    /// Until the cluster is synced its names are answered with SERVFAIL.
    pub synced: bool,
}
