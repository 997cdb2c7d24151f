//! An explanation as lines and tables for people.

use super::{DialExplanation, SetStep};
use crate::print::{self, or_dash, plural};
use beeline_api::{EndpointExplanation, ServiceExplanation};
use beeline_model::event::Action;
use beeline_model::name::LOCAL_CLUSTER;
use beeline_model::policy::Limit;
use beeline_model::row::Rule;

pub fn explanation(e: &DialExplanation) -> String {
    let mut lines = vec![("dialled", e.dialled.clone()), ("verdict", format!("{}: {}", verdict(e), e.because))];
    lines.extend(e.from.clone().map(|from| ("from", from)));
    lines.extend(e.packet.clone().map(|packet| ("packet", packet)));
    lines.extend(e.view.clone().map(|view| ("view", view)));
    lines.extend(e.cluster.clone().filter(|name| name != LOCAL_CLUSTER).map(|cluster| ("cluster", cluster)));
    if let (Some(frontend), Some(kind)) = (&e.frontend, e.kind) {
        lines.push(("frontend", format!("{frontend}, {kind}")));
    }
    lines.extend(e.service.clone().map(|service| ("service", service)));
    if let Some(set) = &e.set {
        let affinity = e.affinity_seconds;
        let affinity = if affinity > 0 { format!("; session affinity {affinity} s") } else { String::new() };
        lines.push(("set", format!("{set}, {}{affinity}", plural(e.backends.len(), "backend"))));
    }
    let backend = |backend: &String| ("", format!("-> {}", with_pod(backend, e.endpoints.as_ref())));
    lines.extend(e.backends.iter().map(backend));
    let mut text = print::fields(10, &lines);
    text.push_str(&order(e));
    match (&e.endpoints, &e.service) {
        (Some(explanation), _) => text.push_str(&endpoints(explanation)),
        (None, Some(_)) if e.rule == Some(Rule::Service) => {
            text.push_str("\nno agent answers: why each endpoint is used or not is not known\n")
        }
        _ => {}
    }
    text
}

fn verdict(e: &DialExplanation) -> &'static str {
    match e.verdict {
        Action::Resolved => "resolved",
        Action::Refused => "refused (ECONNREFUSED)",
        Action::Untouched => "untouched",
    }
}

/// `10.244.1.2:8080 (default/web-1)`, where the pod is known.
fn with_pod(backend: &str, explanation: Option<&ServiceExplanation>) -> String {
    let mut endpoints = explanation.into_iter().flat_map(|e| &e.families).flat_map(|family| &family.endpoints);
    let pod = endpoints.find(|endpoint| socket_address(endpoint) == backend).and_then(|endpoint| endpoint.pod.as_ref());
    pod.map_or_else(|| backend.to_owned(), |pod| format!("{backend} ({pod})"))
}

/// The order is printed only if it contains a policy.
fn order(e: &DialExplanation) -> String {
    let mut text = String::new();
    if e.order.iter().any(|step| step.rule != Rule::Service) {
        let row = |step: &SetStep| {
            let left = step.tokens.map_or_else(String::new, |tokens| format!(", {tokens} left"));
            let limit = |limit: &Limit| format!("{}/s, burst {}{left}", limit.connects_per_second, limit.burst);
            let limit = or_dash(step.limit.as_ref().map(limit));
            vec![step.owner.clone(), step.backends.to_string(), limit, step.outcome.clone()]
        };
        let rows: Vec<Vec<String>> = e.order.iter().map(row).collect();
        text = format!("\n{}", print::table(&["ORDER", "BACKENDS", "LIMIT", "OUTCOME"], &rows));
    }
    let skipped = e.skipped_policies.iter().map(|skipped| ("skipped", format!("{}: {}", skipped.policy, skipped.why)));
    text.push_str(&print::fields(10, &skipped.collect::<Vec<_>>()));
    text
}

fn endpoints(explanation: &ServiceExplanation) -> String {
    let ServiceExplanation { internal_policy, external_policy, .. } = explanation;
    let mut text = format!(
        "\ntraffic policies: internalTrafficPolicy {internal_policy}, externalTrafficPolicy {external_policy}\n"
    );
    let notes = explanation.notes.iter().map(|note| ("note:", note.clone()));
    text.push_str(&print::fields(5, &notes.collect::<Vec<_>>()));
    for family in &explanation.families {
        let topology = print::escape(&family.topology);
        text.push_str(&format!("\n{} endpoints; topology: {topology}\n", family.family));
        let rows: Vec<Vec<String>> = family.endpoints.iter().map(endpoint_row).collect();
        let header = ["ENDPOINT", "POD", "NODE", "CONDITIONS", "SETS", "WHY"];
        text.push_str(&print::table(&header, &rows));
    }
    text
}

fn endpoint_row(endpoint: &EndpointExplanation) -> Vec<String> {
    let sets = match (endpoint.in_cluster_set, endpoint.in_local_set) {
        (true, true) => "cluster,local",
        (true, false) => "cluster",
        (false, true) => "local",
        (false, false) => "-",
    };
    let why = endpoint.path.as_ref().map_or_else(|| endpoint.why.clone(), |path| format!("{}; {path}", endpoint.why));
    let (pod, node) = (or_dash(endpoint.pod.as_ref()), or_dash(endpoint.node.as_ref()));
    vec![socket_address(endpoint), pod, node, endpoint.conditions.clone(), sets.into(), why]
}

fn socket_address(endpoint: &EndpointExplanation) -> String {
    let EndpointExplanation { address, port, .. } = endpoint;
    if address.contains(':') { format!("[{address}]:{port}") } else { format!("{address}:{port}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use beeline_api::FamilyExplanation;

    fn resolved() -> DialExplanation {
        let endpoint = EndpointExplanation {
            address: "10.244.1.2".into(),
            port: 8080,
            pod: Some("default/web-1".into()),
            node: Some("n1".into()),
            conditions: "ready".into(),
            in_cluster_set: true,
            in_local_set: false,
            why: "in the cluster set".into(),
            path: None,
            unreachable: false,
        };
        let family =
            FamilyExplanation { family: "IPv4".into(), topology: "all endpoints".into(), endpoints: vec![endpoint] };
        let explanation = ServiceExplanation {
            service: "default/web".into(),
            cluster: LOCAL_CLUSTER.into(),
            notes: Vec::new(),
            internal_policy: "Cluster".into(),
            external_policy: "Local".into(),
            families: vec![family],
        };
        DialExplanation {
            verdict: Action::Resolved,
            set: Some("cluster".into()),
            backends: vec!["10.244.1.2:8080".into()],
            endpoints: Some(explanation),
            ..DialExplanation::untouched("10.96.0.10:80/TCP", None, "one of the backends below, at random".into())
        }
    }

    #[test]
    fn backends_and_endpoints_have_their_pods_and_one_backend_is_singular() {
        let text = explanation(&resolved());
        assert!(text.contains("set        cluster, 1 backend\n"), "{text}");
        assert!(text.contains("-> 10.244.1.2:8080 (default/web-1)\n"), "{text}");
        assert!(text.contains("10.244.1.2:8080  default/web-1  n1"), "{text}");
        assert!(text.contains("internalTrafficPolicy Cluster, externalTrafficPolicy Local"), "{text}");
        assert!(!text.contains("affinity"), "{text}");
    }

    #[test]
    fn session_affinity_is_named_where_there_is_some() {
        let text = explanation(&DialExplanation { affinity_seconds: 600, ..resolved() });
        assert!(text.contains("session affinity 600 s"), "{text}");
    }
}
