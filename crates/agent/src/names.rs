//! Names, answered from the facts that the state hears: the state tells them, the server answers on its own.

use crate::settings::{Cluster, Dns};
use crate::status::{DnsCluster, DnsStatus};
use anyhow::{Context, ensure};
use beeline_model::Name;
use beeline_model::fact::Fact;
use beeline_model::reach::Reach;
use beeline_model::stand::order::Order;
use beeline_dns::{BindError, Bound, Desk, Forward, Heard, Names, Outcome, Told, Zone};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;

/// An address that is not to be had yet is asked for this often.
const AGAIN: Duration = Duration::from_secs(2);

/// The addresses are ours, or will be; nobody answers yet.
pub struct Open {
    pub names: Arc<Names>,
    /// In the order of the index: the configuration's, then the views'.
    doors: Vec<Door>,
    dns: Dns,
}

/// One address.
struct Door {
    at: SocketAddr,
    option: &'static str,
    bound: Option<Bound>,
}

/// `patient`: an address that another one has, or that no interface has yet, is waited for. Services are worth more than
/// their names.
pub async fn open(dns: Option<&Dns>, clusters: &[Cluster], patient: bool) -> anyhow::Result<Option<Open>> {
    let Some(dns) = dns else { return Ok(None) };
    let views = dns.views.iter().map(|view| view.cluster.clone()).collect();
    let names = Arc::new(Names::new(zones(clusters), views));
    names.set_address(dns.address.ip());
    let all = dns.views.iter().map(|view| (view.address, "--dns-view"));
    let mut doors = Vec::new();
    for (at, option) in std::iter::once((dns.address, "--dns-address")).chain(all) {
        let mut door = Door { at, option, bound: None };
        door.unlock(dns, &names, patient).await?;
        doors.push(door);
    }
    Ok(Some(Open { names, doors, dns: dns.clone() }))
}

impl Door {
    /// One try.
    async fn unlock(&mut self, dns: &Dns, names: &Names, patient: bool) -> anyhow::Result<()> {
        let Door { at, option, .. } = *self;
        let error = match Bound::to(at, &dns.clients).await {
            Ok(bound) => {
                self.bound = Some(bound);
                names.set_closed(at, None);
                return Ok(());
            }
            Err(error) => error,
        };
        let why = format!("{option}: {error}{}", hint(&error));
        ensure!(patient && (error.is_taken() || error.is_absent()), "{why}");
        if !names.closed().contains(&why) {
            tracing::warn!("names are not answered there, tried again: {why}");
        }
        names.set_closed(at, Some(why));
        Ok(())
    }

    /// For as long as it takes.
    async fn wait(&mut self, dns: &Dns, names: &Names) -> anyhow::Result<Bound> {
        loop {
            if let Some(bound) = self.bound.take() {
                return Ok(bound);
            }
            tokio::time::sleep(AGAIN).await;
            self.unlock(dns, names, true).await?;
        }
    }

    async fn serve(mut self, dns: Dns, desk: Desk, names: Arc<Names>) -> anyhow::Result<()> {
        let bound = self.wait(&dns, &names).await?;
        tracing::info!(address = %self.at, domains = names.domains().join(" "), "names are answered");
        bound.serve(desk).await.context(self.option)
    }
}

fn hint(error: &BindError) -> &'static str {
    match () {
        () if error.is_taken() => {
            "; another name server has it (systemd-resolved has 127.0.0.53 and 127.0.0.54): choose another loopback address"
        }
        () if error.is_denied() => "; ports below 1024 need CAP_NET_BIND_SERVICE",
        () => "",
    }
}

impl Open {
    pub async fn serve(self) -> anyhow::Result<()> {
        let Open { names, doors, dns } = self;
        let forward = Forward::new(dns.forward.clone());
        let mut desks = JoinSet::new();
        for (view, door) in doors.into_iter().enumerate() {
            let desk = Desk::new(names.clone(), view, forward.clone());
            desks.spawn(door.serve(dns.clone(), desk, names.clone()));
        }
        let first = desks.join_next().await;
        first.context("no name server")?.context("a name server")?
    }
}

/// Hears what the state hears, and tells it when it stands in the tables.
pub struct Listener {
    names: Arc<Names>,
    waiting: Vec<Told>,
}

impl Listener {
    pub fn new(names: Arc<Names>) -> Listener {
        Listener { names, waiting: Vec::new() }
    }

    pub fn names(&self) -> &Names {
        &self.names
    }

    pub fn hear(&mut self, facts: &[Fact]) {
        self.waiting.extend(facts.iter().filter_map(Told::of));
    }

    /// `known`: clusters that have said everything once.
    pub fn tell<'a>(&mut self, order: &Order, reach: &Reach, known: impl Iterator<Item = &'a Name>) {
        self.names.set_order(order);
        self.names.set_reach(reach);
        self.names.tell(std::mem::take(&mut self.waiting), known.map(|name| &**name));
    }
}

pub fn zones(clusters: &[Cluster]) -> Vec<Zone> {
    clusters.iter().map(|cluster| cluster.zone.clone()).collect()
}

pub fn status(dns: &Dns, names: &Names) -> DnsStatus {
    let views = dns.views.iter().map(|view| (view.cluster.to_string(), view.address.to_string()));
    DnsStatus {
        address: dns.address.to_string(),
        domains: names.domains(),
        forward: dns.forward.iter().map(ToString::to_string).collect(),
        clusters: names.heard().into_iter().map(heard).collect(),
        views: views.collect(),
        services: names.services(),
        answered: names.counts.of(Outcome::Answered),
        missing: names.counts.of(Outcome::Missing),
        failed: names.counts.of(Outcome::Failed),
        closed: names.closed(),
    }
}

fn heard(heard: Heard) -> DnsCluster {
    let Heard { cluster, domains, services, known } = heard;
    DnsCluster { name: cluster.to_string(), domains, services, heard: known }
}
