//! Metrics, rendered when asked. kube-proxy's names where dashboards already read them, ours are `beeline_*`.

use crate::health::{Health, Page};
use crate::source::Source;
use crate::state::State;
use beeline_model::policy::PolicyKind;
use beeline_model::reach::Found;
use beeline_model::{OwnerName, PortName};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use std::collections::BTreeMap;

/// Of a Service's port, or of a policy's, whose name is the label `service` then.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PortLabels {
    kind: &'static str,
    cluster: String,
    namespace: String,
    service: String,
    port: String,
    protocol: String,
}

impl PortLabels {
    fn of(name: &PortName) -> PortLabels {
        PortLabels {
            kind: match name.service.policy_kind() {
                None => "service",
                Some(PolicyKind::LocalRedirect) => "localRedirect",
                Some(PolicyKind::Balancing) => "balancing",
            },
            cluster: name.service.cluster().into(),
            namespace: name.service.namespace().into(),
            service: name.service.name().into(),
            port: name.port.to_string(),
            protocol: name.protocol.to_string(),
        }
    }

    fn backend(&self, address: String) -> BackendLabels {
        let PortLabels { kind, cluster, namespace, service, port, protocol } = self.clone();
        BackendLabels { kind, cluster, namespace, service, port, protocol, address }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct BackendLabels {
    kind: &'static str,
    cluster: String,
    namespace: String,
    service: String,
    port: String,
    protocol: String,
    address: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ClusterLabel {
    cluster: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReachLabels {
    cluster: String,
    found: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Code {
    code: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Question {
    r#type: String,
    result: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TrafficPolicy {
    traffic_policy: String,
}

pub fn render(state: &mut State, health: &Health) -> String {
    let mut registry = Registry::default();
    register_kube_proxy(&mut registry, state);
    register_health(&mut registry, health);
    register_tables(&mut registry, state);
    register_refusals(&mut registry, state);
    register_tokens(&mut registry, state);
    register_ports(&mut registry, state);
    register_stats(&mut registry, state);
    register_names(&mut registry, state);
    let mut text = String::new();
    match encode(&mut text, &registry) {
        Ok(()) => text,
        Err(error) => format!("# cannot render: {error}\n"),
    }
}

fn gauge(registry: &mut Registry, name: &str, help: &str, value: i64) {
    let gauge: Gauge = Gauge::default();
    gauge.set(value);
    registry.register(name, help, gauge);
}

/// How many there are of each cluster; those of which there are none say so.
fn by_cluster<'a>(
    registry: &mut Registry,
    state: &State,
    name: &str,
    help: &str,
    clusters: impl Iterator<Item = &'a str>,
) {
    let family: Family<ClusterLabel, Gauge> = Family::default();
    for source in state.sources() {
        family.get_or_create(&ClusterLabel { cluster: source.rules.name.to_string() }).set(0);
    }
    let mut counts: BTreeMap<&str, i64> = BTreeMap::new();
    clusters.for_each(|cluster| *counts.entry(cluster).or_default() += 1);
    for (cluster, count) in counts {
        family.get_or_create(&ClusterLabel { cluster: cluster.to_owned() }).set(count);
    }
    registry.register(name, help, family);
}

fn register_kube_proxy(registry: &mut Registry, state: &State) {
    state.changes.register(registry);
    let no_local: Family<TrafficPolicy, Gauge> = Family::default();
    let (internal, external) = no_local_services(state);
    for (policy, count) in [("internal", internal), ("external", external)] {
        no_local.get_or_create(&TrafficPolicy { traffic_policy: policy.into() }).set(count);
    }
    let help = "Services with a Local policy and no local endpoint";
    registry.register("kubeproxy_sync_proxy_rules_no_local_endpoints_total", help, no_local);
}

fn register_health(registry: &mut Registry, health: &Health) {
    for (name, page) in [("healthz", Page::Healthz), ("livez", Page::Livez)] {
        let family: Family<Code, Counter> = Family::default();
        for (code, count) in health.answers(page) {
            family.get_or_create(&Code { code: code.to_string() }).inc_by(count);
        }
        registry.register(format!("kubeproxy_proxy_{name}"), format!("Answers of /{name}"), family);
    }
}

/// Services whose Local policy leaves them without an endpoint here, though others exist.
fn no_local_services(state: &State) -> (i64, i64) {
    use beeline_model::fact::Policy;
    let empty = |name: &beeline_model::OwnerName| {
        let around = state.planner.surroundings(name.cluster())?;
        let service = state.planner.service(name)?;
        let mut none = true;
        for port in &service.ports {
            for family in beeline_model::Family::BOTH {
                let found = beeline_model::plan::candidates(port, family, state.planner.slices_of(name), &around);
                none &= beeline_model::select::select(found, &around.place).local.is_empty();
            }
        }
        Some(none)
    };
    let with = |local: fn(&beeline_model::fact::Service) -> bool| {
        state.planner.services().filter(|s| local(s)).filter(|s| empty(&s.name) == Some(true)).count() as i64
    };
    (with(|s| s.internal == Policy::Local), with(beeline_model::fact::Service::external_local))
}

fn register_tables(registry: &mut Registry, state: &State) {
    let (rows, sizes) = (state.tables.rows(), state.settings.sizes);
    for (name, help, used, size) in [
        ("beeline_frontends", "Rows of the frontend table", rows.frontends.len(), sizes.frontends),
        ("beeline_sets", "Rows of the set table", rows.sets.len(), sizes.sets),
        ("beeline_backends", "Rows of the backend table", rows.backends.len(), sizes.backends),
    ] {
        gauge(registry, name, help, used as i64);
        gauge(registry, &format!("{name}_max"), &format!("{help}, at most"), i64::from(size));
    }
    let services = state.planner.services().map(|service| service.name.cluster());
    by_cluster(registry, state, "beeline_services", "Services known", services);
    by_cluster(registry, state, "beeline_policies", "Policies known", state.planner.policy_clusters());
    let pending = "Services and policies whose last write failed";
    by_cluster(registry, state, "beeline_pending_services", pending, state.pending().map(OwnerName::cluster));
    register_sources(registry, state);
    let destroyed: Counter = Counter::default();
    destroyed.inc_by(state.destroyed);
    registry.register("beeline_udp_sockets_destroyed", "Connected UDP sockets whose backend went", destroyed);
    let dropped: Counter = Counter::default();
    dropped.inc_by(state.dropped_events.load(std::sync::atomic::Ordering::Relaxed));
    registry.register(
        "beeline_event_dropped",
        "Events that came faster than the agent or a monitor took them",
        dropped,
    );
}

fn register_tokens(registry: &mut Registry, state: &State) {
    let family: Family<ClusterLabel, Gauge> = Family::default();
    let ends = state.tokens.ends();
    for (cluster, end) in &ends {
        family.get_or_create(&ClusterLabel { cluster: cluster.clone() }).set(*end);
    }
    if !ends.is_empty() {
        registry.register("beeline_token_expires_seconds", "When this host's token ends, since 1970", family);
    }
}

fn register_sources(registry: &mut Registry, state: &State) {
    type Says = fn(&Source) -> i64;
    let all: [(&str, &str, Says); 3] = [
        ("beeline_source_synced", "1 once the source has listed everything", |source| source.synced.into()),
        ("beeline_source_error", "1 while the source cannot be read", |source| source.error.is_some().into()),
        ("beeline_source_refused", "What is refused of the source", |source| source.refusals.len() as i64),
    ];
    register_memory(registry, state);
    for (name, help, says) in all {
        let family: Family<ClusterLabel, Gauge> = Family::default();
        for source in state.sources() {
            family.get_or_create(&ClusterLabel { cluster: source.rules.name.to_string() }).set(says(source));
        }
        registry.register(name, help, family);
    }
}

fn register_memory(registry: &mut Registry, state: &State) {
    let (ages, bytes): (Family<ClusterLabel, Gauge>, Family<ClusterLabel, Counter>) = Default::default();
    for name in state.sources().map(|source| &source.rules.name) {
        let label = ClusterLabel { cluster: name.to_string() };
        let age = state.archive.as_ref().and_then(|archive| archive.report(name)?.age_seconds);
        if let Some(age) = age {
            ages.get_or_create(&label).set(i64::try_from(age).unwrap_or(i64::MAX));
        }
        if let Some(read) = state.meters.bytes(name) {
            bytes.get_or_create(&label).inc_by(read);
        }
    }
    registry.register("beeline_snapshot_age_seconds", "Since the facts on disk were good", ages);
    registry.register("beeline_edge_cache_bytes", "Read from the edge cache", bytes);
    let groups: Family<ReachLabels, Gauge> = Family::default();
    for finding in &state.findings {
        let found = match finding.found {
            Found::Direct => "direct",
            Found::Node => "node",
            Found::Unknown => "unknown",
        };
        groups.get_or_create(&ReachLabels { cluster: finding.group.cluster.to_string(), found }).inc();
    }
    registry.register("beeline_reach_groups", "Groups of pods, by how they are reached", groups);
}

fn register_refusals(registry: &mut Registry, state: &State) {
    let family: Family<Vec<(&'static str, String)>, Gauge> = Family::default();
    for told in state.refusals() {
        let cluster = told.cluster.map(|cluster| ("cluster", cluster));
        family.get_or_create(&[("reason", told.refusal.reason.to_owned())].into_iter().chain(cluster).collect()).inc();
    }
    registry.register("beeline_refused_objects", "Objects, or parts of them, that are not served", family);
}

fn register_ports(registry: &mut Registry, state: &State) {
    let names = [
        "dials",
        "dials_refused",
        "dials_no_local",
        "affinity_hits",
        "picks_raced",
        "dials_source_denied",
        "dials_limited",
    ];
    let families: Vec<Family<PortLabels, Counter>> = names.iter().map(|_| Family::default()).collect();
    let picks: Family<BackendLabels, Counter> = Family::default();
    let mut labels_of = BTreeMap::new();
    // A hundred thousand services that nobody dials are not worth a scrape.
    let counted = state.count.of_all().unwrap_or_default();
    let named = state.tables.port_names().filter_map(|(name, owner)| Some((name, owner, counted.get(&owner)?)));
    for (name, owner, c) in named {
        let values = [c.dials, c.refused, c.no_local, c.affinity_hits, c.raced, c.source_denied, c.limited];
        let labels = PortLabels::of(name);
        for (family, value) in families.iter().zip(values) {
            family.get_or_create(&labels).inc_by(value);
        }
        labels_of.insert(owner, labels);
    }
    for (id, row) in state.tables.rows().backends.iter() {
        let Some(l) = labels_of.get(&row.owner) else { continue };
        let count = state.count.picks_of(id);
        if count > 0 {
            picks.get_or_create(&l.backend(format!("{}:{}", row.address, row.port))).inc_by(count);
        }
    }
    for (name, family) in names.iter().zip(families) {
        registry.register(format!("beeline_{name}"), "Per service port", family);
    }
    registry.register("beeline_picks", "Dials answered with this backend", picks);
}

fn register_stats(registry: &mut Registry, state: &State) {
    for (name, value) in state.count.stats().unwrap_or_default() {
        let counter: Counter = Counter::default();
        counter.inc_by(value);
        let help = beeline_datapath::count::STATS.iter().find(|(n, ..)| *n == name).map_or("", |(_, _, help)| *help);
        registry.register(format!("beeline_{name}"), help, counter);
    }
}

fn register_names(registry: &mut Registry, state: &State) {
    let Some(names) = state.names() else { return };
    let family: Family<Question, Counter> = Family::default();
    for (kind, outcome, count) in names.counts.all() {
        let labels = Question { r#type: kind.into(), result: outcome.word().into() };
        family.get_or_create(&labels).inc_by(count);
    }
    registry.register("beeline_dns_queries", "Names asked for, by type and what came of it", family);
    gauge(registry, "beeline_dns_services", "Services whose names are answered", names.services() as i64);
}

#[cfg(test)]
mod tests {
    use super::*;
    use beeline_model::Protocol;
    use beeline_model::name::OwnerName;
    use beeline_model::policy::PolicyName;

    #[test]
    fn a_policy_and_a_service_of_one_name_are_two_series() {
        let policy = |kind| PolicyName { kind, cluster: "local".into(), namespace: "a".into(), name: "web".into() };
        let owners = [
            OwnerName::local("a", "web"),
            OwnerName::of_policy(&policy(PolicyKind::LocalRedirect)),
            OwnerName::of_policy(&policy(PolicyKind::Balancing)),
        ];
        let family: Family<PortLabels, Counter> = Family::default();
        for service in owners {
            let name = PortName::new(service, "http".into(), Protocol::Tcp);
            family.get_or_create(&PortLabels::of(&name)).inc();
        }
        let (mut registry, mut text) = (Registry::default(), String::new());
        registry.register("beeline_dials", "Per service port", family);
        encode(&mut text, &registry).unwrap();
        for kind in ["service", "localRedirect", "balancing"] {
            let labels = format!(
                r#"{{kind="{kind}",cluster="local",namespace="a",service="web",port="http",protocol="TCP"}} 1"#
            );
            assert!(text.contains(&format!("beeline_dials_total{labels}")), "{text}");
        }
    }
}
