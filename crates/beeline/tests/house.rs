//! The order of the house, checked: who may depend on whom, where `unsafe` may stand, that every option is documented, and
//! that no test is skipped unseen.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Crate by crate: which of our own crates it may use (not for tests).
const MAY_USE: [(&str, &[&str]); 9] = [
    ("beeline-model", &[]),
    ("beeline-kit", &[]),
    ("beeline-join", &[]),
    ("beeline-cluster", &["beeline-model"]),
    ("beeline-datapath", &["beeline-model"]),
    ("beeline-dns", &["beeline-model"]),
    ("beeline-agent", &["beeline-model", "beeline-cluster", "beeline-datapath", "beeline-join", "beeline-dns"]),
    ("beeline-controller", &["beeline-model", "beeline-cluster"]),
    (
        "beeline",
        &[
            "beeline-model",
            "beeline-cluster",
            "beeline-datapath",
            "beeline-dns",
            "beeline-agent",
            "beeline-controller",
            "beeline-join",
        ],
    ),
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
    for name in ["model", "cluster", "names", "agent", "controller", "join"] {
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

/// What it does, its default, an example that the command line takes, and when to change it.
fn section_is_whole(docs: &str, option: &str) {
    let section = docs.split("\n### ").find(|section| section.starts_with(&format!("`--{option}`\n")));
    let section = section.unwrap_or_else(|| panic!("docs/options.md has no section of --{option}"));
    for part in ["\n- Default: ", "\n- Example: `--", "\n- Change it when: "] {
        assert!(section.contains(part), "--{option} in docs/options.md has no {part:?}");
    }
    let example = section.split("\n- Example: `").nth(1).and_then(|rest| rest.split('`').next()).unwrap();
    assert!(example.contains(&format!("--{option}")), "the example of --{option} is {example}");
    let output = Command::new(env!("CARGO_BIN_EXE_beeline")).arg("plan").args(example.split(' ')).output().unwrap();
    assert_ne!(output.status.code(), Some(2), "{example}: {}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn every_option_is_documented() {
    let options = long_options("agent");
    assert!(options.len() > 20, "{options:?}");
    let docs = std::fs::read_to_string(root().join("docs/options.md")).unwrap();
    let example = std::fs::read_to_string(root().join("examples/beeline.yaml")).unwrap();
    for option in &options {
        section_is_whole(&docs, option);
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

/// scripts/cargo-test.sh with programs in the place of cargo and the kit that say what these lines say.
fn closing_line(cargo: &str, kit: &str) -> (bool, String) {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    for (name, body) in [("cargo", cargo), ("kit", kit)] {
        let path = dir.path().join(name);
        std::fs::write(&path, format!("#!/bin/sh\n{body}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    let path = format!("{}:{}", dir.path().display(), std::env::var("PATH").unwrap());
    let mut script = Command::new(root().join("scripts/cargo-test.sh"));
    script.args(["host", "server", "cluster"]).env("PATH", path);
    script.env("BEELINE_KIT", dir.path().join("kit")).env("BEELINE_TEST_LOG", dir.path().join("log"));
    let output = script.output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let closing = text.find("\ntest: ").map(|at| text[at + 1..].to_owned());
    (output.status.success(), closing.unwrap_or_else(|| panic!("no closing line: {text}")))
}

const PASSES: &str = r#"echo "test one ... ok"; echo "test two ... ignored"
echo "test result: ok. 1 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s""#;

#[test]
fn the_closing_line_of_the_tests_counts_every_part() {
    let (well, line) = closing_line(PASSES, "true");
    assert!(
        well && line.starts_with("test: passed: 3 passed, 0 failed, 3 ignored (host 1, server 1, cluster 1)"),
        "{line}"
    );
    assert_eq!(line.matches("not run: two").count(), 3, "{line}");
}

#[test]
fn a_part_that_fails_or_does_not_run_is_no_success() {
    let fails = format!(
        "case \"$*\" in *api_server*) echo 'test result: FAILED. 2 passed; 1 failed; 0 ignored;'; exit 101;; esac\n{PASSES}"
    );
    let (well, line) = closing_line(&fails, "true");
    assert!(
        !well && line.starts_with("test: FAILED: 4 passed, 1 failed, 2 ignored (host 1, server 3, cluster 1)"),
        "{line}"
    );
    assert!(line.contains("failed: part server"), "{line}");
    let (well, line) = closing_line(PASSES, "[ \"$1\" != up ]");
    assert!(!well && line.starts_with("test: FAILED") && line.contains("not run: part cluster"), "{line}");
    let (well, line) = closing_line("true", "true");
    assert!(!well && line.contains("not run: part host"), "no result at all is no success: {line}");
}

/// Whoever reads the docs of policies tries these first.
#[test]
fn the_examples_of_policies_are_what_the_docs_say() {
    let plan = |node: &str| {
        let mut plan = std::process::Command::new(env!("CARGO_BIN_EXE_beeline"));
        let output = plan.args(["plan", "--manifests", "examples/policies", "--node-name", node]).current_dir(root());
        String::from_utf8(output.output().unwrap().stdout).unwrap()
    };
    let (with_cache, without) = (plan("node-1"), plan("node-2"));
    assert!(with_cache.contains("10.96.0.10:53/UDP      10.244.1.3:53, then kube-system/kube-dns"), "{with_cache}");
    assert!(without.contains("10.96.0.10:53/UDP      none (next), then kube-system/kube-dns"), "{without}");
    assert!(with_cache.contains("169.254.0.90:5432/TCP  192.0.2.5:5432 192.0.2.6:5432"), "{with_cache}");
}
