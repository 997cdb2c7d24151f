//! The plugin `kubectl beeline`, which runs commands in the agent's pod on a node.

use kit::Location;
use serde_json::{Value, json};

use crate::fixture::{ClusterFixture, host_port, pod, wait_until};
use kit::chart::source_dir;

struct PluginOutput {
    code: Option<i32>,
    out: String,
    error: String,
}

fn kubectl_beeline(fixture: &ClusterFixture, arguments: &[&str]) -> PluginOutput {
    let path = format!("{}:{}", std::env::var("PATH").unwrap(), source_dir().join("deploy").display());
    let mut command = fixture.cluster.command(Location::ControlPlane).unwrap();
    command.env("PATH", path).env("KUBECONFIG", fixture.cluster.kubeconfig("admin"));
    let result = command.args(["kubectl", "beeline"]).args(arguments).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    PluginOutput { code: result.status.code(), out: text(&result.stdout), error: text(&result.stderr) }
}

fn json_output(fixture: &ClusterFixture, arguments: &[&str]) -> Value {
    let output = kubectl_beeline(fixture, arguments);
    assert_eq!(output.code, Some(0), "kubectl beeline {arguments:?}: {}", output.error);
    serde_json::from_str(&output.out)
        .unwrap_or_else(|error| panic!("kubectl beeline {arguments:?}: {error}: {}", output.out))
}

pub fn reports_a_missing_agent(fixture: &ClusterFixture) {
    let output = kubectl_beeline(fixture, &["--node", "n2", "status"]);
    assert_eq!(output.code, Some(3), "{}", output.error);
    assert!(
        output.error.contains("no agent found on n2") && output.error.contains("next: kubectl get pods -A"),
        "{}",
        output.error
    );
    assert!(kubectl_beeline(fixture, &["status"]).error.contains("no agent found\n"), "without --node");
    let wrong = kubectl_beeline(fixture, &["--node", "n2", "stauts"]);
    assert!(wrong.code == Some(2) && wrong.error.contains("unknown command stauts"), "{}", wrong.error);
}

/// Creates a pod with the agent's labels whose image does not exist.
pub fn reports_an_agent_that_does_not_run(fixture: &ClusterFixture) {
    let mut broken = pod("broken", 2, &[]);
    broken["metadata"]["labels"] =
        json!({ "app.kubernetes.io/name": "beeline", "app.kubernetes.io/component": "agent" });
    broken["spec"]["containers"][0]["image"] = "example.org/nowhere:none".into();
    fixture.apply(&[broken]);
    wait_until("the kubelet has accepted the pod", || fixture.get("pod", "broken")["status"]["phase"] == "Pending");
    let output = kubectl_beeline(fixture, &["-n", fixture.namespace(), "--node", "n2", "status"]);
    assert_eq!(output.code, Some(3), "{}", output.error);
    assert!(output.error.contains("the agent on n2 is not running: pod broken is Pending"), "{}", output.error);
    assert!(
        output.error.contains(&format!("describe pod --namespace {} broken", fixture.namespace())),
        "{}",
        output.error
    );
    fixture.kubectl(&["delete", "pod", "broken", "--wait=true", "--grace-period=0", "--force"]);
}

pub fn queries_the_agent_of_a_node(fixture: &ClusterFixture, cluster_ip: &str) {
    for node in fixture.cluster.nodes() {
        let status = json_output(fixture, &["--node", &node.name(), "status", "-o", "json"]);
        assert_eq!((&status["node"], &status["source"]["synced"]), (&json!(node.name()), &json!(true)), "{status}");
    }
    let services = json_output(fixture, &["--node", "n1", "services", "-o", "json"]);
    let web = format!("{}/web", fixture.namespace());
    let row = services.as_array().unwrap().iter().find(|row| row["service"] == web && row["address"] == cluster_ip);
    let row = row.unwrap_or_else(|| panic!("no {web} at {cluster_ip}: {services}"));
    assert_eq!(row["backends"].as_array().map(Vec::len), Some(2), "{row}");

    let dial = format!("{}/TCP", host_port(cluster_ip, 80));
    let output = kubectl_beeline(fixture, &["--node", "n3", "explain", &dial]);
    assert!(output.code == Some(0) && output.out.contains(&web), "{}{}", output.out, output.error);
    let invalid = kubectl_beeline(fixture, &["--node", "n3", "explain", "203.0.113.250:0/TCP"]);
    assert!(
        invalid.code == Some(3) && invalid.error.contains("port 0 is not a destination port"),
        "the error of the command itself: {}",
        invalid.error
    );
    let all = kubectl_beeline(fixture, &["--all-nodes", "status"]);
    assert!(
        all.code == Some(0) && ["== n1", "== n2", "== n3"].iter().all(|head| all.out.contains(head)),
        "{}",
        all.out
    );
}
