//! Codes that do not arrive as they were made, and files that `join` and `leave` must not spoil. No cluster is needed: all of
//! it is found out before anybody is asked. tests/api_server/join.rs has the rest.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use beeline_join::{Code, Credential, Token};
use rustix::fs::{FlockOperation, flock};
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

const BEELINE: &str = env!("CARGO_BIN_EXE_beeline");

fn token(seconds: i64) -> Token {
    token_in("beeline-hosts", seconds)
}

fn token_in(namespace: &str, seconds: i64) -> Token {
    let now = jiff::Timestamp::now().as_second();
    let sub = format!("system:serviceaccount:{namespace}:vm-1");
    let claims = serde_json::json!({ "sub": sub, "iat": now - 60, "exp": now + seconds });
    Token::parse(&format!("e30.{}.c2lnbmF0dXJl", URL_SAFE_NO_PAD.encode(claims.to_string()))).unwrap()
}

fn code(seconds: i64) -> Code {
    Code {
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
    (output.status.success(), said(&output))
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_code_that_did_not_arrive_whole_is_told_from_one_that_was_altered() {
    let dir = tempfile::tempdir().unwrap();
    let whole = code(600).encode();
    let mut altered = whole.clone();
    altered.replace_range(100..101, if &whole[100..101] == "x" { "y" } else { "x" });
    let other = URL_SAFE_NO_PAD.encode([7u8, 0, 0, 0, 0, 0, 0, 0, 0]);
    for (given, words) in [
        (&whole[..whole.len() / 2], "the code is cut off"),
        (&whole[..7], "the code is cut off after 7"),
        (altered.as_str(), "the code was altered"),
        (other.as_str(), "the code is of version 7"),
        ("", "the code is empty"),
        ("AQ%AA", "the character '%'"),
        (&format!("{whole}{whole}"), "characters more than it should"),
    ] {
        let (well, said) = join(given, dir.path(), &[]);
        assert!(!well && said.contains(words), "{words}: {said}");
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "nothing is written");
}

#[test]
fn an_old_code_and_servers_that_are_not_there() {
    let dir = tempfile::tempdir().unwrap();
    let (well, said) = join(&code(-1).encode(), dir.path(), &[]);
    assert!(!well && said.contains("expired at") && said.contains("beeline grant vm-1"), "{said}");
    let (well, said) = join(&Code { token: token_in("edge", -1), ..code(600) }.encode(), dir.path(), &[]);
    assert!(!well && said.contains("`beeline grant vm-1 --namespace edge`"), "{said}");
    let (well, said) = join(&code(600).encode(), dir.path(), &[]);
    assert!(!well && said.contains("https://127.0.0.1:1") && said.contains("https://127.0.0.1:2"), "{said}");
    let (well, said) = join(&code(600).encode(), dir.path(), &["--name", "My Shop"]);
    assert!(!well && said.contains("--name My Shop"), "{said}");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "nothing is written");
}

#[test]
fn a_code_may_come_by_standard_input() {
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
    assert!(said(&output).contains("expired at"), "{}", said(&output));
}

#[test]
fn a_configuration_with_another_source_is_not_touched() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(dir.path().join("etc/beeline")).unwrap();
    let file = dir.path().join("etc/beeline/config.yaml");
    std::fs::write(&file, "kubeconfig: /etc/kubernetes/admin.conf\n").unwrap();
    let (well, said) = join(&code(600).encode(), dir.path(), &[]);
    assert!(!well && said.contains("another source of objects"), "{said}");
    assert_eq!(std::fs::read_to_string(file).unwrap(), "kubeconfig: /etc/kubernetes/admin.conf\n");
}

#[test]
fn a_cluster_that_an_administrator_wrote_is_not_replaced_nor_its_files_removed() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(dir.path().join("etc/beeline")).unwrap();
    let (file, own) = (dir.path().join("etc/beeline/config.yaml"), dir.path().join("admin.conf"));
    std::fs::write(&own, "theirs").unwrap();
    let text = format!("stand: outside\nclusters:\n  - name: shop\n    kubeconfig: {}\n", own.display());
    std::fs::write(&file, &text).unwrap();
    let (well, why) = join(&code(600).encode(), dir.path(), &[]);
    assert!(!well && why.contains("shop is another cluster here"), "{why}");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), text);
    let folder = dir.path().join("var/lib/beeline/clusters/shop");
    std::fs::create_dir_all(&folder).unwrap();
    ["uid", "theirs"].iter().for_each(|name| std::fs::write(folder.join(name), "x").unwrap());
    let output = Command::new(BEELINE).args(["leave", "--root"]).arg(dir.path()).output().unwrap();
    assert!(!output.status.success() && said(&output).contains("by hand: `beeline leave shop`"), "{}", said(&output));
    assert_eq!(std::fs::read_to_string(&file).unwrap(), text);
    let output = Command::new(BEELINE).args(["leave", "shop", "--root"]).arg(dir.path()).output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    assert_eq!(std::fs::read_to_string(&own).unwrap(), "theirs");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "stand: outside\n");
    assert!(!folder.join("uid").exists() && folder.join("theirs").exists(), "what the agent did not write stays");
}

/// A host that has joined blue and green.
struct Host {
    dir: tempfile::TempDir,
}

impl Host {
    fn new(more: &str) -> Host {
        let host = Host { dir: tempfile::tempdir().unwrap() };
        std::fs::create_dir_all(host.path("etc/beeline")).unwrap();
        let mut text = format!("stand: outside\n{more}clusters:\n");
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

    fn leaving(&self, name: &str) -> Command {
        let mut command = Command::new(BEELINE);
        command.args(["leave", name, "--root"]).arg(self.dir.path());
        command
    }

    fn leave(&self, name: &str) -> Output {
        self.leaving(name).output().unwrap()
    }
}

#[test]
fn the_token_goes_first_and_what_was_stopped_goes_on() {
    let host = Host::new("");
    // The new configuration cannot be written beside the old one.
    let obstacle = host.path("etc/beeline/.config.yaml.new");
    std::fs::create_dir(&obstacle).unwrap();
    let output = host.leave("green");
    assert!(!output.status.success() && said(&output).contains("config.yaml"), "{}", said(&output));
    assert!(host.text().contains("green") && !host.folder("green").join("token").exists(), "nobody finds a token");
    std::fs::remove_dir(&obstacle).unwrap();
    assert!(host.leave("green").status.success());
    assert!(!host.text().contains("green") && !host.folder("green").exists());
    // As one that was killed leaves it after the configuration was written.
    Credential::write(&host.folder("green").join("kubeconfig"), "green", &code(600), &token(600)).unwrap();
    let output = host.leave("green");
    assert!(output.status.success(), "{}", said(&output));
    assert!(!host.folder("green").exists() && host.folder("blue").exists());
    assert_eq!(host.leave("green").status.code(), Some(3), "now there is nothing of it");
    for strange in ["../blue", ".", "/etc"] {
        assert_eq!(host.leave(strange).status.code(), Some(3), "{strange}");
    }
}

#[test]
fn leave_says_what_revokes_this_very_host() {
    let host = Host::new("");
    let text = String::from_utf8(host.leave("green").stdout).unwrap();
    assert!(text.contains("`beeline revoke vm-1 --namespace edge`"), "{text}");
}

#[test]
fn a_cluster_that_another_line_needs_is_not_left() {
    let host = Host::new("dns-address: 127.0.0.55:53\ndns-view: [\"green=127.0.0.56:53\"]\n");
    let before = host.text();
    let output = host.leave("green");
    let why = said(&output);
    assert!(!output.status.success() && why.contains("--dns-view green") && why.contains("take the line"), "{why}");
    assert!(host.text() == before && host.folder("green").join("token").exists(), "nothing was done");
    assert!(host.leave("blue").status.success());
    assert!(host.leave("green").status.success(), "with the last one no agent starts any more");
}

#[test]
fn whoever_changes_the_configuration_waits_for_his_turn() {
    let host = Host::new("");
    let other = std::fs::File::open(host.path("etc/beeline")).unwrap();
    flock(&other, FlockOperation::LockExclusive).unwrap();
    let mut leaving = host.leaving("green").stdout(Stdio::null()).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(500));
    assert!(leaving.try_wait().unwrap().is_none(), "it waits");
    std::fs::write(host.file(), format!("events: all\n{}", host.text())).unwrap();
    drop(other);
    assert!(leaving.wait().unwrap().success());
    assert!(host.text().starts_with("events: all\n") && !host.text().contains("green"), "{}", host.text());
}

#[test]
fn a_link_stays_a_link_and_rights_stay_as_they_are() {
    let host = Host::new("");
    let real = host.path("etc/beeline/site.yaml");
    std::fs::rename(host.file(), &real).unwrap();
    std::fs::set_permissions(&real, std::fs::Permissions::from_mode(0o600)).unwrap();
    symlink("site.yaml", host.file()).unwrap();
    assert!(host.leave("green").status.success());
    assert!(host.file().is_symlink() && !host.text().contains("green"));
    assert_eq!(std::fs::metadata(&real).unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn cleanup_looks_where_the_configuration_says() {
    let dir = tempfile::tempdir().unwrap();
    let (file, pins) = (dir.path().join("config.yaml"), dir.path().join("pins"));
    std::fs::write(&file, format!("stand: outside\npin-dir: {}\n", pins.display())).unwrap();
    let cleanup = |more: &[&str]| {
        let output = Command::new(BEELINE).args(["cleanup", "--config"]).arg(&file).args(more).output().unwrap();
        (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned() + &said(&output))
    };
    let (well, text) = cleanup(&[]);
    assert!(well && text.contains(&format!("nothing was pinned at {}", pins.display())), "{text}");
    assert!(!cleanup(&["--pin-dir", "/x"]).0, "one or the other");
    std::fs::write(&file, "fish: 1\n").unwrap();
    let (well, text) = cleanup(&[]);
    assert!(!well && text.contains("config.yaml"), "{text}");
}

#[test]
fn a_name_that_nodes_use_is_not_taken() {
    let dir = tempfile::tempdir().unwrap();
    let (well, said) = join(&code(600).encode(), dir.path(), &["--name", "local"]);
    assert!(!well && said.contains("local is what a Node's own cluster is called"), "{said}");
}

#[test]
fn grant_says_what_is_wrong_before_it_asks_anybody() {
    let grant = |args: &[&str]| {
        let output = Command::new(BEELINE).arg("grant").args(args).env("KUBECONFIG", "/nowhere").output().unwrap();
        assert!(!output.status.success());
        said(&output)
    };
    assert!(grant(&["My_VM"]).contains("such as my-vm"));
    assert!(grant(&["vm-1", "--lifetime", "fish"]).contains("--lifetime fish"));
    assert!(grant(&["vm-1", "--kubeconfig", "/nowhere"]).contains("/nowhere"));
}
