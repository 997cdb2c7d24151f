//! Addresses and versions of the cluster, checked without a running cluster.

use kit::{
    NodeId,
    address_plan::{CONTROL, KUBERNETES, api_url},
    program::{HELM, KUBERNETES as PROGRAMS},
};

#[test]
fn the_api_server_listens_on_the_nodes_gateway() {
    assert_eq!(api_url(), format!("https://{}:6443", CONTROL[0]));
    assert_ne!(CONTROL[0], KUBERNETES[0]);
}

#[test]
fn too_many_nodes_are_refused_with_the_limit() {
    let error = NodeId::first(10).unwrap_err().to_string();
    assert!(error.contains("1 to 9"), "{error}");
}

/// The kit reads versions from the go.mod files, so they are changed in one place.
#[test]
fn versions_are_those_of_the_go_modules() {
    for (module, path) in [(PROGRAMS, "go/kubernetes"), (HELM, "go/helm")] {
        let file = format!("{}/{path}/go.mod", env!("CARGO_MANIFEST_DIR"));
        let text = std::fs::read_to_string(&file).unwrap();
        assert!(text.contains(&format!("{} {}", module.requires, module.version())), "{file}");
    }
}
