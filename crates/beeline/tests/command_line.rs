//! The command line against a running agent: what `services`, `explain`, `monitor` and `status` print, and their exit
//! codes.

use beeline_harness::{AgentProcess, Cgroup, Client, DialKind, DialRequest, ProgramOutput, TestNetwork, wait_until};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

const BEELINE: &str = env!("CARGO_BIN_EXE_beeline");
const METRICS: &str = "127.0.0.1:10249";
const TIMEOUT: Duration = Duration::from_secs(60);
const CLIENT_UID: &str = "0c9a3a3e-5b1f-4c3d-9a55-6f0e3f1d2b10";
/// The id of the user nobody.
const UNPRIVILEGED_USER: u32 = 65_534;

/// A node with the services web, sticky (session affinity) and none (without endpoints).
struct Fixture {
    agent: AgentProcess,
    network: TestNetwork,
}

impl Fixture {
    fn new() -> Fixture {
        let network = TestNetwork::new(2).unwrap();
        let mut agent = AgentProcess::with_binary(BEELINE).unwrap();
        agent.write("services.yaml", &manifests()).unwrap();
        agent.start_with(&network, ["--metrics-bind-address", METRICS, "--nodeport-addresses", "primary"]).unwrap();
        Fixture { agent, network }
    }

    fn run(&self, args: &[&str]) -> ProgramOutput {
        self.agent.command(args).unwrap().run().unwrap()
    }

    /// The output of a command that must succeed.
    fn text(&self, args: &[&str]) -> String {
        let output = self.run(args);
        assert!(output.status.success(), "{args:?}: {output:?}");
        output.stdout
    }

    fn json(&self, args: &[&str]) -> Value {
        serde_json::from_str(&self.text(&[args, &["-o", "json"]].concat())).unwrap()
    }

    fn event_level(&self) -> String {
        self.json(&["status"])["events"].as_str().unwrap().to_owned()
    }

    fn run_unprivileged(&self, args: &[&str]) -> (Option<i32>, String) {
        let mut command = Command::new(BEELINE);
        let output = command
            .args(args)
            .args(self.agent.location_options())
            .uid(UNPRIVILEGED_USER)
            .gid(UNPRIVILEGED_USER)
            .output()
            .unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    }

    fn metric(&self, name: &str) -> u64 {
        let read = || -> std::io::Result<String> {
            let (mut stream, mut text) = (TcpStream::connect(METRICS)?, String::new());
            stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n")?;
            stream.read_to_string(&mut text)?;
            Ok(text)
        };
        let text = self.network.node().run_in(read).unwrap().unwrap();
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value.unwrap_or_else(|| panic!("no {name}: {text}")).parse().unwrap()
    }
}

fn manifests() -> String {
    let service = |name: &str, ip: &str, more: Value| {
        let port = json!({ "name": "http", "port": 80, "protocol": "TCP", "nodePort": more.get("nodePort") });
        let mut spec = json!({ "clusterIP": ip, "ports": [port] });
        spec.as_object_mut().unwrap().extend(more["spec"].as_object().cloned().unwrap_or_default());
        json!({ "apiVersion": "v1", "kind": "Service", "metadata": { "name": name, "namespace": "default" }, "spec": spec })
    };
    let slice = |service: &str| {
        json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": { "name": format!("{service}-1"), "namespace": "default",
                          "labels": { "kubernetes.io/service-name": service } },
            "ports": [{ "name": "http", "port": 8080, "protocol": "TCP" }],
            "endpoints": [{ "addresses": ["10.244.1.2"], "nodeName": "node-1", "conditions": { "ready": true } }],
        })
    };
    let pod = |name: &str, uid: &str, ip: &str| {
        json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name, "namespace": "default", "uid": uid },
            "spec": { "nodeName": "node-1", "containers": [{ "name": "app", "image": "none" }] },
            "status": { "phase": "Running", "podIP": ip, "podIPs": [{ "ip": ip }] },
        })
    };
    let open = json!({ "nodePort": 30080, "spec": { "type": "NodePort", "externalIPs": ["203.0.113.1"] } });
    let objects = [
        service("web", "10.96.0.10", open),
        slice("web"),
        service("none", "10.96.0.11", json!({})),
        service("sticky", "10.96.0.12", json!({ "spec": { "sessionAffinity": "ClientIP" } })),
        slice("sticky"),
        pod("web-1", "", "10.244.1.2"),
        pod("client", CLIENT_UID, "10.244.1.3"),
    ];
    objects.iter().map(|object| format!("---\n{object}\n")).collect()
}

#[test]
fn services_are_grouped_filtered_and_fit_100_columns() {
    let fixture = Fixture::new();
    let _server = fixture.network.pod(0).serve(8080).unwrap();
    let client = fixture.network.node().client().unwrap();
    for _ in 0..3 {
        client.dial(&DialRequest::new(DialKind::Tcp, "10.96.0.10:80".parse().unwrap())).unwrap();
    }
    let all = fixture.text(&["services"]);
    assert!(all.lines().all(|line| line.chars().count() <= 100), "{all}");
    assert_eq!(all.matches("default/web:http/TCP").count(), 1, "one block per service: {all}");
    let rows: Vec<Vec<&str>> = all.lines().map(|line| line.split_whitespace().collect()).collect();
    assert!(
        rows.contains(&vec!["default/web:http/TCP", "10.96.0.10:80", "clusterIP", "3", "0", "10.244.1.2:8080"]),
        "{all}"
    );
    assert!(rows.contains(&vec!["203.0.113.1:80", "externalIP", "10.244.1.2:8080"]), "counted once: {all}");

    let some = fixture.text(&["services", "default/none", "sticky"]);
    assert!(
        some.contains("default/none") && some.contains("default/sticky") && !some.contains("default/web"),
        "{some}"
    );
    assert_eq!(fixture.json(&["services", "-n", "kube-system"]), json!([]));
    let missing = fixture.run(&["services", "default/missing"]);
    assert_eq!(missing.status.code(), Some(3), "{missing:?}");
    assert!(missing.stderr.contains("no service default/missing is programmed"), "{missing:?}");
}

/// docs/try.md runs the commands so.
#[test]
fn the_agent_at_the_socket_says_where_its_tables_are() {
    let fixture = Fixture::new();
    let socket = fixture.agent.socket();
    for args in [&["services"][..], &["backends"], &["explain", "default/web"], &["dump", "service"]] {
        let output = Command::new(BEELINE).args(args).arg("--socket").arg(&socket).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success() && text.contains("default/web"), "{args:?}: {text}");
    }
}

#[test]
fn explain_takes_names_of_services_and_pods() {
    let fixture = Fixture::new();
    let text = fixture.text(&["explain", "default/web"]);
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
    assert!(text.contains("dialled    10.96.0.10:80/TCP\n"), "{text}");
    assert!(text.contains("set        cluster, 1 backend\n"), "{text}");
    assert!(text.contains("-> 10.244.1.2:8080 (default/web-1)\n"), "{text}");
    assert!(text.contains("internalTrafficPolicy Cluster, externalTrafficPolicy Cluster"), "{text}");
    assert!(!text.contains("affinity"), "the service has none: {text}");
    let sticky = fixture.text(&["explain", "default/sticky:http"]);
    assert!(sticky.contains("session affinity 10800 s"), "{sticky}");
    let missing = fixture.run(&["explain", "default/web:https"]);
    assert_eq!(missing.status.code(), Some(3), "{missing:?}");
    let wrong = fixture.run(&["explain", "web"]);
    assert!(wrong.status.code() == Some(2) && wrong.stderr.contains("NAMESPACE/NAME"), "{wrong:?}");

    let early = fixture.run(&["explain", "default/web", "--from", "default/client"]);
    assert!(early.stderr.contains("its cgroup is not found"), "{early:?}");
    let (_cgroups, _client) = client_pod(&fixture.network);
    for name in ["client", "default/client"] {
        let from = fixture.json(&["explain", "default/web", "--from", name]);
        assert_eq!((&from["from"], &from["verdict"]), (&json!("pod default/client"), &json!("resolved")), "{from}");
    }
    let missing = fixture.run(&["explain", "default/web", "--from", "default/missing"]);
    assert!(missing.stderr.contains("this node has no pod default/missing"), "{missing:?}");
}

/// A process of the pod default/client, in a cgroup that is named as the kubelet names it.
fn client_pod(network: &TestNetwork) -> (Vec<Cgroup>, Client) {
    let mut levels: Vec<Cgroup> = Vec::new();
    for level in ["kubepods", &format!("pod{CLIENT_UID}"), "app"] {
        let next = levels.last().unwrap_or(network.cgroup()).child(level).unwrap();
        levels.push(next);
    }
    let client = Client::start(Some(&network.pod(1).namespace), levels.last()).unwrap();
    (levels, client)
}

#[test]
fn explain_names_the_node_port_of_an_address_that_does_not_serve_it() {
    let fixture = Fixture::new();
    let because = |dial: &str| fixture.json(&["explain", dial])["because"].as_str().unwrap().to_owned();
    let loopback = because("127.0.0.1:30080");
    assert!(loopback.starts_with("30080/TCP is a nodePort of default/web, but 127.0.0.1 does not serve"), "{loopback}");
    assert!(loopback.contains("--nodeport-addresses") && loopback.contains("172.31.0.11"), "{loopback}");
    assert!(because("127.0.0.1:30081").contains("it is not a service"));
    assert_eq!(fixture.json(&["explain", "172.31.0.11:30080"])["verdict"], "resolved");
}

#[test]
fn monitor_prints_addresses_that_explain_takes_and_restores_the_event_level() {
    let fixture = Fixture::new();
    let _server = fixture.network.pod(0).serve(8080).unwrap();
    let client = fixture.network.node().client().unwrap();
    let dial = || drop(client.dial(&DialRequest::new(DialKind::Tcp, "10.96.0.10:80".parse().unwrap())).unwrap());
    let before = fixture.event_level();
    let args = ["monitor", "--events", "all", "--service", "default/web", "--count", "1"];
    let monitor = fixture.agent.command(&args).unwrap().spawn().unwrap();
    wait_until("the monitor prints an event", TIMEOUT, || {
        dial();
        !monitor.stdout().is_empty()
    });
    let output = monitor.finish(TIMEOUT).unwrap();
    assert!(output.status.success(), "{output:?}");
    let line = output.stdout.lines().next().unwrap();
    assert!(line.contains(": 10.96.0.10:80/TCP clusterIP default/web:http/TCP -> resolved 10.244.1.2:8080"), "{line}");
    let time = line.split(' ').next().unwrap();
    assert!(time.len() == "2023-11-14T22:13:20.123Z".len() && time.ends_with('Z'), "milliseconds: {line}");
    wait_until("the event level is restored", TIMEOUT, || fixture.event_level() == before);

    let mut monitor = fixture.agent.command(&["monitor", "--events", "all"]).unwrap().spawn().unwrap();
    wait_until("the event level is raised", TIMEOUT, || fixture.event_level() == "all");
    monitor.kill().unwrap();
    wait_until("the event level is restored after a kill", TIMEOUT, || fixture.event_level() == before);
    let wrong = fixture.run(&["monitor", "--events", "loud"]);
    assert!(wrong.status.code() == Some(2) && wrong.stderr.contains("loud"), "{wrong:?}");
}

#[test]
fn an_unprivileged_user_gets_permission_denied() {
    let fixture = Fixture::new();
    for args in [&["status"][..], &["services"], &["policies"], &["monitor"], &["explain", "10.96.0.10:80"]] {
        let (code, error) = fixture.run_unprivileged(args);
        assert!(code == Some(1) && error.contains("permission denied"), "{args:?}: {code:?} {error}");
    }
    let (_, error) = fixture.run_unprivileged(&["explain", "10.96.0.10:80", "--from", "1"]);
    assert!(error.contains("permission denied") && error.contains("process 1"), "{error}");
    let gone = fixture.run(&["explain", "10.96.0.10:80", "--from", "4194304"]);
    assert!(gone.stderr.contains("there is no process 4194304"), "{gone:?}");
}

#[test]
fn status_without_an_agent_exits_with_4() {
    let mut fixture = Fixture::new();
    let (frontends, metric) =
        (fixture.json(&["status"])["counts"]["frontends"].clone(), fixture.metric("beeline_frontends"));
    assert_eq!(frontends, metric, "status and metrics count the same");
    fixture.agent.stop().unwrap();
    let output = fixture.run(&["status", "-o", "json"]);
    assert_eq!(output.status.code(), Some(4), "{output:?}");
    let status: Value = serde_json::from_str(&output.stdout).unwrap();
    assert_eq!(status["counts"]["frontends"], frontends, "{status}");
    assert!(fixture.run(&["policies"]).stderr.contains("no agent listens at"), "only an agent knows policies");
}

#[test]
fn plan_reports_a_node_name_that_no_node_has() {
    let plan = |node: &str| {
        let manifests = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/manifests");
        let output =
            Command::new(BEELINE).args(["plan", "--manifests", manifests, "--node-name", node]).output().unwrap();
        String::from_utf8(output.stderr).unwrap()
    };
    assert_eq!(plan("node-1"), "");
    let wrong = plan("wrong");
    assert!(wrong.contains("there is no Node named wrong") && wrong.contains("--node-name"), "{wrong}");
}

/// The service ranges of the first cluster are not known, so the second cluster's addresses are not programmed.
#[test]
fn explain_says_what_an_address_waits_for() {
    let network = TestNetwork::new(1).unwrap();
    let mut agent = AgentProcess::with_binary(BEELINE).unwrap();
    let dir = agent.socket().parent().unwrap().to_owned();
    let green = dir.join("green");
    std::fs::create_dir(&green).unwrap();
    std::fs::write(green.join("services.yaml"), manifests()).unwrap();
    let clusters = json!([
        { "name": "home", "manifests": agent.manifests.path(), "view": "home" },
        { "name": "green", "manifests": green, "view": "green", "serviceCIDRs": ["10.96.0.0/16"] },
    ]);
    let config = dir.join("beeline.yaml");
    let text = json!({ "node-name": "node-1", "clusters": clusters, "state-dir": dir.join("state") });
    std::fs::write(&config, text.to_string()).unwrap();
    agent.spawn(BEELINE.as_ref(), &network, ["--config".into(), config.into_os_string()]).unwrap();
    agent.wait_until_serving().unwrap();
    wait_until("the address waits", TIMEOUT, || {
        let text = agent.run(&["explain", "10.96.0.10:80", "-o", "json"]).unwrap();
        let explanation: Value = serde_json::from_str(&text).unwrap();
        let because = explanation["because"].as_str().unwrap();
        because.contains("green:default/web") && because.contains("waits for the service ranges of cluster home")
    });
}
