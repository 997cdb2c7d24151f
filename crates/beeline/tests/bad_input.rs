//! Invalid input. A running agent keeps serving valid objects, and every invalid one has a reason in `status` and in
//! the metrics. An agent with invalid options or an invalid configuration file does not start and names the option.

mod fixture;

use beeline_harness::{Cgroup, LoadKind, test_seed};
use fixture::{AgentFixture, BEELINE, LoadSummary, TestService, wait_until};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Invalid files and the reason with which each is refused.
fn invalid_files(target: &TestService) -> Vec<(&'static str, String, &'static str)> {
    let good = target.manifest(&["10.244.1.99".parse().unwrap()]);
    let with = |from: &str, to: &str| {
        assert!(good.contains(from), "{from:?} is not in the manifest");
        good.replace(from, to)
    };
    let address = target.address.to_string();
    vec![
        ("syntax.yaml", "kind: Service\n  metadata: [\n".into(), "syntax"),
        ("binary.yaml", "\u{0}\u{1}\u{2}".into(), "syntax"),
        ("kind.yaml", "kind: [Service]\napiVersion: v1\n".into(), "unknownKind"),
        ("type.yaml", with("port: 80", "port: eighty"), "wrongType"),
        ("list.yaml", "apiVersion: v1\nkind: List\n".into(), "noItems"),
        ("zero.yaml", with("port: 80", "port: 0"), "badPort"),
        ("large.yaml", with("port: 80", "port: 70000"), "badPort"),
        ("address.yaml", with(&address, "10.96.0.256"), "badClusterIP"),
        ("endpoint.yaml", with("10.244.1.99", "fish"), "badEndpoint"),
        ("family.yaml", with("addressType: IPv4", "addressType: IPv5"), "badFamily"),
        ("name.yaml", with("name: bad,", "name: Bad_Name,"), "badName"),
        ("lost.yaml", with("service-name: bad}", "service-name: nobody}"), "noService"),
    ]
}

#[test]
fn a_running_agent_survives_invalid_files() {
    let _alone = fixture::run_alone();
    let (mut fixture, good) = (AgentFixture::new(), TestService::new("good", 1));
    let pods = fixture.start_backends("good", 10, 3);
    fixture.write_file("good.yaml", good.manifest(&pods));
    fixture.start(&[]);
    let loads = vec![
        fixture.start_load(fixture.network.node(), LoadKind::Tcp, std::slice::from_ref(&good)),
        fixture.start_load(fixture.network.pod(1), LoadKind::UdpUnconnected, std::slice::from_ref(&good)),
    ];
    each_invalid_file_is_refused_with_its_reason(&fixture);
    duplicates_do_no_harm(&fixture, &good);
    a_huge_file_does_no_harm(&fixture);
    a_missing_directory_does_no_harm(&fixture);
    let mutations = mutations_do_no_harm(&fixture);
    assert_eq!(fixture.udp_answer(fixture.network.node(), &good), "good");
    fixture.stop();
    LoadSummary::collect(loads).assert_clean(&format!("invalid files and {mutations} mutations"), 5_000);
}

fn is_refused(fixture: &AgentFixture, reason: &str) -> bool {
    fixture.refusals().iter().any(|(r, _)| r == reason)
}

/// Whether the metrics count as many refusals as `status` shows.
fn metrics_agree(fixture: &AgentFixture, reason: &str) -> bool {
    let shown = fixture.refusals().iter().filter(|(r, _)| r == reason).count();
    fixture.metric(&format!("beeline_refused_objects{{reason=\"{reason}\"}}")) == shown as u64
}

fn each_invalid_file_is_refused_with_its_reason(fixture: &AgentFixture) {
    for (file, text, reason) in invalid_files(&TestService::new("bad", 2)) {
        assert!(!is_refused(fixture, reason), "{reason} before {file}");
        fixture.write_file(file, text);
        wait_until(&format!("{file} is refused with {reason}"), || is_refused(fixture, reason));
        assert!(metrics_agree(fixture, reason), "{file}: {}", fixture.metrics());
        fixture.remove_file(file);
        wait_until(&format!("the refusal of {file} ends"), || fixture.refusals().is_empty());
    }
}

/// If two files hold the same object, or two services claim the same address, the first one stays in effect.
fn duplicates_do_no_harm(fixture: &AgentFixture, good: &TestService) {
    fixture.write_file("more.yaml", good.manifest(&["10.244.1.98".parse().unwrap()]));
    wait_until("the duplicate object is refused", || is_refused(fixture, "duplicate"));
    fixture.remove_file("more.yaml");
    let second = TestService { name: "second".into(), address: good.address };
    fixture.write_file("second.yaml", second.manifest(&["10.244.1.98".parse().unwrap()]));
    wait_until("the second claim of the address is refused", || is_refused(fixture, "addressConflict"));
    assert!(metrics_agree(fixture, "addressConflict"));
    fixture.remove_file("second.yaml");
    wait_until("no object is refused", || fixture.refusals().is_empty());
}

fn a_huge_file_does_no_harm(fixture: &AgentFixture) {
    let line = format!("{}\n", "x".repeat(99));
    fixture.write_file("huge.yaml", line.repeat(100_000));
    wait_until("a file of ten megabytes is refused", || !fixture.refusals().is_empty());
    let objects = (0..15_000).map(|n| {
        format!(
            "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {{name: c{n}}}\ndata: {}\n",
            "{k: '".to_owned() + &"y".repeat(600) + "'}"
        )
    });
    fixture.write_file("huge.yaml", objects.collect::<String>());
    wait_until("a large file of objects that are not served is read", || fixture.refusals().is_empty());
    fixture.remove_file("huge.yaml");
}

fn a_missing_directory_does_no_harm(fixture: &AgentFixture) {
    let aside = fixture.manifests().path().with_file_name("moved");
    for replace in [false, true] {
        std::fs::rename(fixture.manifests().path(), &aside).unwrap();
        if replace {
            std::fs::write(fixture.manifests().path(), "a file instead of a directory").unwrap();
        }
        wait_until("the missing directory is reported", || fixture.status()["source"]["error"].is_string());
        assert_eq!(fixture.metric("beeline_source_error{cluster=\"local\"}"), 1);
        if replace {
            std::fs::remove_file(fixture.manifests().path()).unwrap();
        }
        std::fs::rename(&aside, fixture.manifests().path()).unwrap();
        wait_until("the directory is read again", || fixture.status()["source"]["error"].is_null());
    }
}

fn mutations_do_no_harm(fixture: &AgentFixture) -> u32 {
    let count = if fixture::is_long() { 1000 } else { 200 };
    let good = TestService::new("zebra", 9).manifest(&["10.244.1.97".parse().unwrap(), "10.244.1.96".parse().unwrap()]);
    let mut rng = fastrand::Rng::with_seed(test_seed(5));
    for number in 0..count {
        fixture.write_file("mutation.yaml", mutate(good.clone().into_bytes(), &mut rng));
        std::thread::sleep(Duration::from_millis(15));
        if number % 50 == 49 {
            assert_eq!(fixture.status()["source"]["synced"], true, "after {number} mutations");
        }
    }
    fixture.write_file("mutation.yaml", good);
    wait_until("the valid file is accepted", || fixture.refusals().is_empty());
    count
}

/// Applies a few random changes: replaces a byte, or removes, repeats or moves a part.
fn mutate(mut text: Vec<u8>, rng: &mut fastrand::Rng) -> Vec<u8> {
    for _ in 0..rng.usize(1..6) {
        let (at, length) = (rng.usize(..text.len().max(2) - 1), rng.usize(1..40));
        let end = (at + length).min(text.len());
        match rng.u8(..5) {
            0 => text[at] = rng.u8(..),
            1 => text[at] = *b"{}[]:,-&*!|>'\"%@`#? \n\t0~".get(rng.usize(..24)).unwrap(),
            2 => drop(text.drain(at..end)),
            3 => {
                let part = text[at..end].to_vec();
                text.splice(at..at, part);
            }
            _ => {
                let part: Vec<u8> = text.drain(at..end).collect();
                text.extend(part);
            }
        }
        if text.is_empty() {
            return b"-".to_vec();
        }
    }
    text
}

// ---- options ----

/// Runs an agent that must not start, and returns its error message. Invalid usage has exit code 2.
fn start_error(cgroup: &Cgroup, args: &[&str]) -> String {
    let pins = format!("/sys/fs/bpf/beeline-options-{}", std::process::id());
    let output = Command::new(BEELINE).arg("agent").args(args).args(["--pin-dir", &pins]).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    // A kubeconfig is read by the agent itself, so an error in it is a failure and no wrong usage.
    let is_in_kubeconfig = error.starts_with("beeline: --kubeconfig: kubeconfig /");
    assert_eq!(output.status.code(), Some(if is_in_kubeconfig { 1 } else { 2 }), "{args:?}: {error}");
    assert!(!Path::new(&pins).exists(), "{args:?} left {pins} behind");
    assert!(cgroup.path().exists());
    error
}

#[test]
fn an_invalid_option_is_named() {
    let cgroup = Cgroup::new().unwrap();
    let place = cgroup.path().display().to_string();
    let all =
        ["--manifests", "/nonexistent", "--node-name", "n", "--cgroup", &place, "--socket", "/nonexistent/socket"];
    for args in [
        &["--frobnicate"][..],
        &["--max-services", "3"],
        &["--max-services", "many"],
        &["--max-frontends", "0"],
        &["--max-backends", "0"],
        &["--max-slots", "0"],
        &["--max-affinity", "0"],
        &["--events", "loud"],
        &["--events", "sample:0"],
        &["--agent-down-action", "sometimes"],
        &["--agent-down-action", "passthrough:0s"],
        &["--local-traffic-policy", "lax"],
        &["--no-local-endpoint-action", "explode"],
        &["--nodeport-addresses", "here"],
        &["--external-ips", "some"],
        &["--node-addresses", "300.1.1.1"],
        &["--metrics-bind-address", "nowhere"],
        &["--healthz-bind-address", "10256"],
        &["--sync-period", "5"],
        &["--sync-period", "9999999999999999999h"],
        &["--sync-period", "99999999999999999999h"],
        &["--self-test", "maybe"],
        &["--kubeconfig", "/nonexistent"],
        &["--api-server", "https://192.0.2.1:6443"],
        &["--context", "some"],
        &["--node-source", "watch"],
        &["--clear-startup-taint"],
    ] {
        let error = start_error(&cgroup, &[&all[..], args].concat());
        assert!(error.contains(args[0]), "{args:?}: {error}");
    }
    let without = |option: &str| {
        let at = all.iter().position(|a| *a == option).unwrap();
        [&all[..at], &all[at + 2..]].concat()
    };
    for args in [
        &["--kubeconfig", "/nonexistent"][..],
        &["--kubeconfig", "/dev/null"],
        &["--api-server", "192.0.2.1:6443"],
        &["--api-server", "https://192.0.2.1:6443", "--context", "some"],
        &["--node-source", "some", "--api-server", "https://192.0.2.1:6443"],
    ] {
        let error = start_error(&cgroup, &[&without("--manifests")[..], args].concat());
        assert!(error.contains(args[0]) || error.contains("--context"), "{args:?}: {error}");
    }
    for option in ["--manifests", "--node-name"] {
        let error = start_error(&cgroup, &without(option));
        assert!(error.contains(option), "{option}: {error}");
    }
    let error = start_error(&cgroup, &[&without("--cgroup")[..], &["--cgroup", "/tmp"]].concat());
    assert!(error.contains("--cgroup"), "{error}");
}

#[test]
fn an_error_in_the_configuration_file_names_the_key() {
    let (cgroup, dir) = (Cgroup::new().unwrap(), tempfile::tempdir().unwrap());
    let path = dir.path().join("beeline.yaml");
    let shown = path.display().to_string();
    let place = cgroup.path().display().to_string();
    let args = ["--config", &shown, "--cgroup", &place, "--manifests", "/nonexistent", "--node-name", "n"];
    assert!(start_error(&cgroup, &args).contains("--config"), "a missing file");
    for (text, named) in [
        ("max-servicez: 5\n", "unknown key `max-servicez`; did you mean `max-services`?"),
        ("max-services: many\n", "line 1: max-services: "),
        ("max-services: 3\n", "--max-services"),
        ("- a list\n", "--config"),
        ("max-services: [\n", "--config"),
        ("events: loud\n", "line 1: events: "),
    ] {
        std::fs::write(&path, text).unwrap();
        let error = start_error(&cgroup, &args);
        assert!(error.contains(named), "{text:?}: {error}");
    }
}

#[test]
fn an_error_is_printed_in_one_line() {
    let (cgroup, dir) = (Cgroup::new().unwrap(), tempfile::tempdir().unwrap());
    let path = dir.path().join("beeline.yaml");
    std::fs::write(&path, "node-name: n\nsync-perod: 30s\n").unwrap();
    let error = start_error(&cgroup, &["--config", path.to_str().unwrap()]);
    let expected = format!(
        "beeline: --config {}: line 2: unknown key `sync-perod`; did you mean `sync-period`?\n",
        path.display()
    );
    assert_eq!(error, expected);
    let missing = start_error(&cgroup, &["--config", "/nonexistent"]);
    assert_eq!(missing, "beeline: --config /nonexistent: No such file or directory (os error 2)\n");
}

#[test]
fn a_pin_dir_outside_a_bpffs_is_refused_and_not_created() {
    let (cgroup, dir) = (Cgroup::new().unwrap(), tempfile::tempdir().unwrap());
    let (pins, place) = (dir.path().join("pins/agent"), cgroup.path().display().to_string());
    let args = ["agent", "--manifests", "/nonexistent", "--node-name", "n", "--cgroup", &place, "--pin-dir"];
    let output = Command::new(BEELINE).args(args).arg(&pins).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(error.contains("--pin-dir") && error.contains("not in a bpffs"), "{error}");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "no directory is left behind");
}

#[test]
fn the_log_is_text_or_json_with_times_in_rfc_3339_and_names_what_was_programmed() {
    let _alone = fixture::run_alone();
    for format in ["text", "json"] {
        let mut fixture = AgentFixture::new();
        fixture.write_file("web.yaml", TestService::new("web", 1).service(""));
        fixture.start(&["--log-format", format]);
        let log = fixture.stop();
        let line = log.lines().find(|line| line.contains("INFO")).unwrap_or_else(|| panic!("no log line: {log}"));
        let programmed = log.lines().any(|line| line.contains("programmed") && line.contains("test/web"));
        assert!(programmed, "{format}: {log}");
        let time = match format {
            "json" => {
                serde_json::from_str::<serde_json::Value>(line).unwrap()["timestamp"].as_str().unwrap().to_owned()
            }
            _ => line.split_whitespace().next().unwrap().to_owned(),
        };
        assert!(time.parse::<jiff::Timestamp>().is_ok(), "{format}: {line}");
    }
}

#[test]
fn doctor_finds_the_hooks_of_an_agent_in_another_cgroup() {
    let _alone = fixture::run_alone();
    let mut fixture = AgentFixture::new();
    fixture.start(&[]);
    let output = fixture.beeline(&["doctor", "-o", "json"]);
    let checks: serde_json::Value = serde_json::from_str(&output.stdout).unwrap();
    let hooks = checks.as_array().unwrap().iter().find(|check| check["what"] == "hooks").unwrap();
    assert_eq!(hooks["level"], "ok", "{hooks}");
    fixture.stop();
}
