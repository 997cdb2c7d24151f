//! The settings of the agent, from options that have been merged: rules of resolution, table sizes, listen addresses.

use super::{HumanDuration, ListenAddress, Options, OrOff};
use anyhow::{Context, anyhow, bail};
use beeline_agent::{AgentSettings, KernelSettings, ListenerSettings};
use beeline_datapath::cgroup;
use beeline_datapath::control::EventLevel;
use beeline_model::Address;
use beeline_model::address::parse_ip;
use beeline_model::row::Sizes;
use beeline_model::rules::{ExternalIps, HostRole, NodePortAddress, Rules};
use ipnet::IpNet;
use std::net::SocketAddr;
use std::time::Duration;

const MAX_SERVICES: u32 = 16_384;
/// In MiB.
const MAX_RECORD_MEMORY: u32 = 128;
const DEFAULT_INTERVAL: Duration = Duration::from_secs(30);
const UDP_GRACE_PERIOD: Duration = Duration::from_millis(100);
const MAX_UDP_GRACE_PERIOD: Duration = Duration::from_secs(60);

impl Options {
    pub fn settings(&self) -> anyhow::Result<AgentSettings> {
        let default_cgroup = || cgroup::root().context("--cgroup is not set, and the root of cgroup2 cannot be used");
        let role = self.host_role();
        // First: a mistake in the list of clusters may be the cause of others, such as a view that --dns-view misses.
        let (rules, cluster_list) = (self.rules()?, self.cluster_list()?);
        let kernel = KernelSettings {
            cgroup: self.cgroup.clone().map_or_else(default_cgroup, Ok)?,
            pin_dir: self.pin_dir(),
            sizes: self.sizes()?,
            record_limit: u64::from(self.max_record_memory.unwrap_or(MAX_RECORD_MEMORY)) << 20,
            event_level: self.events.unwrap_or(EventLevel::Failures),
            agent_down_action: self.agent_down_action.map_or(beeline_agent::AgentDownAction::Keep, Into::into),
            excluded_cgroups: self.exclude_cgroup.clone(),
            // Without kube-proxy nothing else resolves service addresses, so an excluded pod could not even reach DNS.
            sidecar_exclusion: self.sidecar_exclusion.map_or(self.beside_kube_proxy, Into::into),
            self_test: self.self_test.is_none_or(Into::into),
            skip_grace: self.unsafe_skip_grace,
            udp_grace_period: self.udp_grace_period()?,
        };
        let listeners = ListenerSettings {
            socket: self.socket(),
            metrics_address: self.metrics_address(),
            health_address: self.health_address(role),
            dns: self.dns()?,
            health_check_node_ports: !self.beside_kube_proxy && role == HostRole::Node,
        };
        Ok(AgentSettings {
            commit: env!("BEELINE_COMMIT"),
            rules,
            cluster_list,
            reload: self.reload(),
            kernel,
            listeners,
            state_dir: self.state_dir(),
            snapshot: self.snapshot(role)?,
            probe_interval: interval(self.probe_interval),
            sync_period: interval(self.sync_period),
            fixed_addresses: self.node_addresses.is_some(),
            token_renew_fraction: self.token_renewal_percent.map(percent),
            controller: self.controller(),
            beside_kube_proxy: self.beside_kube_proxy,
            report_interval: self.report_interval().filter(|_| role == HostRole::Node),
            packet_path: self.packet_settings()?,
        })
    }

    pub fn rules(&self) -> anyhow::Result<Rules> {
        let mut rules = Rules::for_node(self.own_node_name()?);
        rules.host_role = self.host_role();
        rules.packet_path = self.has_packet_path();
        rules.clusters = self.cluster_rules()?;
        rules.local_traffic_policy = self.local_traffic_policy.map_or_else(Default::default, Into::into);
        rules.no_local_endpoint_action = self.no_local_endpoint_action.map_or_else(Default::default, Into::into);
        if let Some(words) = &self.nodeport_addresses {
            rules.node_port_addresses =
                words.iter().map(|word| node_port_address(word)).collect::<anyhow::Result<_>>()?;
        }
        if let Some(words) = &self.external_ips {
            rules.external_ips = external_ips(words)?;
        }
        for word in self.cluster_cidr.iter().flatten() {
            let range =
                word.parse().map_err(|_| anyhow!("--cluster-cidr {word}: expected a CIDR such as 10.244.0.0/16"));
            rules.pod_ranges.push(range?);
        }
        if let Some(words) = &self.virtual_address_cidrs {
            rules.virtual_address_cidrs = virtual_address_cidrs(words)?;
        }
        for text in self.node_addresses.iter().flatten() {
            let address = parse_ip(text).with_context(|| format!("--node-addresses {text}"))?;
            rules.own_addresses.push(Address::from(address));
        }
        Ok(rules)
    }

    /// The name by which endpoints are local to this host. Outside the cluster it is empty: no endpoint is local there,
    /// whatever the Nodes are called.
    fn own_node_name(&self) -> anyhow::Result<&str> {
        if self.host_role() == HostRole::Outside {
            return Ok("");
        }
        self.node_name.as_deref().filter(|name| !name.is_empty()).ok_or_else(|| {
            anyhow!(
                "--node-name is required: it decides which endpoints are local. On a host that is not a Node, use \
                 --host-role outside"
            )
        })
    }

    fn sizes(&self) -> anyhow::Result<Sizes> {
        let services = self.max_services.unwrap_or(MAX_SERVICES);
        if !(16..=8_000_000).contains(&services) {
            bail!("--max-services {services}: must be between 16 and 8000000");
        }
        let mut sizes = Sizes::for_services(services);
        let positive = |option: &str, value: Option<u32>, default: u32| match value {
            Some(0) => bail!("{option} 0: must be at least 1"),
            other => Ok(other.unwrap_or(default)),
        };
        sizes.frontends = positive("--max-frontends", self.max_frontends, sizes.frontends)?;
        sizes.backends = positive("--max-backends", self.max_backends, sizes.backends)?;
        sizes.slots = positive("--max-slots", self.max_slots, sizes.slots)?;
        sizes.affinity = positive("--max-affinity", self.max_affinity, sizes.affinity)?;
        Ok(sizes)
    }

    /// `--beside-kube-proxy` changes only the defaults: an address that is given is used.
    fn metrics_address(&self) -> Option<SocketAddr> {
        let port = if self.beside_kube_proxy { 10349 } else { 10249 };
        let default = ListenAddress(SocketAddr::from(([127, 0, 0, 1], port)));
        self.metrics_bind_address.unwrap_or(OrOff::On(default)).enabled().map(|address| address.0)
    }

    /// On a host outside no load balancer asks for the health of a node, so the default is a loopback address there.
    fn health_address(&self, role: HostRole) -> Option<SocketAddr> {
        let default = match (role, self.beside_kube_proxy) {
            (HostRole::Outside, _) => SocketAddr::from(([127, 0, 0, 1], 10256)),
            (_, true) => SocketAddr::from(([0u16; 8], 10356)),
            (_, false) => SocketAddr::from(([0u16; 8], 10256)),
        };
        self.healthz_bind_address.unwrap_or(OrOff::On(ListenAddress(default))).enabled().map(|address| address.0)
    }

    /// Zero means that sockets are destroyed at once.
    fn udp_grace_period(&self) -> anyhow::Result<Duration> {
        let given = self.udp_grace_period.unwrap_or(OrOff::On(HumanDuration(UDP_GRACE_PERIOD)));
        match given.enabled() {
            Some(period) if period.0 > MAX_UDP_GRACE_PERIOD => {
                bail!("--udp-grace-period {period}: must be at most {}", HumanDuration(MAX_UDP_GRACE_PERIOD))
            }
            period => Ok(period.map_or(Duration::ZERO, |period| period.0)),
        }
    }

    fn report_interval(&self) -> Option<Duration> {
        self.report_interval.unwrap_or(OrOff::On(HumanDuration(DEFAULT_INTERVAL))).enabled().map(|interval| interval.0)
    }
}

fn interval(given: Option<HumanDuration>) -> Duration {
    given.map_or(DEFAULT_INTERVAL, |interval| interval.0)
}

fn percent(number: u8) -> f64 {
    f64::from(number) / 100.0
}

fn node_port_address(word: &str) -> anyhow::Result<NodePortAddress> {
    Ok(match word {
        "primary" => NodePortAddress::Primary,
        "localhost" => NodePortAddress::Localhost,
        "all" => NodePortAddress::All,
        cidr => NodePortAddress::Range(cidr.parse().map_err(|_| {
            anyhow!("--nodeport-addresses {cidr}: expected primary, localhost, all, or a CIDR such as 172.31.0.0/24")
        })?),
    })
}

fn external_ips(words: &[String]) -> anyhow::Result<ExternalIps> {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        ["on"] => Ok(ExternalIps::On),
        ["off"] => Ok(ExternalIps::Off),
        _ => {
            let parse = |word: &&str| {
                let error = || anyhow!("--external-ips {word}: expected on, off, or a CIDR such as 198.51.100.0/24");
                word.parse().map_err(|_| error())
            };
            Ok(ExternalIps::Within(words.iter().map(parse).collect::<anyhow::Result<_>>()?))
        }
    }
}

/// The value of `--virtual-address-cidrs`, which the agent and the controller share.
pub fn virtual_address_cidrs(words: &[String]) -> anyhow::Result<Vec<IpNet>> {
    let error = |word: &String| anyhow!("--virtual-address-cidrs {word}: expected a CIDR such as 169.254.0.0/16");
    words.iter().map(|word| word.parse().map_err(|_| error(word))).collect()
}
