//! Policies: a redirect to the node's own pod, which itself gets past it; a limit; a virtual address.

use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use beeline_harness::{Client, Dial, Example, Expect, Kind, Trial};

use crate::{check::Checks, dials::at};

const WEB: &str = "10.96.0.10:80";
const VIRTUAL: &str = "169.254.0.90:80";
const LIMITED: &str = "169.254.0.91:80";
const BURST: u32 = 3;
const PATIENCE: Duration = Duration::from_secs(60);

/// pod-b, known by its uid's cgroup; it serves `web`, alone, on this node, and a virtual address three times and once a
/// second. Another virtual address is pod-d's.
const MANIFEST: &str = r#"
{"apiVersion": "v1", "kind": "Pod",
 "metadata": {"name": "b", "namespace": "default", "uid": "0c9a3a3e-5b1f-4c3d-9a55-6f0e3f1d2b11", "labels": {"app": "near"}},
 "spec": {"nodeName": "node-1", "containers": [{"name": "app", "image": "none"}]},
 "status": {"phase": "Running", "podIP": "10.244.1.3", "podIPs": [{"ip": "10.244.1.3"}],
            "conditions": [{"type": "Ready", "status": "True"}]}}
---
{"apiVersion": "beeline.dev/v1alpha1", "kind": "LocalRedirectPolicy", "metadata": {"name": "near", "namespace": "default"},
 "spec": {"frontend": {"serviceMatcher": {"serviceName": "web", "toPorts": [{"name": "http", "port": 80, "protocol": "TCP"}]}},
          "backend": {"endpointSelector": {"matchLabels": {"app": "near"}},
                      "toPorts": [{"name": "http", "port": 8080, "protocol": "TCP"}]}}}
---
{"apiVersion": "beeline.dev/v1alpha1", "kind": "LocalRedirectPolicy", "metadata": {"name": "limited", "namespace": "default"},
 "spec": {"frontend": {"addressMatcher": {"ip": "169.254.0.91", "toPorts": [{"port": 80, "protocol": "TCP"}]}},
          "backend": {"endpointSelector": {"matchLabels": {"app": "near"}}, "toPorts": [{"port": 8080, "protocol": "TCP"}]},
          "config": {"limit": {"connectsPerSecond": 1, "burst": 3}}}}
---
{"apiVersion": "beeline.dev/v1alpha1", "kind": "BalancingPolicy", "metadata": {"name": "far", "namespace": "default"},
 "spec": {"frontend": {"addressMatcher": {"ip": "169.254.0.90", "toPorts": [{"port": 80, "protocol": "TCP"}]}},
          "backend": {"addressEndpoint": {"addresses": ["10.244.2.2"], "toPorts": [{"port": 8080, "protocol": "TCP"}]}}}}
"#;

pub fn policies(example: &Example, checks: &mut Checks) {
    checks.check("policies", |checks| {
        let pod = example.lab.pod(1);
        let cgroup = example.lab.cgroup().child("pod0c9a3a3e-5b1f-4c3d-9a55-6f0e3f1d2b11")?;
        let selected = Client::start(Some(&pod.namespace), Some(&cgroup))?;
        example.agent.write("policies.yaml", MANIFEST)?;
        wait_for(example)?;
        let tcp = |to, expect| Trial::new(Kind::Tcp, at(to), expect);
        checks.dial(&example.client, "the node's own pod", tcp(WEB, Expect::any(["pod-b"])));
        checks.check("that pod itself gets past it", |_| {
            let trial = tcp(WEB, Expect::every(example.names()));
            trial.fault(&trial.run(&selected)?).map_or(Ok(""), |fault| bail!("{fault}"))
        });
        checks.dial(&example.client, "a virtual address", tcp(VIRTUAL, Expect::any(["pod-d"])));
        checks.check("a limit", |_| limit(&example.client));
        example.agent.write("policies.yaml", "")?;
        Ok("")
    });
}

fn wait_for(example: &Example) -> Result<()> {
    let end = Instant::now() + PATIENCE;
    loop {
        let told = example.agent.ask(&["policies"])?;
        if told.matches("accepted").count() == 3 && !told.contains("not used yet") {
            return Ok(());
        }
        ensure!(Instant::now() < end, "{told}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// As many as the burst, and one a second.
fn limit(client: &Client) -> Result<String> {
    let start = Instant::now();
    let (mut served, mut tried) = (0, 0);
    while served == tried {
        tried += 1;
        served += u32::from(client.dial(&Dial::new(Kind::Tcp, at(LIMITED)))?.error.is_none());
        ensure!(tried < 10_000, "{served} of {tried} dials came through");
    }
    let most = BURST + start.elapsed().as_secs() as u32 + 1;
    ensure!((BURST..=most).contains(&served), "{served} of {tried} dials came through, {most} may");
    Ok(format!("({served} of {tried} dials came through)"))
}
