//! Options, metrics and versions that `deploy/` names exist. `scripts/chart.sh` tests whether the chart renders.

mod fixture;

use fixture::{AgentFixture, BEELINE, TestService, wait_until};
use serde_json::{Value, json};
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

/// The alert rules.
fn alerts() -> Vec<Value> {
    let file: Value = serde_saphyr::from_str(&read("deploy/chart/alerts.yaml")).unwrap();
    file["groups"].as_array().unwrap().iter().flat_map(|group| group["rules"].as_array().unwrap().clone()).collect()
}

/// The values of all fields of this name, at any depth.
fn fields<'a>(value: &'a Value, name: &str) -> Vec<&'a str> {
    match value {
        Value::Object(map) => {
            let own = map.get(name).and_then(Value::as_str);
            own.into_iter().chain(map.values().flat_map(|value| fields(value, name))).collect()
        }
        Value::Array(list) => list.iter().flat_map(|value| fields(value, name)).collect(),
        _ => Vec::new(),
    }
}

/// A kube-proxy on the same nodes exports some of the same series, so each expression has to select the job.
#[test]
fn alerts_and_dashboard_select_the_job() {
    let dashboard: Value = serde_json::from_str(&read("deploy/chart/dashboard.json")).unwrap();
    let alerts = Value::from(alerts());
    let mut expressions = [fields(&alerts, "expr"), fields(&dashboard, "expr"), fields(&dashboard, "query")].concat();
    expressions.retain(|text| text.contains('{') || text.contains("beeline_") || text.contains("kubeproxy_"));
    assert!(expressions.len() > 30, "{expressions:?}");
    let letter = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    for expression in expressions {
        let series = ["beeline_", "kubeproxy_", "up{"].iter().flat_map(|prefix| expression.match_indices(prefix));
        let mut selected = 0;
        for (at, _) in series {
            let rest = expression[at..].trim_start_matches(letter);
            assert!(rest.starts_with("{job=\""), "a series without a job in: {expression}");
            selected += 1;
        }
        assert!(selected > 0, "no series in: {expression}");
    }
}

#[test]
fn every_alert_has_a_runbook() {
    let repository = read("Cargo.toml");
    let repository = words(&repository, "https://", |c| c != '"').next().unwrap();
    let expected = format!("{repository}/blob/main/docs/troubleshooting.md#alerts");
    assert!(read("docs/troubleshooting.md").contains("\n## Alerts\n"));
    for alert in alerts() {
        assert_eq!(alert["annotations"]["runbook_url"], expected.as_str(), "{}", alert["alert"]);
    }
}

/// Runs `promtool` in a directory that contains the alert rules as `alerts.yaml`.
fn promtool(args: &[&str], tests: &str) -> (bool, String) {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("alerts.yaml"), read("deploy/chart/alerts.yaml")).unwrap();
    std::fs::write(dir.path().join("tests.yaml"), tests).unwrap();
    let output = Command::new("promtool").args(args).current_dir(dir.path()).output();
    let output = output.expect("promtool is missing: install the Debian package prometheus");
    let text = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    (output.status.success(), text)
}

#[test]
fn promtool_accepts_the_alert_rules() {
    let (passed, output) = promtool(&["check", "rules", "--lint-fatal", "alerts.yaml"], "");
    assert!(passed, "{output}");
}

/// Without agents there are no series, so an alert on an agent's own metric could not fire.
#[test]
fn the_alert_on_missing_agents_fires_without_any_series() {
    let rule = alerts().into_iter().find(|alert| alert["alert"] == "BeelineNoAgents").unwrap();
    let firing = json!([{ "exp_labels": rule["labels"], "exp_annotations": rule["annotations"] }]);
    let check = |series: Value, expected: &Value| {
        let alert = json!({ "eval_time": "10m", "alertname": "BeelineNoAgents", "exp_alerts": expected });
        let one = json!({ "interval": "1m", "input_series": series, "alert_rule_test": [alert] });
        let tests = json!({ "rule_files": ["alerts.yaml"], "evaluation_interval": "1m", "tests": [one] });
        let (passed, output) = promtool(&["test", "rules", "tests.yaml"], &tests.to_string());
        assert!(passed, "{output}");
    };
    let up = |value: u8| json!([{ "series": "up{job=\"beeline\",node=\"n1\"}", "values": format!("{value}x20") }]);
    check(json!([]), &firing);
    check(up(0), &firing);
    check(up(1), &json!([]));
}

/// cargo reads the manifests of all members of the workspace before it builds one of them.
#[test]
fn the_dockerfile_copies_the_whole_workspace() {
    let dir = tempfile::tempdir().unwrap();
    let dockerfile = read("deploy/Dockerfile");
    let builder = dockerfile.split("\nFROM ").nth(1).unwrap();
    for copied in builder.lines().filter_map(|line| line.strip_prefix("COPY ")) {
        let mut words: Vec<&str> = copied.split(' ').collect();
        words.pop();
        for source in words {
            std::os::unix::fs::symlink(root().join(source), dir.path().join(source)).unwrap();
        }
    }
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["metadata", "--format-version=1", "--no-deps", "--offline"]).current_dir(dir.path());
    let output = cargo.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
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
