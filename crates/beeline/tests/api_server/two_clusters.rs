//! Two clusters with the same ranges on a host outside both: which cluster an address belongs to, views, invalid
//! configurations, and clusters that are unreachable, removed or replaced.

use crate::agent::{TestAgent, dial, wait_until};
use crate::cluster::{Cluster, SERVICES, SLICES, TIMEOUT, with_two_clusters};
use beeline_harness::{DialKind, DialRequest};
use serde_json::{Value, json};
use std::path::PathBuf;

const BEELINE: &str = env!("CARGO_BIN_EXE_beeline");
/// The address of a Service in both clusters.
const WEB: &str = "10.96.1.1:80";

struct Host<'a> {
    agent: TestAgent,
    blue: String,
    green: String,
    network: &'a beeline_harness::TestNetwork,
    config: PathBuf,
    state: String,
}

impl<'a> Host<'a> {
    async fn new(blue: &Cluster<'a>, green: &Cluster<'a>) -> Host<'a> {
        for (cluster, pod) in [(blue, 0), (green, 1)] {
            cluster.create_service("web", "10.96.1.1").await;
            cluster.create_slice("web", "web-1", &[&cluster.network.pod(pod).v4.to_string()]).await;
        }
        let kubeconfig = |cluster: &Cluster| {
            let path = cluster.write_kubeconfig(json!({ "tokenFile": cluster.path("account/token") }));
            path.display().to_string()
        };
        Host {
            agent: TestAgent::new(blue),
            blue: kubeconfig(blue),
            green: kubeconfig(green),
            network: blue.network,
            config: blue.dir.path().join("beeline.yaml"),
            state: blue.path("state"),
        }
    }

    /// Writes the configuration file as JSON, which is valid YAML.
    fn configure(&self, clusters: &Value) {
        self.write(&json!({ "host-role": "outside", "clusters": clusters }));
    }

    fn write(&self, config: &Value) {
        let text = config.to_string();
        let temporary = self.config.with_extension("new");
        std::fs::write(&temporary, text).unwrap();
        std::fs::rename(&temporary, &self.config).unwrap();
    }

    fn blue(&self) -> Value {
        json!({ "name": "blue", "kubeconfig": self.blue, "podAccess": "direct" })
    }

    fn green(&self) -> Value {
        json!({ "name": "green", "kubeconfig": self.green, "podAccess": "direct", "view": "green" })
    }

    fn start(&mut self, cluster: &Cluster) {
        let args = ["--config", self.config.to_str().unwrap(), "--state-dir", &self.state];
        self.agent.start(cluster, &args).wait_for("serving", TIMEOUT).unwrap();
    }

    /// The entry of a cluster in `beeline status`.
    fn cluster_status(&self, name: &str) -> Value {
        let status = self.agent.status();
        let all = status["clusters"].as_array().cloned().unwrap_or_default();
        all.into_iter().find(|cluster| cluster["name"] == name).unwrap_or(Value::Null)
    }

    fn refused(&self, reason: &str) -> Option<String> {
        let status = self.agent.status();
        let all = status["refusals"].as_array().cloned().unwrap_or_default();
        let found = all.into_iter().find(|refusal| refusal["reason"] == reason);
        found.map(|refusal| refusal["message"].as_str().unwrap_or_default().to_owned())
    }

    fn run(&self, view: &str, command: &[&str]) -> beeline_harness::ProgramOutput {
        let own = ["run", "--view", view, "--socket", &self.agent.socket, "--"];
        self.network.node().program(BEELINE).unwrap().args(own).args(command).run().unwrap()
    }

    fn explain(&self, more: &[&str]) -> Value {
        let location = ["--socket", &self.agent.socket, "--pin-dir", self.agent.pins.to_str().unwrap()];
        let program = self.network.node().program(BEELINE).unwrap();
        let output = program.args(["explain", WEB, "-o", "json"]).args(location).args(more).run().unwrap();
        serde_json::from_str(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"))
    }
}

#[test]
fn a_host_can_use_two_clusters_with_the_same_ranges() {
    with_two_clusters(async |blue: &mut Cluster, green: &mut Cluster| {
        let _a = blue.network.pod(0).serve(8080).unwrap();
        let _b = blue.network.pod(1).serve(8080).unwrap();
        let mut host = Host::new(blue, green).await;
        host.configure(&json!([host.blue(), host.green()]));
        host.start(blue);
        wait_until("both clusters are synced", || {
            ["blue", "green"].iter().all(|name| host.cluster_status(name)["synced"] == true)
        })
        .await;
        the_first_cluster_owns_the_address(blue, &host).await;
        a_view_puts_the_other_cluster_first(&host).await;
        a_cgroup_can_have_a_view(&host).await;
        an_invalid_configuration_changes_nothing(blue, &host).await;
        a_cluster_can_be_removed_and_added(blue, &host).await;
        another_cluster_under_a_known_name_is_refused(blue, &host).await;
        a_cluster_can_replace_another_one(blue, &mut host).await;
        a_cluster_that_is_unreachable_at_the_start_keeps_its_rows(blue, green, &mut host).await;
    });
}

async fn the_first_cluster_owns_the_address(cluster: &Cluster<'_>, host: &Host<'_>) {
    wait_until("blue owns the address", || dial(cluster, WEB) == "pod-a").await;
    for name in ["blue", "green"] {
        wait_until("the range of the cluster is known", || host.cluster_status(name)["rangesFrom"] == "ServiceCIDR")
            .await;
        assert_eq!(host.cluster_status(name)["ranges"][0], "10.96.0.0/16");
        assert!(
            host.cluster_status(name)["objects"].as_u64() > Some(1) && host.cluster_status(name)["since"].is_string()
        );
    }
    assert_eq!(host.explain(&[])["cluster"], "blue");
    let owned = || {
        let all = host.agent.status()["refusals"].as_array().cloned().unwrap_or_default();
        all.into_iter().find(|refusal| refusal["reason"] == "rangeOwned")
    };
    wait_until("green gets a refusal", || owned().is_some_and(|refusal| refusal["cluster"] == "green")).await;
}

async fn a_view_puts_the_other_cluster_first(host: &Host<'_>) {
    let request = "exec 3<>/dev/tcp/10.96.1.1/80; echo hello >&3; head -n 1 <&3";
    let output = host.run("green", &["bash", "-c", request]);
    assert!(output.stdout.starts_with("pod-b "), "{output:?}");
    assert_eq!(host.explain(&["--view", "green"])["cluster"], "green");
    assert_eq!(host.run("green", &["sh", "-c", "exit 7"]).status.code(), Some(7));
    assert_eq!(host.run("green", &["/nonexistent"]).status.code(), Some(127));
    let output = host.run("red", &["true"]);
    assert!(!output.status.success() && output.stderr.contains("the views are: green"), "{output:?}");
    let view_cgroups = || {
        let entries = std::fs::read_dir(host.network.cgroup().path().join("beeline-views")).unwrap().flatten();
        entries.filter(|entry| entry.path().is_dir()).count()
    };
    wait_until("the cgroups of `beeline run` are removed", || view_cgroups() == 0).await;
    let without = ["run", "--view", "green", "--socket", "/nonexistent", "--", "true"];
    let output = std::process::Command::new(BEELINE).args(without).output().unwrap();
    assert!(String::from_utf8_lossy(&output.stderr).contains("no agent listens at /nonexistent"), "{output:?}");
}

async fn a_cgroup_can_have_a_view(host: &Host<'_>) {
    let pod = host.network.pod(1);
    let client = pod.client().unwrap();
    let answers = || client.dial(&DialRequest::new(DialKind::Tcp, WEB.parse().unwrap())).unwrap().name().to_owned();
    wait_until("the default view applies", || answers() == "pod-a").await;
    let both = json!([host.blue(), host.green()]);
    let views = json!({ pod.cgroup.path().to_str().unwrap(): "green", "/sys/fs/cgroup/none.slice": "green" });
    host.write(&json!({ "host-role": "outside", "clusters": both, "views": views }));
    wait_until("the view green applies", || answers() == "pod-b").await;
    assert!(host.refused("noCgroup").is_some_and(|why| why.contains("view green")));
    let from = pod.cgroup.path().to_str().unwrap();
    let explained = host.explain(&["--from", from]);
    assert_eq!((&explained["cluster"], &explained["view"]), (&json!("green"), &json!("green")));
    host.configure(&both);
    wait_until("the default view applies again", || answers() == "pod-a").await;
}

async fn an_invalid_configuration_changes_nothing(cluster: &Cluster<'_>, host: &Host<'_>) {
    std::fs::write(&host.config, "host-role: outside\nclusters: [ {\n").unwrap();
    wait_until("the configuration is refused", || host.refused("badConfiguration").is_some()).await;
    host.configure(&json!([host.blue(), host.blue()]));
    wait_until("a duplicate name is refused", || {
        host.refused("badConfiguration").is_some_and(|why| why.contains("blue is listed twice"))
    })
    .await;
    assert_eq!(dial(cluster, WEB), "pod-a");
    let duplicate = json!({ "name": "again", "kubeconfig": host.green, "view": "again" });
    host.configure(&json!([host.blue(), host.green(), duplicate]));
    wait_until("the file is valid again", || host.refused("badConfiguration").is_none()).await;
    wait_until("the same cluster under two names is refused", || {
        host.refused("sameCluster").is_some_and(|why| why.contains("same cluster as green"))
    })
    .await;
    assert_eq!((dial(cluster, WEB).as_str(), &host.cluster_status("again")["synced"]), ("pod-a", &json!(false)));
    host.configure(&json!([host.blue(), host.green()]));
    wait_until("the duplicate is removed", || {
        host.refused("sameCluster").is_none() && host.cluster_status("again").is_null()
    })
    .await;
}

async fn a_cluster_can_be_removed_and_added(cluster: &Cluster<'_>, host: &Host<'_>) {
    host.configure(&json!([host.green()]));
    wait_until("green owns the address", || dial(cluster, WEB) == "pod-b").await;
    assert!(host.cluster_status("blue").is_null());
    host.configure(&json!([host.green(), host.blue()]));
    wait_until("blue is synced", || host.cluster_status("blue")["synced"] == true).await;
    assert_eq!(dial(cluster, WEB), "pod-b", "green is the first cluster");
    host.configure(&json!([host.blue(), host.green()]));
    wait_until("blue is the first cluster", || dial(cluster, WEB) == "pod-a").await;
}

async fn another_cluster_under_a_known_name_is_refused(cluster: &Cluster<'_>, host: &Host<'_>) {
    let wrong = json!({ "name": "blue", "kubeconfig": host.green, "podAccess": "direct" });
    host.configure(&json!([wrong]));
    wait_until("the other cluster is refused", || {
        host.refused("otherCluster").is_some_and(|why| why.contains("clusters/blue/uid"))
    })
    .await;
    assert!(host.cluster_status("blue")["error"].is_string());
    assert_eq!(dial(cluster, WEB), "pod-a", "the last known state of blue stays in effect");
    host.configure(&json!([host.blue(), host.green()]));
    wait_until("blue is accepted again", || {
        host.refused("otherCluster").is_none() && host.cluster_status("blue")["error"].is_null()
    })
    .await;
    wait_until("green is synced", || host.cluster_status("green")["synced"] == true).await;
}

/// An administrator confirms another cluster under a known name by removing the file that the refusal names. The agent then
/// removes everything of the old cluster without a restart.
async fn a_cluster_can_replace_another_one(blue: &mut Cluster<'_>, host: &mut Host<'_>) {
    host.configure(&json!([host.blue()]));
    wait_until("green is removed", || host.cluster_status("green").is_null()).await;
    wait_until("blue has no error", || host.cluster_status("blue")["error"].is_null()).await;
    blue.create_service("old", "10.96.1.3").await;
    blue.create_slice("old", "old-1", &[&blue.network.pod(0).v4.to_string()]).await;
    wait_until("the other Service of blue answers", || dial(blue, "10.96.1.3:80") == "pod-a").await;
    let own = std::fs::read(&host.blue).unwrap();
    std::fs::copy(&host.green, &host.blue).unwrap();
    blue.stop_api();
    wait_until("the other cluster is refused", || host.refused("otherCluster").is_some()).await;
    assert_eq!(dial(blue, WEB), "pod-a");
    std::fs::remove_file(std::path::Path::new(&host.state).join("clusters/blue/uid")).unwrap();
    wait_until("the Service of green is served", || dial(blue, WEB) == "pod-b").await;
    wait_until("the Services of blue are removed", || dial(blue, "10.96.1.3:80") != "pod-a").await;
    host.agent.running = None;
    std::fs::remove_dir_all(&host.state).unwrap();
    std::fs::write(&host.blue, own).unwrap();
    blue.start_api().await;
    host.configure(&json!([host.blue(), host.green()]));
    host.start(blue);
    wait_until("both clusters are served again", || {
        dial(blue, WEB) == "pod-a" && host.cluster_status("green")["synced"] == true
    })
    .await;
}

async fn a_cluster_that_is_unreachable_at_the_start_keeps_its_rows(
    blue: &mut Cluster<'_>,
    green: &Cluster<'_>,
    host: &mut Host<'_>,
) {
    green.create_service("far", "10.96.1.2").await;
    green.create_slice("far", "far-1", &[&green.network.pod(1).v4.to_string()]).await;
    host.agent.running = None;
    blue.stop_api();
    // Without a snapshot, only the pinned tables serve.
    let _ = std::fs::remove_dir_all(&host.state);
    host.start(blue);
    wait_until("green is synced, and blue has an error", || {
        host.cluster_status("green")["synced"] == true && host.cluster_status("blue")["error"].is_string()
    })
    .await;
    assert_eq!(host.cluster_status("blue")["synced"], false);
    assert_eq!(dial(blue, WEB), "pod-a", "the rows of blue stay");
    let output = host.run("green", &["bash", "-c", "exec 3<>/dev/tcp/10.96.1.2/80; echo hello >&3; head -n 1 <&3"]);
    assert!(output.stdout.starts_with("pod-b "), "a new Service of green is served: {output:?}");
    blue.start_api().await;
    wait_until("blue has no error", || host.cluster_status("blue")["synced"] == true).await;
    assert_eq!(dial(blue, WEB), "pod-a");
    let endpoints = json!([{ "addresses": [blue.network.pod(1).v4.to_string()] }]);
    blue.patch(&format!("{SLICES}/web-1"), json!({ "endpoints": endpoints })).await;
    wait_until("changes of blue are followed", || dial(blue, WEB) == "pod-b").await;
    blue.delete(&format!("{SERVICES}/web")).await;
    let is_unresolved = || host.explain(&[])["verdict"] != "resolved";
    wait_until("the Service of blue is removed, and green does not get the address", is_unresolved).await;
}
