//! A lab that is killed cannot clean up. Its programs die with it, and the next lab removes the rest.

use std::{path::Path, time::Duration};

use beeline_harness::{Lab, Program};

#[test]
fn the_next_lab_sweeps_up_after_one_that_was_killed() {
    let mut stand =
        Program::new(env!("CARGO_BIN_EXE_harness-stand"), None, None).unwrap().args(["1"]).hold().spawn().unwrap();
    stand.wait_for("ready", Duration::from_secs(10)).unwrap();
    let text = stand.stdout();
    let words: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
    let left: Vec<_> = words.iter().filter(|line| line.len() == 5).map(|line| (line[3], line[4])).collect();
    assert_eq!(left.len(), 3, "{text}");
    let exists = |(namespace, cgroup): &(&str, &str)| {
        (Path::new("/run/netns").join(namespace).exists(), Path::new(cgroup).exists())
    };
    stand.kill().unwrap();
    assert!(left.iter().all(|place| exists(place) == (true, true)));
    let _lab = Lab::new(0).unwrap();
    assert!(left.iter().all(|place| exists(place) == (false, false)));
}

#[test]
fn the_ground_goes_when_its_holder_ends() {
    let program = Program::new(env!("CARGO_BIN_EXE_harness-stand"), None, None).unwrap().args(["1", "1"]);
    let output = program.run().unwrap(); // Its stdin ends at once.
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    let cgroup = output.stdout.split_whitespace().find(|word| word.starts_with("/sys/fs/cgroup")).unwrap();
    assert!(!Path::new(cgroup).exists());
}
