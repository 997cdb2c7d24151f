//! The DNS server of the agent: binds its addresses, and passes changes to the name store after they are programmed.

use crate::settings::{ClusterSettings, DnsSettings};
use anyhow::{Context, ensure};
use beeline_api::{DnsClusterStatus, DnsStatus};
use beeline_dns::{DnsBindError, DnsSocket, Forwarder, NameChange, NameStore, QueryHandler, QueryOutcome, ZoneStatus};
pub use beeline_dns::{MAX_CONNECTIONS, Zone};
use beeline_model::Name;
use beeline_model::change::Change;
use beeline_model::cluster::order::ClusterOrder;
use beeline_model::reach::Reach;
use beeline_model::rules::Rules;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;

/// The pause before an address that cannot be bound is tried again.
const BIND_RETRY_INTERVAL: Duration = Duration::from_secs(2);

pub struct DnsServer {
    names: Arc<NameStore>,
    /// In the order of the views in the name store: `--dns-address`, then the addresses of `--dns-view`.
    listeners: Vec<DnsListener>,
    settings: DnsSettings,
}

struct DnsListener {
    address: SocketAddr,
    option: &'static str,
    socket: Option<DnsSocket>,
}

impl DnsServer {
    /// Binds all addresses. With `retry` an address that is in use or that no interface has yet is not an error: it is
    /// tried again while the agent serves, because services are more important than their names.
    pub async fn bind(
        settings: Option<&DnsSettings>,
        clusters: &[ClusterSettings],
        retry: bool,
    ) -> anyhow::Result<Option<DnsServer>> {
        let Some(settings) = settings else { return Ok(None) };
        let views = settings.views.iter().map(|view| view.cluster.clone()).collect();
        let names = Arc::new(NameStore::new(zones(clusters), views));
        names.set_server_address(settings.address.ip());
        let views = settings.views.iter().map(|view| (view.address, "--dns-view"));
        let mut listeners = Vec::new();
        for (address, option) in std::iter::once((settings.address, "--dns-address")).chain(views) {
            let mut listener = DnsListener { address, option, socket: None };
            listener.bind(settings, &names, retry).await?;
            listeners.push(listener);
        }
        Ok(Some(DnsServer { names, listeners, settings: settings.clone() }))
    }

    /// What keeps the names of this server up to date.
    pub fn updater(&self) -> DnsUpdater {
        DnsUpdater { names: self.names.clone(), settings: self.settings.clone(), pending: Vec::new() }
    }

    pub async fn serve(self) -> anyhow::Result<()> {
        let DnsServer { names, listeners, settings } = self;
        let forwarder = Forwarder::new(settings.forward.clone());
        let mut tasks = JoinSet::new();
        for (view, listener) in listeners.into_iter().enumerate() {
            let handler = QueryHandler::new(names.clone(), view, forwarder.clone());
            tasks.spawn(listener.serve(settings.clone(), handler, names.clone()));
        }
        let first = tasks.join_next().await;
        first.context("the DNS server has no listener")?.context("the DNS server panicked")?
    }
}

impl DnsListener {
    /// Tries once.
    async fn bind(&mut self, settings: &DnsSettings, names: &NameStore, retry: bool) -> anyhow::Result<()> {
        let DnsListener { address, option, .. } = *self;
        let error = match DnsSocket::bind(address, &settings.clients).await {
            Ok(socket) => {
                self.socket = Some(socket);
                names.set_listen_error(address, None);
                return Ok(());
            }
            Err(error) => error,
        };
        let message = format!("{option}: {error}{}", hint(&error));
        ensure!(retry && (error.is_taken() || error.is_absent()), "{message}");
        if !names.listen_errors().contains(&message) {
            tracing::warn!(%address, error = message, "cannot bind a DNS address; retrying");
        }
        names.set_listen_error(address, Some(message));
        Ok(())
    }

    async fn wait_bound(&mut self, settings: &DnsSettings, names: &NameStore) -> anyhow::Result<DnsSocket> {
        loop {
            if let Some(socket) = self.socket.take() {
                return Ok(socket);
            }
            tokio::time::sleep(BIND_RETRY_INTERVAL).await;
            self.bind(settings, names, true).await?;
        }
    }

    async fn serve(
        mut self,
        settings: DnsSettings,
        handler: QueryHandler,
        names: Arc<NameStore>,
    ) -> anyhow::Result<()> {
        let socket = self.wait_bound(&settings, &names).await?;
        tracing::info!(address = %self.address, domains = names.domains().join(" "), "answering DNS queries");
        socket.serve(handler).await.context(self.option)
    }
}

fn hint(error: &DnsBindError) -> &'static str {
    match () {
        () if error.is_taken() => {
            "; another DNS server uses it (systemd-resolved uses 127.0.0.53 and 127.0.0.54): choose another loopback address"
        }
        () if error.is_denied() => "; ports below 1024 need CAP_NET_BIND_SERVICE",
        () => "",
    }
}

/// Collects changes of names and applies them to the name store once their addresses are programmed.
pub struct DnsUpdater {
    names: Arc<NameStore>,
    settings: DnsSettings,
    pending: Vec<NameChange>,
}

impl DnsUpdater {
    pub fn queue(&mut self, changes: &[Change]) {
        self.pending.extend(changes.iter().filter_map(NameChange::from_change));
    }

    pub fn publish<'a>(&mut self, order: &ClusterOrder, reach: &Reach, synced: impl Iterator<Item = &'a Name>) {
        self.names.set_order(order);
        self.names.set_reach(reach);
        self.names.apply(std::mem::take(&mut self.pending), synced.map(|name| &**name));
    }

    pub fn set_own_addresses(&self, rules: &Rules) {
        self.names.set_own(rules.node_name.clone(), rules.own_addresses.iter().copied());
        self.names.set_virtual_address_cidrs(&rules.virtual_address_cidrs);
    }

    pub fn set_zones(&self, clusters: &[ClusterSettings]) {
        self.names.set_zones(zones(clusters));
    }

    /// The number of queries by record type and result.
    pub fn query_counts(&self) -> Vec<(&'static str, &'static str, u64)> {
        self.names.counts.all().map(|(kind, outcome, count)| (kind, outcome.label(), count)).collect()
    }

    /// The number of Services whose names are answered.
    pub fn services(&self) -> usize {
        self.names.services()
    }

    pub fn status(&self) -> DnsStatus {
        let DnsUpdater { names, settings, .. } = self;
        let views = settings.views.iter().map(|view| (view.cluster.to_string(), view.address.to_string()));
        DnsStatus {
            address: settings.address.to_string(),
            domains: names.domains(),
            forward: settings.forward.iter().map(ToString::to_string).collect(),
            clusters: names.zone_statuses().into_iter().map(zone_status).collect(),
            views: views.collect(),
            services: names.services(),
            answered: names.counts.total(QueryOutcome::Answered),
            missing: names.counts.total(QueryOutcome::Missing),
            failed: names.counts.total(QueryOutcome::Failed),
            bind_errors: names.listen_errors(),
        }
    }
}

fn zones(clusters: &[ClusterSettings]) -> Vec<Zone> {
    clusters.iter().map(|cluster| cluster.zone.clone()).collect()
}

fn zone_status(zone: ZoneStatus) -> DnsClusterStatus {
    let ZoneStatus { cluster, domains, services, synced } = zone;
    DnsClusterStatus { name: cluster.to_string(), domains, services, synced }
}
