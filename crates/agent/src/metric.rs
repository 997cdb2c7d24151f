//! The agent's metrics, rendered on request. Metrics that kube-proxy has, too, use its names; the others start with
//! `beeline_`.

mod port;

use crate::agent::Agent;
use crate::health::{Health, HealthEndpoint};
use crate::source::ClusterSource;
use beeline_datapath::counter::STATS;
use beeline_metrics::MetricsFormat;
use beeline_model::Family as AddressFamily;
use beeline_model::ServiceName;
use beeline_model::object::{Service, TrafficPolicy};
use beeline_model::plan::candidates;
use beeline_model::reach::Reachability;
use beeline_model::select::select;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ClusterLabel {
    cluster: String,
}

impl ClusterLabel {
    fn new(cluster: &str) -> ClusterLabel {
        ClusterLabel { cluster: cluster.to_owned() }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReachLabels {
    cluster: String,
    found: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CodeLabel {
    code: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct QueryLabels {
    r#type: String,
    result: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TrafficPolicyLabel {
    traffic_policy: &'static str,
}

pub fn render(agent: &Agent, health: &Health, format: MetricsFormat) -> String {
    let mut registry = beeline_metrics::registry(agent.settings.commit);
    agent.reconciler.metrics.register(&mut registry);
    register_no_local_endpoints(&mut registry, agent);
    register_health(&mut registry, health);
    register_tables(&mut registry, agent);
    register_clusters(&mut registry, agent);
    register_reach(&mut registry, agent);
    register_refusals(&mut registry, agent);
    register_tokens(&mut registry, agent);
    register_events(&mut registry, agent);
    port::register(&mut registry, &agent.reconciler.tables, &agent.counters);
    register_shares(&mut registry, agent);
    register_stats(&mut registry, agent);
    register_redirects(&mut registry, agent);
    register_packet_path(&mut registry, agent);
    register_dns(&mut registry, agent);
    format.render(&registry)
}

fn gauge(registry: &mut Registry, name: &str, help: &str, value: i64) {
    let gauge: Gauge = Gauge::default();
    gauge.set(value);
    registry.register(name, help, gauge);
}

fn counter(registry: &mut Registry, name: &str, help: &str, value: u64) {
    let counter: Counter = Counter::default();
    counter.inc_by(value);
    registry.register(name, help, counter);
}

/// Registers a gauge with one series per configured cluster, 0 included. `clusters` has one element per counted object.
fn count_by_cluster<'a>(
    registry: &mut Registry,
    agent: &Agent,
    name: &str,
    help: &str,
    clusters: impl Iterator<Item = &'a str>,
) {
    let mut counts: BTreeMap<&str, i64> = agent.sources.names().map(|name| (&**name, 0)).collect();
    clusters.for_each(|cluster| *counts.entry(cluster).or_default() += 1);
    let family: Family<ClusterLabel, Gauge> = Family::default();
    for (cluster, count) in counts {
        family.get_or_create(&ClusterLabel::new(cluster)).set(count);
    }
    registry.register(name, help, family);
}

/// Dashboards read kube-proxy's name, a gauge with the suffix `_total`. Prometheus reserves this suffix for counters, so the
/// plain text format exports it without a type.
fn register_no_local_endpoints(registry: &mut Registry, agent: &Agent) {
    let count = |is_local: fn(&Service) -> bool| {
        let local = agent.reconciler.planner.services().filter(|service| is_local(service));
        local.filter(|service| !has_local_endpoint(agent, &service.name)).count() as i64
    };
    let family: Family<TrafficPolicyLabel, Gauge> = Family::default();
    let internal = count(|service| service.internal == TrafficPolicy::Local);
    for (traffic_policy, count) in [("internal", internal), ("external", count(Service::external_local))] {
        family.get_or_create(&TrafficPolicyLabel { traffic_policy }).set(count);
    }
    let help = "Services with a traffic policy Local that have no endpoint on this node";
    registry.register("kubeproxy_sync_proxy_rules_no_local_endpoints_total", help, family);
}

fn has_local_endpoint(agent: &Agent, name: &ServiceName) -> bool {
    let planner = &agent.reconciler.planner;
    let (Some(context), Some(service)) = (planner.plan_context(name.cluster()), planner.service(name)) else {
        return true;
    };
    let mut ports = service.ports.iter().flat_map(|port| AddressFamily::BOTH.map(|family| (port, family)));
    ports.any(|(port, family)| {
        let found = candidates(port, family, planner.slices_of(name), &context);
        !select(found, &context.location).local.is_empty()
    })
}

fn register_health(registry: &mut Registry, health: &Health) {
    for (name, endpoint) in [("healthz", HealthEndpoint::Healthz), ("livez", HealthEndpoint::Livez)] {
        let family: Family<CodeLabel, Counter> = Family::default();
        for (code, count) in health.responses(endpoint) {
            family.get_or_create(&CodeLabel { code: code.to_string() }).inc_by(count);
        }
        let help = format!("Responses of /{name}, by HTTP status code");
        registry.register(format!("kubeproxy_proxy_{name}"), help, family);
    }
}

fn register_tables(registry: &mut Registry, agent: &Agent) {
    let (counts, sizes) = (agent.object_counts(), agent.settings.kernel.sizes);
    let help = "Addresses, ports and protocols that can be dialled";
    gauge(registry, "beeline_frontends", help, counts.frontends as i64);
    for (name, table, used, size) in [
        ("beeline_frontend_rows", "frontend", counts.frontend_rows, sizes.frontends),
        ("beeline_sets", "set", counts.sets, sizes.sets),
        ("beeline_backends", "backend", counts.backends, sizes.backends),
    ] {
        gauge(registry, name, &format!("Rows in use of the {table} table"), used as i64);
        let help = format!("Maximum number of rows of the {table} table");
        gauge(registry, &format!("{name}_max"), &help, i64::from(size));
    }
    let help = "Connected UDP sockets that were destroyed because their backend was removed";
    counter(registry, "beeline_udp_sockets_destroyed", help, counts.udp_sockets_destroyed);
}

fn register_clusters(registry: &mut Registry, agent: &Agent) {
    let planner = &agent.reconciler.planner;
    let services = planner.services().map(|service| service.name.cluster());
    count_by_cluster(registry, agent, "beeline_services", "Services that were read from the cluster", services);
    count_by_cluster(
        registry,
        agent,
        "beeline_policies",
        "Policies that were read from the cluster",
        planner.policy_clusters(),
    );
    let pending = agent.reconciler.retries.services().map(ServiceName::cluster);
    let help = "Services and policies whose last write to the kernel failed";
    count_by_cluster(registry, agent, "beeline_pending_services", help, pending);
    type Value = fn(&ClusterSource) -> i64;
    let all: [(&str, &str, Value); 3] = [
        (
            "beeline_source_synced",
            "1 once the cluster's objects were listed or loaded from a snapshot, else 0",
            |source| source.readiness.is_synced().into(),
        ),
        ("beeline_source_error", "1 while the cluster cannot be read, else 0", |source| source.error.is_some().into()),
        ("beeline_source_refused", "Objects of the cluster that are refused when they are read", |source| {
            source.refusals.len() as i64
        }),
    ];
    for (name, help, value) in all {
        let family: Family<ClusterLabel, Gauge> = Family::default();
        for source in agent.sources.iter() {
            family.get_or_create(&ClusterLabel::new(&source.rules.name)).set(value(source));
        }
        registry.register(name, help, family);
    }
    register_snapshots(registry, agent);
}

fn register_snapshots(registry: &mut Registry, agent: &Agent) {
    let (ages, bytes): (Family<ClusterLabel, Gauge>, Family<ClusterLabel, Counter>) = Default::default();
    for name in agent.sources.names() {
        let age = agent.shared.snapshots.as_ref().and_then(|snapshots| snapshots.status(name)?.age_seconds);
        if let Some(age) = age {
            ages.get_or_create(&ClusterLabel::new(name)).set(i64::try_from(age).unwrap_or(i64::MAX));
        }
        if let Some(read) = agent.shared.traffic.bytes(name) {
            bytes.get_or_create(&ClusterLabel::new(name)).inc_by(read);
        }
    }
    registry.register("beeline_snapshot_age_seconds", "Age of the snapshot on disk, in seconds", ages);
    registry.register("beeline_edge_cache_bytes", "Bytes read from the edge cache", bytes);
}

fn register_reach(registry: &mut Registry, agent: &Agent) {
    let groups: Family<ReachLabels, Gauge> = Family::default();
    for finding in agent.reach.findings() {
        let found = match finding.found {
            Reachability::Direct => "direct",
            Reachability::Node => "node",
            Reachability::Unknown => "unknown",
        };
        groups.get_or_create(&ReachLabels { cluster: finding.group.cluster.to_string(), found }).inc();
    }
    registry.register("beeline_reach_groups", "Groups of pods, by how this host reaches them", groups);
}

fn register_refusals(registry: &mut Registry, agent: &Agent) {
    let family: Family<Vec<(&'static str, String)>, Gauge> = Family::default();
    for refusal in agent.refusals() {
        let cluster = refusal.cluster.map(|cluster| ("cluster", cluster));
        family.get_or_create(&[("reason", refusal.reason)].into_iter().chain(cluster).collect()).inc();
    }
    registry.register("beeline_refused_objects", "Objects, or parts of objects, that are not served", family);
}

fn register_tokens(registry: &mut Registry, agent: &Agent) {
    let family: Family<ClusterLabel, Gauge> = Family::default();
    let expiry_times = agent.shared.tokens.expiry_times();
    for (cluster, expiry) in &expiry_times {
        family.get_or_create(&ClusterLabel::new(cluster)).set(*expiry);
    }
    if !expiry_times.is_empty() {
        let help = "Unix time at which this host's token for the cluster expires, in seconds";
        registry.register("beeline_token_expiry_timestamp_seconds", help, family);
    }
}

fn register_events(registry: &mut Registry, agent: &Agent) {
    let help = "Events that were not delivered because the agent or a monitor was too slow";
    let dropped = agent.shared.dropped_events.load(Ordering::Relaxed);
    counter(registry, "beeline_event_dropped", help, dropped);
}

fn register_stats(registry: &mut Registry, agent: &Agent) {
    for (name, value) in agent.counters.stats().unwrap_or_default() {
        let help = STATS.iter().find(|(stat, ..)| *stat == name).map_or("", |(_, _, help)| *help);
        let help: String = help.chars().take(1).flat_map(char::to_uppercase).chain(help.chars().skip(1)).collect();
        counter(registry, &format!("beeline_{name}"), &help, value);
    }
}

fn register_shares(registry: &mut Registry, agent: &Agent) {
    let Ok(shares) = agent.reconciler.program.shares() else { return };
    let usage = shares.usage();
    let help = "Memory of socket records in the kernel, in bytes";
    gauge(registry, "beeline_socket_record_bytes", help, usage.record_bytes as i64);
    let help = "Memory of socket records that counts against --max-record-memory: what each pod uses above its reserve";
    gauge(registry, "beeline_socket_record_limited_bytes", help, shares.record_bytes_above_reserves() as i64);
    let help = "The limit of beeline_socket_record_limited_bytes (--max-record-memory); 0 means no limit";
    gauge(registry, "beeline_socket_record_limit_bytes", help, agent.settings.kernel.record_limit as i64);
    gauge(registry, "beeline_affinity_rows", "Clients with session affinity", usage.affinity_rows as i64);
}

fn register_redirects(registry: &mut Registry, agent: &Agent) {
    let (suspended, counts) = (agent.redirects.health.suspended().len(), agent.redirects.health.counts());
    let help = "Backends of LocalRedirectPolicies that are not used now because they refuse connections";
    gauge(registry, "beeline_redirect_suspended", help, suspended as i64);
    let help = "Backends of LocalRedirectPolicies that refused connections and were suspended";
    counter(registry, "beeline_redirect_suspensions", help, counts.suspensions);
    let help = "Refused dials to a backend of a LocalRedirectPolicy that the agent itself could not confirm";
    counter(registry, "beeline_redirect_false_alarms", help, counts.false_alarms);
}

fn register_packet_path(registry: &mut Registry, agent: &Agent) {
    if agent.settings.packet_path.is_none() {
        return;
    }
    let state = agent.packet_state.get();
    let devices = state.attachment.as_ref().map_or(0, |attachment| attachment.devices.len());
    let help = "1 while packets from outside are served, else 0";
    gauge(registry, "beeline_packet_path_serving", help, state.is_serving().into());
    gauge(registry, "beeline_packet_devices", "Network devices with the packet program", devices as i64);
    let help = "How often the nftables table was removed or changed by another program and created again";
    counter(registry, "beeline_packet_table_repairs", help, state.table_repairs);
}

fn register_dns(registry: &mut Registry, agent: &Agent) {
    let Some(dns) = agent.dns() else { return };
    let family: Family<QueryLabels, Counter> = Family::default();
    for (kind, result, count) in dns.query_counts() {
        let labels = QueryLabels { r#type: kind.into(), result: result.into() };
        family.get_or_create(&labels).inc_by(count);
    }
    registry.register("beeline_dns_queries", "DNS queries, by record type and result", family);
    gauge(registry, "beeline_dns_services", "Services whose names are answered", dns.services() as i64);
}
