//! `beeline join` and `beeline leave` without a cluster: invalid join codes, and files that must not be changed.
//! tests/api_server/join.rs has the tests with an API server.

mod fixture;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use beeline_harness::wait_until;
use beeline_join::{Credential, JoinCode, Token};
use fixture::{AgentFixture, BEELINE};
use rustix::fs::{FlockOperation, flock};
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

fn token(seconds: i64) -> Token {
    token_in("beeline-hosts", seconds)
}

fn token_in(namespace: &str, seconds: i64) -> Token {
    let now = jiff::Timestamp::now().as_second();
    let sub = format!("system:serviceaccount:{namespace}:vm-1");
    let claims = serde_json::json!({ "sub": sub, "iat": now - 60, "exp": now + seconds });
    Token::parse(&format!("e30.{}.c2lnbmF0dXJl", URL_SAFE_NO_PAD.encode(claims.to_string()))).unwrap()
}

fn code(seconds: i64) -> JoinCode {
    JoinCode {
        cluster: "shop".into(),
        uid: "4b7c".into(),
        servers: vec!["https://127.0.0.1:1".into(), "https://127.0.0.1:2".into()],
        server_name: None,
        authorities: vec![],
        token: token(seconds),
        lifetime: std::time::Duration::from_secs(600),
    }
}

fn join(code: &str, root: &Path, more: &[&str]) -> (bool, String) {
    let output = Command::new(BEELINE).args(["join", code, "--root"]).arg(root).args(more).output().unwrap();
    (output.status.success(), stderr(&output))
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_truncated_code_is_distinguished_from_an_altered_one() {
    let dir = tempfile::tempdir().unwrap();
    let encoded = code(600).encode();
    let mut altered = encoded.clone();
    altered.replace_range(100..101, if &encoded[100..101] == "x" { "y" } else { "x" });
    let other = URL_SAFE_NO_PAD.encode([7u8, 0, 0, 0, 0, 0, 0, 0, 0]);
    for (given, words) in [
        (&encoded[..encoded.len() / 2], "the code is cut off"),
        (&encoded[..7], "the code is cut off after 7"),
        (altered.as_str(), "the code was altered"),
        (other.as_str(), "the code is of version 7"),
        ("", "the code is empty"),
        ("AQ%AA", "the character '%'"),
        (&format!("{encoded}{encoded}"), "characters too many"),
    ] {
        let (succeeded, error) = join(given, dir.path(), &[]);
        assert!(!succeeded && error.contains(words), "{words}: {error}");
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "nothing is written");
}

#[test]
fn an_expired_code_and_unreachable_servers_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let (succeeded, error) = join(&code(-1).encode(), dir.path(), &[]);
    assert!(!succeeded && error.contains("expired at") && error.contains("beeline grant vm-1"), "{error}");
    let (succeeded, error) = join(&JoinCode { token: token_in("edge", -1), ..code(600) }.encode(), dir.path(), &[]);
    assert!(!succeeded && error.contains("`beeline grant vm-1 --namespace edge`"), "{error}");
    let (succeeded, error) = join(&code(600).encode(), dir.path(), &[]);
    assert!(!succeeded && error.contains("https://127.0.0.1:1") && error.contains("https://127.0.0.1:2"), "{error}");
    let (succeeded, error) = join(&code(600).encode(), dir.path(), &["--name", "My Shop"]);
    assert!(!succeeded && error.contains("--name My Shop"), "{error}");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "nothing is written");
}

#[test]
fn a_code_is_read_from_standard_input() {
    let dir = tempfile::tempdir().unwrap();
    let mut child = Command::new(BEELINE)
        .args(["join", "-", "--root"])
        .arg(dir.path())
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let wrapped = format!("beeline join {}\n", code(-1).encode());
    child.stdin.take().unwrap().write_all(wrapped.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(stderr(&output).contains("expired at"), "{}", stderr(&output));
}

#[test]
fn a_configuration_with_another_source_is_not_changed() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(dir.path().join("etc/beeline")).unwrap();
    let file = dir.path().join("etc/beeline/config.yaml");
    std::fs::write(&file, "kubeconfig: /etc/kubernetes/admin.conf\n").unwrap();
    let (succeeded, error) = join(&code(600).encode(), dir.path(), &[]);
    assert!(!succeeded && error.contains("another source of objects"), "{error}");
    assert_eq!(std::fs::read_to_string(file).unwrap(), "kubeconfig: /etc/kubernetes/admin.conf\n");
}

#[test]
fn a_cluster_that_an_administrator_configured_keeps_its_files() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(dir.path().join("etc/beeline")).unwrap();
    let (file, own) = (dir.path().join("etc/beeline/config.yaml"), dir.path().join("admin.conf"));
    std::fs::write(&own, "kept").unwrap();
    let text = format!("host-role: outside\nclusters:\n  - name: shop\n    kubeconfig: {}\n", own.display());
    std::fs::write(&file, &text).unwrap();
    let (succeeded, error) = join(&code(600).encode(), dir.path(), &[]);
    assert!(!succeeded && error.contains("another cluster has the name shop"), "{error}");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), text);
    let folder = dir.path().join("var/lib/beeline/clusters/shop");
    std::fs::create_dir_all(&folder).unwrap();
    ["uid", "other"].iter().for_each(|name| std::fs::write(folder.join(name), "x").unwrap());
    let output = Command::new(BEELINE).args(["leave", "--root"]).arg(dir.path()).output().unwrap();
    assert!(
        !output.status.success() && stderr(&output).contains("by hand: `beeline leave shop`"),
        "{}",
        stderr(&output)
    );
    assert_eq!(std::fs::read_to_string(&file).unwrap(), text);
    let output = Command::new(BEELINE).args(["leave", "shop", "--root"]).arg(dir.path()).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(std::fs::read_to_string(&own).unwrap(), "kept");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "host-role: outside\n");
    assert!(!folder.join("uid").exists() && folder.join("other").exists(), "only the file of the agent is removed");
}

/// The files of a host that has joined the clusters blue and green.
struct TestHostFiles {
    dir: tempfile::TempDir,
}

impl TestHostFiles {
    fn new(more: &str) -> TestHostFiles {
        let host = TestHostFiles { dir: tempfile::tempdir().unwrap() };
        std::fs::create_dir_all(host.path("etc/beeline")).unwrap();
        let mut text = format!("host-role: outside\n{more}clusters:\n");
        for name in ["blue", "green"] {
            let kubeconfig = format!("var/lib/beeline/clusters/{name}/kubeconfig");
            text += &format!("  - name: {name}\n    kubeconfig: /{kubeconfig}\n    view: {name}\n");
            Credential::write(&host.path(&kubeconfig), name, &code(600), &token_in("edge", 600)).unwrap();
            std::fs::write(host.path(&format!("var/lib/beeline/clusters/{name}/uid")), "4b7c\n").unwrap();
        }
        std::fs::write(host.file(), text).unwrap();
        host
    }

    fn path(&self, path: &str) -> PathBuf {
        self.dir.path().join(path)
    }

    fn file(&self) -> PathBuf {
        self.path("etc/beeline/config.yaml")
    }

    fn text(&self) -> String {
        std::fs::read_to_string(self.file()).unwrap()
    }

    fn folder(&self, name: &str) -> PathBuf {
        self.path(&format!("var/lib/beeline/clusters/{name}"))
    }

    fn leave_command(&self, name: &str) -> Command {
        let mut command = Command::new(BEELINE);
        command.args(["leave", name, "--root"]).arg(self.dir.path());
        command
    }

    fn leave(&self, name: &str) -> Output {
        self.leave_command(name).output().unwrap()
    }

    /// `beeline leave` without `--root`, so that the agent is stopped too. A mount namespace shows these files as `/etc` and
    /// `/var/lib`, and an empty `/run` hides the machine's systemd.
    fn leave_as_root_directory(&self, name: &str, pin_dir: &Path) -> Output {
        const SCRIPT: &str = "mount --bind \"$0/etc\" /etc && mount --bind \"$0/var/lib\" /var/lib && \
            mount -t tmpfs tmpfs /run && exec \"$1\" leave \"$2\" --pin-dir \"$3\"";
        let mut unshare = Command::new("unshare");
        unshare.args(["--mount", "--propagation", "private", "sh", "-c", SCRIPT]);
        unshare.arg(self.dir.path()).args([BEELINE, name]).arg(pin_dir).output().unwrap()
    }
}

#[test]
fn leave_removes_the_token_first_and_can_be_continued() {
    let host = TestHostFiles::new("");
    // The temporary file of the new configuration cannot be written.
    let obstacle = host.path("etc/beeline/.config.yaml.new");
    std::fs::create_dir(&obstacle).unwrap();
    let output = host.leave("green");
    assert!(!output.status.success() && stderr(&output).contains("config.yaml"), "{}", stderr(&output));
    assert!(host.text().contains("green") && !host.folder("green").join("token").exists(), "the token is removed");
    std::fs::remove_dir(&obstacle).unwrap();
    assert!(host.leave("green").status.success());
    assert!(!host.text().contains("green") && !host.folder("green").exists());
    // An earlier `leave` was killed after it had written the configuration.
    Credential::write(&host.folder("green").join("kubeconfig"), "green", &code(600), &token(600)).unwrap();
    let output = host.leave("green");
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(!host.folder("green").exists() && host.folder("blue").exists());
    assert_eq!(host.leave("green").status.code(), Some(3), "nothing of the cluster is left");
    for strange in ["../blue", ".", "/etc"] {
        assert_eq!(host.leave(strange).status.code(), Some(3), "{strange}");
    }
}

#[test]
fn leave_with_an_agent_started_by_hand_removes_the_token_and_continues_later() {
    let mut fixture = AgentFixture::new();
    fixture.start(&[]);
    let host = TestHostFiles::new(&format!("cgroup: {}\n", fixture.network.cgroup().path().display()));
    assert!(host.leave("green").status.success());
    let output = host.leave_as_root_directory("blue", fixture.pin_dir());
    let error = stderr(&output);
    assert!(!output.status.success() && error.contains("stop it first"), "{error}");
    for words in ["run `beeline leave blue` again", "`beeline revoke vm-1 --namespace edge`"] {
        assert!(error.contains(words), "{words}: {error}");
    }
    assert!(!host.folder("blue").join("token").exists(), "the token is removed first");
    assert!(host.text().contains("blue"), "the agent still runs with this configuration");
    fixture.stop();
    let output = host.leave_as_root_directory("blue", fixture.pin_dir());
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(!host.folder("blue").exists() && !host.text().contains("blue"));
    assert!(!fixture.pin_dir().join("links").exists(), "the hooks are detached");
}

#[test]
fn leave_prints_the_command_that_revokes_this_host() {
    let host = TestHostFiles::new("");
    let text = String::from_utf8(host.leave("green").stdout).unwrap();
    assert!(text.contains("`beeline revoke vm-1 --namespace edge`"), "{text}");
}

#[test]
fn a_cluster_that_another_option_refers_to_is_not_left() {
    let host = TestHostFiles::new("dns-address: 127.0.0.55:53\ndns-view: [\"green=127.0.0.56:53\"]\n");
    let before = host.text();
    let output = host.leave("green");
    let error = stderr(&output);
    assert!(
        !output.status.success() && error.contains("--dns-view green") && error.contains("first remove the line"),
        "{error}"
    );
    assert!(host.text() == before && host.folder("green").join("token").exists(), "nothing is changed");
    assert!(host.leave("blue").status.success());
    assert!(host.leave("green").status.success(), "the last cluster can always be left");
}

#[test]
fn leave_waits_for_the_lock_of_the_configuration() {
    let host = TestHostFiles::new("");
    let other = std::fs::File::open(host.path("etc/beeline")).unwrap();
    flock(&other, FlockOperation::LockExclusive).unwrap();
    let mut child = host.leave_command("green").stdout(Stdio::null()).spawn().unwrap();
    let pid = child.id().to_string();
    // The kernel marks a process that waits for a lock by an arrow.
    let waits = |line: &str| line.contains("->") && line.split_whitespace().any(|word| word == pid);
    wait_until("leave waits for the lock", Duration::from_secs(20), || {
        std::fs::read_to_string("/proc/locks").unwrap().lines().any(waits)
    });
    std::fs::write(host.file(), format!("events: all\n{}", host.text())).unwrap();
    drop(other);
    assert!(child.wait().unwrap().success());
    assert!(host.text().starts_with("events: all\n") && !host.text().contains("green"), "{}", host.text());
}

#[test]
fn a_symbolic_link_and_the_file_mode_are_kept() {
    let host = TestHostFiles::new("");
    let real = host.path("etc/beeline/site.yaml");
    std::fs::rename(host.file(), &real).unwrap();
    std::fs::set_permissions(&real, std::fs::Permissions::from_mode(0o600)).unwrap();
    symlink("site.yaml", host.file()).unwrap();
    assert!(host.leave("green").status.success());
    assert!(host.file().is_symlink() && !host.text().contains("green"));
    assert_eq!(std::fs::metadata(&real).unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn cleanup_uses_the_pin_dir_of_the_configuration() {
    let dir = tempfile::tempdir().unwrap();
    let (file, pins) = (dir.path().join("config.yaml"), dir.path().join("pins"));
    std::fs::write(&file, format!("host-role: outside\npin-dir: {}\n", pins.display())).unwrap();
    let cleanup = |more: &[&str]| {
        let output = Command::new(BEELINE).args(["cleanup", "--config"]).arg(&file).args(more).output().unwrap();
        (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned() + &stderr(&output))
    };
    let (succeeded, text) = cleanup(&[]);
    assert!(succeeded && text.contains(&format!("nothing was pinned at {}", pins.display())), "{text}");
    assert!(!cleanup(&["--pin-dir", "/x"]).0, "--config and --pin-dir exclude each other");
    std::fs::write(&file, "fish: 1\n").unwrap();
    let (succeeded, text) = cleanup(&[]);
    assert!(!succeeded && text.contains("config.yaml"), "{text}");
}

#[test]
fn the_reserved_cluster_name_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (succeeded, error) = join(&code(600).encode(), dir.path(), &["--name", "local"]);
    assert!(!succeeded && error.contains("the name local is reserved"), "{error}");
}

#[test]
fn grant_checks_its_arguments_before_it_connects() {
    let grant = |args: &[&str]| {
        let output = Command::new(BEELINE).arg("grant").args(args).env("KUBECONFIG", "/nowhere").output().unwrap();
        assert!(!output.status.success());
        stderr(&output)
    };
    assert!(grant(&["My_VM"]).contains("for example my-vm"));
    assert!(grant(&["vm-1", "--token-lifetime", "fish"]).contains("--token-lifetime"));
    assert!(grant(&["vm-1", "--kubeconfig", "/nowhere"]).contains("/nowhere"));
}
