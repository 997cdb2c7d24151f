//! Rules of the workspace: dependencies between crates, where `unsafe` code is allowed, documentation of every option
//! and subcommand, and the summary of the test runs.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// For each crate, the crates of this workspace that it may depend on (except for tests).
const ALLOWED_DEPENDENCIES: [(&str, &[&str]); 13] = [
    ("beeline-model", &[]),
    ("beeline-api", &["beeline-model"]),
    ("beeline-kit", &[]),
    ("beeline-metrics", &[]),
    ("beeline-join", &[]),
    ("beeline-listener", &[]),
    ("beeline-netfilter", &[]),
    ("beeline-cluster", &["beeline-model"]),
    ("beeline-datapath", &["beeline-model"]),
    ("beeline-dns", &["beeline-model", "beeline-listener"]),
    (
        "beeline-agent",
        &[
            "beeline-model",
            "beeline-api",
            "beeline-cluster",
            "beeline-datapath",
            "beeline-join",
            "beeline-dns",
            "beeline-metrics",
            "beeline-listener",
            "beeline-netfilter",
        ],
    ),
    ("beeline-controller", &["beeline-model", "beeline-cluster", "beeline-metrics", "beeline-listener"]),
    (
        "beeline",
        &[
            "beeline-model",
            "beeline-api",
            "beeline-cluster",
            "beeline-datapath",
            "beeline-dns",
            "beeline-agent",
            "beeline-controller",
            "beeline-join",
            "beeline-netfilter",
        ],
    ),
];

#[test]
fn crates_depend_only_on_allowed_crates() {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version=1", "--no-deps", "--offline"])
        .current_dir(root())
        .output()
        .unwrap();
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).expect("cargo metadata");
    let packages: BTreeMap<&str, &serde_json::Value> =
        metadata["packages"].as_array().unwrap().iter().map(|p| (p["name"].as_str().unwrap(), p)).collect();
    for (name, allowed) in ALLOWED_DEPENDENCIES {
        let used: BTreeSet<&str> = packages[name]["dependencies"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|d| d["kind"].is_null())
            .filter_map(|d| d["name"].as_str())
            .filter(|d| d.starts_with("beeline"))
            .collect();
        let allowed: BTreeSet<&str> = allowed.iter().copied().collect();
        assert!(used.is_subset(&allowed), "{name} depends on {used:?}, but may depend on {allowed:?} only");
    }
    for (name, forbidden) in [
        ("beeline-model", "libbpf-rs"),
        ("beeline-cluster", "libbpf-rs"),
        ("beeline-model", "tokio"),
        ("beeline-netfilter", "libbpf-rs"),
    ] {
        let uses = packages[name]["dependencies"].as_array().unwrap().iter().any(|d| d["name"] == forbidden);
        assert!(!uses, "{name} must not depend on {forbidden}");
    }
}

/// The dependencies of the binary that deploy/Dockerfile builds from what it copies.
fn image_dependencies(dockerfile: &str) -> BTreeSet<String> {
    let context = tempfile::tempdir().unwrap();
    let ignored = std::fs::read_to_string(root().join(".dockerignore")).unwrap();
    let builder = dockerfile.split("\nFROM ").nth(1).unwrap();
    for line in builder.lines().filter_map(|line| line.strip_prefix("COPY ")) {
        let mut paths: Vec<&str> = line.split(' ').collect();
        paths.pop();
        for path in paths {
            assert!(ignored.lines().any(|line| line == format!("!{path}")), ".dockerignore leaves out {path}");
            let copied = Command::new("cp").arg("-r").arg(root().join(path)).arg(context.path()).status().unwrap();
            assert!(copied.success(), "{path}");
        }
    }
    let output = Command::new(env!("CARGO"))
        .args(["tree", "--locked", "--offline", "--prefix=none", "--edges=normal"])
        .args(["-p", "beeline", "--no-default-features"])
        .current_dir(context.path())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().filter_map(|line| line.split(' ').next()).map(str::to_owned).collect()
}

#[test]
fn the_image_of_the_nodes_leaves_out_what_only_other_hosts_need() {
    let dockerfile = std::fs::read_to_string(root().join("deploy/Dockerfile")).unwrap();
    assert!(dockerfile.contains("-p beeline --no-default-features;"));
    let used = image_dependencies(&dockerfile);
    assert!(used.contains("beeline-agent") && used.contains("beeline-controller"), "{used:?}");
    for name in ["beeline-dns", "beeline-join", "hickory-proto"] {
        assert!(!used.contains(name), "the binary of the image depends on {name}");
    }
}

#[test]
fn only_datapath_may_contain_unsafe_code() {
    for name in ["model", "api", "cluster", "dns", "agent", "controller", "join", "listener", "metrics", "netfilter"] {
        let text = std::fs::read_to_string(root().join(format!("crates/{name}/src/lib.rs"))).unwrap();
        assert!(text.contains("#![forbid(unsafe_code)]"), "crates/{name} does not forbid unsafe code");
    }
    let main = std::fs::read_to_string(root().join("crates/beeline/src/main.rs")).unwrap();
    assert!(main.contains("#![forbid(unsafe_code)]"));
}

/// Text of processes and cluster objects is escaped in one place before it reaches a terminal.
#[test]
fn commands_print_through_the_module_print_only() {
    let mut folders = vec![root().join("crates/beeline/src")];
    while let Some(folder) = folders.pop() {
        for path in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            if path.is_dir() {
                folders.push(path);
            } else if !path.ends_with("src/print.rs") {
                let text = std::fs::read_to_string(&path).unwrap();
                for macro_name in ["println!(", "print!(", "eprintln!(", "eprint!("] {
                    assert!(!text.contains(macro_name), "{} uses {macro_name}...)", path.display());
                }
            }
        }
    }
}

fn long_options(command: &str) -> BTreeSet<String> {
    let output = Command::new(env!("CARGO_BIN_EXE_beeline")).args([command, "--help"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    // The indentation tells an option from a wrapped help text that begins with one.
    let option =
        |line: &str| line.strip_prefix("      --").map(|o| o.split([' ', '=', ',']).next().unwrap().to_owned());
    text.lines().filter_map(option).collect()
}

/// A section has a default, an example that the command line accepts, and a reason to change the option.
fn check_section(docs: &str, option: &str) {
    let section = docs.split("\n### ").find(|section| section.starts_with(&format!("`--{option}`\n")));
    let section = section.unwrap_or_else(|| panic!("docs/options.md has no section of --{option}"));
    for part in ["\n- Default: ", "\n- Example: `--", "\n- Change it when: "] {
        assert!(section.contains(part), "--{option} in docs/options.md has no {part:?}");
    }
    let example = section.split("\n- Example: `").nth(1).and_then(|rest| rest.split('`').next()).unwrap();
    assert!(example.contains(&format!("--{option}")), "the example of --{option} is {example}");
    let output = Command::new(env!("CARGO_BIN_EXE_beeline")).arg("plan").args(example.split(' ')).output().unwrap();
    // clap rejects an unknown option or a wrong value with this prefix. A missing --node-name is not checked here.
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(!error.starts_with("error:"), "{example}: {error}");
}

#[test]
fn every_option_is_documented() {
    let options = long_options("agent");
    assert!(options.len() > 20, "{options:?}");
    let docs = std::fs::read_to_string(root().join("docs/options.md")).unwrap();
    let example = std::fs::read_to_string(root().join("examples/beeline.yaml")).unwrap();
    for option in &options {
        check_section(&docs, option);
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

/// Runs scripts/cargo-test.sh with shell scripts in place of cargo and kit, and returns the summary that it prints.
fn summary(cargo: &str, kit: &str) -> (bool, String) {
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
    let summary = text.find("\ntest: ").map(|at| text[at + 1..].to_owned());
    (output.status.success(), summary.unwrap_or_else(|| panic!("no summary: {text}")))
}

const PASSES: &str = r#"echo "test one ... ok"; echo "test two ... ignored"
echo "test result: ok. 1 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s""#;

#[test]
fn the_summary_counts_every_part() {
    let (passed, line) = summary(PASSES, "true");
    assert!(
        passed && line.starts_with("test: passed: 3 passed, 0 failed, 3 ignored (host 1, server 1, cluster 1)"),
        "{line}"
    );
    assert_eq!(line.matches("not run: two").count(), 3, "{line}");
}

#[test]
fn a_part_that_fails_or_does_not_run_is_a_failure() {
    let fails = format!(
        "case \"$*\" in *api_server*) echo 'test result: FAILED. 2 passed; 1 failed; 0 ignored;'; exit 101;; esac\n{PASSES}"
    );
    let (passed, line) = summary(&fails, "true");
    assert!(
        !passed && line.starts_with("test: FAILED: 4 passed, 1 failed, 2 ignored (host 1, server 3, cluster 1)"),
        "{line}"
    );
    assert!(line.contains("failed: part server"), "{line}");
    let (passed, line) = summary(PASSES, "[ \"$1\" != up ]");
    assert!(!passed && line.starts_with("test: FAILED") && line.contains("not run: part cluster"), "{line}");
    let (passed, line) = summary("true", "true");
    assert!(!passed && line.contains("not run: part host"), "a part without a result is a failure: {line}");
}

/// docs/policies/README.md shows this output.
#[test]
fn the_examples_of_policies_give_the_documented_plan() {
    let plan = |node: &str| {
        let mut plan = std::process::Command::new(env!("CARGO_BIN_EXE_beeline"));
        let output = plan.args(["plan", "--manifests", "examples/plan", "--node-name", node]).current_dir(root());
        String::from_utf8(output.output().unwrap().stdout).unwrap()
    };
    let (with_cache, without) = (plan("node-1"), plan("node-2"));
    assert!(with_cache.contains("10.96.0.10:53/UDP      10.244.1.3:53, then kube-system/kube-dns"), "{with_cache}");
    assert!(without.contains("10.96.0.10:53/UDP      none (next), then kube-system/kube-dns"), "{without}");
    assert!(with_cache.contains("169.254.0.90:5432/TCP  192.0.2.5:5432 192.0.2.6:5432"), "{with_cache}");
}

/// `kubectl apply -f` of an example must not replace objects of a cluster, kube-dns for example.
#[test]
fn examples_with_objects_of_a_cluster_say_that_they_must_not_be_applied() {
    let mut checked = [0, 0];
    for folder in ["policies", "plan", "manifests", "try"] {
        for entry in std::fs::read_dir(root().join("examples").join(folder)).unwrap() {
            let path = entry.unwrap().path();
            let text = std::fs::read_to_string(&path).unwrap();
            let kinds = text.lines().filter_map(|line| line.strip_prefix("kind: "));
            let only_policies = kinds.clone().count() > 0 && kinds.clone().all(|kind| kind.ends_with("Policy"));
            let first = text.lines().next().unwrap();
            let warns = first.starts_with("# Only for `beeline ") && first.contains("apply it to a cluster");
            assert_eq!(only_policies, !warns, "{}: {first}", path.display());
            assert!(!only_policies || text.contains("\n# Needs: "), "{}: what it needs", path.display());
            checked[usize::from(only_policies)] += 1;
        }
    }
    assert!(checked[0] >= 8 && checked[1] >= 4, "{checked:?}");
}

fn subcommands() -> Vec<String> {
    let output = Command::new(env!("CARGO_BIN_EXE_beeline")).arg("--help").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let list = text.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    let names = list.filter(|line| !line.starts_with("   ")).filter_map(|line| line.split_whitespace().next());
    names.filter(|name| *name != "help").map(str::to_owned).collect()
}

/// `kubectl beeline` either passes a subcommand to an agent, or says why it cannot.
#[test]
fn the_kubectl_plugin_knows_every_subcommand() {
    let subcommands = subcommands();
    assert!(subcommands.len() > 15, "{subcommands:?}");
    for subcommand in subcommands {
        let mut plugin = Command::new(root().join("deploy/kubectl-beeline"));
        // No kubectl on the path: a subcommand that is passed on fails there, and not as an unknown one.
        let output =
            plugin.arg(&subcommand).env("PATH", "/usr/bin:/bin").env("KUBECONFIG", "/nonexistent").output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(!error.contains("unknown command"), "{subcommand}: {error}");
    }
    let output = Command::new(root().join("deploy/kubectl-beeline")).arg("frobnicate").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("unknown command frobnicate"));
}

#[test]
fn the_version_names_the_commit() {
    let output = Command::new(env!("CARGO_BIN_EXE_beeline")).arg("--version").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.starts_with(concat!("beeline ", env!("CARGO_PKG_VERSION"), " (commit ")), "{text}");
}
