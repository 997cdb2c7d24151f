//! `beeline status`: the agent's own words, or, without an agent, what the kernel holds.

use crate::args::View;
use crate::live::Live;
use crate::print;
use beeline_agent::status::Request;
use beeline_model::name::LOCAL_CLUSTER;
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
        lines.push(host_line(status));
        let clusters = status["clusters"].as_array().cloned().unwrap_or_default();
        let plain = s("/stand") == "node" && clusters.len() == 1 && clusters[0]["name"] == LOCAL_CLUSTER;
        if plain {
            lines.push((
                "source",
                format!("{} {}; synced: {}", s("/source/kind"), s("/source/name"), s("/source/synced")),
            ));
            if status.pointer("/source/error").is_some_and(|e| !e.is_null()) {
                lines.push(("source error", s("/source/error")));
            }
        } else {
            lines.extend(clusters.iter().flat_map(cluster_lines));
            lines.extend(status["tokens"].as_array().into_iter().flatten().flat_map(token));
            lines.extend(view_line(status).map(|text| ("views", text)));
        }
        if clusters.iter().all(|cluster| cluster["synced"] == false) {
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
        if status["dns"].is_object() {
            lines.push(("names", names(&status["dns"])));
        }
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

/// A host outside is no Node: it has no addresses as one, and a zone with each cluster.
fn host_line(status: &Value) -> (&'static str, String) {
    let s = |name: &str| word(&status[name]);
    match s("stand").as_str() {
        "outside" => ("host", format!("{}; stand-point: outside", s("node"))),
        "node" => ("node", format!("{} at {}; zone {}", s("node"), s("nodeAddresses"), s("zone"))),
        stand => ("node", format!("{}; stand-point: {stand}; zone {}", s("node"), s("zone"))),
    }
}

/// Of a host that has joined: how long it is known, and what to do when it is not any more.
fn token(token: &Value) -> Vec<(&'static str, String)> {
    let s = |name: &str| word(&token[name]);
    let (account, cluster) = (s("account"), s("cluster"));
    let mut lines = Vec::new();
    if !account.is_empty() {
        let text = format!("{account} at {cluster}; valid until {}, renewed at {}", s("expires"), s("renews"));
        lines.push(("token", text));
    }
    if !token["error"].is_null() {
        lines.push(("token error", s("error")));
    }
    if !token["rejoin"].is_null() {
        lines.push(("REJOIN", s("rejoin")));
    }
    lines
}

/// One cluster: where it is asked, what it has said, whose addresses are its own.
fn cluster_lines(cluster: &Value) -> Vec<(&'static str, String)> {
    let c = |key: &str| word(&cluster[key]);
    let since = if cluster["since"].is_null() { String::new() } else { format!(" since {}", c("since")) };
    let mut all =
        vec![("cluster", format!("{}: {} {}; synced: {}{since}", c("name"), c("kind"), c("server"), c("synced")))];
    if !cluster["remembered"].is_null() {
        all.push(("", format!("serves what was remembered at {}", c("remembered"))));
    }
    if !cluster["error"].is_null() {
        all.push(("", format!("error: {}", c("error"))));
    }
    let view = if cluster["view"].is_null() { String::new() } else { format!("; view {}", c("view")) };
    all.push((
        "",
        format!(
            "{} services of {} objects; pods: {}; {} refused{view}",
            c("services"),
            c("facts"),
            c("pods"),
            c("refusals")
        ),
    ));
    let ranges = match c("rangesFrom").as_str() {
        "unknown" => "ranges: unknown (give serviceCIDRs)".to_owned(),
        from => format!("ranges: {} ({from})", c("ranges")),
    };
    all.push(("", ranges));
    all.extend(snapshot_lines(&cluster["snapshot"]).into_iter().map(|text| ("", text)));
    if !cluster["bytes"].is_null() {
        all.push(("", format!("{} bytes read from the edge cache", c("bytes"))));
    }
    let reach = cluster["reach"].as_array().into_iter().flatten();
    all.extend(reach.map(|one| ("", reach_line(one))));
    all
}

fn snapshot_lines(snapshot: &Value) -> Vec<String> {
    let s = |key: &str| word(&snapshot[key]);
    if snapshot.is_null() {
        return Vec::new();
    }
    let mut all = vec![match &snapshot["ageSeconds"] {
        Value::Null => format!("snapshot: none yet at {}", s("path")),
        age => format!("snapshot: {age} s old at {}", s("path")),
    }];
    all.extend(snapshot["error"].as_str().map(|why| format!("snapshot not written: {why}")));
    let unfit = snapshot["unfit"].as_array().into_iter().flatten();
    all.extend(unfit.map(|why| format!("snapshot not used: {}", word(why))));
    all
}

/// How the pods of one node are reached, since when, and how that is known.
fn reach_line(one: &Value) -> String {
    let o = |key: &str| word(&one[key]);
    format!("pods {} of {}: {} since {} ({})", o("prefix"), o("node"), o("found"), o("since"), o("evidence"))
}

fn view_line(status: &Value) -> Option<String> {
    let all = status["views"].as_array()?.iter();
    let texts: Vec<String> = all.map(|v| format!("{} sees {} first", word(&v["name"]), word(&v["first"]))).collect();
    (!texts.is_empty()).then(|| texts.join("; "))
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

fn names(dns: &Value) -> String {
    let other = match word(&dns["forward"]) {
        none if none.is_empty() => "refused".into(),
        servers => format!("asked of {servers}"),
    };
    let silent = dns["clusters"].as_array().into_iter().flatten().filter(|cluster| cluster["heard"] == false);
    let silent: Vec<String> = silent.map(|cluster| word(&cluster["name"])).collect();
    let silent = if silent.is_empty() { String::new() } else { format!("; not heard yet: {}", silent.join(" ")) };
    let closed: Vec<String> = dns["closed"].as_array().into_iter().flatten().map(word).collect();
    let closed = if closed.is_empty() { String::new() } else { format!("; NOT ANSWERED: {}", closed.join("; ")) };
    format!(
        "{} for {}; others: {other}; {} services; {} answered, {} did not exist, {} failed{silent}{closed}",
        word(&dns["address"]),
        word(&dns["domains"]),
        dns["services"],
        dns["answered"],
        dns["missing"],
        dns["failed"]
    )
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
    let named = all.iter().any(|r| r.get("cluster").is_some());
    let row = |r: &Value| {
        let cluster = named.then(|| word(&r["cluster"]));
        cluster.into_iter().chain([word(&r["subject"]), word(&r["reason"]), word(&r["message"])]).collect()
    };
    let rows: Vec<Vec<String>> = all.iter().map(row).collect();
    let header = ["CLUSTER", "WHAT", "REASON", "WHY AND WHAT TO DO"];
    format!("\nrefused ({}):\n{}", all.len(), print::table(&header[usize::from(!named)..], &rows))
}
