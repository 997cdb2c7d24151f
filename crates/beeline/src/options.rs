//! The agent's options, from the command line and a file (the file has the same names), and what they mean together.

mod cluster;
mod dns;
mod memory;

use anyhow::{Context, anyhow, bail};
use beeline_agent::{Controller, Origin, Orphan, Settings};
use beeline_cluster::{Access, Claim, Nodes, Pods, Role, Server};
use beeline_datapath::cgroup;
use beeline_model::Address;
use beeline_model::address::parse_ip;
use beeline_model::name::LOCAL_CLUSTER;
use beeline_model::row::Sizes;
use beeline_model::rules::{EmptyLocal, ExternalIps, LocalPolicy, NodePortAddress, Rules, StandPoint};
use clap::Args as ClapArgs;
pub use cluster::ClusterOptions;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

pub const PIN_DIR: &str = "/sys/fs/bpf/beeline";
pub const CONTROLLER_NAMESPACE: &str = "kube-system";
pub const REPORT_NAMESPACE: &str = "beeline-reports";
pub const SOCKET: &str = "/run/beeline/agent.sock";
pub const STATE_DIR: &str = "/var/lib/beeline";
const MAX_SERVICES: u32 = 16_384;
/// A year, in milliseconds.
const LONGEST: u64 = 365 * 24 * 3_600_000;

#[derive(Clone, Debug, Default, PartialEq, Eq, ClapArgs, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct Options {
    /// A file with these options (YAML); the command line wins
    #[arg(long, value_name = "FILE")]
    #[serde(skip)]
    pub config: Option<PathBuf>,
    /// Without the file, which may be read again
    #[arg(skip)]
    #[serde(skip)]
    typed: Option<Arc<Options>>,
    /// What stood in the file
    #[arg(skip)]
    #[serde(skip)]
    text: Option<Arc<str>>,
    /// Folder of manifests: Service, EndpointSlice, Endpoints, Node
    #[arg(long, value_name = "DIR")]
    pub manifests: Option<PathBuf>,
    /// Follow the API server of this kubeconfig
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// The kubeconfig's context [default: its current one]
    #[arg(long, value_name = "NAME")]
    pub context: Option<String>,
    /// Follow this API server with the pod's own account (may be repeated: tried in turn)
    #[arg(long, value_name = "URL")]
    pub api_server: Vec<String>,
    /// Where this host stands: node (a Node of the cluster), outside (none), edge (a Node without a pod network) [default: node]
    #[arg(long, value_name = "node|outside|edge")]
    pub stand: Option<String>,
    /// Outside and edge: how pods are reached: direct, node (by their node and nodePort), or auto: found out [default: auto]
    #[arg(long, value_name = "direct|node|auto")]
    pub pods: Option<String>,
    /// Outside and edge: pods in these ranges are reached directly, whatever --pods says
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub direct_cidr: Option<Vec<String>>,
    /// Outside and edge: which of a node's addresses is dialled, the first of these that it has
    /// [default: InternalIP,ExternalIP; edge: ExternalIP,InternalIP]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub node_address_types: Option<Vec<String>>,
    /// Outside: the zone of this host, for zone hints
    #[arg(long, value_name = "NAME")]
    pub zone: Option<String>,
    /// Outside and edge: the cluster's service ranges [default: as its ServiceCIDR objects say]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub service_cidrs: Option<Vec<String>>,
    /// In the file only: several clusters
    #[arg(skip)]
    pub clusters: Vec<ClusterOptions>,
    /// In the file only: cgroups, and the view that their processes see
    #[arg(skip)]
    pub views: BTreeMap<PathBuf, String>,
    /// What is remembered between two runs is kept here [default: /var/lib/beeline]
    #[arg(long, value_name = "DIR")]
    pub state_dir: Option<PathBuf>,
    /// Edge: KubeEdge's edge cache (MetaServer) as the source [default with --stand edge: http://127.0.0.1:10550]
    #[arg(long, value_name = "URL")]
    pub edge_cache: Option<String>,
    /// The last good facts of each cluster are kept here, or off; not on a Node of one cluster [default: STATE_DIR/snapshot]
    #[arg(long, value_name = "DIR")]
    pub snapshot_dir: Option<PathBuf>,
    /// Facts on disk that are older than this are not used, or forever [default: forever]
    #[arg(long, value_name = "TIME")]
    pub snapshot_max_age: Option<String>,
    /// Outside and edge: pods that only a default route leads to are asked this often whether they can be reached
    /// [default: 30s]
    #[arg(long, value_name = "TIME")]
    pub probe_interval: Option<String>,
    /// Other nodes' addresses: as the controller publishes them, watch for every Node object, own for none [default: controller]
    #[arg(long, value_name = "controller|watch|own")]
    pub nodes: Option<String>,
    /// Who works out the pods of BalancingPolicies: watch what a controller publishes, or none: this agent from all pods
    /// of the cluster [default: watch; none with --manifests]
    #[arg(long, value_name = "watch|none")]
    pub controller: Option<String>,
    /// Namespace of the controller: node slices are read there only [default: kube-system]
    #[arg(long, value_name = "NAME")]
    pub controller_namespace: Option<String>,
    /// Namespace of the nodes' reports [default: beeline-reports]
    #[arg(long, value_name = "NAME")]
    pub report_namespace: Option<String>,
    /// How often at most this node reports to the controller what it has programmed, or off [default: 30s]
    #[arg(long, value_name = "TIME")]
    pub report: Option<String>,
    /// Take the taint beeline.dev/not-ready from this node once everything is programmed
    #[arg(long)]
    pub clear_startup_taint: bool,
    /// The name of this node
    #[arg(long, value_name = "NAME", env = "BEELINE_NODE_NAME")]
    pub node_name: Option<String>,
    /// Serve the processes below this cgroup [default: the root of cgroup2]
    #[arg(long, value_name = "DIR")]
    pub cgroup: Option<PathBuf>,
    /// Folder of the pins, in a bpffs [default: /sys/fs/bpf/beeline]
    #[arg(long, value_name = "DIR")]
    pub pin_dir: Option<PathBuf>,
    /// Where the CLI finds the agent [default: /run/beeline/agent.sock]
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// Room for this many service ports; the tables are sized from it [default: 16384]
    #[arg(long, value_name = "N")]
    pub max_services: Option<u32>,
    /// Room in the frontend table [default: 4 a service]
    #[arg(long, value_name = "N")]
    pub max_frontends: Option<u32>,
    /// Room in the backend table [default: 8 a service]
    #[arg(long, value_name = "N")]
    pub max_backends: Option<u32>,
    /// Room for slots of services with more than 8 endpoints [default: 4 a service]
    #[arg(long, value_name = "N")]
    pub max_slots: Option<u32>,
    /// Room for clients that are kept to a backend [default: 65536]
    #[arg(long, value_name = "N")]
    pub max_affinity: Option<u32>,
    /// Which dials are reported: off, failures, sample:N or all [default: failures]
    #[arg(long, value_name = "LEVEL")]
    pub events: Option<String>,
    /// Without an agent: keep, or passthrough:10m to leave dials alone after ten minutes [default: keep]
    #[arg(long, value_name = "RULE")]
    pub orphan: Option<String>,
    /// kubernetes: each policy for its own addresses; strict: a Local policy for all [default: kubernetes]
    #[arg(long, value_name = "RULE")]
    pub local_policy: Option<String>,
    /// No local endpoint under a Local policy: refuse, or drop as kube-proxy does [default: refuse]
    #[arg(long, value_name = "RULE")]
    pub empty_local: Option<String>,
    /// Where NodePorts answer: primary, localhost, all, or CIDRs [default: primary]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub node_port_addresses: Option<Vec<String>>,
    /// on, off, or the CIDRs that externalIPs may come from [default: on]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub external_ips: Option<Vec<String>>,
    /// Where policies may put virtual addresses [default: 169.254.0.0/16,fd00:bee::/48]; the clouds' metadata addresses
    /// are left out unless listed themselves
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub virtual_ranges: Option<Vec<String>>,
    /// Serve only services with this value of the label service.kubernetes.io/service-proxy-name
    #[arg(long, value_name = "NAME")]
    pub service_proxy_name: Option<String>,
    /// This host's addresses, instead of looking at the interfaces
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub node_addresses: Option<Vec<String>>,
    /// Metrics listen here, or off [default: 127.0.0.1:10249]
    #[arg(long, value_name = "ADDR:PORT")]
    pub metrics_address: Option<String>,
    /// /healthz and /livez listen here, or off; [::] is both families [default: [::]:10256]
    #[arg(long, value_name = "ADDR:PORT")]
    pub health_address: Option<String>,
    /// Answer the clusters' names by DNS on this loopback address [default: off]
    #[arg(long, value_name = "ADDR:PORT")]
    pub dns_address: Option<String>,
    /// The cluster's domain [default: cluster.local]
    #[arg(long, value_name = "DOMAIN")]
    pub dns_domain: Option<String>,
    /// Ask these name servers for all other names, instead of refusing them
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub dns_forward: Option<Vec<String>>,
    /// Who may ask where --dns-address is not on loopback: networks
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub dns_clients: Option<Vec<String>>,
    /// Answer names also as somebody dials them who sees this cluster first, on another address
    #[arg(long, value_name = "CLUSTER=ADDR:PORT", value_delimiter = ',')]
    pub dns_view: Option<Vec<String>>,
    /// A kube-proxy runs here too: health on 10356, metrics on 10349
    #[arg(long)]
    pub beside_kube_proxy: bool,
    /// The tables are checked against the kernel this often [default: 30s]
    #[arg(long, value_name = "TIME")]
    pub sync_period: Option<String>,
    /// Leave the processes below this cgroup alone (may be repeated)
    #[arg(long, value_name = "DIR")]
    pub untouched_cgroup: Vec<PathBuf>,
    /// Prove by a dial at start that the hooks are live: on or off [default: on]
    #[arg(long, value_name = "on|off")]
    pub self_test: Option<String>,
    /// Hundredths of a token's life, when the next one is asked for
    #[arg(long, value_name = "N", hide = true)]
    pub renew_after: Option<u8>,
    /// For the test that proves the grace period needed
    #[arg(long, hide = true)]
    pub unsafe_skip_grace: bool,
}

impl Options {
    /// The command line over the file.
    pub fn load(self) -> anyhow::Result<Options> {
        let Some(path) = self.config.clone() else { return Ok(self) };
        let typed = Some(Arc::new(self.clone()));
        let text = std::fs::read_to_string(&path).with_context(|| format!("--config {}", path.display()))?;
        let file = Options::parse(&text).with_context(|| format!("--config {}", path.display()))?;
        Ok(Options { typed, text: Some(text.into()), ..self.over(file) })
    }

    /// A file's content.
    pub fn parse(text: &str) -> anyhow::Result<Options> {
        if text.lines().all(|line| line.trim().is_empty() || line.starts_with('#')) {
            return Ok(Options::default());
        }
        serde_saphyr::from_str(text).context("`beeline agent --help` lists the options (without the dashes)")
    }

    /// Whether an agent would start with them, as far as that does not depend on the host that it starts on.
    pub fn check(&self) -> anyhow::Result<()> {
        let cgroup = self.cgroup.clone().or_else(|| Some("/sys/fs/cgroup".into()));
        Options { cgroup, ..self.clone() }.settings().map(drop)
    }

    fn over(self, file: Options) -> Options {
        let pick = |cli: Vec<PathBuf>, file: Vec<PathBuf>| if cli.is_empty() { file } else { cli };
        Options {
            config: self.config,
            typed: None,
            text: None,
            manifests: self.manifests.or(file.manifests),
            kubeconfig: self.kubeconfig.or(file.kubeconfig),
            context: self.context.or(file.context),
            api_server: if self.api_server.is_empty() { file.api_server } else { self.api_server },
            stand: self.stand.or(file.stand),
            pods: self.pods.or(file.pods),
            direct_cidr: self.direct_cidr.or(file.direct_cidr),
            node_address_types: self.node_address_types.or(file.node_address_types),
            zone: self.zone.or(file.zone),
            service_cidrs: self.service_cidrs.or(file.service_cidrs),
            clusters: file.clusters,
            views: file.views,
            state_dir: self.state_dir.or(file.state_dir),
            edge_cache: self.edge_cache.or(file.edge_cache),
            snapshot_dir: self.snapshot_dir.or(file.snapshot_dir),
            snapshot_max_age: self.snapshot_max_age.or(file.snapshot_max_age),
            probe_interval: self.probe_interval.or(file.probe_interval),
            nodes: self.nodes.or(file.nodes),
            controller: self.controller.or(file.controller),
            controller_namespace: self.controller_namespace.or(file.controller_namespace),
            report_namespace: self.report_namespace.or(file.report_namespace),
            report: self.report.or(file.report),
            clear_startup_taint: self.clear_startup_taint || file.clear_startup_taint,
            node_name: self.node_name.or(file.node_name),
            cgroup: self.cgroup.or(file.cgroup),
            pin_dir: self.pin_dir.or(file.pin_dir),
            socket: self.socket.or(file.socket),
            max_services: self.max_services.or(file.max_services),
            max_frontends: self.max_frontends.or(file.max_frontends),
            max_backends: self.max_backends.or(file.max_backends),
            max_slots: self.max_slots.or(file.max_slots),
            max_affinity: self.max_affinity.or(file.max_affinity),
            events: self.events.or(file.events),
            orphan: self.orphan.or(file.orphan),
            local_policy: self.local_policy.or(file.local_policy),
            empty_local: self.empty_local.or(file.empty_local),
            node_port_addresses: self.node_port_addresses.or(file.node_port_addresses),
            external_ips: self.external_ips.or(file.external_ips),
            virtual_ranges: self.virtual_ranges.or(file.virtual_ranges),
            service_proxy_name: self.service_proxy_name.or(file.service_proxy_name),
            node_addresses: self.node_addresses.or(file.node_addresses),
            metrics_address: self.metrics_address.or(file.metrics_address),
            health_address: self.health_address.or(file.health_address),
            dns_address: self.dns_address.or(file.dns_address),
            dns_domain: self.dns_domain.or(file.dns_domain),
            dns_forward: self.dns_forward.or(file.dns_forward),
            dns_clients: self.dns_clients.or(file.dns_clients),
            dns_view: self.dns_view.or(file.dns_view),
            beside_kube_proxy: self.beside_kube_proxy || file.beside_kube_proxy,
            sync_period: self.sync_period.or(file.sync_period),
            untouched_cgroup: pick(self.untouched_cgroup, file.untouched_cgroup),
            self_test: self.self_test.or(file.self_test),
            renew_after: self.renew_after.or(file.renew_after),
            unsafe_skip_grace: self.unsafe_skip_grace || file.unsafe_skip_grace,
        }
    }

    /// Where the objects come from: a folder, the API server of a kubeconfig, or one reached with the pod's own account.
    pub fn origin(&self) -> anyhow::Result<Origin> {
        let claim = self.claim();
        let given = [self.manifests.is_some(), self.kubeconfig.is_some(), !self.api_server.is_empty()];
        if given.into_iter().filter(|is| *is).count() > 1 {
            bail!("--manifests, --kubeconfig and --api-server are three sources: give one of them");
        }
        if self.context.is_some() && self.kubeconfig.is_none() {
            bail!("--context needs --kubeconfig: it names one of that file's contexts");
        }
        if let Some(path) = self.manifests.clone() {
            if self.clear_startup_taint || self.nodes.is_some() {
                bail!("--nodes and --clear-startup-taint need an API server, not --manifests");
            }
            if self.controller()? == Controller::Watch {
                bail!("--controller watch needs an API server: in a folder nobody publishes, use --controller none");
            }
            return Ok(Origin::Folder { path, claim });
        }
        if self.stand()? == StandPoint::Edge && !given[1] && !given[2] {
            return self.edge(self.edge_cache.as_deref(), LOCAL_CLUSTER);
        }
        if self.edge_cache.is_some() {
            bail!("--edge-cache is for --stand edge, without --kubeconfig and --api-server");
        }
        Ok(Origin::Server(Box::new(self.server(self.access()?, LOCAL_CLUSTER, self.stand()?)?)))
    }

    fn claim(&self) -> Claim {
        Claim { proxy_name: self.service_proxy_name.clone(), names: self.answers_names() }
    }

    /// What is asked of an API server follows from where we stand.
    fn server(&self, access: Access, cluster: &str, stand: StandPoint) -> anyhow::Result<Server> {
        let alone = self.controller()? == Controller::None;
        Ok(Server {
            access,
            cluster: cluster.into(),
            node: if stand == StandPoint::Outside { String::new() } else { self.node_name.clone().unwrap_or_default() },
            nodes: self.nodes(stand)?,
            pods: match stand {
                _ if alone => Pods::All,
                StandPoint::Outside => Pods::None,
                StandPoint::Node | StandPoint::Edge => Pods::Own,
            },
            claim: self.claim(),
            clear_taint: self.clear_startup_taint && stand == StandPoint::Node,
            patience: beeline_cluster::PATIENCE,
            role: Role::Agent,
            controller_namespace: self.controller_namespace.clone().unwrap_or_else(|| CONTROLLER_NAMESPACE.into()),
            report_namespace: self.report_namespace.clone().unwrap_or_else(|| REPORT_NAMESPACE.into()),
            reports: None,
            ranges: stand != StandPoint::Node || !self.clusters.is_empty(),
            notices: stand == StandPoint::Node,
            passport: None,
        })
    }

    /// Outside, other nodes are the way to pods, and what hosts outside must know of them stands on the Node objects.
    fn nodes(&self, stand: StandPoint) -> anyhow::Result<Nodes> {
        let words = [("controller", Nodes::Controller), ("watch", Nodes::Watch), ("own", Nodes::Own)];
        match (stand, self.nodes.as_deref()) {
            (StandPoint::Node, given) => choice("--nodes", given, &words),
            (_, None) => Ok(Nodes::Watch),
            (_, Some("own")) => {
                bail!("--nodes own: from outside pods are reached by their nodes; watch, or controller")
            }
            (_, given) => choice("--nodes", given, &words),
        }
    }

    pub fn controller(&self) -> anyhow::Result<Controller> {
        let words = [("watch", Controller::Watch), ("none", Controller::None)];
        match &self.controller {
            None if self.manifests.is_some() || self.are_folders() => Ok(Controller::None),
            given => choice("--controller", given.as_deref(), &words),
        }
    }

    fn report(&self) -> anyhow::Result<Option<Duration>> {
        match self.report.as_deref().unwrap_or("30s") {
            "off" => Ok(None),
            time => duration("--report", time).map(Some),
        }
    }

    fn access(&self) -> anyhow::Result<Access> {
        if let Some(path) = self.kubeconfig.clone() {
            return Ok(Access::Kubeconfig { path, context: self.context.clone() });
        }
        if self.api_server.is_empty() && std::env::var_os("KUBERNETES_SERVICE_HOST").is_none() {
            bail!(
                "where are the objects? Give --manifests DIR or --kubeconfig FILE, or run in a pod (with --api-server URL, so that we do not need the service address that we provide)"
            );
        }
        Access::in_cluster(&self.api_server).context("--api-server")
    }

    pub fn rules(&self) -> anyhow::Result<Rules> {
        let stand = self.stand()?;
        let node = self.node_name.as_deref().filter(|n| !n.is_empty() && stand != StandPoint::Outside);
        let missing = || {
            anyhow!("--node-name NAME is needed: endpoints are local by it (a host that is no Node: --stand outside)")
        };
        let mut rules = Rules::for_node(match stand {
            // Nothing is local here, whatever a Node is called.
            StandPoint::Outside => "",
            StandPoint::Node | StandPoint::Edge => node.ok_or_else(missing)?,
        });
        rules.stand_point = stand;
        rules.clusters = self.cluster_rules()?;
        rules.local_policy = choice(
            "--local-policy",
            self.local_policy.as_deref(),
            &[("kubernetes", LocalPolicy::Kubernetes), ("strict", LocalPolicy::Strict)],
        )?;
        rules.empty_local = choice(
            "--empty-local",
            self.empty_local.as_deref(),
            &[("refuse", EmptyLocal::Refuse), ("drop", EmptyLocal::Drop)],
        )?;
        if let Some(words) = &self.node_port_addresses {
            rules.node_port_addresses = words.iter().map(|w| node_port_address(w)).collect::<anyhow::Result<_>>()?;
        }
        if let Some(words) = &self.external_ips {
            rules.external_ips = external_ips(words)?;
        }
        if let Some(ranges) = &self.virtual_ranges {
            let parse =
                |w: &String| w.parse().map_err(|_| anyhow!("--virtual-ranges {w}: CIDRs such as 169.254.0.0/16"));
            rules.virtual_ranges = ranges.iter().map(parse).collect::<anyhow::Result<_>>()?;
        }
        for text in self.node_addresses.iter().flatten() {
            rules.own_addresses.push(Address::from(parse_ip(text).with_context(|| "--node-addresses".to_owned())?));
        }
        Ok(rules)
    }

    pub fn sizes(&self) -> anyhow::Result<Sizes> {
        let services = self.max_services.unwrap_or(MAX_SERVICES);
        if !(16..=8_000_000).contains(&services) {
            bail!("--max-services {services}: from 16 to 8000000");
        }
        let mut sizes = Sizes::for_services(services);
        let positive = |option: &str, value: Option<u32>, default: u32| match value {
            Some(0) => bail!("{option} 0: at least 1"),
            other => Ok(other.unwrap_or(default)),
        };
        sizes.frontends = positive("--max-frontends", self.max_frontends, sizes.frontends)?;
        sizes.backends = positive("--max-backends", self.max_backends, sizes.backends)?;
        sizes.slots = positive("--max-slots", self.max_slots, sizes.slots)?;
        sizes.affinity = positive("--max-affinity", self.max_affinity, sizes.affinity)?;
        Ok(sizes)
    }

    pub fn settings(&self) -> anyhow::Result<Settings> {
        // Other defaults, no more: an address that was given holds, so that metrics can be asked for from elsewhere.
        let (metrics, health) =
            if self.beside_kube_proxy { ("127.0.0.1:10349", "[::]:10356") } else { ("127.0.0.1:10249", "[::]:10256") };
        let default_root = || cgroup::root().context("--cgroup was not given");
        let stand = self.stand()?;
        // Nobody asks a host outside whether it is fit to be a node.
        let health = if stand == StandPoint::Outside { "127.0.0.1:10256" } else { health };
        Ok(Settings {
            rules: self.rules()?,
            listing: self.listing()?,
            reload: self.reload(),
            state_dir: self.state_dir(),
            snapshot: self.snapshot(stand)?,
            probe_interval: self.probe_interval()?,
            cgroup: self.cgroup.clone().map_or_else(default_root, Ok)?,
            pin_dir: self.pin_dir(),
            socket: self.socket(),
            sizes: self.sizes()?,
            events: self.events.as_deref().unwrap_or("failures").parse().map_err(|e| anyhow!("--events: {e}"))?,
            orphan: orphan(self.orphan.as_deref().unwrap_or("keep"))?,
            metrics: address("--metrics-address", self.metrics_address.as_deref().unwrap_or(metrics))?,
            health: address("--health-address", self.health_address.as_deref().unwrap_or(health))?,
            dns: self.dns()?,
            probes: !self.beside_kube_proxy && stand == StandPoint::Node,
            sync_period: duration("--sync-period", self.sync_period.as_deref().unwrap_or("30s"))?,
            untouched: self.untouched_cgroup.clone(),
            fixed_addresses: self.node_addresses.is_some(),
            self_test: choice("--self-test", self.self_test.as_deref(), &[("on", true), ("off", false)])?,
            renew_after: self.renew_after.map_or(beeline_join::HALF, |hundredths| f64::from(hundredths) / 100.0),
            skip_grace: self.unsafe_skip_grace,
            controller: self.controller()?,
            report: self.report()?.filter(|_| stand == StandPoint::Node),
        })
    }
}

/// One of a few words; the first is the default.
pub fn choice<T: Copy>(option: &str, given: Option<&str>, words: &[(&str, T)]) -> anyhow::Result<T> {
    let Some(given) = given else { return Ok(words[0].1) };
    let found = words.iter().find(|(word, _)| *word == given);
    let all: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
    found.map(|(_, value)| *value).ok_or_else(|| anyhow!("{option} {given}: one of {}", all.join(", ")))
}

fn node_port_address(word: &str) -> anyhow::Result<NodePortAddress> {
    Ok(match word {
        "primary" => NodePortAddress::Primary,
        "localhost" => NodePortAddress::Localhost,
        "all" => NodePortAddress::All,
        cidr => NodePortAddress::Range(cidr.parse().map_err(|_| {
            anyhow!("--node-port-addresses {cidr}: primary, localhost, all, or CIDRs such as 172.31.0.0/24")
        })?),
    })
}

fn external_ips(words: &[String]) -> anyhow::Result<ExternalIps> {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        ["on"] => Ok(ExternalIps::On),
        ["off"] => Ok(ExternalIps::Off),
        _ => {
            let parse = |w: &&str| w.parse().map_err(|_| anyhow!("--external-ips {w}: on, off, or CIDRs"));
            Ok(ExternalIps::Within(words.iter().map(parse).collect::<anyhow::Result<_>>()?))
        }
    }
}

fn orphan(text: &str) -> anyhow::Result<Orphan> {
    match text.split_once(':') {
        None if text == "keep" => Ok(Orphan::Keep),
        Some(("passthrough", time)) => Ok(Orphan::Passthrough(duration("--orphan", time)?)),
        _ => bail!("--orphan {text}: keep, or passthrough:TIME such as passthrough:10m"),
    }
}

pub fn address(option: &str, text: &str) -> anyhow::Result<Option<SocketAddr>> {
    match text {
        "off" => Ok(None),
        _ => text.parse().map(Some).map_err(|_| anyhow!("{option} {text}: ADDRESS:PORT, or off")),
    }
}

pub fn duration(option: &str, text: &str) -> anyhow::Result<Duration> {
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let factor = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => bail!("{option} {text}: a number and ms, s, m or h"),
    };
    let number: u64 = number.parse().map_err(|_| anyhow!("{option} {text}: a number and ms, s, m or h"))?;
    match number.checked_mul(factor) {
        Some(millis @ 1..=LONGEST) => Ok(Duration::from_millis(millis)),
        _ => bail!("{option} {text}: more than zero, and at most a year"),
    }
}
