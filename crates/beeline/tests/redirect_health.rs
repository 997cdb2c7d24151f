//! The backend of a LocalRedirectPolicy crashes. Redirected TCP dials fall through to the Service at once, not only when the
//! pod's status changes, and return when the backend accepts connections again. A client that fakes refused dials in its own
//! network namespace does not keep other clients away from the backend.

mod fixture;

use beeline_harness::{
    Client, DialKind, DialRequest, EchoServer, LoadConfig, LoadKind, LoadReport, TestHost, TestNetwork,
};
use fixture::{AgentFixture, ManifestFile, wait_until};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

const FRONTENDS: [&str; 2] = ["10.96.0.10:80", "[fd00:96::10]:80"];

fn frontends() -> [SocketAddr; 2] {
    FRONTENDS.map(|at| at.parse().unwrap())
}

/// A LocalRedirectPolicy on the TCP port of the Service `web` to pod-a, and the pod.
fn redirect(pod: &TestHost) -> String {
    pod_manifest("near", "near", &[pod.v4.to_string(), pod.v6.to_string()]) + &policy_manifest("near", "web")
}

/// A ready pod with the label `app`.
fn pod_manifest(name: &str, app: &str, ips: &[String]) -> String {
    let object = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name, "namespace": "default", "labels": { "app": app } },
        "spec": { "nodeName": "node-1", "containers": [{ "name": "app", "image": "none" }] },
        "status": { "phase": "Running", "podIP": ips[0], "podIPs": ips.iter().map(|ip| json!({ "ip": ip })).collect::<Value>(),
                    "conditions": [{ "type": "Ready", "status": "True" }] },
    });
    format!("---\n{object}\n")
}

/// A LocalRedirectPolicy on the TCP port of a Service to the pods with the label `app`.
fn policy_manifest(app: &str, service: &str) -> String {
    let ports = |port: u16| json!([{ "name": "tcp", "port": port, "protocol": "TCP" }]);
    let policy = json!({
        "apiVersion": "beeline.dev/v1alpha1", "kind": "LocalRedirectPolicy",
        "metadata": { "name": app, "namespace": "default" },
        "spec": { "frontend": { "serviceMatcher": { "serviceName": service, "toPorts": ports(80) } },
                  "backend": { "endpointSelector": { "matchLabels": { "app": app } }, "toPorts": ports(8080) } },
    });
    format!("---\n{policy}\n")
}

/// pod-a is the redirect's backend, pod-b that of the Service; pod-c and pod-d dial.
struct CrashFixture {
    agent: AgentFixture,
    _far: EchoServer,
}

impl CrashFixture {
    fn new() -> CrashFixture {
        let network = TestNetwork::new(4).unwrap();
        let service = ManifestFile::service("web", 10).backed_by(&[(network.pod(1), "node-1")]);
        let mut agent =
            AgentFixture::with_manifests(network, &[service], &["--metrics-bind-address", "127.0.0.1:10249"]);
        let far = serve(agent.network.pod(1));
        agent.write_file("policy.yaml", redirect(agent.network.pod(0)));
        agent.wait_until_programmed();
        // The program that notices refused dials is attached just after the policy is programmed.
        agent.running().wait_for("watching for refused dials", fixture::TIMEOUT).unwrap();
        CrashFixture { agent, _far: far }
    }

    fn near(&self) -> &TestHost {
        self.agent.network.pod(0)
    }

    fn client(&self, pod: usize) -> Client {
        self.agent.network.pod(pod).client().unwrap()
    }

    fn suspended(&self) -> usize {
        self.agent.status()["suspendedRedirects"].as_array().expect("a list").len()
    }
}

fn serve(host: &TestHost) -> EchoServer {
    host.echo_service(8080).banner().start(&host.namespace).unwrap()
}

fn load(client: &Client, ms: u64) {
    let config = LoadConfig { threads: 4, limit_ms: ms, ..LoadConfig::new(LoadKind::Tcp, frontends()) };
    client.start_load(config).unwrap();
}

fn answers_of(report: &LoadReport, server: &str) -> u64 {
    let count = |(name, count): (&String, &u64)| if name.starts_with(server) { *count } else { 0 };
    report.answers.values().flatten().map(count).sum()
}

fn server_of(client: &Client, to: SocketAddr) -> String {
    client.dial(&DialRequest::new(DialKind::Tcp, to)).unwrap().name().to_owned()
}

#[test]
fn dials_fall_through_to_the_service_while_the_redirects_backend_refuses() {
    let fixture = CrashFixture::new();
    let server = serve(fixture.near());
    let client = fixture.client(2);
    for to in frontends() {
        assert_eq!(server_of(&client, to), "pod-a", "the redirect is used");
    }
    load(&client, 60_000);
    wait_until("the redirect's backend serves the load", || server.connections() > 200);
    server.stop();
    wait_until("the agent has confirmed that both addresses refuse", || fixture.suspended() == 2);
    let explained = fixture.agent.json(&["explain", "10.96.0.10:80/TCP"]);
    let outcome = |step: &Value| step["outcome"].as_str().unwrap_or_default().to_owned();
    assert!(outcome(&explained["order"][0]).contains("refuses connections"), "{explained}");
    assert!(outcome(&explained["order"][1]).contains("picked"), "{explained}");
    let policies = fixture.agent.beeline(&["policies"]).stdout;
    assert!(policies.contains("2 backends refuse connections"), "{policies}");
    let text = fixture.agent.beeline(&["status"]).stdout;
    assert!(text.contains("refuses connections since"), "{text}");
    assert_eq!(fixture.agent.metric("beeline_redirect_suspended"), 2);
    // New dials while the backend is down: none fails.
    load_while_down(&fixture);
    let report = client.stop_load().unwrap();
    let (failed, dials) = (report.failed(), report.dials);
    println!(
        "{failed} of {dials} dials failed when the redirect's backend crashed; {} went to the Service",
        answers_of(&report, "pod-b")
    );
    // A dial fails if it was in progress during the crash, or between the first reset and the suspension: at most one dial of
    // each thread to each address.
    assert!(failed <= 4 * 2 * 2, "{failed} of {dials} dials failed: {:?}", report.failures);
    assert!(answers_of(&report, "pod-b") > 100, "{report:?}");
    let refused = fixture.agent.stat("redirect_refused");
    assert!(refused >= 2 && fixture.agent.stat("redirect_skipped") > 100, "{refused} refused dials were noticed");

    let _server = serve(fixture.near());
    wait_until("the redirect is used again", || frontends().iter().all(|to| server_of(&client, *to) == "pod-a"));
    assert_eq!((fixture.suspended(), fixture.agent.metric("beeline_redirect_suspended")), (0, 0));
    assert_eq!(fixture.agent.metric("beeline_redirect_suspensions_total"), 2);
}

fn load_while_down(fixture: &CrashFixture) {
    let other = fixture.client(3);
    load(&other, 1_000);
    let report = other.finish_load().unwrap();
    println!("{} of {} dials failed while the redirect's backend was down", report.failed(), report.dials);
    assert_eq!((report.failed(), answers_of(&report, "pod-b")), (0, report.dials), "{report:?}");
    assert!(report.dials > 0);
}

/// The status of the pod changes while its backend is suspended: the suspension is forgotten, and does not delay the return.
#[test]
fn a_suspension_ends_with_the_status_of_the_pod() {
    let fixture = CrashFixture::new();
    let client = fixture.client(2);
    server_of_any(&client);
    wait_until("the backend is suspended", || fixture.suspended() == 1);
    let manifest = redirect(fixture.near());
    fixture.agent.write_file("policy.yaml", manifest.replace("\"True\"", "\"False\""));
    wait_until("the suspension is forgotten", || fixture.suspended() == 0);
    assert_eq!(server_of(&client, frontends()[0]), "pod-b");
    let _server = serve(fixture.near());
    fixture.agent.write_file("policy.yaml", manifest);
    fixture.agent.wait_until_programmed();
    assert_eq!(server_of(&client, frontends()[0]), "pod-a");
}

/// pod-c answers its own dials to the backend with a reset. Refused dials of one client suspend a healthy backend only until
/// the agent's own connect succeeds, and then not again for a while.
#[test]
fn a_client_that_fakes_refused_dials_does_not_suspend_a_healthy_backend() {
    let fixture = CrashFixture::new();
    let server = serve(fixture.near());
    let (bad, good) = (fixture.client(2), fixture.client(3));
    fake_refusals(fixture.agent.network.pod(2), &fixture.near().v4.to_string());
    let target = [frontends()[0]];
    good.start_load(LoadConfig { threads: 1, ..LoadConfig::new(LoadKind::Tcp, target) }).unwrap();
    bad.start_load(LoadConfig { threads: 2, limit_ms: 3_000, ..LoadConfig::new(LoadKind::Tcp, target) }).unwrap();
    let attack = bad.finish_load().unwrap();
    let report = good.stop_load().unwrap();
    let (near, far) = (answers_of(&report, "pod-a"), answers_of(&report, "pod-b"));
    println!(
        "{} faked refusals: {} of {} dials of another client failed, {near} reached the redirect's backend, {far} the Service",
        attack.failed(),
        report.failed(),
        report.dials
    );
    assert!(attack.failed() > 50, "the client's own dials are refused: {attack:?}");
    assert_eq!((report.failed(), fixture.suspended()), (0, 0), "{report:?}");
    assert!(near > far, "the redirect stays in effect");
    assert_eq!(fixture.agent.metric("beeline_redirect_suspensions_total"), 0);
    let alarms = fixture.agent.metric("beeline_redirect_false_alarms_total");
    assert!((1..=40).contains(&alarms), "{alarms} probes for {} faked refusals", attack.failed());
    // A real crash is noticed nevertheless.
    server.stop();
    server_of_any(&good);
    wait_until("the backend is suspended", || {
        server_of_any(&good);
        fixture.suspended() == 1
    });
}

/// The host answers its own dials to these addresses with a reset.
fn fake_refusals(host: &TestHost, addresses: &str) {
    let rule = format!(
        "add table ip t; add chain ip t out {{ type filter hook output priority 0; }}; \
         add rule ip t out ip daddr {addresses} tcp dport 8080 reject with tcp reset"
    );
    let nft = host.program("nft").unwrap().args([rule.as_str()]).run().unwrap();
    assert!(nft.status.success(), "{nft:?}");
}

/// The agent's connects to these 50 backends end with a timeout of 100 ms each.
#[test]
fn silent_backends_do_not_delay_the_check_of_others() {
    let fixture = CrashFixture::new();
    let server = serve(fixture.near());
    let silent = |number: u8| pod_manifest(&format!("silent-{number}"), "silent", &[format!("10.244.1.{number}")]);
    let pods: String = (100..150).map(silent).collect();
    let service = ManifestFile::service("other", 11).backed_by(&[(fixture.agent.network.pod(1), "node-1")]);
    fixture.agent.apply(&service);
    fixture.agent.write_file("silent.yaml", pods + &policy_manifest("silent", "other"));
    fixture.agent.wait_until_programmed();
    fake_refusals(fixture.agent.network.pod(2), "10.244.1.100-10.244.1.149");
    let (bad, good) = (fixture.client(2), fixture.client(3));
    assert_eq!(server_of(&good, frontends()[0]), "pod-a");
    let target = ["10.96.0.11:80".parse().unwrap()];
    bad.start_load(LoadConfig { threads: 4, limit_ms: 30_000, ..LoadConfig::new(LoadKind::Tcp, target) }).unwrap();
    wait_until("every silent backend is suspected", || fixture.agent.stat("redirect_refused") >= 50);
    // The first backend is checked alone, and the others after it.
    wait_until("the others are being checked", || fixture.agent.metric("beeline_redirect_false_alarms_total") >= 3);
    server.stop();
    let crash = Instant::now();
    server_of_any(&good);
    wait_until("the agent has confirmed the crash", || fixture.suspended() == 1);
    let took = crash.elapsed();
    let report = bad.stop_load().unwrap();
    println!("confirmed after {took:?} beside {} refused dials to silent backends", report.failed());
    assert!(report.failed() >= 50, "{report:?}");
    // One after the other, the silent backends take 5 s.
    assert!(took < Duration::from_secs(1), "the crash was confirmed after {took:?}");
}

/// A dial may be refused here.
fn server_of_any(client: &Client) {
    let _ = client.dial(&DialRequest::new(DialKind::Tcp, frontends()[0]));
}

/// A client that gives up a dial, and a dial without an answer, are no refusals.
#[test]
fn a_dial_without_an_answer_suspends_nothing() {
    let fixture = CrashFixture::new();
    let near = fixture.near();
    let rule = "add table inet t; add chain inet t in { type filter hook input priority 0; }; add rule inet t in tcp dport 8080 drop";
    assert!(near.program("nft").unwrap().args([rule]).run().unwrap().status.success());
    let client = fixture.client(2);
    for to in frontends() {
        let _ = client.dial(&DialRequest::new(DialKind::Tcp, to).timeout_ms(300));
    }
    assert_eq!((fixture.agent.stat("redirect_refused"), fixture.suspended()), (0, 0), "of 2 dials");
}
