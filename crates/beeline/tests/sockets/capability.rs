//! The agent gives up CAP_SYS_ADMIN. A helper process keeps it, which only opens files in network namespaces.

use crate::fixture::{AgentFixture, wait_until};
use beeline_harness::TestNetwork;
use std::path::{Path, PathBuf};
use std::time::Duration;

const NET_ADMIN: u64 = 1 << 12;
const SYS_ADMIN: u64 = 1 << 21;

/// A field of a `status` file in /proc, as a hexadecimal number.
fn field(status: &Path, name: &str) -> u64 {
    let text = std::fs::read_to_string(status).unwrap();
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).expect("the field exists");
    u64::from_str_radix(value.trim(), 16).unwrap()
}

fn threads(pid: u32) -> Vec<PathBuf> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    tasks.map(|task| task.unwrap().path().join("status")).collect()
}

/// The children of all threads of a process.
fn children(pid: u32) -> Vec<u32> {
    let read = |status: PathBuf| std::fs::read_to_string(status.with_file_name("children")).unwrap_or_default();
    let all: Vec<String> = threads(pid).into_iter().map(read).collect();
    all.iter().flat_map(|text| text.split_whitespace()).map(|pid| pid.parse().unwrap()).collect()
}

#[test]
fn only_the_namespace_helper_keeps_sys_admin() {
    let mut fixture = AgentFixture::with_manifests(TestNetwork::new(1).unwrap(), &[], &[]);
    let agent = fixture.running().pid();
    let [helper] = children(agent)[..] else { panic!("children: {:?}", children(agent)) };
    let threads = threads(agent);
    assert!(threads.len() > 3, "{threads:?}");
    for status in &threads {
        for set in ["CapInh", "CapPrm", "CapEff", "CapAmb"] {
            assert_eq!(field(status, set) & SYS_ADMIN, 0, "{set} of {}", status.display());
        }
        assert_eq!(field(status, "NoNewPrivs"), 1, "a program that the agent starts must not get it again");
    }
    let status = PathBuf::from(format!("/proc/{helper}/status"));
    let sets = ["CapInh", "CapPrm", "CapEff", "CapAmb"].map(|set| field(&status, set));
    assert_eq!(sets, [0, SYS_ADMIN | NET_ADMIN, SYS_ADMIN | NET_ADMIN, 0]);
    let ends = || !Path::new(&format!("/proc/{helper}")).exists();
    fixture.stop();
    wait_until("the helper ends with the agent", ends);
}

#[test]
fn the_agent_ends_with_the_namespace_helper() {
    let mut fixture = AgentFixture::with_manifests(TestNetwork::new(1).unwrap(), &[], &[]);
    let [helper] = children(fixture.running().pid())[..] else { panic!("one child") };
    let pid = rustix::process::Pid::from_raw(helper as i32).unwrap();
    // systemd sends SIGTERM to all processes of the unit. The helper waits for the agent.
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    std::thread::sleep(Duration::from_millis(200));
    assert!(children(fixture.running().pid()).contains(&helper));
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    wait_until("the agent has ended", || fixture.running().stderr().contains("the namespace helper ended"));
    fixture.kill();
    fixture.start_again();
    assert_eq!(children(fixture.running().pid()).len(), 1, "the next agent has a helper");
}
