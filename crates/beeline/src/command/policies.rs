//! `beeline policies`: the state of each policy on this node, as the agent reports it.

use super::NotFound;
use crate::args::PoliciesArgs;
use crate::print;
use beeline_api::{AgentClient, FrontendPrecedence, PolicyFrontend, PolicyQuery, PolicyReport, PolicyScope};
use beeline_model::policy::PolicyKind;
use std::net::SocketAddr;
use std::process::ExitCode;

pub fn run(args: &PoliciesArgs) -> anyhow::Result<ExitCode> {
    let query = PolicyQuery { name: args.name.clone(), ..PolicyQuery::default() };
    let reports = AgentClient::new(&args.query.paths.socket).policies(query)?;
    if let Some(name) = args.name.as_ref().filter(|_| reports.is_empty()) {
        return Err(NotFound(format!("there is no policy {name}: `beeline policies` lists all")).into());
    }
    let single = args.name.is_some();
    print::write(args.query.output, &reports, || if single { details(&reports) } else { table(&reports) })?;
    Ok(ExitCode::SUCCESS)
}

/// Whether the policy is accepted and works, in one sentence.
fn state(report: &PolicyReport) -> String {
    let mut text = acceptance(report);
    if let Some(failed) = &report.failed {
        text.push_str(&format!("; not written: {}", failed.message));
    }
    match report.without_cgroup.len() {
        0 => {}
        1 => text.push_str("; 1 pod is not used yet: its cgroup is not found"),
        more => text.push_str(&format!("; {more} pods are not used yet: their cgroups are not found")),
    }
    match report.suspended.len() {
        0 => {}
        1 => text.push_str("; 1 backend refuses connections: TCP dials use the next level"),
        more => text.push_str(&format!("; {more} backends refuse connections: TCP dials use the next level")),
    }
    text
}

fn acceptance(report: &PolicyReport) -> String {
    match (&report.refused, report.scope) {
        (Some(refusal), _) => format!("not accepted: {}", refusal.message),
        (None, PolicyScope::OtherNodes) => "accepted; its nodeLabelSelector does not select this node".into(),
        (None, PolicyScope::InsideOnly) => "accepted; not for hosts outside the cluster (enableOutCluster)".into(),
        (None, PolicyScope::ThisNode) if report.awaits_controller => {
            "accepted; no ready pods, or the controller has not published them yet".into()
        }
        (None, PolicyScope::ThisNode) => "accepted".into(),
    }
}

/// Why the policy is not used for dials to its target.
pub fn why_unused(report: &PolicyReport) -> String {
    let unused = |frontend: &&PolicyFrontend| {
        matches!(frontend.precedence, FrontendPrecedence::ShadowedBy(_) | FrontendPrecedence::AddressTakenBy(_))
    };
    let unused = report.frontends.iter().find(unused);
    unused.map_or_else(|| state(report), |frontend| precedence(&frontend.precedence))
}

/// Why an accepted policy has no backend for a dial.
pub fn why_empty(report: &PolicyReport) -> String {
    let is_local = report.kind == PolicyKind::LocalRedirect.as_str();
    match (report.left_out.as_slice(), report.without_cgroup.len()) {
        ([refusal], _) => refusal.message.clone(),
        ([refusal, more @ ..], _) => format!("{}, and {} more", refusal.message, more.len()),
        ([], 1..) => state(report),
        ([], 0) if report.awaits_controller => "no ready pods, or the controller has not published them yet".into(),
        ([], 0) if is_local => "no ready pod of this node is selected".into(),
        ([], 0) => "no ready pod is selected".into(),
    }
}

fn precedence(precedence: &FrontendPrecedence) -> String {
    match precedence {
        FrontendPrecedence::First => "first".into(),
        FrontendPrecedence::After(other) => format!("after {other}"),
        FrontendPrecedence::ShadowedBy(other) => format!("not used: {other} is older"),
        FrontendPrecedence::AddressTakenBy(other) => format!("not used: its Service lost the address to {other}"),
    }
}

/// `kubectl get` counts the backends of a LocalRedirectPolicy on all nodes.
fn backend_count(report: &PolicyReport) -> String {
    let is_local = report.kind == PolicyKind::LocalRedirect.as_str();
    if is_local { format!("{} on this node", report.backends) } else { report.backends.to_string() }
}

/// The first three backends, and the number of the others.
fn backends(frontend: &PolicyFrontend) -> String {
    let all: Vec<String> = frontend.backends.iter().map(ToString::to_string).collect();
    match all.len() {
        0 => "none".into(),
        1..=3 => all.join(" "),
        more => format!("{} (+{})", all[..3].join(" "), more - 3),
    }
}

pub fn table(reports: &[PolicyReport]) -> String {
    let row = |report: &PolicyReport| {
        let dialled: Vec<&str> = report.frontends.iter().map(|f| f.dialled.as_str()).collect();
        let dialled = if dialled.is_empty() { report.target.clone() } else { dialled.join(" ") };
        let mut order: Vec<String> = report.frontends.iter().map(|f| precedence(&f.precedence)).collect();
        order.dedup();
        vec![report.title(), dialled, order.join(", "), backend_count(report), state(report)]
    };
    let rows: Vec<Vec<String>> = reports.iter().map(row).collect();
    print::table(&["POLICY", "DIALLED", "PRECEDENCE", "BACKENDS", "STATE"], &rows)
}

fn details(reports: &[PolicyReport]) -> String {
    reports.iter().map(|report| detail(report) + "\n").collect()
}

fn detail(report: &PolicyReport) -> String {
    let head = [
        ("policy", report.title()),
        ("state", state(report)),
        ("target", report.target.clone()),
        ("backends", backend_count(report)),
    ];
    let mut text = print::fields(10, &head);
    let row = |f: &PolicyFrontend| {
        vec![f.dialled.clone(), precedence(&f.precedence), print::or_dash(f.next.as_ref()), backends(f)]
    };
    let rows: Vec<Vec<String>> = report.frontends.iter().map(row).collect();
    if !rows.is_empty() {
        text.push_str(&format!("\n{}", print::table(&["DIALLED", "PRECEDENCE", "NEXT", "BACKENDS"], &rows)));
    }
    let left_out = report.left_out.iter().map(|refusal| ("left out", refusal.message.clone()));
    let pending = |pod: &String| ("pending", format!("pod {pod}: used as soon as its cgroup is found below --cgroup"));
    let suspended =
        |at: &SocketAddr| ("suspended", format!("{at} refuses connections; used again when it accepts them"));
    let rest = left_out.chain(report.without_cgroup.iter().map(pending)).chain(report.suspended.iter().map(suspended));
    let rest: Vec<(&str, String)> = rest.collect();
    text.push_str(&print::fields(10, &rest));
    text
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use beeline_api::RefusalStatus;

    pub fn refusal(message: &str) -> RefusalStatus {
        RefusalStatus {
            cluster: None,
            subject: "BalancingPolicy a/b".into(),
            reason: "r".into(),
            message: message.into(),
        }
    }

    pub fn report() -> PolicyReport {
        PolicyReport {
            kind: "LocalRedirectPolicy".into(),
            cluster: beeline_model::name::LOCAL_CLUSTER.into(),
            namespace: "a".into(),
            name: "b".into(),
            uid: String::new(),
            generation: 1,
            target: "Service a/web".into(),
            ports: None,
            refused: None,
            scope: PolicyScope::ThisNode,
            awaits_controller: false,
            frontends: Vec::new(),
            backends: 0,
            left_out: Vec::new(),
            without_cgroup: Vec::new(),
            failed: None,
            suspended: Vec::new(),
        }
    }

    #[test]
    fn the_state_names_what_is_wrong() {
        assert_eq!(state(&report()), "accepted");
        let full = PolicyReport { failed: Some(refusal("the slot table is full")), ..report() };
        assert_eq!(state(&full), "accepted; not written: the slot table is full");
        let pods = PolicyReport { without_cgroup: vec!["a/x".into(), "a/y".into()], ..report() };
        assert!(state(&pods).ends_with("; 2 pods are not used yet: their cgroups are not found"));
        assert!(details(&[pods]).contains("pod a/y: used as soon as"));
        let waiting = PolicyReport { awaits_controller: true, ..report() };
        assert!(state(&waiting).contains("no ready pods, or the controller"));
        let suspended = PolicyReport { suspended: vec!["10.244.1.2:80".parse().unwrap()], ..report() };
        assert!(state(&suspended).ends_with("; 1 backend refuses connections: TCP dials use the next level"));
    }

    #[test]
    fn a_policy_without_backends_says_why() {
        assert_eq!(why_empty(&report()), "no ready pod of this node is selected");
        let balancing = PolicyReport { kind: "BalancingPolicy".into(), ..report() };
        assert_eq!(why_empty(&balancing), "no ready pod is selected");
        let missing =
            |node: &str| refusal(&format!("node {node} has no entry address of family IPv4: its pods are left out"));
        let one = PolicyReport { left_out: vec![missing("n1")], ..balancing.clone() };
        assert_eq!(why_empty(&one), "node n1 has no entry address of family IPv4: its pods are left out");
        let two = PolicyReport { left_out: vec![missing("n1"), missing("n2")], ..balancing.clone() };
        assert!(why_empty(&two).ends_with("left out, and 1 more"), "{}", why_empty(&two));
        let waiting = PolicyReport { awaits_controller: true, ..balancing };
        assert!(why_empty(&waiting).contains("the controller has not published"));
    }

    #[test]
    fn the_backends_of_a_redirect_are_counted_on_this_node() {
        assert!(table(&[report()]).contains("0 on this node"));
        let balancing = PolicyReport { kind: "BalancingPolicy".into(), backends: 3, ..report() };
        assert!(details(&[balancing]).contains("backends   3\n"));
    }

    #[test]
    fn an_older_policy_is_the_reason_why_one_is_unused() {
        let frontend = PolicyFrontend {
            dialled: "10.96.0.1:80/TCP".into(),
            kind: beeline_model::row::FrontendKind::ClusterIp,
            port: "http".into(),
            precedence: FrontendPrecedence::ShadowedBy("LocalRedirectPolicy a/old".into()),
            next: None,
            backends: Vec::new(),
        };
        let unused = PolicyReport { frontends: vec![frontend], ..report() };
        assert_eq!(why_unused(&unused), "not used: LocalRedirectPolicy a/old is older");
    }
}
