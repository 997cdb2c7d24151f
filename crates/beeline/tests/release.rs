//! What a release consists of beside the binary: the signature of its files, the bill of materials, the profiles.

use serde_json::Value;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn sign(args: &[&Path]) -> (bool, String) {
    let mut command = Command::new(root().join("scripts/sign.sh"));
    let output = command.args(args).env("BEELINE_SIGN_UNENCRYPTED", "1").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    (output.status.success(), text.into_owned())
}

#[test]
fn a_signed_release_is_verified_and_changed_files_are_refused() {
    let (keys, files) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (secret, public) = (keys.path().join("beeline.key"), keys.path().join("beeline.pub"));
    for name in ["beeline.tar", "sbom.json"] {
        std::fs::write(files.path().join(name), name).unwrap();
    }
    let verify = || sign(&["verify".as_ref(), &public, files.path()]);
    let (succeeded, text) = sign(&["keys".as_ref(), keys.path()]);
    assert!(succeeded, "{text}");
    let (succeeded, text) = sign(&["keys".as_ref(), keys.path()]);
    assert!(!succeeded && text.contains("beeline.key exists"), "a key is never replaced: {text}");
    let (succeeded, text) = sign(&["sign".as_ref(), &secret, files.path()]);
    assert!(succeeded, "{text}");
    let (succeeded, text) = verify();
    assert!(succeeded && text.contains("beeline.tar sbom.json"), "{text}");

    std::fs::write(files.path().join("beeline.tar"), "another").unwrap();
    let (succeeded, text) = verify();
    assert!(!succeeded && text.contains("not the one that was signed"), "{text}");
    std::fs::write(files.path().join("beeline.tar"), "beeline.tar").unwrap();
    std::fs::write(files.path().join("more"), "").unwrap();
    let (succeeded, text) = verify();
    assert!(!succeeded && text.contains("files that were not signed"), "{text}");
    std::fs::remove_file(files.path().join("more")).unwrap();
    assert!(verify().0);
    let sums = files.path().join("SHA256SUMS");
    let changed = std::fs::read_to_string(&sums).unwrap().replace("sbom", "xbom");
    std::fs::write(&sums, changed).unwrap();
    let (succeeded, text) = verify();
    assert!(!succeeded && text.contains("signature"), "{text}");
}

/// The crates that cargo links into the binary, as `cargo tree` lists them.
fn linked_crates(target: &str) -> BTreeSet<String> {
    let mut tree = Command::new(env!("CARGO"));
    tree.args([
        "tree",
        "-p",
        "beeline",
        "--no-default-features",
        "-e",
        "normal",
        "--prefix",
        "none",
        "--no-dedupe",
        "-f",
        "{p}",
    ]);
    let output = tree.args(["--target", target, "--offline"]).current_dir(root()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let line = |line: &str| line.split_whitespace().take(2).collect::<Vec<_>>().join("@").replace("@v", "@");
    text.lines().map(line).filter(|line| !line.starts_with("beeline@")).collect()
}

#[test]
fn the_bill_of_materials_lists_every_linked_crate_and_the_packages_of_the_image() {
    let dir = tempfile::tempdir().unwrap();
    let packages = dir.path().join("packages");
    std::fs::write(&packages, "libelf1 0.188-2.1 amd64\nzlib1g 1:1.2.13.dfsg-1 amd64\n").unwrap();
    let target = "x86_64-unknown-linux-gnu";
    let output = Command::new(root().join("scripts/sbom.py")).arg(target).arg(&packages).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let sbom: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((sbom["bomFormat"].as_str(), sbom["specVersion"].as_str()), (Some("CycloneDX"), Some("1.5")));
    assert_eq!(sbom["metadata"]["component"]["version"], env!("CARGO_PKG_VERSION"));
    let components = sbom["components"].as_array().unwrap();
    let texts = |kind: &str| -> BTreeSet<String> {
        let purls = components.iter().filter_map(|component| component["purl"].as_str());
        purls.filter_map(|purl| purl.strip_prefix(kind)).map(str::to_owned).collect()
    };
    let crates = texts("pkg:cargo/");
    assert!(crates.len() > 100 && crates.iter().any(|name| name.starts_with("libbpf-sys@")), "{crates:?}");
    assert_eq!(crates, linked_crates(target));
    assert_eq!(texts("pkg:deb/debian/").len(), 2);
    for component in components.iter().filter(|component| component["purl"].as_str().unwrap().starts_with("pkg:cargo/"))
    {
        assert!(component["licenses"][0]["expression"].is_string(), "{component}");
        let is_own = component["name"].as_str().unwrap().starts_with("beeline-");
        assert_eq!(component["hashes"][0]["content"].is_string(), !is_own, "{component}");
    }
}

/// `scripts/rights.sh` runs the agent under this profile.
#[test]
fn the_seccomp_profile_allows_nothing_that_the_agent_does_not_need() {
    let text = std::fs::read_to_string(root().join("deploy/profiles/seccomp.json")).unwrap();
    let profile: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(profile["defaultAction"], "SCMP_ACT_ERRNO");
    let rules = profile["syscalls"].as_array().unwrap();
    let allowed = rules.iter().filter(|rule| rule["action"] == "SCMP_ACT_ALLOW");
    let names: Vec<&str> =
        allowed.flat_map(|rule| rule["names"].as_array().unwrap()).filter_map(Value::as_str).collect();
    let unique: BTreeSet<&str> = names.iter().copied().collect();
    assert_eq!(unique.len(), names.len(), "a system call is listed twice");
    assert!(["bpf", "setns", "connect", "epoll_wait"].iter().all(|name| unique.contains(name)));
    for name in [
        "mount",
        "umount2",
        "pivot_root",
        "chroot",
        "unshare",
        "clone3",
        "ptrace",
        "process_vm_readv",
        "process_vm_writev",
        "init_module",
        "finit_module",
        "delete_module",
        "kexec_load",
        "reboot",
        "swapon",
        "keyctl",
        "add_key",
        "io_uring_setup",
        "userfaultfd",
        "perf_event_open",
        "open_by_handle_at",
        "mknod",
        "mknodat",
        "setuid",
        "setgid",
        "personality",
        "acct",
        "settimeofday",
        "clock_settime",
        "fsopen",
        "fsmount",
        "move_mount",
        "open_tree",
        "mount_setattr",
    ] {
        assert!(!unique.contains(name), "{name} is allowed");
    }
}
