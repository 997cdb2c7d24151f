//! Metrics, rendered when asked. kube-proxy's names where dashboards already read them, ours are `beeline_*`.

use crate::health::{Health, Page};
use crate::state::State;
use beeline_model::PortName;
use beeline_model::policy::PolicyKind;
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
            namespace: name.service.namespace().into(),
            service: name.service.name().into(),
            port: name.port.to_string(),
            protocol: name.protocol.to_string(),
        }
    }

    fn backend(&self, address: String) -> BackendLabels {
        let PortLabels { kind, namespace, service, port, protocol } = self.clone();
        BackendLabels { kind, namespace, service, port, protocol, address }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct BackendLabels {
    kind: &'static str,
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
    let (rows, sizes) = (state.tables.rows(), state.settings.sizes);
    for (name, help, used, size) in [
        ("beeline_frontends", "Rows of the frontend table", rows.frontends.len(), sizes.frontends),
        ("beeline_sets", "Rows of the set table", rows.sets.len(), sizes.sets),
        ("beeline_backends", "Rows of the backend table", rows.backends.len(), sizes.backends),
    ] {
        gauge(registry, name, help, used as i64);
        gauge(registry, &format!("{name}_max"), &format!("{help}, at most"), i64::from(size));
    }
    gauge(registry, "beeline_services", "Services known", state.planner.services().count() as i64);
    gauge(registry, "beeline_policies", "Policies known", state.planner.policy_count() as i64);
    let pending = "Services and policies whose last write failed";
    gauge(registry, "beeline_pending_services", pending, state.pending() as i64);
    gauge(registry, "beeline_source_synced", "1 once the source has listed everything", i64::from(state.is_synced()));
    gauge(registry, "beeline_source_error", "1 while the source cannot be read", i64::from(state.has_source_error()));
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
            let labels = format!(r#"{{kind="{kind}",namespace="a",service="web",port="http",protocol="TCP"}} 1"#);
            assert!(text.contains(&format!("beeline_dials_total{labels}")), "{text}");
        }
    }
}
