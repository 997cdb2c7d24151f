//! Two clusters with the same ranges, seen from a host that is a Node of neither: who has an address, what a view changes,
//! and that neither a dead cluster nor a bad edit takes anything from the other.

use crate::agent::{Agent, dial, until};
use crate::cluster::{Cluster, PATIENCE, SERVICES, SLICES, with_two_clusters};
use beeline_harness::{Dial, Kind};
use serde_json::{Value, json};
use std::path::PathBuf;

const BEELINE: &str = env!("CARGO_BIN_EXE_beeline");
/// In both clusters.
const WEB: &str = "10.96.1.1:80";

struct Host<'a> {
    agent: Agent,
    blue: String,
    green: String,
    lab: &'a beeline_harness::Lab,
    config: PathBuf,
    state: String,
}

impl<'a> Host<'a> {
    async fn new(blue: &Cluster<'a>, green: &Cluster<'a>) -> Host<'a> {
        for (cluster, pod) in [(blue, 0), (green, 1)] {
            cluster.create_service("web", "10.96.1.1").await;
            cluster.create_slice("web", "web-1", &[&cluster.lab.pod(pod).v4.to_string()]).await;
        }
        let kubeconfig = |cluster: &Cluster| {
            let path = cluster.write_kubeconfig(json!({ "tokenFile": cluster.path("account/token") }));
            path.display().to_string()
        };
        Host {
            agent: Agent::of(blue),
            blue: kubeconfig(blue),
            green: kubeconfig(green),
            lab: blue.lab,
            config: blue.dir.path().join("beeline.yaml"),
            state: blue.path("state"),
        }
    }

    /// JSON is YAML.
    fn configure(&self, clusters: &Value) {
        self.write(&json!({ "stand": "outside", "clusters": clusters }));
    }

    fn write(&self, config: &Value) {
        let text = config.to_string();
        let aside = self.config.with_extension("new");
        std::fs::write(&aside, text).unwrap();
        std::fs::rename(&aside, &self.config).unwrap();
    }

    fn blue(&self) -> Value {
        json!({ "name": "blue", "kubeconfig": self.blue, "pods": "direct" })
    }

    fn green(&self) -> Value {
        json!({ "name": "green", "kubeconfig": self.green, "pods": "direct", "view": "green" })
    }

    fn start(&mut self, cluster: &Cluster) {
        let args = ["--config", self.config.to_str().unwrap(), "--state-dir", &self.state];
        self.agent.start(cluster, &args).wait_for("serving", PATIENCE).unwrap();
    }

    /// What `status` says of a cluster.
    fn said(&self, name: &str) -> Value {
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

    fn run(&self, view: &str, command: &[&str]) -> beeline_harness::Output {
        let own = ["run", "--view", view, "--socket", &self.agent.socket, "--"];
        self.lab.node().program(BEELINE).unwrap().args(own).args(command).run().unwrap()
    }

    fn explain(&self, more: &[&str]) -> Value {
        let place = ["--socket", &self.agent.socket, "--pin-dir", self.agent.pins.to_str().unwrap()];
        let program = self.lab.node().program(BEELINE).unwrap();
        let output = program.args(["explain", WEB, "-o", "json"]).args(place).args(more).run().unwrap();
        serde_json::from_str(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"))
    }
}

#[test]
fn two_clusters_with_the_same_ranges() {
    with_two_clusters(async |blue: &mut Cluster, green: &mut Cluster| {
        let _a = blue.lab.pod(0).serve(8080).unwrap();
        let _b = blue.lab.pod(1).serve(8080).unwrap();
        let mut host = Host::new(blue, green).await;
        host.configure(&json!([host.blue(), host.green()]));
        host.start(blue);
        until("both have been heard", || ["blue", "green"].iter().all(|name| host.said(name)["synced"] == true)).await;
        the_first_has_the_address(blue, &host).await;
        a_view_sees_the_other_first(&host).await;
        a_cgroup_has_a_view(&host).await;
        a_bad_edit_changes_nothing(blue, &host).await;
        a_cluster_goes_and_comes(blue, &host).await;
        another_cluster_under_an_old_name(blue, &host).await;
        a_cluster_takes_the_place_of_another(blue, &mut host).await;
        a_cluster_that_is_dead_at_start(blue, green, &mut host).await;
    });
}

async fn the_first_has_the_address(cluster: &Cluster<'_>, host: &Host<'_>) {
    until("blue has it", || dial(cluster, WEB) == "pod-a").await;
    for name in ["blue", "green"] {
        until("its range is known", || host.said(name)["rangesFrom"] == "ServiceCIDR").await;
        assert_eq!(host.said(name)["ranges"][0], "10.96.0.0/16");
        assert!(host.said(name)["facts"].as_u64() > Some(1) && host.said(name)["since"].is_string());
    }
    assert_eq!(host.explain(&[])["cluster"], "blue");
    let owned = || {
        let all = host.agent.status()["refusals"].as_array().cloned().unwrap_or_default();
        all.into_iter().find(|refusal| refusal["reason"] == "rangeOwned")
    };
    until("green is told", || owned().is_some_and(|refusal| refusal["cluster"] == "green")).await;
}

async fn a_view_sees_the_other_first(host: &Host<'_>) {
    let ask = "exec 3<>/dev/tcp/10.96.1.1/80; echo hello >&3; head -n 1 <&3";
    let output = host.run("green", &["bash", "-c", ask]);
    assert!(output.stdout.starts_with("pod-b "), "{output:?}");
    assert_eq!(host.explain(&["--view", "green"])["cluster"], "green");
    assert_eq!(host.run("green", &["sh", "-c", "exit 7"]).status.code(), Some(7));
    assert_eq!(host.run("green", &["/nonexistent"]).status.code(), Some(127));
    let output = host.run("red", &["true"]);
    assert!(!output.status.success() && output.stderr.contains("known are green"), "{output:?}");
    let rooms = || {
        let entries = std::fs::read_dir(host.lab.cgroup().path().join("beeline-views")).unwrap().flatten();
        entries.filter(|entry| entry.path().is_dir()).count()
    };
    until("nobody's room is left", || rooms() == 0).await;
    let without = ["run", "--view", "green", "--socket", "/nonexistent", "--", "true"];
    let output = std::process::Command::new(BEELINE).args(without).output().unwrap();
    assert!(String::from_utf8_lossy(&output.stderr).contains("no agent answers"), "{output:?}");
}

async fn a_cgroup_has_a_view(host: &Host<'_>) {
    let place = host.lab.pod(1);
    let client = place.client().unwrap();
    let answers = || client.dial(&Dial::new(Kind::Tcp, WEB.parse().unwrap())).unwrap().name().to_owned();
    until("as everybody", || answers() == "pod-a").await;
    let both = json!([host.blue(), host.green()]);
    let views = json!({ place.cgroup.path().to_str().unwrap(): "green", "/sys/fs/cgroup/none.slice": "green" });
    host.write(&json!({ "stand": "outside", "clusters": both, "views": views }));
    until("it sees green first", || answers() == "pod-b").await;
    assert!(host.refused("noCgroup").is_some_and(|why| why.contains("view green")));
    let from = place.cgroup.path().to_str().unwrap();
    let explained = host.explain(&["--from", from]);
    assert_eq!((&explained["cluster"], &explained["view"]), (&json!("green"), &json!("green")));
    host.configure(&both);
    until("as everybody again", || answers() == "pod-a").await;
}

async fn a_bad_edit_changes_nothing(cluster: &Cluster<'_>, host: &Host<'_>) {
    std::fs::write(&host.config, "stand: outside\nclusters: [ {\n").unwrap();
    until("it is refused", || host.refused("badConfiguration").is_some()).await;
    host.configure(&json!([host.blue(), host.blue()]));
    until("twice the same name is refused", || {
        host.refused("badConfiguration").is_some_and(|why| why.contains("blue is there twice"))
    })
    .await;
    assert_eq!(dial(cluster, WEB), "pod-a");
    let same = json!({ "name": "again", "kubeconfig": host.green, "view": "again" });
    host.configure(&json!([host.blue(), host.green(), same]));
    until("the file is well again", || host.refused("badConfiguration").is_none()).await;
    until("one cluster twice is refused", || {
        host.refused("sameCluster").is_some_and(|why| why.contains("same cluster as green"))
    })
    .await;
    assert_eq!((dial(cluster, WEB).as_str(), &host.said("again")["synced"]), ("pod-a", &json!(false)));
    host.configure(&json!([host.blue(), host.green()]));
    until("it is gone", || host.refused("sameCluster").is_none() && host.said("again").is_null()).await;
}

async fn a_cluster_goes_and_comes(cluster: &Cluster<'_>, host: &Host<'_>) {
    host.configure(&json!([host.green()]));
    until("green has the address", || dial(cluster, WEB) == "pod-b").await;
    assert!(host.said("blue").is_null());
    host.configure(&json!([host.green(), host.blue()]));
    until("blue is back", || host.said("blue")["synced"] == true).await;
    assert_eq!(dial(cluster, WEB), "pod-b", "green comes first now");
    host.configure(&json!([host.blue(), host.green()]));
    until("blue comes first", || dial(cluster, WEB) == "pod-a").await;
}

async fn another_cluster_under_an_old_name(cluster: &Cluster<'_>, host: &Host<'_>) {
    let wrong = json!({ "name": "blue", "kubeconfig": host.green, "pods": "direct" });
    host.configure(&json!([wrong]));
    until("it is refused", || host.refused("otherCluster").is_some_and(|why| why.contains("clusters/blue/uid"))).await;
    assert!(host.said("blue")["error"].is_string());
    assert_eq!(dial(cluster, WEB), "pod-a", "what was known of blue stays");
    host.configure(&json!([host.blue(), host.green()]));
    until("blue is blue again", || host.refused("otherCluster").is_none() && host.said("blue")["error"].is_null())
        .await;
    until("green is back", || host.said("green")["synced"] == true).await;
}

/// As an administrator says by removing the file that the refusal names: nothing of the old one is left, though the agent
/// and its source run on.
async fn a_cluster_takes_the_place_of_another(blue: &mut Cluster<'_>, host: &mut Host<'_>) {
    host.configure(&json!([host.blue()]));
    until("green is gone", || host.said("green").is_null()).await;
    until("blue is heard", || host.said("blue")["error"].is_null()).await;
    blue.create_service("old", "10.96.1.3").await;
    blue.create_slice("old", "old-1", &[&blue.lab.pod(0).v4.to_string()]).await;
    until("blue's other one", || dial(blue, "10.96.1.3:80") == "pod-a").await;
    let own = std::fs::read(&host.blue).unwrap();
    std::fs::copy(&host.green, &host.blue).unwrap();
    blue.stop_api();
    until("green answers for blue", || host.refused("otherCluster").is_some()).await;
    assert_eq!(dial(blue, WEB), "pod-a");
    std::fs::remove_file(std::path::Path::new(&host.state).join("clusters/blue/uid")).unwrap();
    until("green's is what is served", || dial(blue, WEB) == "pod-b").await;
    until("and nothing of blue's", || dial(blue, "10.96.1.3:80") != "pod-a").await;
    host.agent.running = None;
    std::fs::remove_dir_all(&host.state).unwrap();
    std::fs::write(&host.blue, own).unwrap();
    blue.start_api().await;
    host.configure(&json!([host.blue(), host.green()]));
    host.start(blue);
    until("all is as before", || dial(blue, WEB) == "pod-a" && host.said("green")["synced"] == true).await;
}

async fn a_cluster_that_is_dead_at_start(blue: &mut Cluster<'_>, green: &Cluster<'_>, host: &mut Host<'_>) {
    green.create_service("far", "10.96.1.2").await;
    green.create_slice("far", "far-1", &[&green.lab.pod(1).v4.to_string()]).await;
    host.agent.running = None;
    blue.stop_api();
    // Without what is remembered: only what is pinned serves.
    let _ = std::fs::remove_dir_all(&host.state);
    host.start(blue);
    until("green is heard, blue is not", || {
        host.said("green")["synced"] == true && host.said("blue")["error"].is_string()
    })
    .await;
    assert_eq!(host.said("blue")["synced"], false);
    assert_eq!(dial(blue, WEB), "pod-a", "blue's rows are still there");
    let output = host.run("green", &["bash", "-c", "exec 3<>/dev/tcp/10.96.1.2/80; echo hello >&3; head -n 1 <&3"]);
    assert!(output.stdout.starts_with("pod-b "), "what is new in green is served: {output:?}");
    blue.start_api().await;
    until("blue is heard", || host.said("blue")["synced"] == true).await;
    assert_eq!(dial(blue, WEB), "pod-a");
    let endpoints = json!([{ "addresses": [blue.lab.pod(1).v4.to_string()] }]);
    blue.patch(&format!("{SLICES}/web-1"), json!({ "endpoints": endpoints })).await;
    until("its changes are followed", || dial(blue, WEB) == "pod-b").await;
    blue.delete(&format!("{SERVICES}/web")).await;
    let nobody = || host.explain(&[])["verdict"] != "resolved";
    until("blue's is gone, and green's does not take its place", nobody).await;
}
