//! Checks of policies: a redirect to the node's own pod, which does not apply to that pod; a limit; a virtual address.

use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use beeline_harness::{Client, DialCheck, DialKind, DialRequest, ExampleCluster, Expected};

use crate::{check::Checks, dials::at};

const WEB: &str = "10.96.0.10:80";
const VIRTUAL: &str = "169.254.0.90:80";
const LIMITED: &str = "169.254.0.91:80";
const BURST: u32 = 3;
const TIMEOUT: Duration = Duration::from_secs(60);

/// pod-b is found by the cgroup of its uid. Policies redirect `web` on this node to pod-b, and a limited virtual
/// address (burst 3, then one connect per second) to pod-b. Another virtual address leads to pod-d.
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

pub fn policies(example: &ExampleCluster, checks: &mut Checks) {
    checks.check("policies", |checks| {
        let pod = example.network.pod(1);
        let cgroup = example.network.cgroup().child("kubepods/pod0c9a3a3e-5b1f-4c3d-9a55-6f0e3f1d2b11")?;
        let selected = Client::start(Some(&pod.namespace), Some(&cgroup))?;
        example.agent.write("policies.yaml", MANIFEST)?;
        wait_for_policies(example)?;
        let tcp = |to, expect| DialCheck::new(DialKind::Tcp, at(to), expect);
        checks.dial(&example.client, "the node's own pod", tcp(WEB, Expected::any(["pod-b"])));
        checks.check("the redirect does not apply to that pod", |_| {
            let check = tcp(WEB, Expected::every(example.names()));
            check.mismatch(&check.run(&selected)?).map_or(Ok(""), |mismatch| bail!("{mismatch}"))
        });
        checks.dial(&example.client, "a virtual address", tcp(VIRTUAL, Expected::any(["pod-d"])));
        checks.check("a limit", |_| limit(&example.client));
        example.agent.write("policies.yaml", "")?;
        Ok("")
    });
}

fn wait_for_policies(example: &ExampleCluster) -> Result<()> {
    let end = Instant::now() + TIMEOUT;
    loop {
        let output = example.agent.run(&["policies"])?;
        if output.matches("accepted").count() == 3 && !output.contains("not used yet") {
            return Ok(());
        }
        ensure!(Instant::now() < end, "{output}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Checks that the limit admits the burst and then one connect per second.
fn limit(client: &Client) -> Result<String> {
    let start = Instant::now();
    let (mut served, mut tried) = (0, 0);
    while served == tried {
        tried += 1;
        served += u32::from(client.dial(&DialRequest::new(DialKind::Tcp, at(LIMITED)))?.error.is_none());
        ensure!(tried < 10_000, "{served} of {tried} dials succeeded");
    }
    let most = BURST + start.elapsed().as_secs() as u32 + 1;
    ensure!((BURST..=most).contains(&served), "{served} of {tried} dials succeeded, {most} may");
    Ok(format!("({served} of {tried} dials succeeded)"))
}
