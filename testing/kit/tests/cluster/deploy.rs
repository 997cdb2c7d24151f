//! The chart as a user installs it: the agent as a DaemonSet with the capabilities it asks for and no more, taking over
//! from the agent before it; and taken away again, with the hooks detached on every node.

use std::path::Path;

use kit::{Node, Place};
use serde_json::{Value, json};

use crate::field::{Field, at, client, only, server, service};
use crate::plugin;
use crate::steward;
use crate::storm::Storm;

const IMAGE: &str = "ghcr.io/beeline-dev/beeline";

pub fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

fn helm(field: &Field, words: &[&str]) -> String {
    let mut command = field.cluster.command(Place::Control).unwrap();
    command.arg(field.cluster.cache.program("helm")).arg("--kubeconfig").arg(field.cluster.kubeconfig("admin"));
    let output = command.args(words).output().unwrap();
    assert!(output.status.success(), "helm {words:?}: {output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn agents(field: &Field, work: impl Fn(Node)) {
    field.cluster.nodes().into_iter().for_each(work);
}

#[test]
fn the_chart_installs_serves_and_goes() {
    let field = Field::new("deploy");
    field.apply(&[server("web-1", 1), server("web-2", 2), client("client", 1), service("web", json!({}))]);
    field.apply(&[steward::chosen()]);
    field.wait_ready(&["web-1", "web-2", "client", "chosen-3"]);
    field.settle("web", 2);
    let [ip, _] = field.cluster_ips("web");
    let storm = Storm::start(&field, "client", &[at(&ip, 80)]);
    agents(&field, |node| kit::agent::part(node).unwrap().stop().unwrap());
    plugin::says_that_there_is_no_agent(&field);
    plugin::says_that_the_agent_does_not_run(&field);

    let wait = format!("{}=usr/share/beeline/detach-wait", root().join("deploy/detach-wait").display());
    let version = env!("CARGO_PKG_VERSION");
    field.cluster.add_image(&format!("{IMAGE}:{version}"), &kit::agent::binary(None).unwrap(), &[wait]).unwrap();
    let values = tempfile::NamedTempFile::new().unwrap();
    let cgroups = kit::Tree::find().unwrap().path("").display().to_string();
    let value = json!({
        "image": { "pullPolicy": "Never" }, "besideKubeProxy": false, "clearStartupTaint": true,
        "apiServers": [kit::plan::api_url()],
        "options": { "report": "2s" },
        "cgroup": format!("{}/$(BEELINE_NODE_NAME)", cgroups.trim_end_matches('/')),
    });
    std::fs::write(values.path(), value.to_string()).unwrap();
    let (chart, values) = (root().join("deploy/chart").display().to_string(), values.path().display().to_string());
    helm(&field, &["install", "beeline", &chart, "-n", "kube-system", "-f", &values, "--wait", "--timeout", "120s"]);
    let words = ["-n", "kube-system", "exec", "daemonset/beeline", "--", "beeline", "status", "-o", "json"];
    let status: Value = serde_json::from_str(&field.cluster.kubectl(&words).unwrap()).unwrap();
    assert_eq!(
        (&status["kernel"]["start"], &status["kernel"]["selfTest"]),
        (&json!("adopted"), &json!("passed")),
        "{status}"
    );
    assert_eq!(status["source"]["synced"], true, "{status}");
    only(&field.dial("client", &at(&ip, 80), 16), &["web-1", "web-2"], "with the chart's agents");
    storm.stop().must_be_clean("from one agent to the chart's");
    plugin::asks_the_agent_of_a_node(&field, &ip);
    steward::keeps_policies(&field, &ip);

    helm(&field, &["uninstall", "beeline", "-n", "kube-system", "--wait", "--timeout", "180s"]);
    for node in [1, 2, 3] {
        let left = field.on_node(node, &["ls", "/sys/fs/bpf"]);
        assert!(!left.lines().any(|name| name == "beeline"), "pins are left on n{node}: {left}");
    }
    let gone = field.dial("client", &at(&ip, 80), 1);
    assert!(!gone.contains_key("web-1") && !gone.contains_key("web-2"), "nobody resolves any more: {gone:?}");
    agents(&field, |node| {
        kit::agent::part(node).unwrap().start().unwrap();
        kit::agent::wait_until_ready(node, false).unwrap();
    });
    only(&field.dial("client", &at(&ip, 80), 16), &["web-1", "web-2"], "with the agents of before");
}
