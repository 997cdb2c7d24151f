//! Options, metrics and versions that `deploy/` names exist. `scripts/chart.sh` tests whether the chart renders.

mod fixture;

use fixture::{AgentFixture, BEELINE, TestService, wait_until};
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

/// Every occurrence of the prefix, with the letters that follow it.
fn words<'a>(text: &'a str, prefix: &'a str, letter: fn(char) -> bool) -> impl Iterator<Item = &'a str> {
    text.match_indices(prefix).map(move |(at, _)| {
        let rest = &text[at + prefix.len()..];
        let end = rest.find(|c| !letter(c)).unwrap_or(rest.len());
        &text[at..at + prefix.len() + end]
    })
}

fn agent_options() -> BTreeSet<String> {
    let output = Command::new(BEELINE).args(["agent", "--help"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let option =
        |line: &str| line.trim_start().strip_prefix("--").map(|o| o.split([' ', '=']).next().unwrap().to_owned());
    text.lines().filter_map(option).collect()
}

#[test]
fn the_chart_uses_only_existing_options() {
    let options = agent_options();
    let args = templates();
    let args = &args[args.find("define \"beeline.args\"").unwrap()..];
    let args = &args[..args.find("{{- range $name, $value := $values.options }}").unwrap()];
    let given: Vec<&str> = words(args, "- --", |c| c.is_ascii_lowercase() || c == '-').map(|w| &w[4..]).collect();
    assert!(given.len() > 10, "{given:?}");
    for option in given {
        assert!(options.contains(option), "the chart uses --{option}, which is not an option of `beeline agent`");
    }
}

/// The section `options:` of the values file that sets every value.
#[test]
fn the_chart_examples_use_only_existing_options() {
    let (options, text) = (agent_options(), read("deploy/chart/ci/everything.yaml"));
    let section = text.split("\noptions:\n").nth(1).expect("a section options");
    let names: Vec<&str> =
        section.lines().take_while(|l| l.starts_with("  ")).map(|l| l.trim().split(':').next().unwrap()).collect();
    assert!(names.len() > 5, "{names:?}");
    for name in names {
        assert!(options.contains(name), "deploy/chart/ci/everything.yaml sets {name}, which is not an option");
    }
}

/// Names of metrics in a file of alert rules or dashboard panels.
fn metrics_in(text: &str) -> BTreeSet<&str> {
    let letter = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    words(text, "beeline_", letter).chain(words(text, "kubeproxy_", letter)).collect()
}

#[test]
fn dashboard_and_alerts_use_only_existing_metrics() {
    let _alone = fixture::run_alone();
    let (mut fixture, good) = (AgentFixture::new(), TestService::new("good", 1));
    let pods = fixture.start_backends("good", 10, 2);
    fixture.write_file("good.yaml", good.manifest(&pods));
    // A metric without samples is not exported. A dial and a refusal make all metrics appear.
    fixture.write_file("bad.yaml", "kind: Service\n  metadata: [\n");
    fixture.start(&[]);
    assert_eq!(fixture.udp_answer(fixture.network.node(), &good), "good");
    wait_until("the invalid file is refused", || !fixture.refusals().is_empty());
    let text = fixture.metrics();
    let exported: BTreeSet<&str> =
        text.lines().filter(|l| !l.starts_with('#')).map(|l| l.split(['{', ' ']).next().unwrap()).collect();
    let controller = read("crates/controller/src/health.rs");
    for file in ["deploy/chart/dashboard.json", "deploy/chart/alerts.yaml"] {
        let text = read(file);
        let used = metrics_in(&text);
        assert!(used.len() > 8, "{file}: {used:?}");
        for metric in used {
            // Descriptions name a histogram without its suffixes.
            let exists = exported.contains(metric) || exported.contains(format!("{metric}_count").as_str());
            let exists = exists || controller.contains(&format!("gauge(\"{metric}\""));
            assert!(exists, "{file} uses {metric}, which neither agent nor controller exports");
        }
    }
    fixture.stop();
}

#[test]
fn the_dashboard_has_all_rows_and_no_empty_panel() {
    let dashboard: serde_json::Value = serde_json::from_str(&read("deploy/chart/dashboard.json")).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let rows: Vec<&str> = panels.iter().filter(|p| p["type"] == "row").filter_map(|p| p["title"].as_str()).collect();
    assert_eq!(rows, ["Overview", "Dials", "Failures", "Backends", "Programming latency"]);
    for panel in panels.iter().filter(|p| p["type"] != "row") {
        assert!(panel["targets"].as_array().is_some_and(|t| !t.is_empty()), "{} has no query", panel["title"]);
    }
}

#[test]
fn every_alert_is_in_the_troubleshooting_page() {
    let (alerts, docs) = (read("deploy/chart/alerts.yaml"), read("docs/troubleshooting.md"));
    let names: Vec<&str> =
        words(&alerts, "- alert: ", char::is_alphanumeric).map(|w| &w["- alert: ".len()..]).collect();
    assert!(names.len() > 5, "{names:?}");
    for name in names {
        assert!(docs.contains(name), "docs/troubleshooting.md does not mention {name}");
    }
}

#[test]
fn the_chart_has_the_version_of_this_crate() {
    let chart = read("deploy/chart/Chart.yaml");
    assert!(chart.contains(&format!("\nappVersion: {}\n", env!("CARGO_PKG_VERSION"))), "{chart}");
}

/// The manifests for users without Helm must not ask for more privileges.
#[test]
fn the_manifests_ask_for_few_privileges() {
    let text = read("deploy/manifests/beeline.yaml");
    for word in ["privileged: true", "verbs: [\"*\"]", "- \"*\"", "hostPID: true", "allowPrivilegeEscalation: true"] {
        assert!(!text.contains(word), "deploy/manifests/beeline.yaml has {word}");
    }
    for word in ["drop: [ALL]", "readOnlyRootFilesystem: true", "type: RuntimeDefault", "system-node-critical"] {
        assert!(text.contains(word), "deploy/manifests/beeline.yaml lacks {word}");
    }
}
