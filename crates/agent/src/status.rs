//! What the agent says of itself; the CLI prints it.

use crate::health::timestamp;
use crate::snapshot::Report;
use crate::source::{Source, Sources};
use beeline_model::fact::Refusal;
use beeline_model::plan::policy::Standing;
use beeline_model::planner::state::PolicyState;
use beeline_model::reach::Found;
use beeline_model::row::Sizes;
use beeline_model::rules::StandPoint;
use beeline_model::stand::Pods;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    pub version: &'static str,
    pub pid: u32,
    pub node: String,
    #[serde(serialize_with = "word")]
    pub stand: StandPoint,
    /// Where there is one.
    pub source: Option<SourceStatus>,
    pub clusters: Vec<ClusterStatus>,
    pub views: Vec<ViewStatus>,
    /// Of the clusters that this host has joined.
    pub tokens: Vec<crate::token::Token>,
    pub kernel: KernelStatus,
    pub counts: Counts,
    pub last_change: Option<LastChange>,
    pub refusals: Vec<Told>,
    pub events: String,
    pub node_addresses: Vec<String>,
    pub zone: Option<String>,
    /// Where names are answered.
    pub dns: Option<DnsStatus>,
    /// Addresses of every node that is known.
    pub nodes: std::collections::BTreeMap<String, Vec<String>>,
}

fn word<S: serde::Serializer>(stand: &StandPoint, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(match stand {
        StandPoint::Node => "node",
        StandPoint::Outside => "outside",
        StandPoint::Edge => "edge",
    })
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DnsStatus {
    pub address: String,
    /// What is answered here, whoever is asked for the rest.
    pub domains: Vec<String>,
    /// Empty: the rest is refused.
    pub forward: Vec<String>,
    pub clusters: Vec<DnsCluster>,
    /// Where the names are answered as somebody in a view dials them, by the cluster that stands first there.
    pub views: std::collections::BTreeMap<String, String>,
    pub services: usize,
    pub answered: u64,
    pub missing: u64,
    pub failed: u64,
    /// Addresses that are not to be had yet, with the reason: nobody answers there.
    pub closed: Vec<String>,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DnsCluster {
    pub name: String,
    /// Where its names are found.
    pub domains: Vec<String>,
    pub services: usize,
    /// Until then its names are answered with SERVFAIL.
    pub heard: bool,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SourceStatus {
    pub kind: &'static str,
    pub name: String,
    pub synced: bool,
    pub error: Option<String>,
}

impl SourceStatus {
    fn of(source: &Source) -> SourceStatus {
        let (name, error) = (source.name.clone(), source.error.clone());
        SourceStatus { kind: source.kind, name, synced: source.synced, error }
    }

    pub fn of_one(sources: &Sources) -> Option<SourceStatus> {
        let mut all = sources.iter();
        all.next().filter(|_| all.next().is_none()).map(SourceStatus::of)
    }
}

/// How it stands with one cluster.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterStatus {
    pub name: String,
    #[serde(flatten)]
    pub source: SourceSaid,
    pub synced: bool,
    /// Since when it is.
    pub since: Option<String>,
    /// What serves was remembered at this time, and the cluster has not been heard since.
    pub remembered: Option<String>,
    pub error: Option<String>,
    /// Objects; absent where they are not counted.
    pub facts: Option<usize>,
    pub services: usize,
    pub ranges: Vec<String>,
    /// `configuration`, `ServiceCIDR`, `snapshot` or `unknown`.
    pub ranges_from: &'static str,
    pub pods: Pods,
    pub view: Option<String>,
    pub refusals: usize,
    /// What is on disk of it; absent where nothing is kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<Report>,
    /// Read from an edge cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// Where `pods` is auto: what was found of each group of pods.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub reach: Vec<ReachStatus>,
}

/// How the pods of one node in one /24 (/64) are reached, and how that is known.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ReachStatus {
    pub node: Option<String>,
    pub prefix: String,
    pub found: Found,
    pub since: String,
    pub evidence: String,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SourceSaid {
    pub kind: &'static str,
    pub server: String,
}

impl ClusterStatus {
    pub fn of(source: &Source, services: usize, refusals: usize) -> ClusterStatus {
        let rules = &source.rules;
        let (ranges, ranges_from) = ranges_of(source);
        ClusterStatus {
            name: rules.name.to_string(),
            source: SourceSaid { kind: source.kind, server: source.name.clone() },
            synced: source.synced,
            since: source.since.map(timestamp),
            remembered: source.remembered.map(timestamp),
            error: source.error.clone(),
            facts: source.facts(),
            services,
            ranges,
            ranges_from,
            pods: rules.pods,
            view: rules.view.as_ref().map(ToString::to_string),
            refusals,
            snapshot: None,
            bytes: None,
            reach: Vec::new(),
        }
    }
}

fn ranges_of(source: &Source) -> (Vec<String>, &'static str) {
    let said: Vec<String> = source.ranges.values().flat_map(|ranges| ranges.iter().map(ToString::to_string)).collect();
    match &source.rules.service_ranges {
        Some(ranges) => (ranges.iter().map(ToString::to_string).collect(), "configuration"),
        None if said.is_empty() => (said, "unknown"),
        None if source.remembered.is_some() => (said, "snapshot"),
        None => (said, "ServiceCIDR"),
    }
}

/// A view, and the cluster that it sees first.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ViewStatus {
    pub name: String,
    pub first: String,
    /// As frontends and rules of cgroups have it.
    pub number: u32,
}

/// A refusal, and whose.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Told {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster: Option<String>,
    #[serde(flatten)]
    pub refusal: Refusal,
}

impl Told {
    /// What the plan refuses says whose it is: `cluster NAME`, or `KIND NAME:NAMESPACE/OBJECT`.
    pub fn of(refusal: Refusal, sources: &Sources) -> Told {
        let (kind, object) = refusal.subject.split_once(' ').unwrap_or_default();
        let cluster = if kind == "cluster" { Some(object) } else { object.split_once(':').map(|(cluster, _)| cluster) };
        let known = |name: &&str| sources.iter().any(|source| *source.rules.name == **name);
        Told { cluster: cluster.filter(known).map(str::to_owned), refusal }
    }
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct KernelStatus {
    pub cgroup: String,
    pub pin_dir: String,
    pub layout: u32,
    pub generation: u32,
    pub start: String,
    pub live: bool,
    pub self_test: String,
    pub exact_udp_reaping: bool,
    /// What an empty Local set does: `refuse` or `drop`.
    pub empty_local: &'static str,
    pub sizes: Sizes,
}

#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Counts {
    pub services: usize,
    pub slices: usize,
    pub nodes: usize,
    pub policies: Policies,
    pub frontends: usize,
    pub sets: usize,
    pub backends: usize,
    pub pending: usize,
    pub udp_sockets_destroyed: u64,
    /// Refused: a known ClusterIP on a port that its Service does not have, so of no service port.
    pub dials_no_port: u64,
}

#[derive(Clone, Copy, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Policies {
    pub all: usize,
    /// Accepted, and meant for this node.
    pub here: usize,
    pub refused: usize,
    /// A controller is to publish their pods, and nothing of them has been seen.
    pub waiting: usize,
}

impl Policies {
    pub fn count(states: &[PolicyState]) -> Policies {
        let count = |is: fn(&PolicyState) -> bool| states.iter().filter(|state| is(state)).count();
        Policies {
            all: states.len(),
            here: count(|state| state.refused.is_none() && state.standing == Standing::Here),
            refused: count(|state| state.refused.is_some()),
            waiting: count(|state| state.waits),
        }
    }
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LastChange {
    pub at: String,
    pub services: usize,
    pub writes: usize,
    pub micros: u64,
}

/// Of which policies is asked; nothing given: of all.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct About {
    /// NAME or NAMESPACE/NAME.
    #[serde(default)]
    pub name: Option<String>,
    /// What is dialled.
    #[serde(default)]
    pub address: Option<String>,
    /// With an address: the service port that it leads to, as `Explain` has it.
    #[serde(default)]
    pub owner: Option<String>,
}

/// Asked over the agent's socket, one JSON line each.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "ask")]
pub enum Request {
    Status,
    /// Why each endpoint of a service port is in or out: `cluster/namespace/name/port/PROTOCOL`.
    Explain {
        owner: String,
    },
    /// What became of each policy on this node.
    Policies(About),
    SetEvents {
        level: String,
    },
    /// A cgroup whose processes see this view; whoever asks enters it.
    Run {
        view: String,
    },
    /// Then events follow, one line each, until the connection is closed.
    Monitor,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::{Cluster, Origin};
    use beeline_model::stand::ClusterRules;

    #[test]
    fn what_the_plan_refuses_says_whose_it_is() {
        let origin = Origin::Folder { path: "/nowhere".into(), claim: Default::default() };
        let zone = beeline_dns::Zone::new("green", "cluster.local").unwrap();
        let green = Cluster { rules: ClusterRules::named("green"), origin, zone };
        let sources = Sources::new(&[green], StandPoint::Outside);
        let cluster = |subject: &str| {
            let refusal = Refusal { subject: subject.into(), reason: "r", message: String::new() };
            Told::of(refusal, &sources).cluster
        };
        for subject in ["cluster green", "Service green:shop/web", "BalancingPolicy green:shop/web"] {
            assert_eq!(cluster(subject).as_deref(), Some("green"), "{subject}");
        }
        for subject in ["Service shop/web", "configuration", "cgroup /sys/fs/cgroup/a:b", "cluster red"] {
            assert_eq!(cluster(subject), None, "{subject}");
        }
    }
}
