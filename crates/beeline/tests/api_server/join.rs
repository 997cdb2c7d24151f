//! A host that is granted, joins, is renewed, expires, is revoked and leaves; at a real API server, by the commands that
//! people type.

mod host;
mod right;

use crate::agent::{Agent, dial, until};
use crate::cluster::{API, Cluster, PATIENCE, with_cluster};
use base64::Engine;
use beeline_join::Code;
use host::{Host, beeline, done, expired, text};
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
        let host = Host::of(cluster);
        broken_promises_write_nothing(cluster, &host);
        let code = host.grant();
        let said = host.joins_by(&code);
        assert!(said.contains("joined test as beeline-hosts/vm-1") && said.contains("1 services, 1 nodes"), "{said}");
        the_files_are_as_they_should_be(&host);
        the_code_is_not_kept(&host, &code);
        names_belong_to_clusters(&host);
        another_cluster_joins_beside_it(cluster, &host).await;
        leaving(&host);
    });
}

fn broken_promises_write_nothing(cluster: &Cluster, host: &Host) {
    let good = host.grant();
    let pem = std::fs::read_to_string(cluster.path("first.crt")).unwrap();
    let body: String = pem.lines().filter(|line| !line.starts_with("-----")).collect();
    let stranger = base64::engine::general_purpose::STANDARD.decode(body).unwrap();
    let said = host.refuses(&Code { authorities: vec![stranger], ..good.clone() }, &[]);
    assert!(said.contains("is not who the code says"), "{said}");
    let said = host.refuses(&Code { servers: vec!["https://127.0.0.1:1".into()], ..good.clone() }, &[]);
    assert!(said.contains("https://127.0.0.1:1") && said.contains("is there a route"), "{said}");
    let said = host.refuses(&Code { uid: "another".into(), ..good.clone() }, &[]);
    assert!(said.contains("another cluster"), "{said}");
    let said = host.refuses(&Code { token: expired(cluster, &good.token), ..good.clone() }, &[]);
    assert!(said.contains("expired at") && said.contains("beeline grant vm-1"), "{said}");
    host.revoke();
    // The API server remembers for ten seconds that a token was good; the role is gone at once.
    let start = Instant::now();
    let mut said = host.refuses(&good, &[]);
    while !said.contains("(401)") {
        assert!(start.elapsed() < PATIENCE && said.contains("(403)"), "{said}");
        std::thread::sleep(Duration::from_secs(1));
        said = host.refuses(&good, &[]);
    }
    assert!(said.contains("beeline grant vm-1"), "{said}");
    assert!(!host.root.exists(), "nothing is written before all is well");
    assert_eq!(beeline(&["revoke", "vm-1", "--kubeconfig", &host.admin]).status.code(), Some(3));
}

fn the_files_are_as_they_should_be(host: &Host) {
    assert_eq!(mode(&host.kubeconfig()), 0o600);
    assert_eq!(mode(&host.kubeconfig().with_file_name("token")), 0o600);
    assert_eq!(mode(&host.path("var/lib/beeline/clusters/test")), 0o700);
    let file = std::fs::read_to_string(host.path("etc/beeline/config.yaml")).unwrap();
    assert!(file.contains("stand: outside\n") && file.contains("  - name: test\n"), "{file}");
    let unit = std::fs::read_to_string(host.path("etc/systemd/system/beeline.service")).unwrap();
    assert!(unit.contains("ExecStart=/usr/bin/beeline agent --config /etc/beeline/config.yaml"), "{unit}");
}

fn the_code_is_not_kept(host: &Host, code: &Code) {
    let found = Command::new("grep").args(["-r", code.token.text()]).arg(&host.root).output().unwrap();
    assert_eq!(text(&found.stdout), "");
    assert_eq!((code.token.lifetime().as_secs(), host.token().lifetime().as_secs()), (600, 1_200));
}

fn names_belong_to_clusters(host: &Host) {
    let code = host.grant();
    let said = host.refuses(&code, &["--name", "shop"]);
    assert!(said.contains("joined already, as test"), "{said}");
    let before = std::fs::read_to_string(host.path("etc/beeline/config.yaml")).unwrap();
    assert!(host.joins().contains("rejoined test"));
    assert_eq!(std::fs::read_to_string(host.path("etc/beeline/config.yaml")).unwrap(), before);
    // Another cluster under the name of this one: the mark of the first is altered, as if it had been another.
    let file = std::fs::read_to_string(host.kubeconfig()).unwrap();
    std::fs::write(host.kubeconfig(), file.replace(&code.uid, "another")).unwrap();
    let said = host.refuses(&code, &[]);
    assert!(said.contains("test is another cluster here"), "{said}");
    // A file that cannot be read is mended.
    std::fs::write(host.kubeconfig(), "fish").unwrap();
    assert!(host.joins_by(&code).contains("rejoined test"));
    assert_eq!(host.credential().mark.uid, code.uid);
}

async fn another_cluster_joins_beside_it(cluster: &mut Cluster<'_>, host: &Host) {
    let before = std::fs::read_to_string(host.path("etc/beeline/config.yaml")).unwrap();
    cluster.stop_api();
    cluster.registry = "/other";
    cluster.start_api().await;
    let start = Instant::now();
    while cluster.request("GET", "/api/v1/namespaces/kube-system", &Value::Null).await.is_err() {
        assert!(start.elapsed() < PATIENCE, "there is no kube-system");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let code = host.grant();
    let said = host.refuses(&code, &[]);
    assert!(said.contains("test is another cluster here") && said.contains("--name"), "{said}");
    let root = host.root.display().to_string();
    let said = done(&["join", &code.encode(), "--no-start", "--root", &root, "--name", "shop"]);
    assert!(said.contains("joined shop as beeline-hosts/vm-1"), "{said}");
    let file = std::fs::read_to_string(host.path("etc/beeline/config.yaml")).unwrap();
    assert_eq!(file, format!("{before}  - name: shop\n    kubeconfig: /var/lib/beeline/clusters/shop/kubeconfig\n"));
    let said = host::refused(&["leave", "--root", &root]);
    assert!(said.contains("leave which cluster? it has joined test, shop"), "{said}");
    ["test", "shop"].iter().for_each(|name| the_agent_was_here(host, name));
    done(&["leave", "shop", "--root", &root]);
    let kept = |name: &str| ["facts", "facts.before"].map(|end| host.snapshot(&format!("{name}.{end}")).exists());
    assert_eq!([kept("shop"), kept("test")], [[false; 2], [true; 2]], "each cluster's own facts");
    assert_eq!(std::fs::read_to_string(host.path("etc/beeline/config.yaml")).unwrap(), before);
    assert!(!host.path("var/lib/beeline/clusters/shop").exists() && host.kubeconfig().exists());
}

/// What an agent leaves on the disk of a cluster's facts.
fn the_agent_was_here(host: &Host, cluster: &str) {
    std::fs::create_dir_all(host.path("var/lib/beeline/snapshot")).unwrap();
    for end in ["facts", "facts.before"] {
        std::fs::write(host.snapshot(&format!("{cluster}.{end}")), "x").unwrap();
    }
}

fn leaving(host: &Host) {
    let root = host.root.display().to_string();
    let routes = host.path("etc/systemd/resolved.conf.d");
    let asked = ["--address", "127.0.0.55:53", "--domains", "cluster.local", "--folder", routes.to_str().unwrap()];
    done(&[&["dns", "route"][..], &asked].concat());
    assert_eq!(beeline(&["leave", "shop", "--root", &root]).status.code(), Some(3));
    let said = done(&["leave", "--root", &root]);
    assert!(said.contains("left test") && said.contains("beeline revoke vm-1"), "{said}");
    assert!(said.contains("resolved.conf.d/beeline.conf") && said.contains("snapshot/test.facts\n"), "{said}");
    let files = Command::new("find").args([&root, "-type", "f"]).output().unwrap();
    assert_eq!(text(&files.stdout), "", "nothing is left");
    assert_eq!(beeline(&["leave", "--root", &root]).status.code(), Some(3));
}

#[test]
fn a_joined_host_serves_whatever_becomes_of_its_token() {
    with_cluster(async |cluster: &mut Cluster| {
        cluster.create_node("node-1", "172.31.0.11", json!([])).await;
        cluster.create_service("web", "10.96.1.1").await;
        cluster.create_slice("web", "web-1", &[&cluster.lab.pod(0).v4.to_string()]).await;
        let _pod = cluster.lab.pod(0).serve(8080).unwrap();
        let host = Host::of(cluster);
        // The first of the servers is never there.
        let code = Code { servers: vec!["https://127.0.0.1:1".into(), API.into()], ..host.grant() };
        let said = host.joins_by(&code);
        assert!(said.contains("pods            reached directly"), "the pod answers: {said}");
        let first = host.token();
        let mut agent = Agent::of(cluster);
        let file = host.configuration();
        let state = host.path("var/lib/beeline").display().to_string();
        // A hundredth of twenty minutes.
        let args = ["--config", &file, "--state-dir", &state, "--renew-after", "1"];
        agent.start_outside(cluster, &args).wait_for("serving", PATIENCE).unwrap();
        assert_eq!(dial(cluster, "10.96.1.1:80"), "pod-a");
        until("the token is renewed", || host.token().issued > first.issued).await;
        assert_eq!(mode(&host.kubeconfig().with_file_name("token")), 0o600);
        until("nothing is wrong", || is_well(&agent)).await;
        assert_eq!(host.asks("GET", "/api/v1/services", &Value::Null).await.0, 200, "the new one is good");
        it_is_revoked(cluster, &host, &agent).await;
        its_role_is_taken(cluster, &host, &agent).await;
        it_expires(cluster, &host, &mut agent, &args).await;
        it_leaves(&host, &mut agent);
    });
}

fn token(agent: &Agent, what: &str) -> String {
    agent.status()["tokens"][0][what].as_str().unwrap_or_default().to_owned()
}

fn is_well(agent: &Agent) -> bool {
    let status = agent.status();
    let (token, cluster) = (&status["tokens"][0], &status["clusters"][0]);
    assert_eq!((&token["cluster"], &cluster["name"]), (&json!("test"), &json!("test")), "{status}");
    token["account"] == "beeline-hosts/vm-1"
        && [&token["rejoin"], &token["error"], &cluster["error"]].iter().all(|error| error.is_null())
}

/// As after a week in a drawer: the host was off, and nobody renewed its token. (A token that ends while a watch is open is
/// found out when that is opened anew, every five minutes.)
async fn it_expires(cluster: &mut Cluster<'_>, host: &Host, agent: &mut Agent, args: &[&str]) {
    agent.stop();
    let old = expired(cluster, &host.token());
    host.credential().replace(&old).unwrap();
    agent.start_outside(cluster, args);
    until("status says so", || token(agent, "rejoin").contains("expired")).await;
    let said = token(agent, "rejoin");
    assert!(said.contains("`beeline grant vm-1`") && said.contains("`beeline join`"), "{said}");
    until("and why nothing is read", || {
        agent.status()["clusters"][0]["error"].as_str().is_some_and(|e| e.contains("(401)"))
    })
    .await;
    assert_eq!(dial(cluster, "10.96.1.1:80"), "pod-a", "it serves on");
    until("from what it remembers", || agent.status()["clusters"][0]["remembered"].is_string()).await;
    assert_eq!(dial(cluster, "10.96.1.1:80"), "pod-a", "it serves on");
    assert!(host.joins().contains("rejoined test"));
    comes_back(cluster, agent, "10.96.1.4").await;
}

fn it_leaves(host: &Host, agent: &mut Agent) {
    agent.stop();
    assert!(host.snapshot("test.facts").exists(), "the facts of a clean stop");
    let said = done(&["leave", "--root", &host.root.display().to_string()]);
    assert!(said.contains("left test"), "{said}");
    let left = Command::new("find").arg(host.path("var")).args(["-type", "f"]).output().unwrap();
    assert_eq!(text(&left.stdout), "", "nothing is left");
}

async fn it_is_revoked(cluster: &mut Cluster<'_>, host: &Host, agent: &Agent) {
    let said = host.revoke();
    assert!(said.contains("clusterroles/beeline-host"), "the last host takes the role with it: {said}");
    let start = Instant::now();
    while host.asks("GET", "/api/v1/services", &Value::Null).await.0 != 401 {
        assert!(start.elapsed() < PATIENCE, "the token still works");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    until("status says so", || token(agent, "rejoin").contains("not accept")).await;
    assert_eq!(dial(cluster, "10.96.1.1:80"), "pod-a", "it serves on");
    assert!(host.joins().contains("rejoined test"));
    comes_back(cluster, agent, "10.96.1.3").await;
}

/// What only its role lacks is mended by the administrator alone.
async fn its_role_is_taken(cluster: &mut Cluster<'_>, host: &Host, agent: &Agent) {
    cluster.delete("/apis/rbac.authorization.k8s.io/v1/namespaces/beeline-hosts/rolebindings/vm-1").await;
    until("status says so", || token(agent, "error").contains("(403)")).await;
    let (said, rejoin) = (token(agent, "error"), token(agent, "rejoin"));
    assert!(said.contains("`beeline grant vm-1`") && rejoin.is_empty(), "{said}; {rejoin}");
    host.grant();
    until("it is renewed again", || is_well(agent)).await;
}

/// Without a restart.
async fn comes_back(cluster: &Cluster<'_>, agent: &Agent, address: &str) {
    until("it is known again", || is_well(agent)).await;
    let count = agent.status()["counts"]["services"].as_u64();
    cluster.create_service(&format!("after-{}", address.replace('.', "-")), address).await;
    until("and told what is new", || agent.status()["counts"]["services"].as_u64() > count).await;
}
