//! The options of `beeline agent` and `beeline plan`, from the command line and a configuration file with the same
//! names. The submodules check them together and turn them into the settings of the agent.

mod cluster;
mod dns;
pub mod feature;
mod file;
mod packet;
mod paths;
mod settings;
mod source;
mod value;

use anyhow::Context;
use beeline_datapath::control::EventLevel;
use clap::Args as ClapArgs;
pub use cluster::ClusterOptions;
use serde::{Deserialize, Serialize};
use serde_json::Value;
pub use settings::virtual_address_cidrs;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use value::{
    AddressTypeArg, AgentDownArg, ControllerArg, DetectLocalModeArg, HostRoleArg, LocalTrafficPolicyArg, MaxAge,
    NoLocalEndpointArg, NodeSourceArg, OnOff, PacketOrderArg, PodAccessArg, as_text,
};
pub use value::{HumanDuration, ListenAddress, LogFormat, OrOff};

pub const PIN_DIR: &str = "/sys/fs/bpf/beeline";
pub const CONTROLLER_NAMESPACE: &str = "kube-system";
pub const REPORT_NAMESPACE: &str = "beeline-reports";
pub const SOCKET: &str = "/run/beeline/agent.sock";
pub const STATE_DIR: &str = "/var/lib/beeline";

#[derive(Clone, Debug, Default, PartialEq, Eq, ClapArgs, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct Options {
    /// Configuration file (YAML) with the same options; the command line takes precedence
    #[arg(long, value_name = "FILE")]
    #[serde(skip)]
    pub config: Option<PathBuf>,
    /// The options of the command line alone, to merge again when the file changes
    #[arg(skip)]
    #[serde(skip)]
    command_line: Option<Arc<Options>>,
    /// The text of the configuration file when it was read
    #[arg(skip)]
    #[serde(skip)]
    text: Option<Arc<str>>,
    /// Directory of manifests to watch: Service, EndpointSlice, Endpoints, Node, Pod, Namespace, ServiceCIDR,
    /// LocalRedirectPolicy, BalancingPolicy
    #[arg(long, value_name = "DIR")]
    pub manifests: Option<PathBuf>,
    /// Kubeconfig of the API server to watch
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig [default: its current context]
    #[arg(long, value_name = "NAME")]
    pub context: Option<String>,
    /// URL of the API server to watch with the service account of the pod; may be repeated, the servers are tried in
    /// turn
    #[arg(long, value_name = "URL")]
    pub api_server: Vec<String>,
    /// Role of this host: node (a Node of the cluster), outside (not a Node), edge (a Node without a pod network)
    /// [default: node]
    #[arg(long, value_name = "ROLE", value_enum, hide_possible_values = true)]
    pub host_role: Option<HostRoleArg>,
    /// Path to pods from a host outside or at the edge: direct (pod address), node (node address and nodePort), auto
    /// (direct where a route or a probe shows that it works) [default: auto]
    #[arg(long, value_name = "MODE", value_enum, hide_possible_values = true)]
    pub pod_access: Option<PodAccessArg>,
    /// CIDRs of pods that are always reached by their own address from a host outside or at the edge, comma-separated
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub direct_pod_cidrs: Option<Vec<String>>,
    /// Types of node addresses to connect to from a host outside or at the edge, in order of preference,
    /// comma-separated [default: InternalIP,ExternalIP; edge: ExternalIP,InternalIP]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_enum)]
    pub node_address_types: Option<Vec<AddressTypeArg>>,
    /// Zone of this host for topology hints, outside and at the edge [default: outside none; edge: the zone of the
    /// Node]
    #[arg(long, value_name = "NAME")]
    pub zone: Option<String>,
    /// CIDRs of the cluster's service addresses, outside and at the edge, comma-separated [default: the ServiceCIDR
    /// objects]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub service_cidrs: Option<Vec<String>>,
    /// The clusters to serve; only in the configuration file
    #[arg(skip)]
    pub clusters: Vec<ClusterOptions>,
    /// Cgroups and the view of their processes; only in the configuration file
    #[arg(skip)]
    pub views: BTreeMap<PathBuf, String>,
    /// Directory for state that must survive a restart [default: /var/lib/beeline]
    #[arg(long, value_name = "DIR")]
    pub state_dir: Option<PathBuf>,
    /// URL of KubeEdge's MetaServer as the source of objects [default: http://127.0.0.1:10550 with --host-role edge]
    #[arg(long, value_name = "URL")]
    pub edge_cache: Option<String>,
    /// Directory for snapshots of each cluster's objects, or off; not on a Node with one cluster [default:
    /// STATE_DIR/snapshot]
    #[arg(long, value_name = "DIR")]
    pub snapshot_dir: Option<PathBuf>,
    /// Maximum age of a snapshot that may be used at start, such as 72h, or forever [default: forever]
    #[arg(long, value_name = "DURATION")]
    #[serde(with = "as_text")]
    pub snapshot_max_age: Option<MaxAge>,
    /// Interval, such as 30s, of probes to pods that only a default route covers, outside with --pod-access auto
    /// [default: 30s]
    #[arg(long, value_name = "DURATION")]
    #[serde(with = "as_text")]
    pub probe_interval: Option<HumanDuration>,
    /// Source of other nodes' addresses: controller (its EndpointSlices), watch (all Node objects), own (this node
    /// only) [default: controller; outside and edge: watch]
    #[arg(long, value_name = "SOURCE", value_enum, hide_possible_values = true)]
    pub node_source: Option<NodeSourceArg>,
    /// Source of BalancingPolicy backends: watch (the slices of the controller), none (this agent watches all pods)
    /// [default: watch; none with --manifests]
    #[arg(long, value_name = "MODE", value_enum, hide_possible_values = true)]
    pub controller: Option<ControllerArg>,
    /// Namespace of the controller; node slices in other namespaces are ignored [default: kube-system]
    #[arg(long, value_name = "NAME")]
    pub controller_namespace: Option<String>,
    /// Namespace of the Leases in which agents report [default: beeline-reports]
    #[arg(long, value_name = "NAME")]
    pub report_namespace: Option<String>,
    /// Minimum interval, such as 30s, between two reports to the controller, or off [default: 30s]
    #[arg(long, value_name = "DURATION")]
    #[serde(with = "as_text")]
    pub report_interval: Option<OrOff<HumanDuration>>,
    /// Remove the taint beeline.dev/not-ready from this node when everything is programmed
    #[arg(long)]
    pub clear_startup_taint: bool,
    /// Name of this node, as in its Node object
    #[arg(long, value_name = "NAME", env = "BEELINE_NODE_NAME")]
    pub node_name: Option<String>,
    /// Cgroup whose processes are served [default: the root of cgroup2]
    #[arg(long, value_name = "DIR")]
    pub cgroup: Option<PathBuf>,
    /// Directory in a bpffs for the pinned maps and links [default: /sys/fs/bpf/beeline]
    #[arg(long, value_name = "DIR")]
    pub pin_dir: Option<PathBuf>,
    /// Unix socket on which the agent answers the other commands [default: /run/beeline/agent.sock]
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// Maximum number of service ports; the other table sizes follow from it [default: 16384]
    #[arg(long, value_name = "N")]
    pub max_services: Option<u32>,
    /// Maximum number of rows in the frontend table [default: 4 per service]
    #[arg(long, value_name = "N")]
    pub max_frontends: Option<u32>,
    /// Maximum number of rows in the backend table [default: 8 per service]
    #[arg(long, value_name = "N")]
    pub max_backends: Option<u32>,
    /// Maximum number of backend slots of sets with more than 8 endpoints [default: 4 per service]
    #[arg(long, value_name = "N")]
    pub max_slots: Option<u32>,
    /// Maximum number of clients with session affinity, shared fairly among pods [default: 65536]
    #[arg(long, value_name = "N")]
    pub max_affinity: Option<u32>,
    /// Maximum memory of socket records in the kernel, in MiB, beside 256 KiB for each pod [default: 128]
    #[arg(long, value_name = "MIB")]
    pub max_record_memory: Option<u32>,
    /// Level of connection events: off, failures, sample:N (one in N, and every failure) or all [default: failures]
    #[arg(long, value_name = "LEVEL")]
    #[serde(with = "as_text")]
    pub events: Option<EventLevel>,
    /// Action of the BPF programs while no agent runs: keep (resolve from the last tables), or passthrough:DURATION
    /// (stop resolving after that time, such as passthrough:10m) [default: keep]
    #[arg(long, value_name = "ACTION")]
    #[serde(with = "as_text")]
    pub agent_down_action: Option<AgentDownArg>,
    /// Scope of Local traffic policies: kubernetes (each for its own addresses), strict (any of them for all addresses
    /// of the service) [default: kubernetes]
    #[arg(long, value_name = "SCOPE", value_enum, hide_possible_values = true)]
    pub local_traffic_policy: Option<LocalTrafficPolicyArg>,
    /// Action when a Local traffic policy leaves no endpoint: refuse (ECONNREFUSED), drop (as kube-proxy) [default:
    /// refuse]
    #[arg(long, value_name = "ACTION", value_enum, hide_possible_values = true)]
    pub no_local_endpoint_action: Option<NoLocalEndpointArg>,
    /// Addresses on which NodePorts are resolved, comma-separated: primary, localhost, all, or CIDRs [default: primary]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub nodeport_addresses: Option<Vec<String>>,
    /// Resolution of externalIPs: on, off, or the CIDRs that they may be in, comma-separated [default: on on a Node, off
    /// in clusters that this host is outside of]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub external_ips: Option<Vec<String>>,
    /// CIDRs of the pods, comma-separated; no externalIP, load-balancer address or virtual address is taken inside them
    /// [default: the podCIDRs of the known Nodes]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub cluster_cidr: Option<Vec<String>>,
    /// CIDRs for virtual addresses of policies, comma-separated; metadata addresses of clouds must be listed themselves
    /// [default: 169.254.0.0/16,fd00:bee::/48]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub virtual_address_cidrs: Option<Vec<String>>,
    /// Value of the label service.kubernetes.io/service-proxy-name of the services to serve [default: services without
    /// the label]
    #[arg(long, value_name = "NAME")]
    pub service_proxy_name: Option<String>,
    /// Addresses of this host, comma-separated [default: the addresses of its interfaces]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub node_addresses: Option<Vec<String>>,
    /// Listen address of /metrics, or off [default: 127.0.0.1:10249]
    #[arg(long, value_name = "ADDR:PORT")]
    #[serde(with = "as_text")]
    pub metrics_bind_address: Option<OrOff<ListenAddress>>,
    /// Listen address of /healthz and /livez, or off; [::] is IPv6 and IPv4 [default: [::]:10256; outside:
    /// 127.0.0.1:10256]
    #[arg(long, value_name = "ADDR:PORT")]
    #[serde(with = "as_text")]
    pub healthz_bind_address: Option<OrOff<ListenAddress>>,
    /// Listen address of the DNS server for the clusters' names, or off [default: off]
    #[arg(long, value_name = "ADDR:PORT")]
    #[serde(with = "as_text")]
    pub dns_address: Option<OrOff<ListenAddress>>,
    /// DNS domain of the clusters [default: cluster.local]
    #[arg(long, value_name = "DOMAIN")]
    pub dns_domain: Option<String>,
    /// DNS servers for all other names, comma-separated [default: none, other names are refused]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub dns_forward: Option<Vec<String>>,
    /// CIDRs that may query a --dns-address that is not on loopback, comma-separated
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub dns_clients: Option<Vec<String>>,
    /// Listen addresses that answer in the view of a cluster, comma-separated
    #[arg(long, value_name = "CLUSTER=ADDR:PORT", value_delimiter = ',')]
    pub dns_view: Option<Vec<String>>,
    /// Use ports that do not collide with a kube-proxy on this host: metrics 10349, health 10356
    #[arg(long)]
    pub beside_kube_proxy: bool,
    /// Service of packets that arrive from outside this node, on a Node without kube-proxy: on or off [default: off]
    #[arg(long, value_name = "on|off", value_enum, hide_possible_values = true)]
    pub packet_path: Option<OnOff>,
    /// Names of the network devices on which packets from outside arrive, comma-separated; a name may end in *, and !NAME
    /// excludes a device [default: all devices with an address outside the pod CIDRs]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub packet_devices: Option<Vec<String>>,
    /// Place of the packet program among other tc programs of a device: first or last [default: first]
    #[arg(long, value_name = "ORDER", value_enum, hide_possible_values = true)]
    pub packet_order: Option<PacketOrderArg>,
    /// Priority of the packet program on kernels before 6.6, which order tc programs by it; the smallest is first
    /// [default: 1]
    #[arg(long, value_name = "PRIORITY")]
    pub packet_priority: Option<u16>,
    /// Recognition of packets of pods, which keep their source address at ClusterIPs: ClusterCIDR, NodeCIDR,
    /// BridgeInterface, InterfaceNamePrefix [default: ClusterCIDR with --cluster-cidr, else NodeCIDR]
    #[arg(long, value_name = "MODE", value_enum, hide_possible_values = true)]
    pub detect_local_mode: Option<DetectLocalModeArg>,
    /// Name of the bridge of the pods, for --detect-local-mode BridgeInterface [default: none]
    #[arg(long, value_name = "NAME")]
    pub pod_bridge_interface: Option<String>,
    /// Prefix of the names of the pods' devices, for --detect-local-mode InterfaceNamePrefix [default: none]
    #[arg(long, value_name = "PREFIX")]
    pub pod_interface_name_prefix: Option<String>,
    /// Replace the source address of all packets to ClusterIPs in the packet path, also of packets from pods
    #[arg(long)]
    pub masquerade_all: bool,
    /// Maximum number of conntrack entries per CPU in the packet path; it is raised and never lowered; 0 leaves it as it
    /// is [default: 32768]
    #[arg(long, value_name = "N")]
    pub conntrack_max_per_core: Option<u32>,
    /// Minimum for the maximum number of conntrack entries, whatever --conntrack-max-per-core is [default: 131072]
    #[arg(long, value_name = "N")]
    pub conntrack_min: Option<u32>,
    /// Timeout of idle TCP connections in conntrack, such as 24h, or off to leave it as it is [default: 24h]
    #[arg(long, value_name = "DURATION")]
    #[serde(with = "as_text")]
    pub conntrack_tcp_timeout_established: Option<OrOff<HumanDuration>>,
    /// Timeout of half-closed TCP connections in conntrack, such as 1h, or off to leave it as it is [default: 1h]
    #[arg(long, value_name = "DURATION")]
    #[serde(with = "as_text")]
    pub conntrack_tcp_timeout_close_wait: Option<OrOff<HumanDuration>>,
    /// Accept TCP packets outside of the window in conntrack, which would otherwise be invalid
    #[arg(long)]
    pub conntrack_tcp_be_liberal: bool,
    /// Interval, such as 30s, at which the kernel tables are compared with the plan and repaired [default: 30s]
    #[arg(long, value_name = "DURATION")]
    #[serde(with = "as_text")]
    pub sync_period: Option<HumanDuration>,
    /// Time for which a connected UDP socket stays usable when a change gives its address another backend while its own
    /// still answers, such as 100ms (at most 1m), or off [default: 100ms]
    #[arg(long, value_name = "DURATION")]
    #[serde(with = "as_text")]
    pub udp_grace_period: Option<OrOff<HumanDuration>>,
    /// Cgroup whose processes are not served; may be repeated
    #[arg(long, value_name = "DIR")]
    pub exclude_cgroup: Vec<PathBuf>,
    /// Exclusion of pods with a sidecar proxy of a service mesh from resolution, on or off [default: on with
    /// --beside-kube-proxy, else off]
    #[arg(long, value_name = "on|off", value_enum, hide_possible_values = true)]
    pub sidecar_exclusion: Option<OnOff>,
    /// Self-test at start: a connect() that must trigger the BPF programs [default: on]
    #[arg(long, value_name = "on|off", value_enum, hide_possible_values = true)]
    pub self_test: Option<OnOff>,
    /// Format of the log on standard error [default: text]
    #[arg(long, value_name = "FORMAT", value_enum)]
    pub log_format: Option<LogFormat>,
    /// Percentage of a token's lifetime after which it is renewed, for tests [default: 50]
    #[arg(long, value_name = "N", hide = true)]
    pub token_renewal_percent: Option<u8>,
    /// Skip the grace period of replaced tables, for the test that shows why it is needed
    #[arg(long, hide = true)]
    pub unsafe_skip_grace: bool,
}

impl Options {
    /// Reads the configuration file that `--config` names and merges the command line over it.
    pub fn load(self) -> anyhow::Result<Options> {
        let options = self.read_file()?;
        options.check_features(feature::OUTSIDE)?;
        Ok(options)
    }

    fn read_file(self) -> anyhow::Result<Options> {
        let Some(path) = self.config.clone() else { return Ok(self) };
        let context = || format!("--config {}", path.display());
        let text = std::fs::read_to_string(&path).with_context(context)?;
        let file = Options::parse(&text).with_context(context)?;
        let merged = self.merge_over(&file).with_context(context)?;
        Ok(Options { config: self.config.clone(), command_line: Some(self.into()), text: Some(text.into()), ..merged })
    }

    /// Parses the text of a configuration file.
    pub fn parse(text: &str) -> anyhow::Result<Options> {
        file::parse(text)
    }

    /// Parses only these keys of a configuration file. Unknown keys are an error nevertheless.
    #[cfg(feature = "outside")]
    pub fn parse_keys(text: &str, keys: &[&str]) -> anyhow::Result<Options> {
        file::parse_keys(text, keys)
    }

    /// Checks whether an agent would accept these options, as far as that does not depend on the host it runs on.
    #[cfg(feature = "outside")]
    pub fn check(&self) -> anyhow::Result<()> {
        let cgroup = self.cgroup.clone().or_else(|| Some("/sys/fs/cgroup".into()));
        Options { cgroup, ..self.clone() }.settings().map(drop)
    }

    /// The only merge of command line and file: an option that is set here replaces that of the file.
    fn merge_over(&self, file: &Options) -> serde_json::Result<Options> {
        let (mut merged, own) = (serde_json::to_value(file)?, serde_json::to_value(self)?);
        if let (Value::Object(merged), Value::Object(own)) = (&mut merged, own) {
            merged.extend(own.into_iter().filter(|(_, value)| is_set(value)));
        }
        serde_json::from_value(merged)
    }
}

fn is_set(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => false,
        Value::Array(list) => !list.is_empty(),
        Value::Object(map) => !map.is_empty(),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Args, Command};
    use clap::Parser;

    fn command_line(args: &[&str]) -> Options {
        let args = Args::parse_from([&["beeline", "agent"], args].concat());
        let Command::Agent(options) = args.command else { panic!("{args:?}") };
        Options { node_name: None, ..*options }
    }

    #[test]
    fn the_command_line_takes_precedence_over_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("beeline.yaml");
        let text = "host-role: outside\nevents: all\nsync-period: 2m\nbeside-kube-proxy: true\n\
                    exclude-cgroup: [/a, /b]\nviews: {/x: green}\nclusters:\n- {name: green, kubeconfig: /g, view: green}\n";
        std::fs::write(&path, text).unwrap();
        let shown = path.display().to_string();
        let typed = ["--config", &shown, "--events", "sample:7", "--exclude-cgroup", "/c", "--self-test", "off"];
        let merged = command_line(&typed).load().unwrap();
        let expected = Options {
            config: Some(path),
            command_line: Some(command_line(&typed).into()),
            text: Some(text.into()),
            events: Some(EventLevel::Sample(7)),
            exclude_cgroup: vec!["/c".into()],
            self_test: Some(OnOff::Off),
            ..Options::parse(text).unwrap()
        };
        assert_eq!(merged, expected);
        assert_eq!((merged.sync_period.unwrap().to_string().as_str(), merged.beside_kube_proxy), ("2m", true));
    }
}
