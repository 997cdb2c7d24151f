//! What is on the host's disk is spoilt, and no API server answers: what is whole serves, and nothing else does.

use std::{fs, path::PathBuf};

use super::{
    crowd::Crowd,
    trio::{NAMES, Stage, hold},
};
use crate::field::{at, eventually};

pub fn spoilt_ones_are_passed_over(stage: &Stage, crowd: Crowd) {
    for name in NAMES {
        eventually("it is on disk", || file(stage, name).exists());
    }
    let servers = stage.trio.api_servers();
    servers.iter().for_each(|server| server.kill().unwrap());
    stage.resolver.stop().unwrap();
    // As if each had been written twice.
    for name in NAMES {
        fs::copy(file(stage, name), before(stage, name)).unwrap();
    }
    forge(stage, "green");
    cut(stage, "red");
    fs::copy(file(stage, "red"), before(stage, "red")).unwrap();
    stage.resolver.start().unwrap();
    assert_unfit(stage, "green", "checksum");
    assert_unfit(stage, "red", "cut short");
    assert!(stage.cluster("green")["remembered"].is_string(), "the generation before serves");
    assert!(stage.cluster("red")["remembered"].is_null(), "no generation is left");
    hold(1);
    crowd.must_be_content("a forged and two truncated snapshots: tables and the generation before serve");
    drop(crowd);
    after_a_reboot(stage);
    servers.iter().for_each(|server| server.start().unwrap());
    stage.trio.wait_for_api_servers();
    stage.wait_until_heard(&NAMES);
    eventually("red is back", || stage.trio.cluster_of(&stage.dial(&at(&stage.trio.own[0], 80))) == "red");
    let crowd = Crowd::gather(stage);
    hold(1);
    crowd.must_be_content("the API servers are back");
}

/// Without tables: a disk of another host, put into this one, brings nothing of a cluster that was never met here.
fn after_a_reboot(stage: &Stage) {
    stage.resolver.shut_down().unwrap();
    let uid = stage.resolver.disk().join("clusters/red/uid");
    let kept = fs::read(&uid).unwrap();
    // Green's facts under red's name, and red's own of another UID.
    fs::copy(before(stage, "green"), file(stage, "red")).unwrap();
    fs::copy(stage.resolver.disk().join("kept"), before(stage, "red")).unwrap();
    fs::write(&uid, "11111111-2222-4333-8444-555555555555\n").unwrap();
    stage.resolver.start().unwrap();
    assert_unfit(stage, "red", "it is of cluster \"green\"");
    assert_unfit(stage, "red", "another cluster with this name");
    let crowd = Crowd::gather_some(stage, &["blue", "green"]);
    let answer = stage.dial(&at(&stage.trio.own[0], 80));
    assert!(answer.starts_with("failed"), "{answer} answers for red");
    hold(1);
    crowd.must_be_content("after a reboot with foreign snapshots of red");
    drop(crowd);
    stage.resolver.stop().unwrap();
    fs::write(&uid, kept).unwrap();
    stage.resolver.start().unwrap();
}

fn assert_unfit(stage: &Stage, name: &str, words: &str) {
    eventually(&format!("{name}'s snapshot: {words}"), || {
        stage.cluster(name)["snapshot"]["unfit"].to_string().replace("\\\"", "\"").contains(words)
    });
}

fn file(stage: &Stage, name: &str) -> PathBuf {
    stage.resolver.disk().join("snapshot").join(format!("{name}.facts"))
}

fn before(stage: &Stage, name: &str) -> PathBuf {
    file(stage, name).with_extension("facts.before")
}

/// The node by which its pods are reached becomes another one.
fn forge(stage: &Stage, name: &str) {
    let text = fs::read_to_string(file(stage, name)).unwrap();
    let forged = text.replace(&stage.trio.nodes()[1], &stage.trio.nodes()[2]);
    assert_ne!(text, forged);
    fs::write(file(stage, name), forged).unwrap();
}

fn cut(stage: &Stage, name: &str) {
    fs::copy(file(stage, name), stage.resolver.disk().join("kept")).unwrap();
    let file = fs::File::options().write(true).open(file(stage, name)).unwrap();
    file.set_len(file.metadata().unwrap().len() / 2).unwrap();
}
