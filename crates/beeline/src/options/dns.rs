//! Options of names: where they are answered, to whom, and what becomes of others.

use super::{ClusterOptions, Options, address};
use anyhow::{Context, anyhow, bail, ensure};
use beeline_agent::{Dns, DnsView};
use beeline_model::Name;
use beeline_model::address::parse_ip;
use beeline_dns::Zone;
use ipnet::IpNet;
use std::net::SocketAddr;

pub const DOMAIN: &str = "cluster.local";

impl Options {
    /// `None`: nobody answers names.
    pub(super) fn dns(&self) -> anyhow::Result<Option<Dns>> {
        let Some(address) = address("--dns-address", self.dns_address.as_deref().unwrap_or("off"))? else {
            return self.without_dns();
        };
        let clients = self.dns_clients()?;
        check_address("--dns-address", address, &clients)?;
        let forward: Vec<SocketAddr> =
            self.dns_forward.iter().flatten().map(|text| name_server(text)).collect::<anyhow::Result<_>>()?;
        let views = self.dns_views(&clients)?;
        let ours = |server: &&SocketAddr| **server == address || views.iter().any(|view| view.address == **server);
        if let Some(circle) = forward.iter().find(ours) {
            bail!("--dns-forward {circle}: that is our own address; every question would go round in a circle");
        }
        if let Some(open) = clients.iter().find(|net| net.prefix_len() == 0 && !forward.is_empty()) {
            bail!("--dns-clients {open} with --dns-forward: anybody could ask us for anything; name the networks");
        }
        Ok(Some(Dns { address, clients, forward, views }))
    }

    fn without_dns(&self) -> anyhow::Result<Option<Dns>> {
        let given = [
            ("--dns-domain", self.dns_domain.is_some()),
            ("--dns-forward", self.dns_forward.is_some()),
            ("--dns-clients", self.dns_clients.is_some()),
            ("--dns-view", self.dns_view.is_some()),
        ];
        match given.iter().find(|(_, given)| *given) {
            Some((option, _)) => bail!("{option} needs --dns-address: nobody answers names without it"),
            None => Ok(None),
        }
    }

    /// Where a cluster's names stand: as its entry says, else as for all.
    pub(super) fn zone(&self, cluster: &str, domain: Option<&str>) -> anyhow::Result<Zone> {
        let option = if domain.is_some() { "domain" } else { "--dns-domain" };
        let domain = domain.or(self.dns_domain.as_deref()).unwrap_or(DOMAIN);
        Zone::new(cluster, domain).context(option)
    }

    /// Whether anybody does; `dns` says whether it is meant well.
    pub(super) fn answers_names(&self) -> bool {
        self.dns_address.as_deref().is_some_and(|at| at != "off")
    }

    fn dns_clients(&self) -> anyhow::Result<Vec<IpNet>> {
        let net = |text: &String| {
            let bare = || parse_ip(text).ok().map(IpNet::from);
            let read = text.parse().ok().or_else(bare);
            read.ok_or_else(|| anyhow!("--dns-clients {text}: an address or a CIDR, such as 172.17.0.0/16"))
        };
        self.dns_clients.iter().flatten().map(net).collect()
    }

    fn dns_views(&self, clients: &[IpNet]) -> anyhow::Result<Vec<DnsView>> {
        let view = |text: &String| {
            let split = text.split_once('=').filter(|(cluster, _)| !cluster.is_empty());
            let (cluster, at) = split.ok_or_else(|| anyhow!("--dns-view {text}: CLUSTER=ADDRESS:PORT"))?;
            let at = address("--dns-view", at)?.ok_or_else(|| anyhow!("--dns-view {text}: CLUSTER=ADDRESS:PORT"))?;
            check_address("--dns-view", at, clients)?;
            Ok(DnsView { cluster: self.seen_first(cluster)?, address: at })
        };
        self.dns_view.iter().flatten().map(view).collect()
    }

    /// By the view's name or the cluster's.
    fn seen_first(&self, text: &str) -> anyhow::Result<Name> {
        let is_it = |said: &&ClusterOptions| said.view.as_deref() == Some(text) || said.name == text;
        let said = self.clusters.iter().find(is_it);
        let said = said.ok_or_else(|| anyhow!("--dns-view {text}: none of `clusters` is called so"))?;
        ensure!(said.view.is_some(), "--dns-view {text}: give the cluster a `view` first, by which it is dialled");
        Ok(said.name.as_str().into())
    }
}

/// We are nobody's open resolver: on loopback, or with a list of those who may ask. Never on all addresses at once, where
/// an answer may leave by another one than was asked.
fn check_address(option: &str, address: SocketAddr, clients: &[IpNet]) -> anyhow::Result<()> {
    match address.ip() {
        ip if ip.is_loopback() => Ok(()),
        ip if ip.is_unspecified() => bail!("{option} {address}: one address, such as 127.0.0.55:53, not all of them"),
        _ if clients.is_empty() => bail!(
            "{option} {address}: a loopback address, such as 127.0.0.55:53; elsewhere --dns-clients says who may ask"
        ),
        _ => Ok(()),
    }
}

/// An address, with a port if it is not the usual one.
fn name_server(text: &str) -> anyhow::Result<SocketAddr> {
    let bare = parse_ip(text).ok().map(|ip| SocketAddr::from((ip, 53)));
    bare.or_else(|| text.parse().ok())
        .ok_or_else(|| anyhow!("--dns-forward {text}: ADDRESS or ADDRESS:PORT, such as 192.0.2.53"))
}
