//! The order of the house, checked: who may depend on whom, where `unsafe` may stand, and that every option is documented.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Crate by crate: which of our own crates it may use (not for tests).
const MAY_USE: [(&str, &[&str]); 7] = [
    ("beeline-model", &[]),
    ("beeline-kit", &[]),
    ("beeline-cluster", &["beeline-model"]),
    ("beeline-datapath", &["beeline-model"]),
    ("beeline-agent", &["beeline-model", "beeline-cluster", "beeline-datapath"]),
    ("beeline-controller", &["beeline-model", "beeline-cluster"]),
    ("beeline", &["beeline-model", "beeline-cluster", "beeline-datapath", "beeline-agent", "beeline-controller"]),
];

#[test]
fn crates_use_only_what_they_may() {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version=1", "--no-deps", "--offline"])
        .current_dir(root())
        .output()
        .unwrap();
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).expect("cargo metadata");
    let packages: BTreeMap<&str, &serde_json::Value> =
        metadata["packages"].as_array().unwrap().iter().map(|p| (p["name"].as_str().unwrap(), p)).collect();
    for (name, allowed) in MAY_USE {
        let used: BTreeSet<&str> = packages[name]["dependencies"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|d| d["kind"].is_null())
            .filter_map(|d| d["name"].as_str())
            .filter(|d| d.starts_with("beeline"))
            .collect();
        let allowed: BTreeSet<&str> = allowed.iter().copied().collect();
        assert!(used.is_subset(&allowed), "{name} uses {used:?}, and may use {allowed:?}");
    }
    for (name, forbidden) in
        [("beeline-model", "libbpf-rs"), ("beeline-cluster", "libbpf-rs"), ("beeline-model", "tokio")]
    {
        let uses = packages[name]["dependencies"].as_array().unwrap().iter().any(|d| d["name"] == forbidden);
        assert!(!uses, "{name} must not use {forbidden}");
    }
}

#[test]
fn unsafe_code_stands_only_in_datapath() {
    for name in ["model", "cluster", "agent", "controller"] {
        let text = std::fs::read_to_string(root().join(format!("crates/{name}/src/lib.rs"))).unwrap();
        assert!(text.contains("#![forbid(unsafe_code)]"), "crates/{name} does not forbid unsafe code");
    }
    let main = std::fs::read_to_string(root().join("crates/beeline/src/main.rs")).unwrap();
    assert!(main.contains("#![forbid(unsafe_code)]"));
}

fn long_options(command: &str) -> BTreeSet<String> {
    let output = Command::new(env!("CARGO_BIN_EXE_beeline")).args([command, "--help"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let option =
        |line: &str| line.trim_start().strip_prefix("--").map(|o| o.split([' ', '=', ',']).next().unwrap().to_owned());
    text.lines().filter_map(option).collect()
}

#[test]
fn every_option_is_documented() {
    let options = long_options("agent");
    assert!(options.len() > 20, "{options:?}");
    let docs = std::fs::read_to_string(root().join("docs/options.md")).unwrap();
    let example = std::fs::read_to_string(root().join("examples/beeline.yaml")).unwrap();
    for option in &options {
        assert!(docs.contains(&format!("`--{option}`")), "docs/options.md does not name --{option}");
        let in_file = option == "config" || example.contains(&format!("{option}:"));
        assert!(in_file, "examples/beeline.yaml does not show {option}");
    }
    for word in docs.split('`').filter(|w| w.starts_with("--") && !w.contains(' ')) {
        let name = word.trim_start_matches("--").split('=').next().unwrap();
        assert!(
            options.contains(name) || ["help", "diff", "from"].contains(&name),
            "docs/options.md names {word}, which is no option"
        );
    }
}
