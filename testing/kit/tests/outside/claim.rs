//! A cluster that claims what is not its own: this host's addresses, loopback and link-local ones. What the API server does
//! not let pass is written into its store behind its back, as by a server that asks nobody.

use std::net::IpAddr;

use base64::{Engine, engine::general_purpose::STANDARD};
use kit::{Place, host::Road};
use serde_json::{Value, json};

use crate::{
    field::{Field, service},
    stand::{Stand, at, names, pod, served, targets},
};

const LINK_LOCAL: [&str; 2] = ["169.254.9.9", "fe80::9"];

/// Behind the API server's back.
fn store(field: &Field, key: &str, object: &Value) {
    let body = json!({"key": STANDARD.encode(key), "value": STANDARD.encode(object.to_string())}).to_string();
    let mut command = field.cluster.command(Place::Control).unwrap();
    command.args(["curl", "-sf", "--max-time", "5", "http://127.0.0.1:2379/v3/kv/put", "-d", &body]);
    let output = command.output().unwrap();
    assert!(output.status.success(), "write {key}: {output:?}");
}

/// The same object with another content.
fn falsify(field: &Field, kind: &str, name: &str, folder: &str, change: impl Fn(&mut Value)) {
    let mut object = field.get(kind, name);
    change(&mut object);
    store(field, &format!("/registry/{folder}/{}/{name}", field.namespace()), &object);
    assert_eq!(field.get(kind, name)["spec"], object["spec"], "the API server believes it");
}

/// Services of pods that are real, at addresses that are not the cluster's to give.
fn grab(field: &Field, own: &[IpAddr; 2]) -> Vec<String> {
    let special = ["127.0.0.1", "::1"].into_iter().chain(LINK_LOCAL).map(str::to_owned);
    let all: Vec<String> = own.iter().map(ToString::to_string).chain(special).collect();
    falsify(field, "service", "grab", "services/specs", |service| {
        let ingress: Vec<Value> = all.iter().map(|ip| json!({"ip": ip, "ipMode": "VIP"})).collect();
        service["spec"]["externalIPs"] = json!(all);
        service["status"]["loadBalancer"] = json!({"ingress": ingress});
    });
    all
}

/// Endpoints at this host, beside one that is a pod.
fn mislead(field: &Field, own: &[IpAddr; 2], pods: &[IpAddr; 2]) {
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
        field.apply(&[slice]);
        let loopback = if family == 0 { "127.0.0.1" } else { "::1" };
        falsify(field, "endpointslice", &name, "endpointslices", |slice| {
            let own = own[family].to_string();
            let all = [pods[family].to_string().as_str(), loopback, LINK_LOCAL[family], &own].map(endpoint);
            slice["endpoints"] = json!(all);
        });
    }
}

#[test]
fn a_cluster_gets_nothing_of_this_hosts_own() {
    let hand = json!({"selector": null, "type": "NodePort"});
    let claims = json!({"type": "LoadBalancer", "loadBalancerClass": "example.org/none"});
    let field = served("claim", &[("web", json!({})), ("grab", claims), ("mislead", hand)]);
    field.settle("web", 2);
    let stand = Stand::outside(1, Road::Static);
    let (own, pods) = (stand.outside.host.addresses(), pod(&field, "web-1"));
    stand.wait_found(&pods, "direct");

    // Somebody who is not the cluster's listens here, at the claimed port and at the pods'.
    let agnhost = field.cluster.cache.program("agnhost").display().to_string();
    for port in [80, 8080] {
        let options = [format!("--http-port={port}"), format!("--udp-port={port}")];
        let words = [&agnhost, "netexec", &options[0], &options[1]].map(str::to_owned).to_vec();
        stand.outside.part(&format!("own-{port}"), words).unwrap().start().unwrap();
    }
    let claimed = grab(&field, &own);
    mislead(&field, &own, &pods);
    // An object that comes after those has been seen after those.
    field.apply(&[service("late", json!({}))]);
    let late = targets(&field, "late");
    crate::field::eventually("what came last", || stand.verdict(&late[0]) == "resolved");

    let refused = stand.refusals(&format!("{}/grab", field.namespace()));
    for address in &claimed {
        // What is nobody's anywhere is a bad address to begin with.
        let reasons: &[&str] = match own.iter().any(|ip| ip.to_string() == *address) {
            true => &["ownAddress"],
            false => &["ownAddress", "badExternalIP", "badLoadBalancerIP"],
        };
        let told = |(reason, text): &(String, String)| {
            reasons.contains(&reason.as_str()) && text.contains(&format!("{address} is "))
        };
        assert!(refused.iter().any(told), "{address}: {refused:?}");
    }
    let mine: Vec<IpAddr> = own.into_iter().chain(["127.0.0.1".parse().unwrap(), "::1".parse().unwrap()]).collect();
    let tally = stand.dial(&at(&mine, 80), 8);
    assert!(tally.failures.is_empty(), "{:?}", tally.failures);
    for target in at(&mine, 80) {
        assert_eq!(names(&tally, &target).into_iter().collect::<Vec<_>>(), ["h1"], "{target} is this host's own");
        assert_eq!(stand.verdict(&target), "untouched");
    }
    // Endpoints: the pod serves, and nobody is led to this host.
    let led = targets(&field, "mislead");
    println!("claim: of mislead: {:?}", stand.refusals(&format!("{}/mislead", field.namespace())));
    for target in &led {
        let said = stand.explain(target);
        println!("claim: {target} is led to {:?} ({:?})", said.backends(), said.ways());
    }
    stand.reaches_directly(&led, &["web-1"]);
    // Nothing else is lost.
    stand.reaches_directly(&targets(&field, "web"), &["web-1", "web-2"]);
    stand.reaches_directly(&targets(&field, "grab"), &["web-1", "web-2"]);
}
