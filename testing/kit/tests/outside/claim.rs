//! A cluster claims addresses that do not belong to it: this host's own, loopback and link-local addresses. Objects
//! that the API server would reject are written to etcd directly.

use std::net::IpAddr;

use base64::{Engine, engine::general_purpose::STANDARD};
use kit::{Location, host::HostRoute};
use serde_json::{Value, json};

use crate::{
    fixture::{ClusterFixture, service},
    outside_agent::{OutsideAgent, fixture_with_services, names, pod_addresses, targets, targets_at},
};

const LINK_LOCAL: [&str; 2] = ["169.254.9.9", "fe80::9"];

/// Writes an object to etcd without the API server's validation.
fn write_to_etcd(fixture: &ClusterFixture, key: &str, object: &Value) {
    let body = json!({"key": STANDARD.encode(key), "value": STANDARD.encode(object.to_string())}).to_string();
    let mut command = fixture.cluster.command(Location::ControlPlane).unwrap();
    command.args(["curl", "-sf", "--max-time", "5", "http://127.0.0.1:2379/v3/kv/put", "-d", &body]);
    let output = command.output().unwrap();
    assert!(output.status.success(), "write {key}: {output:?}");
}

/// Changes an object without the API server's validation.
fn change_in_etcd(fixture: &ClusterFixture, kind: &str, name: &str, folder: &str, change: impl Fn(&mut Value)) {
    let mut object = fixture.get(kind, name);
    change(&mut object);
    write_to_etcd(fixture, &format!("/registry/{folder}/{}/{name}", fixture.namespace()), &object);
    assert_eq!(fixture.get(kind, name)["spec"], object["spec"], "the API server returns the changed object");
}

/// Gives a Service external addresses that do not belong to the cluster.
fn claim_addresses(fixture: &ClusterFixture, own: &[IpAddr; 2]) -> Vec<String> {
    let special = ["127.0.0.1", "::1"].into_iter().chain(LINK_LOCAL).map(str::to_owned);
    let all: Vec<String> = own.iter().map(ToString::to_string).chain(special).collect();
    change_in_etcd(fixture, "service", "grab", "services/specs", |service| {
        let ingress: Vec<Value> = all.iter().map(|ip| json!({"ip": ip, "ipMode": "VIP"})).collect();
        service["spec"]["externalIPs"] = json!(all);
        service["status"]["loadBalancer"] = json!({"ingress": ingress});
    });
    all
}

/// Adds endpoints at this host's own addresses beside a real pod.
fn add_false_endpoints(fixture: &ClusterFixture, own: &[IpAddr; 2], pods: &[IpAddr; 2]) {
    for (family, kind) in ["IPv4", "IPv6"].into_iter().enumerate() {
        let name = format!("mislead-{}", kind.to_lowercase());
        let endpoint = |ip: &str| json!({"addresses": [ip], "nodeName": "n1", "conditions": {"ready": true}});
        let labels = json!({"kubernetes.io/service-name": "mislead"});
        let slice = json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": kind,
            "metadata": {"name": name, "labels": labels},
            "ports": [
                {"name": "tcp", "port": 8080, "protocol": "TCP"}, {"name": "udp", "port": 8080, "protocol": "UDP"},
            ],
            "endpoints": [endpoint(&pods[family].to_string())],
        });
        fixture.apply(&[slice]);
        let loopback = if family == 0 { "127.0.0.1" } else { "::1" };
        change_in_etcd(fixture, "endpointslice", &name, "endpointslices", |slice| {
            let own = own[family].to_string();
            let all = [pods[family].to_string().as_str(), loopback, LINK_LOCAL[family], &own].map(endpoint);
            slice["endpoints"] = json!(all);
        });
    }
}

#[test]
fn a_cluster_cannot_claim_this_hosts_own_addresses() {
    let manual = json!({"selector": null, "type": "NodePort"});
    let claims = json!({"type": "LoadBalancer", "loadBalancerClass": "example.org/none"});
    let fixture = fixture_with_services("claim", &[("web", json!({})), ("grab", claims), ("mislead", manual)]);
    fixture.wait_for_endpoints("web", 2);
    let agent = OutsideAgent::outside(1, HostRoute::Static);
    let (own, pods) = (agent.outside.host.addresses(), pod_addresses(&fixture, "web-1"));
    agent.wait_for_reachability(&pods, "direct");

    // A server of the host itself listens at the claimed port and at the pods' port.
    let agnhost = fixture.cluster.cache.program("agnhost").display().to_string();
    for port in [80, 8080] {
        let options = [format!("--http-port={port}"), format!("--udp-port={port}")];
        let arguments = [&agnhost, "netexec", &options[0], &options[1]].map(str::to_owned).to_vec();
        agent.outside.component(&format!("own-{port}"), arguments).unwrap().start().unwrap();
    }
    let claimed = claim_addresses(&fixture, &own);
    add_false_endpoints(&fixture, &own, &pods);
    // Once this later object is in effect, the earlier ones have been processed.
    fixture.apply(&[service("late", json!({}))]);
    let late = targets(&fixture, "late");
    crate::fixture::wait_until("the last object is in effect", || agent.verdict(&late[0]) == "resolved");

    let refused = agent.refusals(&format!("{}/grab", fixture.namespace()));
    for address in &claimed {
        // Loopback and link-local addresses are refused as bad addresses.
        let reasons: &[&str] = match own.iter().any(|ip| ip.to_string() == *address) {
            true => &["ownAddress"],
            false => &["ownAddress", "badExternalIP", "badLoadBalancerIP"],
        };
        let matches = |(reason, text): &(String, String)| {
            reasons.contains(&reason.as_str()) && text.contains(&format!("{address} is "))
        };
        assert!(refused.iter().any(matches), "{address}: {refused:?}");
    }
    let own_addresses: Vec<IpAddr> =
        own.into_iter().chain(["127.0.0.1".parse().unwrap(), "::1".parse().unwrap()]).collect();
    let report = agent.dial(&targets_at(&own_addresses, 80), 8);
    assert!(report.failures.is_empty(), "{:?}", report.failures);
    for target in targets_at(&own_addresses, 80) {
        assert_eq!(names(&report, &target).into_iter().collect::<Vec<_>>(), ["h1"], "{target} is this host's own");
        assert_eq!(agent.verdict(&target), "untouched");
    }
    // The real pod serves, and no dial is resolved to this host.
    let misled = targets(&fixture, "mislead");
    println!("refusals of mislead: {:?}", agent.refusals(&format!("{}/mislead", fixture.namespace())));
    for target in &misled {
        let explanation = agent.explain(target);
        println!("{target} is resolved to {:?} ({:?})", explanation.backends(), explanation.paths());
    }
    agent.assert_direct(&misled, &["web-1"]);
    // Other Services are not affected.
    agent.assert_direct(&targets(&fixture, "web"), &["web-1", "web-2"]);
    agent.assert_direct(&targets(&fixture, "grab"), &["web-1", "web-2"]);
}
