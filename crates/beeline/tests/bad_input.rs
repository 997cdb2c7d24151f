//! Bad input through a running agent: it never dies, good objects keep serving, and everything that is not served has a
//! reason in `status` and in the metrics. Bad options and configuration name what is wrong and start nothing.

mod stage;

use beeline_harness::{Cgroup, StormKind};
use stage::{BEELINE, Stage, Target, Toll, wait_until};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// A file, and the reason that it must be given.
fn bad_files(target: &Target) -> Vec<(&'static str, String, &'static str)> {
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
fn a_running_agent_survives_everything() {
    let _alone = stage::alone();
    let (mut stage, good) = (Stage::new(), Target::new("good", 1));
    let pods = stage.serve("good", 10, 3);
    stage.folder.put("good.yaml", good.manifest(&pods));
    stage.start(&[]);
    let storms = vec![
        stage.storm(stage.lab.node(), StormKind::Tcp, std::slice::from_ref(&good)),
        stage.storm(stage.lab.pod(1), StormKind::UdpUnconnected, std::slice::from_ref(&good)),
    ];
    each_bad_file_has_its_reason(&stage);
    duplicates_do_no_harm(&stage, &good);
    a_huge_file_does_no_harm(&stage);
    a_folder_may_vanish(&stage);
    let mutations = mutations_do_no_harm(&stage);
    assert_eq!(stage.ask(stage.lab.node(), &good), "good");
    stage.stop();
    Toll::of(storms).must_be_clean(&format!("bad files, and {mutations} mutations"), 5_000);
}

fn has(stage: &Stage, reason: &str) -> bool {
    stage.refusals().iter().any(|(r, _)| r == reason)
}

/// What `status` shows is what the metrics count.
fn counted(stage: &Stage, reason: &str) -> bool {
    let shown = stage.refusals().iter().filter(|(r, _)| r == reason).count();
    stage.metric(&format!("beeline_refused_objects{{reason=\"{reason}\"}}")) == shown as u64
}

fn each_bad_file_has_its_reason(stage: &Stage) {
    for (file, text, reason) in bad_files(&Target::new("bad", 2)) {
        assert!(!has(stage, reason), "{reason} before {file}");
        stage.folder.put(file, text);
        wait_until(&format!("{file} is refused with {reason}"), || has(stage, reason));
        assert!(counted(stage, reason), "{file}: {}", stage.metrics());
        stage.folder.remove(file);
        wait_until(&format!("{file} is forgotten"), || stage.refusals().is_empty());
    }
}

/// The same object in two files, the same address in two services: the first keeps it.
fn duplicates_do_no_harm(stage: &Stage, good: &Target) {
    stage.folder.put("more.yaml", good.manifest(&["10.244.1.98".parse().unwrap()]));
    wait_until("an object that is there twice", || has(stage, "duplicate"));
    stage.folder.remove("more.yaml");
    let thief = Target { name: "thief".into(), address: good.address };
    stage.folder.put("thief.yaml", thief.manifest(&["10.244.1.98".parse().unwrap()]));
    wait_until("an address that two services claim", || has(stage, "addressConflict"));
    assert!(counted(stage, "addressConflict"));
    stage.folder.remove("thief.yaml");
    wait_until("all is well again", || stage.refusals().is_empty());
}

fn a_huge_file_does_no_harm(stage: &Stage) {
    let line = format!("{}\n", "x".repeat(99));
    stage.folder.put("huge.yaml", line.repeat(100_000));
    wait_until("ten megabytes of nothing are refused", || !stage.refusals().is_empty());
    let objects = (0..15_000).map(|n| {
        format!(
            "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {{name: c{n}}}\ndata: {}\n",
            "{k: '".to_owned() + &"y".repeat(600) + "'}"
        )
    });
    stage.folder.put("huge.yaml", objects.collect::<String>());
    std::thread::sleep(Duration::from_millis(500));
    stage.folder.remove("huge.yaml");
    wait_until("it is forgotten", || stage.refusals().is_empty());
}

fn a_folder_may_vanish(stage: &Stage) {
    let aside = stage.folder.0.with_file_name("vanished");
    for replace in [false, true] {
        std::fs::rename(&stage.folder.0, &aside).unwrap();
        if replace {
            std::fs::write(&stage.folder.0, "a file where a folder was").unwrap();
        }
        wait_until("it is missed", || stage.status()["source"]["error"].is_string());
        assert_eq!(stage.metric("beeline_source_error{cluster=\"local\"}"), 1);
        std::thread::sleep(Duration::from_millis(300));
        if replace {
            std::fs::remove_file(&stage.folder.0).unwrap();
        }
        std::fs::rename(&aside, &stage.folder.0).unwrap();
        wait_until("it is back", || stage.status()["source"]["error"].is_null());
    }
}

fn mutations_do_no_harm(stage: &Stage) -> u32 {
    let count = if stage::is_long() { 1000 } else { 200 };
    let good = Target::new("zebra", 9).manifest(&["10.244.1.97".parse().unwrap(), "10.244.1.96".parse().unwrap()]);
    let mut rng = fastrand::Rng::with_seed(5);
    for number in 0..count {
        stage.folder.put("mutation.yaml", mutate(good.clone().into_bytes(), &mut rng));
        std::thread::sleep(Duration::from_millis(15));
        if number % 50 == 49 {
            assert_eq!(stage.status()["source"]["synced"], true, "after {number} mutations");
        }
    }
    stage.folder.put("mutation.yaml", good);
    wait_until("the last one is good", || stage.refusals().is_empty());
    count
}

/// A few of: a byte changed, a stretch cut out, doubled or moved, a line gone.
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

/// Runs an agent that must not start; gives what it said.
fn refused_start(cgroup: &Cgroup, args: &[&str]) -> String {
    let pins = format!("/sys/fs/bpf/beeline-options-{}", std::process::id());
    let output = Command::new(BEELINE).arg("agent").args(args).args(["--pin-dir", &pins]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "{args:?} was taken: {said}");
    assert!(!Path::new(&pins).exists(), "{args:?} left {pins}");
    assert!(cgroup.path().exists());
    said
}

#[test]
fn wrong_options_are_named() {
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
        &["--orphan", "sometimes"],
        &["--orphan", "passthrough:0s"],
        &["--local-policy", "lax"],
        &["--empty-local", "explode"],
        &["--node-port-addresses", "here"],
        &["--external-ips", "some"],
        &["--node-addresses", "300.1.1.1"],
        &["--metrics-address", "nowhere"],
        &["--health-address", "10256"],
        &["--sync-period", "5"],
        &["--sync-period", "9999999999999999999h"],
        &["--sync-period", "99999999999999999999h"],
        &["--self-test", "maybe"],
        &["--kubeconfig", "/nonexistent"],
        &["--api-server", "https://192.0.2.1:6443"],
        &["--context", "some"],
        &["--nodes", "watch"],
        &["--clear-startup-taint"],
    ] {
        let said = refused_start(&cgroup, &[&all[..], args].concat());
        assert!(said.contains(args[0]), "{args:?}: {said}");
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
        &["--nodes", "some", "--api-server", "https://192.0.2.1:6443"],
    ] {
        let said = refused_start(&cgroup, &[&without("--manifests")[..], args].concat());
        assert!(said.contains(args[0]) || said.contains("--context"), "{args:?}: {said}");
    }
    for option in ["--manifests", "--node-name"] {
        let said = refused_start(&cgroup, &without(option));
        assert!(said.contains(option), "{option}: {said}");
    }
    let said = refused_start(&cgroup, &[&without("--cgroup")[..], &["--cgroup", "/tmp"]].concat());
    assert!(said.contains("--cgroup"), "{said}");
}

#[test]
fn a_wrong_configuration_file_is_named() {
    let (cgroup, dir) = (Cgroup::new().unwrap(), tempfile::tempdir().unwrap());
    let path = dir.path().join("beeline.yaml");
    let shown = path.display().to_string();
    let place = cgroup.path().display().to_string();
    let args = ["--config", &shown, "--cgroup", &place, "--manifests", "/nonexistent", "--node-name", "n"];
    assert!(refused_start(&cgroup, &args).contains("--config"), "a file that is not there");
    for (text, named) in [
        ("max-servicez: 5\n", "max-servicez"),
        ("max-services: many\n", "--config"),
        ("max-services: 3\n", "--max-services"),
        ("- a list\n", "--config"),
        ("max-services: [\n", "--config"),
        ("events: loud\n", "--events"),
    ] {
        std::fs::write(&path, text).unwrap();
        let said = refused_start(&cgroup, &args);
        assert!(said.contains(named), "{text:?}: {said}");
    }
}
