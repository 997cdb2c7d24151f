//! Sockets that are used in another cgroup or network namespace than the one in which they were created.
//!
//! The cgroup of the process that created the socket decides whether the programs run. The network namespace is that of the
//! socket. Rules for cgroups (exclusion, views) apply to the process that dials.

use crate::address_kinds::address_forms;
use crate::fixture::{AgentFixture, ManifestFile, TIMEOUT};
use crate::python;
use beeline_harness::{Cgroup, NetworkNamespace, TestNetwork, TestProgram, mapped};
use serde_json::{Value, json};
use std::net::SocketAddr;

const SCRIPT: &str = include_str!("programs/pass_socket.py");

type Place<'a> = (&'a NetworkNamespace, &'a Cgroup);

fn python3((namespace, cgroup): Place<'_>) -> TestProgram {
    TestProgram::new("python3", Some(namespace), Some(cgroup)).unwrap()
}

/// Per dial: the server's name, the client's address as the server sees it, and the address that the socket reports.
fn dials(result: &Value) -> Vec<(String, SocketAddr, String)> {
    let text = |value: &Value| value.as_str().unwrap_or_else(|| panic!("{result}")).to_owned();
    let dials = result.as_array().unwrap().iter().map(|d| (text(&d[0]), text(&d[1]).parse().unwrap(), text(&d[2])));
    dials.collect()
}

fn assert_dials(result: &Value, server: &str, client: SocketAddr, to: SocketAddr, what: &str) {
    let dials = dials(result);
    assert_eq!(dials.len(), 3, "{what}: TCP, connected UDP, unconnected UDP");
    for (name, seen, reported) in dials {
        assert_eq!((name.as_str(), reported), (server, to.to_string()), "{what}");
        assert_eq!(seen.ip(), client.ip().to_canonical(), "{what}: the packets come from the socket's namespace");
    }
}

#[test]
fn the_creator_of_a_socket_and_the_caller_decide() {
    let network = TestNetwork::new(2).unwrap();
    let excluded = network.node().cgroup.child("excluded").unwrap();
    let path = excluded.path().display().to_string();
    let web = ManifestFile::service("web", 10).backed_by(&[(network.pod(0), "node-1")]);
    let fixture = AgentFixture::with_manifests(network, &[web], &["--exclude-cgroup", &path]);
    let network = &fixture.network;
    let _server = network.pod(0).serve(8080).unwrap();
    let forms = address_forms("10.96.0.10", "fd00:96::10", 80);
    let _outside = fixture.serve_outside(&forms[..2]);
    let (pod, node, outside) = (network.pod(1), network.node(), &network.outside);
    let places: [(&str, Place<'_>, Place<'_>, &str); 5] = [
        (
            "created in a served cgroup, used outside",
            (&pod.namespace, &pod.cgroup),
            (&outside.namespace, &outside.cgroup),
            "pod-a",
        ),
        (
            "created outside, used in a served cgroup",
            (&pod.namespace, &outside.cgroup),
            (&pod.namespace, &pod.cgroup),
            "outside",
        ),
        ("created in a pod, used on the host", (&pod.namespace, &pod.cgroup), (&node.namespace, &node.cgroup), "pod-a"),
        (
            "created in a pod, used in an excluded cgroup",
            (&pod.namespace, &pod.cgroup),
            (&pod.namespace, &excluded),
            "outside",
        ),
        (
            "created in an excluded cgroup, used in a pod",
            (&pod.namespace, &excluded),
            (&pod.namespace, &pod.cgroup),
            "pod-a",
        ),
    ];
    let dir = tempfile::tempdir().unwrap();
    for (to, client) in forms.into_iter().zip([pod.v4(0), pod.v6(0), mapped(pod.v4(0))]) {
        for (number, (what, creator, caller, server)) in places.iter().enumerate() {
            let path = dir.path().join(format!("{number}-{}", to.is_ipv4())).display().to_string();
            let _ = std::fs::remove_file(&path);
            let args = |role: &str| json!({ "role": role, "path": path, "to": python::pair(to) });
            let mut maker = python::start(python3(*creator), SCRIPT, &args("maker"));
            maker.wait_for("ready", TIMEOUT).unwrap();
            let result = python::result(python::start(python3(*caller), SCRIPT, &args("user")));
            assert_dials(&result, server, client, to, what);
        }
        let namespace = format!("/run/netns/{}", outside.namespace.name());
        let args = json!({ "role": "setns", "namespace": namespace, "to": python::pair(to) });
        let result = python::run(pod, SCRIPT, &args);
        assert_dials(&result, "pod-a", client, to, "the caller entered another network namespace");
    }
}
