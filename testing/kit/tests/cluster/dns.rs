//! Node-local DNS, with real name servers: one plays kube-dns behind a ClusterIP, another one the cache on two of three
//! nodes, which asks kube-dns by that same ClusterIP.

use std::{thread::sleep, time::Duration};

use serde_json::{Value, json};

use crate::field::{Field, PATIENCE, client, eventually, pod};

/// Not below `test`, which name servers answer themselves.
const ZONE: &str = "beeline.example";

struct Ground {
    field: Field,
    ips: [String; 2],
}

/// A name server in a pod. Who asks for `who.<zone>` learns which one answered.
fn name_server(name: &str, node: u8, settings: &str) -> Value {
    let script = format!(
        "cat > /tmp/unbound.conf <<'END'\nserver:\n  interface: 0.0.0.0\n  interface: ::0\n  access-control: 0.0.0.0/0 allow\n  \
         access-control: ::0/0 allow\n  do-daemonize: no\n  chroot: \"\"\n  username: \"\"\n  directory: /tmp\n  pidfile: \"\"\n  \
         interface-automatic: yes\n  use-syslog: no\n  logfile: \"\"\n  module-config: iterator\n  do-not-query-localhost: no\n  \
         local-zone: who.{ZONE}. redirect\n  local-data: 'who.{ZONE}. 0 IN TXT \"{name}\"'\n{settings}END\n\
         exec unbound -d -c /tmp/unbound.conf"
    );
    let mut pod = pod(name, node, &[]);
    let container = &mut pod["spec"]["containers"][0];
    container["command"] = json!(["sh", "-c", script]);
    container["ports"] = json!([
        { "name": "dns", "containerPort": 53, "protocol": "UDP" }, { "name": "dns-tcp", "containerPort": 53 },
    ]);
    container["readinessProbe"] = json!({ "tcpSocket": { "port": 53 }, "periodSeconds": 1 });
    pod
}

fn origin(node: u8) -> Value {
    let data = format!("  local-zone: {ZONE}. static\n  local-data: 'web.{ZONE}. 1 IN A 198.51.100.7'\n");
    let mut pod = name_server("origin", node, &data);
    pod["metadata"]["labels"] = json!({ "app": "kube-dns" });
    pod
}

/// Knows nothing itself; the other one's network is its node's.
fn cache(name: &str, node: u8, upstream: &str, host: bool) -> Value {
    let forward = format!("forward-zone:\n  name: \".\"\n  forward-addr: {upstream}\n");
    let mut pod = name_server(name, node, &forward);
    pod["metadata"]["labels"] = json!({ "app": "node-cache" });
    pod["spec"]["hostNetwork"] = host.into();
    pod
}

fn service() -> Value {
    let ports = json!([{ "name": "dns", "port": 53, "protocol": "UDP" }, { "name": "dns-tcp", "port": 53 }]);
    json!({
        "apiVersion": "v1", "kind": "Service", "metadata": { "name": "kube-dns" },
        "spec": { "selector": { "app": "kube-dns" }, "ipFamilyPolicy": "RequireDualStack", "ports": ports },
    })
}

fn policy() -> Value {
    let ports = json!([{ "name": "dns", "port": 53, "protocol": "UDP" }, { "name": "dns-tcp", "port": 53 }]);
    json!({
        "apiVersion": "beeline.dev/v1alpha1", "kind": "LocalRedirectPolicy", "metadata": { "name": "node-local-dns" },
        "spec": {
            "frontend": { "serviceMatcher": { "serviceName": "kube-dns", "toPorts": ports } },
            "backend": { "endpointSelector": { "matchLabels": { "app": "node-cache" } }, "toPorts": ports },
        },
    })
}

impl Ground {
    fn new(name: &str) -> Ground {
        let field = Field::new(name);
        field.define_policies();
        // The one in its node's network may still be leaving, and hold the port.
        eventually("the caches of before are gone", || {
            field.cluster.kubectl(&["get", "pods", "-A", "-l", "app=node-cache", "-o", "name"]).unwrap().is_empty()
        });
        field.apply(&[service(), origin(3)]);
        let ips = field.cluster_ips("kube-dns");
        let caches = [cache("cache-1", 1, &ips[0], false), cache("cache-2", 2, &ips[0], true)];
        field.apply(&caches);
        let clients = [1, 2, 3].map(|node| asker(node, &ips[0]));
        field.apply(&clients);
        field.wait_ready(&["origin", "cache-1", "cache-2", "client-1", "client-2", "client-3"]);
        field.apply(&[policy()]);
        let ground = Ground { field, ips };
        eventually("the redirect on n1 and n2", || {
            ground.who("client-1", &ground.ips[0], "") == "cache-1"
                && ground.who("client-2", &ground.ips[0], "") == "cache-2"
        });
        ground
    }

    fn who(&self, from: &str, server: &str, more: &str) -> String {
        let script = format!("dig +short +tries=1 +time=2 {more} @{server} TXT who.{ZONE} || true");
        self.field.exec(from, &script).trim().trim_matches('"').to_owned()
    }
}

/// Its resolver is the ClusterIP, as in any pod of a cluster.
fn asker(node: u8, server: &str) -> Value {
    let mut pod = client(&format!("client-{node}"), node);
    pod["spec"]["dnsPolicy"] = "None".into();
    pod["spec"]["dnsConfig"] = json!({ "nameservers": [server], "options": [{ "name": "timeout", "value": "2" }] });
    pod
}

#[test]
fn every_node_asks_its_own_cache() {
    let ground = Ground::new("dns");
    for server in &ground.ips {
        for (client, answers) in [("client-1", "cache-1"), ("client-2", "cache-2"), ("client-3", "origin")] {
            assert_eq!(ground.who(client, server, ""), answers, "{client} asks {server} by UDP");
            assert_eq!(ground.who(client, server, "+tcp"), answers, "{client} asks {server} by TCP");
        }
    }
    // A cache knows this name only from kube-dns, which it asks by the address that leads to itself for all others.
    for client in ["client-1", "client-2", "client-3"] {
        let found = ground.field.exec(client, &format!("getent ahostsv4 web.{ZONE}"));
        assert!(found.starts_with("198.51.100.7"), "{client}: {found:?}");
    }
    let told = ground.field.beeline(1, &["explain", &format!("{}:53/udp", ground.ips[0])]);
    assert!(told.contains("node-local-dns"), "{told}");
}

/// One query after the other, each by a socket of its own, or all by one that stays connected. Every line is when a query
/// was sent, when it was settled (ms) and who answered; nobody: `lost`.
fn storm(ground: &Ground, pod: &str, connected: bool) {
    let ip = &ground.ips[0];
    let query = r"\022\064\001\000\000\001\000\000\000\000\000\000\003who\007beeline\007example\000\000\020\000\001";
    let open = format!("exec 3<>/dev/udp/{ip}/53");
    let ask = format!(
        "{{ printf '{query}' >&3; }} 2>/dev/null && a=$(timeout 1 dd bs=512 count=1 <&3 2>/dev/null | grep -ao 'cache-[12]\\|origin' | head -1)"
    );
    let reopen = if connected { format!("[ -n \"$a\" ] || {{ {open}; }}") } else { open.clone() };
    let script = format!(
        "cat > /tmp/storm.sh <<'END'\n{open}\nwhile [ ! -e /tmp/stop ]; do t=$(date +%s%3N); a=; {ask}; \
         echo $t $(date +%s%3N) ${{a:-lost}} >> /tmp/answers; {reopen}; sleep 0.02; done; touch /tmp/stopped\nEND\n\
         rm -f /tmp/stop /tmp/stopped /tmp/answers; nohup bash /tmp/storm.sh >/dev/null 2>&1 &"
    );
    ground.field.exec(pod, &script);
}

struct Answer {
    sent: u64,
    settled: u64,
    by: String,
}

fn stop(ground: &Ground, pod: &str) -> Vec<Answer> {
    let script =
        "touch /tmp/stop; for i in $(seq 100); do [ -e /tmp/stopped ] && break; sleep 0.1; done; cat /tmp/answers";
    let answer = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        Answer { sent: words[0].parse().unwrap(), settled: words[1].parse().unwrap(), by: words[2].to_owned() }
    };
    ground.field.exec(pod, script).lines().map(answer).collect()
}

/// When the pod's status first said that it is not ready, and when again that it is, as milliseconds since the epoch. Seen
/// by a watch, as an agent sees it.
fn statuses(ground: &Ground, pod: &str, work: impl FnOnce()) -> [u64; 2] {
    let now = || jiff::Timestamp::now().as_millisecond() as u64;
    let ready = || {
        ground.field.get("pod", pod)["status"]["conditions"]
            .as_array()
            .unwrap()
            .iter()
            .any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
    };
    work();
    [false, true].map(|wanted| {
        let end = std::time::Instant::now() + PATIENCE;
        while ready() != wanted {
            assert!(std::time::Instant::now() < end, "{pod} was never {}ready", if wanted { "" } else { "un" });
            sleep(Duration::from_millis(20));
        }
        now()
    })
}

#[test]
fn a_cache_is_killed_and_returns_during_a_storm_of_queries() {
    let ground = Ground::new("dns-storm");
    let more = asker(1, &ground.ips[0]);
    let mut more = more;
    more["metadata"]["name"] = "client-long".into();
    ground.field.apply(&[more]);
    ground.field.wait_ready(&["client-long"]);
    storm(&ground, "client-1", false);
    storm(&ground, "client-long", true);
    sleep(Duration::from_secs(2));
    let killed = jiff::Timestamp::now().as_millisecond() as u64;
    let [unready, ready] = statuses(&ground, "cache-1", || {
        ground.field.try_kubectl(&["exec", "cache-1", "--", "sh", "-c", "kill -9 -1; kill -9 1"]).ok();
        // The first process of a container ignores what is sent from inside; its node ends it.
        ground.field.on_node(
            1,
            &[
                "sh",
                "-c",
                "for p in $(pgrep -x unbound); do grep -q cache-1 /proc/$p/root/tmp/unbound.conf && kill -9 $p; done",
            ],
        );
    });
    sleep(Duration::from_secs(4));
    for (pod, kind) in [("client-1", "a socket for each query"), ("client-long", "one connected socket")] {
        let answers = stop(&ground, pod);
        judge(&answers, kind, [killed, unready, ready]);
        // A socket that is connected to kube-dns stays there as long as kube-dns serves.
        if pod == "client-1" {
            let back = answers.iter().find(|answer| answer.sent > ready && answer.by == "cache-1");
            println!("the cache answered again {} ms after it was ready", back.expect("it serves again").sent - ready);
        }
    }
}

/// What may be lost: what the killed process had in hand, or was sent before its pod's status said so. The agent hears of
/// that a moment after the API server does: 1 s is stated, ten times that is asserted.
fn judge(answers: &[Answer], kind: &str, [killed, unready, _]: [u64; 3]) {
    let lost: Vec<&Answer> = answers.iter().filter(|answer| answer.by == "lost").collect();
    let beyond: Vec<String> = lost
        .iter()
        .filter(|answer| answer.settled + 50 < killed || answer.sent > unready + 1_000)
        .map(|answer| format!("sent {} ms after the kill", answer.sent as i64 - killed as i64))
        .collect();
    let next = answers.iter().find(|answer| answer.sent > killed && answer.by == "origin").expect("kube-dns serves");
    println!(
        "{kind}: {} of {} queries lost, {} of them beyond what the killed cache had in hand or was sent before its status \
         said so ({} ms after the kill); kube-dns answered {} ms after the kill",
        lost.len(),
        answers.len(),
        beyond.len(),
        unready - killed,
        next.settled - killed,
    );
    assert!(answers.len() > 20, "only {} queries", answers.len());
    assert!(next.settled < unready + 10_000, "kube-dns answered {} ms after the status", next.settled - unready);
    assert!(beyond.is_empty(), "{kind}: {beyond:?}");
}
