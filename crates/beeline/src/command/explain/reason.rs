//! The sentences that explain a verdict.

use super::super::services::kind_name;
use crate::live_tables::LiveTables;
use beeline_api::{PendingAddress, ServiceExplanation};
use beeline_model::event::{Action, Reason};
use beeline_model::resolve::{Dial, Verdict};
use beeline_model::row::{FrontendKey, FrontendKind, SET_CLOSED};
use beeline_model::{Address, ServiceName};

/// `affinity`: seconds for which a client keeps its backend; 0 means no session affinity.
pub fn because(verdict: &Verdict, dial: &Dial, affinity: u32) -> String {
    let is_closed = verdict.path.last() == Some(&SET_CLOSED);
    match (verdict.action, verdict.reason) {
        (Action::Resolved, _) if affinity > 0 => {
            format!("one of the backends below, at random; then the client keeps it for {affinity} s (session affinity)")
        }
        (Action::Resolved, _) => "one of the backends below, at random".into(),
        (_, Reason::NoPort) if is_closed => "this is a ClusterIP, and its Service has no such port".into(),
        (_, Reason::SelfDial) => {
            "the client is a pod that the policy selects, and the policy is the last in the order".into()
        }
        (_, Reason::Limited) => "over the policy's limit, and the policy is the last in the order".into(),
        (_, Reason::NoEndpoint) => "the service has no endpoint that is ready, or that still serves while terminating".into(),
        (_, Reason::NoLocal) => {
            "the traffic policy is Local, and the node has no endpoint (--no-local-endpoint-action)".into()
        }
        (_, Reason::SourceDenied) => "the client's address is outside loadBalancerSourceRanges".into(),
        (_, Reason::SourceUnknown) => {
            "the service has loadBalancerSourceRanges, and the client's address is not known at connect(): the dial is left \
             unchanged"
                .into()
        }
        _ if !dial.protocol.has_hook() => format!("{} sockets have no hook: they are not resolved", dial.protocol),
        _ => "no frontend has this address, port and protocol: it is not a service".into(),
    }
}

/// Endpoints are ready, but no path leads to them from this host.
pub fn unreachable(dial: &Dial, explanation: &ServiceExplanation) -> Option<String> {
    let family = dial.address.family().to_string();
    let families = explanation.families.iter().filter(|one| one.family == family);
    let mut endpoints = families.flat_map(|one| &one.endpoints).filter(|endpoint| endpoint.in_cluster_set);
    endpoints.find(|endpoint| endpoint.unreachable).and_then(|endpoint| endpoint.path.clone())
}

/// A ClusterIP, at a port that its Service does not have: the Service and its ports.
pub fn closed_port(tables: &LiveTables, at: &FrontendKey) -> Option<String> {
    let here = |key: &&FrontendKey| key.address == at.address && key.view == at.view && key.protocol.is_some();
    let mut ports: Vec<_> = tables.rows.frontends.keys().filter(here).collect();
    ports.sort();
    let service = ports.iter().find_map(|key| service_at(tables, key))?;
    let all: Vec<String> = ports.iter().filter_map(|key| Some(format!("{}/{}", key.port, key.protocol?))).collect();
    let (namespace, name) = (service.namespace(), service.name());
    Some(format!("this is the ClusterIP of {namespace}/{name}, which has {} and no such port", all.join(", ")))
}

/// The Service behind a frontend, also where a policy takes its dials.
fn service_at(tables: &LiveTables, key: &FrontendKey) -> Option<ServiceName> {
    let row = tables.rows.frontends.get(key)?;
    let names: Vec<_> = tables.chain(row.set).filter_map(|set| tables.port_name(set.owner)).collect();
    let service = names.iter().find(|name| name.service.policy_kind().is_none()).or_else(|| names.first());
    service.map(|name| name.service.clone())
}

pub fn pending(pending: &PendingAddress) -> String {
    let PendingAddress { service, waits_for, .. } = pending;
    format!("this is an address of {service}, which is not programmed yet: it waits for {waits_for}")
}

/// The port is a nodePort, but the address does not serve nodePorts, or not for this client.
pub fn not_a_node_port(tables: &LiveTables, dial: &Dial) -> Option<String> {
    let any = Address::any(dial.address.family());
    let mut frontends = tables.rows.frontends.iter().filter(|(key, row)| {
        row.kind == FrontendKind::NodePort
            && (key.address, key.port, key.protocol) == (any, dial.port, Some(dial.protocol))
    });
    let service = service_at(tables, frontends.next()?.0)?;
    let kind = kind_name(FrontendKind::NodePort);
    let serving = |host: bool| {
        let family = dial.address.family();
        let nodes = tables
            .rows
            .nodes
            .iter()
            .filter(move |(a, node)| a.family() == family && node.own && (host || !node.loopback));
        nodes.map(|(address, _)| address.to_string()).collect::<Vec<_>>().join(", ")
    };
    let is_host_only = tables.rows.nodes.get(&dial.address).is_some_and(|node| node.loopback && !dial.host)
        || dial.address.ip().is_loopback() && !dial.host;
    let why = match is_host_only {
        true => "at loopback addresses it is served only to processes in the host's network namespace".to_owned(),
        false => format!("{} does not serve nodePorts (--nodeport-addresses)", dial.address),
    };
    let serving = serving(dial.host);
    let serving = if serving.is_empty() { "no address".into() } else { serving };
    Some(format!("{}/{} is a {kind} of {service}, but {why}; served at: {serving}", dial.port, dial.protocol))
}

#[cfg(test)]
mod tests {
    use super::*;
    use beeline_api::{EndpointExplanation, FamilyExplanation};
    use beeline_model::Protocol;
    use beeline_model::resolve::resolve;
    use beeline_model::row::Rows;
    use beeline_model::rules::NoLocalEndpointAction;

    fn dial(address: &str) -> Dial {
        Dial::to(Address::from(address.parse::<std::net::IpAddr>().unwrap()), 80, Protocol::Tcp)
    }

    #[test]
    fn affinity_is_mentioned_only_where_there_is_some() {
        let dial = dial("10.96.0.10");
        let verdict =
            Verdict { action: Action::Resolved, ..resolve(&Rows::default(), &dial, NoLocalEndpointAction::Refuse) };
        assert_eq!(because(&verdict, &dial, 0), "one of the backends below, at random");
        assert!(because(&verdict, &dial, 600).contains("keeps it for 600 s (session affinity)"));
    }

    #[test]
    fn endpoints_without_a_path_are_not_called_missing() {
        let lost = "unreachable: no nodePort and pods not routed";
        let endpoint = |in_cluster_set: bool, unreachable: bool| EndpointExplanation {
            address: "10.244.1.2".into(),
            port: 80,
            pod: None,
            node: None,
            conditions: String::new(),
            in_cluster_set,
            in_local_set: false,
            why: String::new(),
            path: unreachable.then(|| lost.to_owned()),
            unreachable,
        };
        let text = |endpoint: EndpointExplanation, address: &str| {
            let family =
                FamilyExplanation { family: "IPv4".into(), topology: String::new(), endpoints: vec![endpoint] };
            let explanation = ServiceExplanation {
                service: String::new(),
                cluster: String::new(),
                notes: Vec::new(),
                internal_policy: String::new(),
                external_policy: String::new(),
                families: vec![family],
            };
            unreachable(&dial(address), &explanation)
        };
        assert_eq!(text(endpoint(true, true), "10.96.0.10").as_deref(), Some(lost));
        assert_eq!(text(endpoint(true, true), "fd00::1"), None, "the other family has no endpoint");
        assert_eq!(text(endpoint(false, true), "10.96.0.10"), None, "not in the set");
        assert_eq!(text(endpoint(true, false), "10.96.0.10"), None, "on a node of the cluster");
    }
}
