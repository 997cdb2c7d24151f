//! What the cluster is made of, as far as it can be checked without one.

use kit::{
    Node,
    plan::{CONTROL, KUBERNETES, api_url},
    program::{HELM, KUBERNETES as PROGRAMS},
};

#[test]
fn the_api_server_is_where_the_nodes_gateway_is() {
    assert_eq!(api_url(), format!("https://{}:6443", CONTROL[0]));
    assert_ne!(CONTROL[0], KUBERNETES[0]);
}

#[test]
fn a_node_more_than_there_is_room_for_is_refused_with_the_limit() {
    let error = Node::first(10).unwrap_err().to_string();
    assert!(error.contains("1 to 9"), "{error}");
}

/// The tool reads versions from the go.mod files, so a bump there is the only one needed.
#[test]
fn versions_come_from_the_pinned_modules() {
    for (module, path) in [(PROGRAMS, "go/kubernetes"), (HELM, "go/helm")] {
        let file = format!("{}/{path}/go.mod", env!("CARGO_MANIFEST_DIR"));
        let text = std::fs::read_to_string(&file).unwrap();
        assert!(text.contains(&format!("{} {}", module.requires, module.version())), "{file}");
    }
}
