//! Metrics per service port and per backend, from the counters in the kernel.

use beeline_datapath::counter::{CounterMaps, Counters};
use beeline_model::PortName;
use beeline_model::policy::PolicyKind;
use beeline_model::table::Tables;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use std::collections::BTreeMap;

/// For a policy's port, `service` is the name of the policy.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PortLabels {
    kind: &'static str,
    cluster: String,
    namespace: String,
    service: String,
    port: String,
    protocol: String,
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

type Value = fn(&Counters) -> u64;

const METRICS: [(&str, &str, Value); 7] = [
    ("beeline_dials", "Dials of the service port that got a backend", |c| c.dials),
    ("beeline_dials_refused", "Dials that were refused because the service port has no backend", |c| c.refused),
    ("beeline_dials_no_local", "Dials without an endpoint on the node that a Local policy requires", |c| c.no_local),
    ("beeline_affinity_hits", "Dials that session affinity sent to the same backend as before", |c| c.affinity_hits),
    ("beeline_picks_raced", "Picks of a backend that were repeated because they raced with a change", |c| c.raced),
    ("beeline_dials_source_denied", "Dials from outside of loadBalancerSourceRanges", |c| c.source_denied),
    ("beeline_dials_limited", "Dials over the connection limit of a policy", |c| c.limited),
];

/// Service ports without a dial have no series: with 100,000 Services most have none.
pub fn register(registry: &mut Registry, tables: &Tables, counters: &CounterMaps) {
    let families: Vec<Family<PortLabels, Counter>> = METRICS.iter().map(|_| Family::default()).collect();
    let counted = counters.by_owner().unwrap_or_default();
    let mut labels_of = BTreeMap::new();
    for (name, owner) in tables.port_names() {
        let Some(values) = counted.get(&owner) else { continue };
        let labels = PortLabels::of(name);
        for (family, (_, _, value)) in families.iter().zip(METRICS) {
            family.get_or_create(&labels).inc_by(value(values));
        }
        labels_of.insert(owner, labels);
    }
    for ((name, help, _), family) in METRICS.into_iter().zip(families) {
        registry.register(name, help, family);
    }
    let picks: Family<BackendLabels, Counter> = Family::default();
    for (id, row) in tables.rows().backends.iter() {
        let Some(labels) = labels_of.get(&row.owner) else { continue };
        let count = counters.picks_of(id);
        if count > 0 {
            picks.get_or_create(&labels.backend(format!("{}:{}", row.address, row.port))).inc_by(count);
        }
    }
    registry.register("beeline_picks", "Dials that were sent to this backend", picks);
}

#[cfg(test)]
mod tests {
    use super::*;
    use beeline_model::policy::PolicyName;
    use beeline_model::{Protocol, ServiceName};
    use prometheus_client::encoding::text::encode;

    #[test]
    fn a_policy_and_a_service_of_one_name_are_two_series() {
        let policy = |kind| PolicyName { kind, cluster: "local".into(), namespace: "a".into(), name: "web".into() };
        let owners = [
            ServiceName::local("a", "web"),
            ServiceName::of_policy(&policy(PolicyKind::LocalRedirect)),
            ServiceName::of_policy(&policy(PolicyKind::Balancing)),
        ];
        let family: Family<PortLabels, Counter> = Family::default();
        for service in owners {
            let name = PortName::new(service, "http".into(), Protocol::Tcp);
            family.get_or_create(&PortLabels::of(&name)).inc();
        }
        let (mut registry, mut text) = (Registry::default(), String::new());
        registry.register("beeline_dials", "Dials of the service port", family);
        encode(&mut text, &registry).unwrap();
        for kind in ["service", "localRedirect", "balancing"] {
            let labels = format!(
                r#"{{kind="{kind}",cluster="local",namespace="a",service="web",port="http",protocol="TCP"}} 1"#
            );
            assert!(text.contains(&format!("beeline_dials_total{labels}")), "{text}");
        }
    }
}
