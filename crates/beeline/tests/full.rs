//! Tables that fill up: what was programmed before keeps serving, the rest is refused with a reason that names the option,
//! and a bigger table is taken over at the next start without a gap.

mod stage;

use beeline_harness::StormKind;
use stage::{Stage, Target, Toll, wait_until};

/// Which table is made small, and how many backends each service has: two ports of each count for themselves.
struct Case {
    small: &'static [&'static str],
    big: &'static [&'static str],
    backends: u8,
    option: &'static str,
}

const CASES: [Case; 4] = [
    // 34 rows for sets.
    Case { small: &["--max-services", "16"], big: &["--max-services", "64"], backends: 1, option: "--max-services" },
    // Three rows a service: two ports, and that the address is known.
    Case {
        small: &["--max-frontends", "20"],
        big: &["--max-frontends", "200"],
        backends: 1,
        option: "--max-frontends",
    },
    Case { small: &["--max-backends", "24"], big: &["--max-backends", "400"], backends: 2, option: "--max-backends" },
    // More than eight backends stand in slots, sixteen a port.
    Case { small: &["--max-slots", "128"], big: &["--max-slots", "2048"], backends: 9, option: "--max-slots" },
];

const FIRST: u8 = 2;
const ALL: u8 = 20;

#[test]
fn the_old_state_serves_and_the_rest_waits_for_room() {
    let _alone = stage::alone();
    CASES.iter().for_each(try_case);
}

fn try_case(case: &Case) {
    let Case { small, big, backends, option } = case;
    let mut stage = Stage::new();
    let targets: Vec<Target> = (0..ALL).map(|n| Target::new(&format!("s{n:02}"), 1 + n)).collect();
    let mut manifests = Vec::new();
    for (number, target) in (0..).zip(&targets) {
        let pods = stage.serve(&target.name, 10 + number * backends, *backends);
        manifests.push(target.manifest(&pods));
    }
    let put = |stage: &Stage, range: std::ops::Range<u8>| {
        for number in range {
            stage.folder.put(&format!("s{number:02}.yaml"), &manifests[usize::from(number)]);
        }
    };
    put(&stage, 0..FIRST);
    stage.start(small);
    let first = &targets[..usize::from(FIRST)];
    let storms = vec![
        stage.storm(stage.lab.node(), StormKind::Tcp, first),
        stage.storm(stage.lab.pod(1), StormKind::UdpUnconnected, first),
    ];
    put(&stage, FIRST..ALL);
    wait_until("some are refused", || !refused(&stage).is_empty());
    let full = refused(&stage);
    let message = stage.status()["refusals"][0]["message"].as_str().unwrap().to_owned();
    assert!(message.contains(option), "{small:?}: {message}");
    assert_eq!(stage.metric("beeline_refused_objects{reason=\"tableFull\"}"), full.len() as u64, "{full:?}");
    assert!(full.len() < usize::from(ALL - FIRST), "{small:?}: nothing new was taken, though there was room");
    let answers = |stage: &Stage, target: &Target| stage.ask(stage.lab.node(), target) == target.name;
    let is_refused = |full: &[String], target: &Target| full.iter().any(|s| s.ends_with(&format!("/{}", target.name)));
    for target in targets.iter().filter(|t| !is_refused(&full, t)) {
        assert!(answers(&stage, target), "{small:?}: {} is not refused and does not answer", target.name);
    }

    // Room again: one that waited takes it.
    let served = targets.iter().rfind(|t| !is_refused(&full, t)).unwrap();
    stage.folder.remove(&format!("{}.yaml", served.name));
    wait_until("the room is taken", || refused(&stage).len() < full.len());
    stage.folder.put(&format!("{}.yaml", served.name), manifests.iter().find(|m| m.contains(&served.name)).unwrap());

    stage.stop();
    stage.start(big);
    assert_eq!(stage.status()["kernel"]["start"], "resized");
    assert_eq!(refused(&stage), [""; 0], "{big:?}");
    assert_eq!(stage.metric("beeline_refused_objects{reason=\"tableFull\"}"), 0);
    targets.iter().for_each(|target| assert!(answers(&stage, target), "{big:?}: {}", target.name));
    let what = format!("{small:?}, {} of {ALL} services refused; then {big:?}", full.len());
    Toll::of(storms).must_be_clean(&what, 1_000);
}

fn refused(stage: &Stage) -> Vec<String> {
    stage.refusals().into_iter().filter(|(reason, _)| reason == "tableFull").map(|(_, subject)| subject).collect()
}
