//! A host outside the cluster with a real API server: `beeline grant`, `join`, `revoke` and `leave`, and renewal and expiry
//! of its token.

mod host;
mod rights;

use crate::agent::{TestAgent, dial, wait_until};
use crate::cluster::{API, Cluster, TIMEOUT, with_cluster};
use base64::Engine;
use beeline_join::JoinCode;
use host::{Host, beeline, expired_token, run_ok, text};
use serde_json::{Value, json};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap_or_else(|e| panic!("{}: {e}", path.display())).permissions().mode() & 0o777
}

#[test]
fn a_host_joins_and_leaves() {
    with_cluster(async |cluster: &mut Cluster| {
        cluster.create_node("node-1", "172.31.0.11", json!([])).await;
        let host = Host::new(cluster);
        failed_joins_write_nothing(cluster, &host);
        let code = host.grant();
        let message = host.join_with(&code);
        assert!(
            message.contains("joined test as beeline-hosts/vm-1") && message.contains("1 services, 1 nodes"),
            "{message}"
        );
        files_have_the_right_content_and_mode(&host);
        the_join_code_is_not_stored(&host, &code);
        a_name_belongs_to_one_cluster(&host);
        a_second_cluster_can_be_joined(cluster, &host).await;
        leaving_removes_all_files(&host);
    });
}

fn failed_joins_write_nothing(cluster: &Cluster, host: &Host) {
    let good = host.grant();
    let pem = std::fs::read_to_string(cluster.path("first.crt")).unwrap();
    let body: String = pem.lines().filter(|line| !line.starts_with("-----")).collect();
    let other_authority = base64::engine::general_purpose::STANDARD.decode(body).unwrap();
    let message = host.join_failing(&JoinCode { authorities: vec![other_authority], ..good.clone() }, &[]);
    assert!(message.contains("does not match the CA in the code"), "{message}");
    let message = host.join_failing(&JoinCode { servers: vec!["https://127.0.0.1:1".into()], ..good.clone() }, &[]);
    assert!(
        message.contains("https://127.0.0.1:1") && message.contains("check the route and the firewall"),
        "{message}"
    );
    let message = host.join_failing(&JoinCode { uid: "another".into(), ..good.clone() }, &[]);
    assert!(message.contains("another cluster"), "{message}");
    let message = host.join_failing(&JoinCode { token: expired_token(cluster, &good.token), ..good.clone() }, &[]);
    assert!(message.contains("expired at") && message.contains("beeline grant vm-1"), "{message}");
    host.revoke();
    // The API server caches valid tokens for ten seconds, but the role is removed at once.
    let start = Instant::now();
    let mut message = host.join_failing(&good, &[]);
    while !message.contains("(401)") {
        assert!(start.elapsed() < TIMEOUT && message.contains("(403)"), "{message}");
        std::thread::sleep(Duration::from_secs(1));
        message = host.join_failing(&good, &[]);
    }
    assert!(message.contains("beeline grant vm-1"), "{message}");
    assert!(!host.root.exists(), "a failed join writes nothing");
    assert_eq!(beeline(&["revoke", "vm-1", "--kubeconfig", &host.admin]).status.code(), Some(3));
}

fn files_have_the_right_content_and_mode(host: &Host) {
    assert_eq!(mode(&host.kubeconfig()), 0o600);
    assert_eq!(mode(&host.kubeconfig().with_file_name("token")), 0o600);
    assert_eq!(mode(&host.path("var/lib/beeline/clusters/test")), 0o700);
    let file = std::fs::read_to_string(host.path("etc/beeline/config.yaml")).unwrap();
    assert!(file.contains("host-role: outside\n") && file.contains("  - name: test\n"), "{file}");
    let unit = std::fs::read_to_string(host.path("etc/systemd/system/beeline.service")).unwrap();
    assert!(unit.contains("ExecStart=/usr/bin/beeline agent --config /etc/beeline/config.yaml"), "{unit}");
}

fn the_join_code_is_not_stored(host: &Host, code: &JoinCode) {
    let found = Command::new("grep").args(["-r", code.token.text()]).arg(&host.root).output().unwrap();
    assert_eq!(text(&found.stdout), "");
    assert_eq!((code.token.lifetime().as_secs(), host.token().lifetime().as_secs()), (600, 1_200));
}

fn a_name_belongs_to_one_cluster(host: &Host) {
    let code = host.grant();
    let message = host.join_failing(&code, &["--name", "shop"]);
    assert!(message.contains("has joined the cluster already, as test"), "{message}");
    let before = std::fs::read_to_string(host.path("etc/beeline/config.yaml")).unwrap();
    assert!(host.join().contains("rejoined test"));
    assert_eq!(std::fs::read_to_string(host.path("etc/beeline/config.yaml")).unwrap(), before);
    // Another cluster under the same name: the stored uid of the first is changed.
    let file = std::fs::read_to_string(host.kubeconfig()).unwrap();
    std::fs::write(host.kubeconfig(), file.replace(&code.uid, "another")).unwrap();
    let message = host.join_failing(&code, &[]);
    assert!(message.contains("another cluster has the name test"), "{message}");
    // An unreadable file is replaced.
    std::fs::write(host.kubeconfig(), "fish").unwrap();
    assert!(host.join_with(&code).contains("rejoined test"));
    assert_eq!(host.credential().extension.uid, code.uid);
}

async fn a_second_cluster_can_be_joined(cluster: &mut Cluster<'_>, host: &Host) {
    let before = std::fs::read_to_string(host.path("etc/beeline/config.yaml")).unwrap();
    cluster.stop_api();
    cluster.registry = "/other";
    cluster.start_api().await;
    let start = Instant::now();
    while cluster.request("GET", "/api/v1/namespaces/kube-system", &Value::Null).await.is_err() {
        assert!(start.elapsed() < TIMEOUT, "the namespace kube-system does not exist");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let code = host.grant();
    let message = host.join_failing(&code, &[]);
    assert!(message.contains("another cluster has the name test") && message.contains("--name"), "{message}");
    let root = host.root.display().to_string();
    let message = run_ok(&["join", &code.encode(), "--no-start", "--root", &root, "--name", "shop"]);
    assert!(message.contains("joined shop as beeline-hosts/vm-1"), "{message}");
    let file = std::fs::read_to_string(host.path("etc/beeline/config.yaml")).unwrap();
    assert_eq!(file, format!("{before}  - name: shop\n    kubeconfig: /var/lib/beeline/clusters/shop/kubeconfig\n"));
    let message = host::run_failing(&["leave", "--root", &root]);
    assert!(message.contains("name the cluster to leave; this host has joined test, shop"), "{message}");
    ["test", "shop"].iter().for_each(|name| create_snapshot_files(host, name));
    run_ok(&["leave", "shop", "--root", &root]);
    let exist =
        |name: &str| ["snapshot", "snapshot.previous"].map(|end| host.snapshot(&format!("{name}.{end}")).exists());
    assert_eq!(
        [exist("shop"), exist("test")],
        [[false; 2], [true; 2]],
        "only the snapshots of the left cluster are removed"
    );
    assert_eq!(std::fs::read_to_string(host.path("etc/beeline/config.yaml")).unwrap(), before);
    assert!(!host.path("var/lib/beeline/clusters/shop").exists() && host.kubeconfig().exists());
}

/// Creates the snapshot files that an agent writes.
fn create_snapshot_files(host: &Host, cluster: &str) {
    std::fs::create_dir_all(host.path("var/lib/beeline/snapshot")).unwrap();
    for end in ["snapshot", "snapshot.previous"] {
        std::fs::write(host.snapshot(&format!("{cluster}.{end}")), "x").unwrap();
    }
}

fn leaving_removes_all_files(host: &Host) {
    let root = host.root.display().to_string();
    let routes = host.path("etc/systemd/resolved.conf.d");
    let route_args =
        ["--address", "127.0.0.55:53", "--domains", "cluster.local", "--resolved-dir", routes.to_str().unwrap()];
    run_ok(&[&["dns", "route"][..], &route_args].concat());
    assert_eq!(beeline(&["leave", "shop", "--root", &root]).status.code(), Some(3));
    let message = run_ok(&["leave", "--root", &root]);
    assert!(message.contains("left test") && message.contains("beeline revoke vm-1"), "{message}");
    assert!(
        message.contains("resolved.conf.d/beeline.conf") && message.contains("snapshot/test.snapshot\n"),
        "{message}"
    );
    let files = Command::new("find").args([&root, "-type", "f"]).output().unwrap();
    assert_eq!(text(&files.stdout), "", "no file is left");
    assert_eq!(beeline(&["leave", "--root", &root]).status.code(), Some(3));
}

#[test]
fn a_joined_host_serves_also_without_a_valid_token() {
    with_cluster(async |cluster: &mut Cluster| {
        cluster.create_node("node-1", "172.31.0.11", json!([])).await;
        cluster.create_service("web", "10.96.1.1").await;
        cluster.create_slice("web", "web-1", &[&cluster.network.pod(0).v4.to_string()]).await;
        let _pod = cluster.network.pod(0).serve(8080).unwrap();
        let host = Host::new(cluster);
        // The first server does not exist.
        let code = JoinCode { servers: vec!["https://127.0.0.1:1".into(), API.into()], ..host.grant() };
        let message = host.join_with(&code);
        assert!(message.contains("pods            reached directly"), "the pod answers: {message}");
        let first = host.token();
        let mut agent = TestAgent::new(cluster);
        let file = host.configuration();
        let state = host.path("var/lib/beeline").display().to_string();
        // One percent of twenty minutes.
        let args = ["--config", &file, "--state-dir", &state, "--token-renewal-percent", "1"];
        agent.start_outside(cluster, &args).wait_for("serving", TIMEOUT).unwrap();
        assert_eq!(dial(cluster, "10.96.1.1:80"), "pod-a");
        wait_until("the token is renewed", || host.token().issued > first.issued).await;
        assert_eq!(mode(&host.kubeconfig().with_file_name("token")), 0o600);
        wait_until("there is no error", || has_no_error(&agent)).await;
        assert_eq!(host.request("GET", "/api/v1/services", &Value::Null).await.0, 200, "the new token is valid");
        a_revoked_host_serves_and_can_rejoin(cluster, &host, &agent).await;
        a_missing_role_is_reported(cluster, &host, &agent).await;
        a_host_with_an_expired_token_serves_and_can_rejoin(cluster, &host, &mut agent, &args).await;
        leaving_removes_the_state(&host, &mut agent);
    });
}

fn token(agent: &TestAgent, what: &str) -> String {
    agent.status()["tokens"][0][what].as_str().unwrap_or_default().to_owned()
}

fn has_no_error(agent: &TestAgent) -> bool {
    let status = agent.status();
    let (token, cluster) = (&status["tokens"][0], &status["clusters"][0]);
    assert_eq!((&token["cluster"], &cluster["name"]), (&json!("test"), &json!("test")), "{status}");
    token["account"] == "beeline-hosts/vm-1"
        && [&token["rejoin"], &token["error"], &cluster["error"]].iter().all(|error| error.is_null())
}

/// The host was off for so long that its token expired. (A token that expires during a watch is noticed when the watch is
/// renewed, every five minutes.)
async fn a_host_with_an_expired_token_serves_and_can_rejoin(
    cluster: &mut Cluster<'_>,
    host: &Host,
    agent: &mut TestAgent,
    args: &[&str],
) {
    agent.stop();
    let old = expired_token(cluster, &host.token());
    host.credential().replace(&old).unwrap();
    agent.start_outside(cluster, args);
    wait_until("the status reports the expired token", || token(agent, "rejoin").contains("expired")).await;
    let message = token(agent, "rejoin");
    assert!(message.contains("`beeline grant vm-1`") && message.contains("`beeline join`"), "{message}");
    wait_until("the status reports the rejected requests", || {
        agent.status()["clusters"][0]["error"].as_str().is_some_and(|e| e.contains("(401)"))
    })
    .await;
    assert_eq!(dial(cluster, "10.96.1.1:80"), "pod-a", "the host continues to serve");
    wait_until("the snapshot is served", || agent.status()["clusters"][0]["snapshotTime"].is_string()).await;
    assert_eq!(dial(cluster, "10.96.1.1:80"), "pod-a", "the host continues to serve");
    assert!(host.join().contains("rejoined test"));
    wait_until_changes_are_followed(cluster, agent, "10.96.1.4").await;
}

fn leaving_removes_the_state(host: &Host, agent: &mut TestAgent) {
    agent.stop();
    assert!(host.snapshot("test.snapshot").exists(), "a clean stop writes a snapshot");
    let message = run_ok(&["leave", "--root", &host.root.display().to_string()]);
    assert!(message.contains("left test"), "{message}");
    let left = Command::new("find").arg(host.path("var")).args(["-type", "f"]).output().unwrap();
    assert_eq!(text(&left.stdout), "", "no file is left");
}

async fn a_revoked_host_serves_and_can_rejoin(cluster: &mut Cluster<'_>, host: &Host, agent: &TestAgent) {
    let message = host.revoke();
    assert!(message.contains("clusterroles/beeline-host"), "the role is removed with the last host: {message}");
    let start = Instant::now();
    while host.request("GET", "/api/v1/services", &Value::Null).await.0 != 401 {
        assert!(start.elapsed() < TIMEOUT, "the token is still accepted");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    wait_until("the status reports the revoked token", || token(agent, "rejoin").contains("not accept")).await;
    assert_eq!(dial(cluster, "10.96.1.1:80"), "pod-a", "the host continues to serve");
    assert!(host.join().contains("rejoined test"));
    wait_until_changes_are_followed(cluster, agent, "10.96.1.3").await;
}

/// The administrator can restore a missing role without a new join.
async fn a_missing_role_is_reported(cluster: &mut Cluster<'_>, host: &Host, agent: &TestAgent) {
    cluster.delete("/apis/rbac.authorization.k8s.io/v1/namespaces/beeline-hosts/rolebindings/vm-1").await;
    wait_until("the status reports the missing role", || token(agent, "error").contains("(403)")).await;
    let (message, rejoin) = (token(agent, "error"), token(agent, "rejoin"));
    assert!(message.contains("`beeline grant vm-1`") && rejoin.is_empty(), "{message}; {rejoin}");
    host.grant();
    wait_until("the token is renewed again", || has_no_error(agent)).await;
}

/// Waits until the agent, without a restart, has no error and follows changes again.
async fn wait_until_changes_are_followed(cluster: &Cluster<'_>, agent: &TestAgent, address: &str) {
    wait_until("the host has no error", || has_no_error(agent)).await;
    let count = agent.status()["counts"]["services"].as_u64();
    cluster.create_service(&format!("after-{}", address.replace('.', "-")), address).await;
    wait_until("a new Service is read", || agent.status()["counts"]["services"].as_u64() > count).await;
}
