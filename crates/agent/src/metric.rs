//! Metrics, rendered when asked. kube-proxy's names where dashboards already read them, ours are `beeline_*`.

use crate::health::{Health, Page};
use crate::state::State;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use std::collections::BTreeMap;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PortLabels {
    namespace: String,
    service: String,
    port: String,
    protocol: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct BackendLabels {
    namespace: String,
    service: String,
    port: String,
    protocol: String,
    address: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OneLabel {
    reason: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Code {
    code: String,
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
    register_ports(&mut registry, state);
    register_stats(&mut registry, state);
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
        let around = state.planner.surroundings();
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
    let status = state.status();
    let (counts, sizes) = (status.counts, status.kernel.sizes);
    for (name, help, used, size) in [
        ("beeline_frontends", "Rows of the frontend table", state.tables.rows().frontends.len(), sizes.frontends),
        ("beeline_sets", "Rows of the set table", counts.sets, sizes.sets),
        ("beeline_backends", "Rows of the backend table", counts.backends, sizes.backends),
    ] {
        gauge(registry, name, help, used as i64);
        gauge(registry, &format!("{name}_max"), &format!("{help}, at most"), i64::from(size));
    }
    gauge(registry, "beeline_services", "Services known", counts.services as i64);
    gauge(registry, "beeline_pending_services", "Services whose last write failed", counts.pending as i64);
    gauge(registry, "beeline_source_synced", "1 once the source has listed everything", i64::from(state.is_synced()));
    gauge(
        registry,
        "beeline_source_error",
        "1 while the source cannot be read",
        i64::from(status.source.error.is_some()),
    );
    let destroyed: Counter = Counter::default();
    destroyed.inc_by(state.destroyed);
    registry.register("beeline_udp_sockets_destroyed", "Connected UDP sockets whose backend went", destroyed);
}

fn register_refusals(registry: &mut Registry, state: &State) {
    let mut by_reason: BTreeMap<&str, i64> = BTreeMap::new();
    let refusals = state.refusals();
    for refusal in &refusals {
        *by_reason.entry(refusal.reason).or_default() += 1;
    }
    let family: Family<OneLabel, Gauge> = Family::default();
    for (reason, count) in by_reason {
        family.get_or_create(&OneLabel { reason: reason.into() }).set(count);
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
        let labels = PortLabels {
            namespace: name.service.namespace().into(),
            service: name.service.name().into(),
            port: name.port.to_string(),
            protocol: name.protocol.to_string(),
        };
        for (family, value) in families.iter().zip(values) {
            family.get_or_create(&labels).inc_by(value);
        }
        labels_of.insert(owner, labels);
    }
    for (id, row) in state.tables.rows().backends.iter() {
        let Some(l) = labels_of.get(&row.owner) else { continue };
        let count = state.count.picks_of(id);
        if count > 0 {
            let address = format!("{}:{}", row.address, row.port);
            let (namespace, service) = (l.namespace.clone(), l.service.clone());
            let (port, protocol) = (l.port.clone(), l.protocol.clone());
            picks.get_or_create(&BackendLabels { namespace, service, port, protocol, address }).inc_by(count);
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
