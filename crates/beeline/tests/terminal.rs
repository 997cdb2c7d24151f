//! Process names and cluster objects may contain escape codes. No command passes them to the operator's terminal.

mod fixture;

use beeline_harness::ProgramOutput;
use fixture::{AgentFixture, TestService, wait_until};
use std::path::PathBuf;

/// Clears the screen. Fits into a process name (15 bytes).
const ATTACK: &str = "x\u{1b}[2J\u{9b}8my";
const ESCAPED: &str = r"x\u{1b}[2J\u{9b}8my";

/// A policy whose protocol is refused, and an endpoint that is refused because of its node.
fn objects() -> String {
    let attack = r#""x\e[2J\x9b8my""#;
    format!(
        "apiVersion: beeline.dev/v1alpha1\nkind: BalancingPolicy\nmetadata: {{name: a, namespace: test}}\nspec:\n  \
         frontend: {{serviceMatcher: {{serviceName: a, toPorts: [{{name: t, port: 80, protocol: {attack}}}]}}}}\n  \
         backend: {{addressEndpoint: {{addresses: [192.0.2.9], toPorts: [{{name: t, port: 80, protocol: TCP}}]}}}}\n\
         ---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata:\n  name: a-2\n  namespace: test\n  \
         labels: {{kubernetes.io/service-name: a}}\naddressType: IPv4\nports:\n- {{name: t, port: 81, protocol: TCP}}\n\
         endpoints:\n- addresses: [10.244.1.77]\n  nodeName: {attack}\n  conditions: {{ready: true}}\n"
    )
}

#[track_caller]
fn assert_printable(output: &ProgramOutput, what: &str) {
    let unprintable = |c: char| c.is_control() && c != '\n';
    for text in [&output.stdout, &output.stderr] {
        assert!(!text.contains(unprintable), "{what}: {text:?}");
    }
}

/// A shell whose process has the name.
fn shell_named(fixture: &AgentFixture, name: &str) -> PathBuf {
    let path = fixture.manifests().path().with_file_name(name);
    std::fs::copy("/bin/bash", &path).unwrap();
    path
}

#[test]
fn escape_codes_of_processes_and_objects_are_printed_escaped_by_every_command() {
    let _alone = fixture::run_alone();
    let (mut fixture, target) = (AgentFixture::new(), TestService::new("a", 1));
    fixture.write_file("a.yaml", target.service(""));
    fixture.write_file("objects.yaml", objects());
    fixture.start(&[]);
    wait_until("the policy is refused", || fixture.refusals().iter().any(|(_, subject)| subject.contains("test/a")));
    let args = fixture.agent_args();
    let plan = beeline_harness::TestProgram::new(fixture::BEELINE, None, None).unwrap();
    let plan = plan.args(["plan"]).args(&args).run().unwrap();
    assert_printable(&plan, "plan");
    assert!(plan.stderr.contains(ESCAPED), "{plan:?}");
    for (command, shows) in [
        (&["status"][..], true),
        (&["policies"], false),
        (&["policies", ATTACK], true),
        (&["services"], false),
        (&["backends"], false),
        (&["explain", "10.96.0.1:80/TCP"], false),
        (&["explain", ATTACK], true),
        (&["dump"], false),
        (&["doctor"], false),
    ] {
        let output = fixture.beeline(command);
        assert_printable(&output, &format!("{command:?}"));
        let text = output.stdout + &output.stderr;
        assert_eq!(text.contains(ESCAPED), shows, "{command:?}: {text}");
    }
    let status = fixture.beeline(&["status", "-o", "json"]);
    assert_printable(&status, "status -o json");
    let value: serde_json::Value = serde_json::from_str(&status.stdout).unwrap();
    assert!(value["refusals"].to_string().contains("x\\u001b[2J\u{9b}8my"), "JSON has the object's own text: {value}");
}

#[test]
fn the_monitor_prints_process_names_escaped() {
    let _alone = fixture::run_alone();
    let (mut fixture, target) = (AgentFixture::new(), TestService::new("a", 1));
    fixture.write_file("a.yaml", target.service(""));
    fixture.start(&[]);
    let shell = shell_named(&fixture, ATTACK);
    for (format, shown) in [("table", ESCAPED), ("json", r"x\u001b[2J\u009b8my")] {
        let monitor = fixture.command(&["monitor", "--events", "failures", "--count", "1", "-o", format]);
        let monitor = monitor.spawn().unwrap();
        wait_until("the monitor prints the dial", || {
            let dial = fixture.network.node().program(&shell).unwrap();
            dial.args(["-c", "echo > /dev/tcp/10.96.0.1/80"]).run().unwrap();
            !monitor.stdout().is_empty()
        });
        let output = monitor.finish(fixture::TIMEOUT).unwrap();
        assert_printable(&output, format);
        assert!(output.stdout.contains(shown), "{format}: {output:?}");
    }
}
