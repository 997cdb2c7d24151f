//! `beeline policies`: what became of each policy on this node, in the agent's words.

use super::NotFound;
use crate::args::{Policies, View};
use crate::print;
use anyhow::anyhow;
use beeline_agent::status::{About, Request};
use beeline_model::name::LOCAL_CLUSTER;
use serde_json::Value;
use std::process::ExitCode;

pub fn run(policies: &Policies) -> anyhow::Result<ExitCode> {
    let states = ask(&policies.view, About { name: policies.name.clone(), ..About::default() })?;
    if let Some(name) = policies.name.as_ref().filter(|_| states.is_empty()) {
        return Err(NotFound(format!("no policy is called {name}: `beeline policies` lists them all")).into());
    }
    let single = policies.name.is_some();
    print::show(policies.view.output, &states, || if single { details(&states) } else { table(&states) })?;
    Ok(ExitCode::SUCCESS)
}

pub fn ask(view: &View, about: About) -> anyhow::Result<Vec<Value>> {
    let socket = &view.place.socket;
    let answer = beeline_agent::ask(socket, &Request::Policies(about))
        .ok_or_else(|| anyhow!("no agent answers at {}: only it knows of policies (--socket)", socket.display()))??;
    match answer {
        Value::Array(states) => Ok(states),
        other => Err(anyhow!("the agent does not know the question: {other}; is it older than this beeline?")),
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

pub fn name(state: &Value) -> String {
    let kind = match text(&state["kind"]) {
        "LocalRedirect" => "LocalRedirectPolicy",
        _ => "BalancingPolicy",
    };
    let cluster = Some(text(&state["cluster"])).filter(|name| !name.is_empty() && *name != LOCAL_CLUSTER);
    let cluster = cluster.map_or(String::new(), |name| format!("{name}:"));
    format!("{kind} {cluster}{}/{}", text(&state["namespace"]), text(&state["name"]))
}

/// In one sentence.
pub fn standing(state: &Value) -> String {
    let mut text = accepted(state);
    if let Some(why) = state["failed"]["message"].as_str() {
        text.push_str(&format!("; not written: {why}"));
    }
    match without_cgroup(state).count() {
        0 => {}
        1 => text.push_str("; 1 pod is not used yet: its cgroup is not found"),
        more => text.push_str(&format!("; {more} pods are not used yet: their cgroups are not found")),
    }
    text
}

fn without_cgroup(state: &Value) -> impl Iterator<Item = &str> {
    state["withoutCgroup"].as_array().into_iter().flatten().map(text)
}

fn accepted(state: &Value) -> String {
    match (state["refused"].is_null(), text(&state["standing"])) {
        (false, _) => format!("not accepted: {}", text(&state["refused"]["message"])),
        (true, "otherNodes") => "accepted; its nodeLabelSelector does not choose this node".into(),
        (true, "insideOnly") => "accepted; not for hosts outside the cluster (enableOutCluster)".into(),
        _ if state["waits"] == true => "accepted; no ready pods, or the controller has not published them yet".into(),
        _ => "accepted".into(),
    }
}

/// Why it has no part in what it is about.
pub fn why_not(state: &Value) -> String {
    let lost = frontends(state).map(holder).find(|how| how.starts_with("no part"));
    lost.unwrap_or_else(|| standing(state))
}

fn frontends(state: &Value) -> impl Iterator<Item = &Value> {
    state["frontends"].as_array().into_iter().flatten()
}

/// Who is asked first, where that is not the policy itself.
fn holder(frontend: &Value) -> String {
    let one = |how: &str| frontend["holder"][how].as_str().map(str::to_owned);
    match (one("older"), one("before"), one("elsewhere")) {
        (Some(other), ..) => format!("no part: {other} is older"),
        (_, Some(other), _) => format!("after {other}"),
        (_, _, Some(other)) => format!("no part: its Service lost the address to {other}"),
        _ => "first".into(),
    }
}

fn backends(value: &Value) -> String {
    let all: Vec<&str> = value["backends"].as_array().into_iter().flatten().map(text).collect();
    match all.len() {
        0 => "none".into(),
        1..=3 => all.join(" "),
        more => format!("{} (+{})", all[..3].join(" "), more - 3),
    }
}

pub fn table(states: &[Value]) -> String {
    let mut rows = Vec::new();
    for state in states {
        let (name, standing) = (name(state), standing(state));
        let count = state["backends"].to_string();
        let target = text(&state["target"]).to_owned();
        let dialled: Vec<&str> = frontends(state).map(|f| text(&f["dialled"])).collect();
        let mut held: Vec<String> = frontends(state).map(holder).collect();
        held.dedup();
        let shown = if dialled.is_empty() { target } else { dialled.join(" ") };
        rows.push(vec![name, shown, held.join(", "), count, standing]);
    }
    print::table(&["POLICY", "DIALLED", "ASKED", "BACKENDS", "STATE"], &rows)
}

fn details(states: &[Value]) -> String {
    let mut all = String::new();
    for state in states {
        let head = [("policy", name(state)), ("state", standing(state)), ("about", text(&state["target"]).to_owned())];
        all.extend(head.iter().map(|(name, value)| format!("{name:<10} {value}\n")));
        all.push_str(&format!("{:<10} {}\n", "backends", state["backends"]));
        let rows: Vec<Vec<String>> = frontends(state)
            .map(|f| vec![text(&f["dialled"]).into(), holder(f), print::dash(f["next"].as_str()), backends(f)])
            .collect();
        if !rows.is_empty() {
            all.push_str(&format!("\n{}", print::table(&["DIALLED", "ASKED", "NEXT", "BECOMES"], &rows)));
        }
        for left in state["leftOut"].as_array().into_iter().flatten() {
            all.push_str(&format!("left out   {}\n", text(&left["message"])));
        }
        let waits = |pod| format!("not yet    pod {pod}: it joins as soon as its cgroup is found below --cgroup\n");
        all.extend(without_cgroup(state).map(waits));
        all.push('\n');
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_is_amiss_is_said() {
        let state = |more: Value| {
            let mut state = json!({
                "kind": "LocalRedirect", "namespace": "a", "name": "b", "refused": null, "standing": "here",
                "waits": false, "frontends": [], "backends": 0, "leftOut": [], "withoutCgroup": [], "failed": null,
            });
            state.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            state
        };
        assert_eq!(standing(&state(json!({}))), "accepted");
        let full = standing(&state(json!({ "failed": { "message": "the slot table is full" } })));
        assert_eq!(full, "accepted; not written: the slot table is full");
        let pods = state(json!({ "withoutCgroup": ["a/x", "a/y"] }));
        assert!(standing(&pods).ends_with("; 2 pods are not used yet: their cgroups are not found"));
        assert!(details(&[pods]).contains("pod a/y: it joins"));
        assert!(standing(&state(json!({ "waits": true }))).contains("no ready pods, or the controller"));
    }
}
