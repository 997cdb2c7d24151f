//! What `deploy/` speaks of exists: options, metrics, versions. Whether the chart renders is scripts/chart.sh's question.

mod stage;

use stage::{BEELINE, Stage, Target, wait_until};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

fn templates() -> String {
    let folder = root().join("deploy/chart/templates");
    let files = std::fs::read_dir(folder).unwrap().map(|f| std::fs::read_to_string(f.unwrap().path()).unwrap());
    files.collect::<Vec<_>>().join("\n")
}

/// Each place where the prefix stands, with the letters that follow it.
fn words<'a>(text: &'a str, prefix: &'a str, letter: fn(char) -> bool) -> impl Iterator<Item = &'a str> {
    text.match_indices(prefix).map(move |(at, _)| {
        let rest = &text[at + prefix.len()..];
        let end = rest.find(|c| !letter(c)).unwrap_or(rest.len());
        &text[at..at + prefix.len() + end]
    })
}

fn options_of_the_agent() -> BTreeSet<String> {
    let output = Command::new(BEELINE).args(["agent", "--help"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let option =
        |line: &str| line.trim_start().strip_prefix("--").map(|o| o.split([' ', '=']).next().unwrap().to_owned());
    text.lines().filter_map(option).collect()
}

#[test]
fn the_chart_gives_only_options_that_exist() {
    let known = options_of_the_agent();
    let args = templates();
    let args = &args[args.find("define \"beeline.args\"").unwrap()..];
    let args = &args[..args.find("{{- range $name, $value := $values.options }}").unwrap()];
    let given: Vec<&str> = words(args, "- --", |c| c.is_ascii_lowercase() || c == '-').map(|w| &w[4..]).collect();
    assert!(given.len() > 10, "{given:?}");
    for option in given {
        assert!(known.contains(option), "the chart gives --{option}, which is no option of `beeline agent`");
    }
}

/// `options:` of the file with every value.
#[test]
fn the_examples_of_the_chart_are_options() {
    let (known, text) = (options_of_the_agent(), read("deploy/chart/ci/everything.yaml"));
    let section = text.split("\noptions:\n").nth(1).expect("a section options");
    let names: Vec<&str> =
        section.lines().take_while(|l| l.starts_with("  ")).map(|l| l.trim().split(':').next().unwrap()).collect();
    assert!(names.len() > 5, "{names:?}");
    for name in names {
        assert!(known.contains(name), "deploy/chart/ci/everything.yaml sets {name}, which is no option");
    }
}

/// Of a file of rules or panels: whatever looks like one of our metrics.
fn metrics_in(text: &str) -> BTreeSet<&str> {
    let letter = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    words(text, "beeline_", letter).chain(words(text, "kubeproxy_", letter)).collect()
}

#[test]
fn dashboard_and_alerts_read_only_metrics_that_there_are() {
    let _alone = stage::alone();
    let (mut stage, good) = (Stage::new(), Target::new("good", 1));
    let pods = stage.serve("good", 10, 2);
    stage.folder.put("good.yaml", good.manifest(&pods));
    // Metrics of a kind that nothing belongs to are not shown: a dial and a refusal bring all of them out.
    stage.folder.put("bad.yaml", "kind: Service\n  metadata: [\n");
    stage.start(&[]);
    assert_eq!(stage.ask(stage.lab.node(), &good), "good");
    wait_until("the bad file is refused", || !stage.refusals().is_empty());
    let text = stage.metrics();
    let shown: BTreeSet<&str> =
        text.lines().filter(|l| !l.starts_with('#')).map(|l| l.split(['{', ' ']).next().unwrap()).collect();
    let controller = read("crates/controller/src/health.rs");
    for file in ["deploy/chart/dashboard.json", "deploy/chart/alerts.yaml"] {
        let text = read(file);
        let used = metrics_in(&text);
        assert!(used.len() > 8, "{file}: {used:?}");
        for metric in used {
            // Prose names a histogram without its parts.
            let is = shown.contains(metric) || shown.contains(format!("{metric}_count").as_str());
            let is = is || controller.contains(&format!("gauge(\"{metric}\""));
            assert!(is, "{file} reads {metric}, which neither agent nor controller shows");
        }
    }
    stage.stop();
}

#[test]
fn the_dashboard_shows_what_it_is_for() {
    let dashboard: serde_json::Value = serde_json::from_str(&read("deploy/chart/dashboard.json")).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let rows: Vec<&str> = panels.iter().filter(|p| p["type"] == "row").filter_map(|p| p["title"].as_str()).collect();
    assert_eq!(rows, ["At a glance", "Dials", "Failures", "Backends", "Programming latency"]);
    for panel in panels.iter().filter(|p| p["type"] != "row") {
        assert!(panel["targets"].as_array().is_some_and(|t| !t.is_empty()), "{} asks nothing", panel["title"]);
    }
}

#[test]
fn every_alert_has_its_line_in_troubleshooting() {
    let (alerts, docs) = (read("deploy/chart/alerts.yaml"), read("docs/troubleshooting.md"));
    let names: Vec<&str> =
        words(&alerts, "- alert: ", char::is_alphanumeric).map(|w| &w["- alert: ".len()..]).collect();
    assert!(names.len() > 5, "{names:?}");
    for name in names {
        assert!(docs.contains(name), "docs/troubleshooting.md does not speak of {name}");
    }
}

#[test]
fn the_chart_is_of_this_version() {
    let chart = read("deploy/chart/Chart.yaml");
    assert!(chart.contains(&format!("\nappVersion: {}\n", env!("CARGO_PKG_VERSION"))), "{chart}");
}

/// What must never creep in, in what users apply without Helm.
#[test]
fn the_manifests_ask_for_little() {
    let text = read("deploy/manifests/beeline.yaml");
    for word in ["privileged: true", "verbs: [\"*\"]", "- \"*\"", "hostPID: true", "allowPrivilegeEscalation: true"] {
        assert!(!text.contains(word), "deploy/manifests/beeline.yaml has {word}");
    }
    for word in ["drop: [ALL]", "readOnlyRootFilesystem: true", "type: RuntimeDefault", "system-node-critical"] {
        assert!(text.contains(word), "deploy/manifests/beeline.yaml lacks {word}");
    }
}
