//! `beeline status`: the agent's own words, or, without an agent, what the kernel holds.

use crate::args::View;
use crate::live::Live;
use crate::print;
use beeline_agent::status::Request;
use serde_json::{Value, json};
use std::process::ExitCode;

pub fn run(view: &View) -> anyhow::Result<ExitCode> {
    let status = match beeline_agent::ask(&view.place.socket, &Request::Status) {
        Some(answer) => answer?,
        None => without_agent(view)?,
    };
    print::show(view.output, &status, || text(&status))?;
    Ok(ExitCode::SUCCESS)
}

fn without_agent(view: &View) -> anyhow::Result<Value> {
    let live = Live::open(&view.place.pin_dir)?;
    let control = live.control()?;
    let rows = &live.rows;
    Ok(json!({
        "agent": format!("none at {}", view.place.socket.display()),
        "lastSignOfLife": control.last_beat().map(|d| format!("{:.1} s ago", d.as_secs_f64())),
        "orphan": control.orphan().map_or("keep".to_owned(), |d| format!("passthrough after {} s", d.as_secs())),
        "kernel": { "pinDir": view.place.pin_dir, "layout": live.meta.layout, "generation": live.meta.generation },
        "counts": {
            "frontends": rows.frontends.keys().filter(|k| k.protocol.is_some()).count(),
            "sets": rows.sets.len(),
            "backends": rows.backends.len(),
            "dialsNoPort": live.count()?.stat("dials_no_port"),
        },
    }))
}

fn word(value: &Value) -> String {
    match value {
        Value::Null => "-".into(),
        Value::String(text) => text.clone(),
        Value::Bool(true) => "yes".into(),
        Value::Bool(false) => "no".into(),
        Value::Array(all) => all.iter().map(word).collect::<Vec<_>>().join(" "),
        other => other.to_string(),
    }
}

fn text(status: &Value) -> String {
    let s = |path: &str| word(status.pointer(path).unwrap_or(&Value::Null));
    let mut lines: Vec<(&str, String)> = Vec::new();
    if status.get("agent").is_some() {
        lines.push(("agent", format!("{}; the kernel serves from its tables", s("/agent"))));
        lines.push(("last sign of life", format!("{}; orphan rule: {}", s("/lastSignOfLife"), s("/orphan"))));
        lines.push((
            "tables",
            format!("{} (layout {}, generation {})", s("/kernel/pinDir"), s("/kernel/layout"), s("/kernel/generation")),
        ));
    } else {
        lines.push(("agent", format!("beeline {}, process {}", s("/version"), s("/pid"))));
        lines.push(("node", format!("{} at {}; zone {}", s("/node"), s("/nodeAddresses"), s("/zone"))));
        lines.push(("source", format!("{} {}; synced: {}", s("/source/kind"), s("/source/name"), s("/source/synced"))));
        if status.pointer("/source/error").is_some_and(|e| !e.is_null()) {
            lines.push(("source error", s("/source/error")));
        }
        if status.pointer("/source/synced") == Some(&Value::Bool(false)) {
            let left = match s("/kernel/start").as_str() {
                "fresh" => "nothing is served before everything has been listed once",
                _ => {
                    "the kernel serves what an earlier agent left, and nothing is changed before everything has been listed once"
                }
            };
            lines.push(("waiting", left.into()));
        }
        lines.push((
            "hooks",
            format!(
                "live: {}; self-test: {}; cgroup {}",
                s("/kernel/live"),
                s("/kernel/selfTest"),
                s("/kernel/cgroup")
            ),
        ));
        let (layout, generation, start) = (s("/kernel/layout"), s("/kernel/generation"), s("/kernel/start"));
        lines.push((
            "tables",
            format!("{} (layout {layout}, generation {generation}, {start} at start)", s("/kernel/pinDir")),
        ));
        lines.push(("events", s("/events")));
    }
    lines.push(("frontends", usage(status, "frontends")));
    lines.push(("sets", usage(status, "sets")));
    lines.push(("backends", usage(status, "backends")));
    lines.push((
        "closed ports",
        format!("{} dials refused at a port that the ClusterIP does not have", s("/counts/dialsNoPort")),
    ));
    if status.get("version").is_some() {
        lines.push((
            "objects",
            format!("{} services, {} slices, {} nodes", s("/counts/services"), s("/counts/slices"), s("/counts/nodes")),
        ));
        lines.push(("policies", policies(&status["counts"]["policies"])));
        lines.push(("stale UDP sockets", format!("{} destroyed", s("/counts/udpSocketsDestroyed"))));
        lines.push(("last change", last_change(status)));
    }
    let mut text: String = lines.iter().map(|(name, value)| format!("{name:<18} {value}\n")).collect();
    text.push_str(&refusals(status));
    text
}

fn policies(counts: &Value) -> String {
    let count = |what: &str| counts[what].as_u64().unwrap_or(0);
    let mut text = format!("{}, {} of them hold here", count("all"), count("here"));
    if count("refused") > 0 {
        text.push_str(&format!(", {} are not accepted", count("refused")));
    }
    if count("waiting") > 0 {
        let waiting = count("waiting");
        text.push_str(&format!(
            ", of {waiting} no pods are ready, or the controller has not published them yet (beeline policies)"
        ));
    }
    text
}

fn usage(status: &Value, what: &str) -> String {
    let used = word(&status["counts"][what]);
    match &status["kernel"]["sizes"][what] {
        Value::Null => used,
        most => format!("{used} of {most}"),
    }
}

fn last_change(status: &Value) -> String {
    let change = &status["lastChange"];
    if change.is_null() {
        return "none since the start".into();
    }
    let micros = change["micros"].as_f64().unwrap_or(0.0);
    format!(
        "{}: {} services, {} writes in {:.2} ms",
        word(&change["at"]),
        change["services"],
        change["writes"],
        micros / 1000.0
    )
}

fn refusals(status: &Value) -> String {
    let all = status["refusals"].as_array().cloned().unwrap_or_default();
    if all.is_empty() {
        return if status.get("version").is_some() { format!("{:<18} none\n", "refused") } else { String::new() };
    }
    let rows: Vec<Vec<String>> =
        all.iter().map(|r| vec![word(&r["subject"]), word(&r["reason"]), word(&r["message"])]).collect();
    format!("\nrefused ({}):\n{}", all.len(), print::table(&["WHAT", "REASON", "WHY AND WHAT TO DO"], &rows))
}
