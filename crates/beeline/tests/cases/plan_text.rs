//! The text of `plan.txt`: frontends, nodes, verdicts, refusals and policies.

use super::*;

pub fn describe_refusals(refusals: &[Refusal]) -> Vec<String> {
    let mut lines: Vec<String> =
        refusals.iter().map(|r| format!("refused {} {}: {}\n", r.subject, r.reason, r.message)).collect();
    lines.sort();
    lines
}

pub fn describe_policy(state: &PolicyState) -> String {
    let state_text = match (&state.refused, state.applicability) {
        (Some(refusal), _) => format!("not accepted ({})", refusal.reason),
        (None, PolicyApplicability::ThisNode) => format!("accepted, {} backends", state.backends),
        (None, PolicyApplicability::OtherNodes) => "accepted, for other nodes".into(),
        (None, PolicyApplicability::InsideOnly) => "accepted, not outside".into(),
    };
    let mut text = format!("policy {} is {state_text}", state.name);
    for frontend in &state.frontends {
        text += &match &frontend.holder {
            FrontendHolder::ThisPolicy => format!("; first at {}", frontend.dialled),
            FrontendHolder::OlderPolicy(other) => format!("; {} is {other}'s, which is older", frontend.dialled),
            FrontendHolder::HigherPolicy(other) => format!("; after {other} at {}", frontend.dialled),
            FrontendHolder::OtherService(other) => format!("; {} is {}'s", frontend.dialled, other.subject()),
        };
    }
    text + "\n"
}

pub fn describe_skipped_pods(state: &Snapshot, publisher: &Publisher) -> Vec<String> {
    let of = |policy: &PolicyName| {
        let pods = publisher.skipped(policy);
        let line = |(pod, why): (&PodName, &PodProblem)| {
            format!("left out of {policy}: pod {}/{}: {} ({})\n", pod.namespace, pod.name, why.message, why.reason)
        };
        pods.map(line).collect::<Vec<_>>()
    };
    state.policies.values().filter(|p| p.name.kind == PolicyKind::Balancing).flat_map(|p| of(&p.name)).collect()
}

pub fn backends(rows: &Rows, ids: &[BackendId]) -> Vec<String> {
    let mut all: Vec<_> = ids.iter().filter_map(|id| rows.backends.get(*id)).map(|b| (b.address, b.port)).collect();
    all.sort();
    all.dedup();
    all.iter().map(|(a, p)| std::net::SocketAddr::new(a.ip(), *p).to_string()).collect()
}

/// As `backends`, with the weight of each backend that is more than once in its set.
fn weighted_backends(rows: &Rows, ids: &[BackendId]) -> Vec<String> {
    let mut counts: BTreeMap<(Address, u16), usize> = BTreeMap::new();
    let rows = ids.iter().filter_map(|id| rows.backends.get(*id));
    rows.for_each(|b| *counts.entry((b.address, b.port)).or_default() += 1);
    let text = |((a, p), count): (&(Address, u16), &usize)| {
        let times = if *count == 1 { String::new() } else { format!(" x{count}") };
        format!("{}{times}", std::net::SocketAddr::new(a.ip(), *p))
    };
    counts.iter().map(text).collect()
}

fn kind(kind: FrontendKind) -> &'static str {
    match kind {
        FrontendKind::ClusterIp => "clusterIP",
        FrontendKind::LoadBalancer => "loadBalancer",
        FrontendKind::ExternalIp => "externalIP",
        FrontendKind::Virtual => "virtual",
        FrontendKind::NodePort => "nodePort",
    }
}

pub fn frontends(case: &Case, rows: &Rows) -> String {
    let mut lines = Vec::new();
    for (key, row) in rows.frontends.iter().filter(|(key, _)| key.protocol.is_some()) {
        let sets: Vec<String> = chain(rows, row.set).map(|set| describe_set(case, rows, set)).collect();
        let (dialled, below) = (dialled(case, key), sets.join(", then "));
        lines.push(((key.view != 0, *key), format!("{dialled} {} {below}\n", kind(row.kind))));
    }
    lines.sort();
    lines.into_iter().map(|(_, line)| line).collect()
}

/// A frontend key with the name of its view, or of the cluster of its NodePort, instead of a number.
fn dialled(case: &Case, key: &FrontendKey) -> String {
    let plain = format!("{:?}", FrontendKey { view: 0, ..*key });
    match key.view {
        0 => plain,
        number if key.is_node_port_row() => format!("{plain} of cluster {}", cluster_name(case, number)),
        number => {
            let name = case.orders.iter().find_map(|order| order.view_name(number));
            format!("{plain} in view {}", name.expect("the number of a view"))
        }
    }
}

fn cluster_name(case: &Case, number: u32) -> &str {
    let numbered = |context: &&beeline_model::cluster::order::ClusterContext| u32::from(context.number) == number;
    let mut all = case.orders.iter().flat_map(|order| order.clusters());
    all.find(numbered).map_or("?", |context| &context.rules.name)
}

/// A set, and the sets that follow it by `next`.
pub fn chain(rows: &Rows, first: SetId) -> impl Iterator<Item = &SetRow> {
    std::iter::successors(rows.sets.get(first), |set| rows.sets.get(set.header.next))
}

fn describe_set(case: &Case, rows: &Rows, set: &SetRow) -> String {
    let owner = PortName::from_text(&rows.names[set.owner].text).expect("a valid port name");
    let affinity = if set.header.affinity > 0 { format!(" affinity {}", set.header.affinity) } else { String::new() };
    let limit = rows.buckets.get(&set.header.policy).filter(|_| set.header.limited);
    let limit = limit.map_or(String::new(), |l| format!(" limit {}/s burst {}", l.connects_per_second, l.burst));
    let members = if case.rules.host_role == HostRole::Node && case.contexts[0].clusters.is_empty() {
        backends(rows, rows.members(set))
    } else {
        weighted_backends(rows, rows.members(set))
    };
    let becomes = if members.is_empty() { "nothing".to_owned() } else { members.join(" ") };
    let last = members.is_empty() && set.header.next == SET_NONE;
    let empty = if last { format!(" ({:?})", set.when_empty()).to_lowercase() } else { String::new() };
    format!("{owner} -> {becomes}{empty}{affinity}{limit}")
}

fn verdict(rows: &Rows, verdict: &Verdict) -> String {
    match (verdict.action, verdict.reason) {
        (Action::Resolved, _) => backends(rows, &verdict.backends).join(" "),
        (Action::Refused, reason) => format!("refused: {reason:?}"),
        (Action::Untouched, Reason::None) => "untouched".into(),
        (Action::Untouched, reason) => format!("untouched: {reason:?}"),
    }
}

pub fn describe(case: &Case, rows: &Rows, report: &[String]) -> String {
    let mut text = frontends(case, rows);
    text.extend(rows.nodes.iter().map(|(a, n)| {
        let word = |is: bool, word: &'static str| if is { word } else { "" };
        let words = [word(n.own, " own"), word(n.loopback, " host only"), word(n.exact_loopback, " alone")].concat();
        let cluster = match n.cluster {
            0 => String::new(),
            number => format!(" of cluster {}", cluster_name(case, number.into())),
        };
        format!("node {a}{words}{cluster}\n")
    }));
    for (name, dial, before) in &case.dials {
        let decided = decide(rows, dial, *before, case.rules.no_local_endpoint_action);
        text += &format!("dial {name} => {}\n", verdict(rows, &decided));
    }
    text.extend(report.iter().map(String::as_str));
    text
}
