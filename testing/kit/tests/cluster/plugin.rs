//! `kubectl beeline ...`: kubectl finds the plugin on the path, and the plugin the agent's pod on a node.

use kit::Place;
use serde_json::{Value, json};

use crate::deploy::root;
use crate::field::{Field, at, eventually, pod};

struct Said {
    code: Option<i32>,
    out: String,
    error: String,
}

fn kubectl_beeline(field: &Field, words: &[&str]) -> Said {
    let path = format!("{}:{}", std::env::var("PATH").unwrap(), root().join("deploy").display());
    let mut command = field.cluster.command(Place::Control).unwrap();
    command.env("PATH", path).env("KUBECONFIG", field.cluster.kubeconfig("admin"));
    let output = command.args(["kubectl", "beeline"]).args(words).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Said { code: output.status.code(), out: text(&output.stdout), error: text(&output.stderr) }
}

fn answer(field: &Field, words: &[&str]) -> Value {
    let said = kubectl_beeline(field, words);
    assert_eq!(said.code, Some(0), "kubectl beeline {words:?}: {}", said.error);
    serde_json::from_str(&said.out).unwrap_or_else(|error| panic!("kubectl beeline {words:?}: {error}: {}", said.out))
}

pub fn says_that_there_is_no_agent(field: &Field) {
    let said = kubectl_beeline(field, &["--node", "n2", "status"]);
    assert_eq!(said.code, Some(3), "{}", said.error);
    assert!(
        said.error.contains("no agent on n2") && said.error.contains("next: kubectl get pods -A"),
        "{}",
        said.error
    );
    assert!(kubectl_beeline(field, &["status"]).error.contains("no agent\n"), "of no node in particular");
    let wrong = kubectl_beeline(field, &["--node", "n2", "stauts"]);
    assert!(wrong.code == Some(2) && wrong.error.contains("there is no verb stauts"), "{}", wrong.error);
}

/// A pod by the agent's labels, whose image is nowhere.
pub fn says_that_the_agent_does_not_run(field: &Field) {
    let mut broken = pod("broken", 2, &[]);
    broken["metadata"]["labels"] =
        json!({ "app.kubernetes.io/name": "beeline", "app.kubernetes.io/component": "agent" });
    broken["spec"]["containers"][0]["image"] = "example.org/nowhere:none".into();
    field.apply(&[broken]);
    eventually("the kubelet has seen it", || field.get("pod", "broken")["status"]["phase"] == "Pending");
    let said = kubectl_beeline(field, &["-n", field.namespace(), "--node", "n2", "status"]);
    assert_eq!(said.code, Some(3), "{}", said.error);
    assert!(said.error.contains("the agent on n2 does not run: pod broken is Pending"), "{}", said.error);
    assert!(said.error.contains(&format!("describe pod --namespace {} broken", field.namespace())), "{}", said.error);
    field.kubectl(&["delete", "pod", "broken", "--wait=true", "--grace-period=0", "--force"]);
}

pub fn asks_the_agent_of_a_node(field: &Field, cluster_ip: &str) {
    for node in field.cluster.nodes() {
        let status = answer(field, &["--node", &node.name(), "status", "-o", "json"]);
        assert_eq!((&status["node"], &status["source"]["synced"]), (&json!(node.name()), &json!(true)), "{status}");
    }
    let services = answer(field, &["--node", "n1", "services", "-o", "json"]);
    let web = format!("{}/web", field.namespace());
    let row = services.as_array().unwrap().iter().find(|row| row["service"] == web && row["address"] == cluster_ip);
    let row = row.unwrap_or_else(|| panic!("no {web} at {cluster_ip}: {services}"));
    assert_eq!(row["backends"].as_array().map(Vec::len), Some(2), "{row}");

    let dial = format!("{}/TCP", at(cluster_ip, 80));
    let said = kubectl_beeline(field, &["--node", "n3", "explain", &dial]);
    assert!(said.code == Some(0) && said.out.contains(&web), "{}{}", said.out, said.error);
    let nobody = kubectl_beeline(field, &["--node", "n3", "explain", "203.0.113.250:0/TCP"]);
    assert!(nobody.code == Some(3) && nobody.error.contains("port 0 is nobody's"), "the verb's own: {}", nobody.error);
    let all = kubectl_beeline(field, &["--all-nodes", "status"]);
    assert!(
        all.code == Some(0) && ["== n1", "== n2", "== n3"].iter().all(|head| all.out.contains(head)),
        "{}",
        all.out
    );
}
