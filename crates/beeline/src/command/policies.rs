//! `beeline policies`: the state of each policy on this node, as the agent reports it.

use super::NotFound;
use crate::args::PoliciesArgs;
use crate::print;
use beeline_api::{AgentClient, FrontendPrecedence, PolicyFrontend, PolicyQuery, PolicyReport, PolicyScope};
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

/// Why the policy has no part in the dials to its target.
pub fn why_unused(report: &PolicyReport) -> String {
    let unused = |frontend: &&PolicyFrontend| {
        matches!(frontend.precedence, FrontendPrecedence::ShadowedBy(_) | FrontendPrecedence::AddressTakenBy(_))
    };
    let unused = report.frontends.iter().find(unused);
    unused.map_or_else(|| state(report), |frontend| precedence(&frontend.precedence))
}

fn precedence(precedence: &FrontendPrecedence) -> String {
    match precedence {
        FrontendPrecedence::First => "first".into(),
        FrontendPrecedence::After(other) => format!("after {other}"),
        FrontendPrecedence::ShadowedBy(other) => format!("not used: {other} is older"),
        FrontendPrecedence::AddressTakenBy(other) => format!("not used: its Service lost the address to {other}"),
    }
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
        vec![report.title(), dialled, order.join(", "), report.backends.to_string(), state(report)]
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
        ("backends", report.backends.to_string()),
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
    let rest: Vec<(&str, String)> = left_out.chain(report.without_cgroup.iter().map(pending)).collect();
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
