//! A killed test cannot clean up: its programs end with it, and the next test network removes the rest.

use std::{path::Path, time::Duration};

use beeline_harness::{TestNetwork, TestProgram};

#[test]
fn a_new_network_removes_what_a_killed_process_left() {
    let mut holder = TestProgram::new(env!("CARGO_BIN_EXE_harness-network"), None, None)
        .unwrap()
        .args(["1"])
        .keep_stdin_open()
        .spawn()
        .unwrap();
    holder.wait_for("ready", Duration::from_secs(10)).unwrap();
    let text = holder.stdout();
    let words: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
    let left: Vec<_> = words.iter().filter(|line| line.len() == 5).map(|line| (line[3], line[4])).collect();
    assert_eq!(left.len(), 3, "{text}");
    let exists = |(namespace, cgroup): &(&str, &str)| {
        (Path::new("/run/netns").join(namespace).exists(), Path::new(cgroup).exists())
    };
    holder.kill().unwrap();
    assert!(left.iter().all(|names| exists(names) == (true, true)));
    let _network = TestNetwork::new(0).unwrap();
    assert!(left.iter().all(|names| exists(names) == (false, false)));
}

#[test]
fn the_network_is_removed_when_stdin_ends() {
    let program = TestProgram::new(env!("CARGO_BIN_EXE_harness-network"), None, None).unwrap().args(["1", "1"]);
    let output = program.run().unwrap(); // The program's stdin is empty.
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    let cgroup = output.stdout.split_whitespace().find(|word| word.starts_with("/sys/fs/cgroup")).unwrap();
    assert!(!Path::new(cgroup).exists());
}
