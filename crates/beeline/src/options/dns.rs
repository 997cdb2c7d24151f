//! The options of the DNS server: its addresses, its clients, and what happens to names outside the clusters.

use super::{ClusterOptions, ListenAddress, Options, OrOff};
use anyhow::{Context, anyhow, bail, ensure};
use beeline_agent::{DnsSettings, DnsView, Zone};
use beeline_model::Name;
use beeline_model::address::parse_ip;
use ipnet::IpNet;
use std::net::SocketAddr;

const DEFAULT_DOMAIN: &str = "cluster.local";

impl Options {
    /// `None` if the agent serves no DNS.
    pub(super) fn dns(&self) -> anyhow::Result<Option<DnsSettings>> {
        let Some(ListenAddress(address)) = self.dns_address.and_then(OrOff::enabled) else { return self.without_dns() };
        let clients = self.dns_clients()?;
        check_listen_address("--dns-address", address, &clients)?;
        let forward: Vec<SocketAddr> =
            self.dns_forward.iter().flatten().map(|text| upstream(text)).collect::<anyhow::Result<_>>()?;
        let views = self.dns_views(&clients)?;
        let is_own = |server: &&SocketAddr| **server == address || views.iter().any(|view| view.address == **server);
        if let Some(server) = forward.iter().find(is_own) {
            bail!("--dns-forward {server}: this is an address of the agent itself; queries would loop");
        }
        if let Some(open) = clients.iter().find(|net| net.prefix_len() == 0 && !forward.is_empty()) {
            bail!("--dns-clients {open} with --dns-forward makes an open resolver: list the networks of the clients");
        }
        Ok(Some(DnsSettings { address, clients, forward, views }))
    }

    fn without_dns(&self) -> anyhow::Result<Option<DnsSettings>> {
        let given = [
            ("--dns-domain", self.dns_domain.is_some()),
            ("--dns-forward", self.dns_forward.is_some()),
            ("--dns-clients", self.dns_clients.is_some()),
            ("--dns-view", self.dns_view.is_some()),
        ];
        match given.iter().find(|(_, given)| *given) {
            Some((option, _)) => bail!("{option} needs --dns-address: without it the agent serves no DNS"),
            None => Ok(None),
        }
    }

    /// The DNS zone of a cluster: `dnsDomain` of its entry, else `--dns-domain`.
    pub(super) fn zone(&self, cluster: &str, domain: Option<&str>) -> anyhow::Result<Zone> {
        let option = if domain.is_some() { "dnsDomain" } else { "--dns-domain" };
        let domain = domain.or(self.dns_domain.as_deref()).unwrap_or(DEFAULT_DOMAIN);
        Zone::new(cluster, domain).context(option)
    }

    pub(super) fn serves_dns(&self) -> bool {
        self.dns_address.and_then(OrOff::enabled).is_some()
    }

    fn dns_clients(&self) -> anyhow::Result<Vec<IpNet>> {
        let net = |text: &String| {
            let single = || parse_ip(text).ok().map(IpNet::from);
            let error = || anyhow!("--dns-clients {text}: expected an address or a CIDR, such as 172.17.0.0/16");
            text.parse().ok().or_else(single).ok_or_else(error)
        };
        self.dns_clients.iter().flatten().map(net).collect()
    }

    fn dns_views(&self, clients: &[IpNet]) -> anyhow::Result<Vec<DnsView>> {
        let view = |text: &String| {
            let error = || anyhow!("--dns-view {text}: expected CLUSTER=ADDRESS:PORT");
            let (cluster, address) =
                text.split_once('=').filter(|(cluster, _)| !cluster.is_empty()).ok_or_else(error)?;
            let address = address.parse().map_err(|_| error())?;
            check_listen_address("--dns-view", address, clients)?;
            Ok(DnsView { cluster: self.cluster_of_view(cluster)?, address })
        };
        self.dns_view.iter().flatten().map(view).collect()
    }

    /// Finds a cluster by the name of its view or by its own name.
    fn cluster_of_view(&self, name: &str) -> anyhow::Result<Name> {
        let matches = |entry: &&ClusterOptions| entry.view.as_deref() == Some(name) || entry.name == name;
        let found = self.clusters.iter().find(matches);
        let entry = found.ok_or_else(|| anyhow!("--dns-view {name}: no entry of `clusters` has this name or view"))?;
        ensure!(entry.view.is_some(), "--dns-view {name}: the entry in `clusters` needs a `view`");
        Ok(entry.name.as_str().into())
    }
}

/// The DNS server must not be an open resolver: it listens on loopback, or answers listed clients only. An unspecified
/// address is refused, because a response could leave from another address than the query was sent to.
fn check_listen_address(option: &str, address: SocketAddr, clients: &[IpNet]) -> anyhow::Result<()> {
    match address.ip() {
        ip if ip.is_loopback() => Ok(()),
        ip if ip.is_unspecified() => {
            bail!("{option} {address}: give one address, such as 127.0.0.55:53, not the unspecified one")
        }
        _ if clients.is_empty() => bail!(
            "{option} {address}: not a loopback address; use one such as 127.0.0.55:53, or list the clients by \
             --dns-clients"
        ),
        _ => Ok(()),
    }
}

/// Port 53 is the default.
fn upstream(text: &str) -> anyhow::Result<SocketAddr> {
    let without_port = parse_ip(text).ok().map(|ip| SocketAddr::from((ip, 53)));
    let error = || anyhow!("--dns-forward {text}: expected ADDRESS or ADDRESS:PORT, such as 192.0.2.53");
    without_port.or_else(|| text.parse().ok()).ok_or_else(error)
}
