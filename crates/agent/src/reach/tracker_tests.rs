use super::super::route_match::BlockReason;
use super::*;

const RATE: ProbeRate = ProbeRate { interval: Duration::from_secs(30), per_second: 50 };

fn group(prefix: &str) -> PodGroup {
    PodGroup { cluster: "far".into(), node: Some("n1".into()), prefix: prefix.parse().unwrap() }
}

fn at(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn pods(texts: &[&str]) -> Vec<(Address, u16)> {
    texts.iter().map(|text| at(text)).map(|at| (Address::from(at.ip()), at.port())).collect()
}

fn no_answer() -> ProbeResult {
    ProbeResult::NoAnswer("no answer".into())
}

/// A tracker of one group with two pods that only a default route leads to.
fn with_default_route(now: Instant) -> (ReachTracker, PodGroup) {
    let (mut tracker, group) = (ReachTracker::new(RATE, now), group("10.244.1.0/24"));
    assert!(tracker.set_targets(&[(group.clone(), pods(&["10.244.1.2:80", "10.244.1.3:81"]))], now));
    assert!(!tracker.set_route(&group, RouteMatch::Default, now), "it was unknown before");
    (tracker, group)
}

fn found(tracker: &ReachTracker, group: &PodGroup) -> Reachability {
    tracker.reachability()[group]
}

#[test]
fn a_specific_route_is_direct_and_not_probed() {
    let now = Instant::now();
    let (mut tracker, group) = with_default_route(now);
    let route = RouteMatch::new("10.244.0.0/16".parse().unwrap());
    assert!(tracker.set_route(&group, route, now) && !tracker.set_route(&group, route, now));
    assert_eq!(
        (found(&tracker, &group), tracker.due_probes(now).len(), tracker.next_probe(now)),
        (Reachability::Direct, 0, None)
    );
    assert_eq!(tracker.findings()[0].evidence, "route to 10.244.0.0/16");
}

#[test]
fn a_blocking_route_means_through_the_node() {
    let now = Instant::now();
    let (mut tracker, group) = with_default_route(now);
    for reason in [BlockReason::NoRoute, BlockReason::Blackhole, BlockReason::Unreachable, BlockReason::Prohibit] {
        tracker.set_route(&group, RouteMatch::Blocked(reason), now);
        assert_eq!((found(&tracker, &group), tracker.due_probes(now).len()), (Reachability::Node, 0));
    }
}

#[test]
fn any_answer_proves_the_direct_path_and_is_probed_again_after_the_interval() {
    for result in [ProbeResult::Connected, ProbeResult::Reset] {
        let now = Instant::now();
        let (mut tracker, group) = with_default_route(now);
        assert_eq!(tracker.due_probes(now), [(group.clone(), at("10.244.1.2:80"))]);
        assert!(tracker.due_probes(now).is_empty(), "one probe at a time");
        assert!(tracker.record_probe(&group, at("10.244.1.2:80"), result.clone(), now));
        assert_eq!(
            (found(&tracker, &group), tracker.next_probe(now)),
            (Reachability::Direct, Some(now + RATE.interval))
        );
        let later = now + RATE.interval;
        assert!(tracker.due_probes(later - Duration::from_millis(1)).is_empty());
        assert_eq!(tracker.due_probes(later).len(), 1);
        assert!(!tracker.record_probe(&group, at("10.244.1.2:80"), result, later), "unchanged");
        assert_eq!(tracker.findings()[0].since, now);
    }
}

#[test]
fn three_probes_without_an_answer_change_the_result_and_one_answer_changes_it_back() {
    let start = Instant::now();
    let (mut tracker, group) = with_default_route(start);
    tracker.due_probes(start);
    tracker.record_probe(&group, at("10.244.1.2:80"), ProbeResult::Connected, start);
    let mut now = start + RATE.interval;
    let mut probed = Vec::new();
    let mut changes = Vec::new();
    for result in [
        no_answer(),
        no_answer(),
        ProbeResult::Reset,
        no_answer(),
        no_answer(),
        no_answer(),
        no_answer(),
        ProbeResult::Connected,
    ] {
        let due = tracker.due_probes(now);
        probed.push(due[0].1.port());
        changes.push(tracker.record_probe(&group, due[0].1, result, now));
        now = tracker.next_probe(now).unwrap();
    }
    assert_eq!(changes, [false, false, false, false, false, true, false, true]);
    assert_eq!(probed, [80, 81, 80, 80, 81, 80, 81, 80], "another endpoint after each probe without an answer");
    assert_eq!(found(&tracker, &group), Reachability::Direct);
}

#[test]
fn an_unknown_group_becomes_node_after_three_probes_and_then_waits_the_interval() {
    let mut now = Instant::now();
    let (mut tracker, group) = with_default_route(now);
    for n in 1..=3 {
        assert_eq!(found(&tracker, &group), Reachability::Unknown, "before probe {n}");
        let due = tracker.due_probes(now);
        tracker.record_probe(&group, due[0].1, no_answer(), now);
        now = if n < 3 { tracker.next_probe(now).unwrap() } else { now };
    }
    assert_eq!((found(&tracker, &group), tracker.next_probe(now)), (Reachability::Node, Some(now + RATE.interval)));
    assert!(tracker.findings()[0].evidence.starts_with("3 probes without an answer"));
}

#[test]
fn a_local_error_does_not_count_as_a_probe_without_an_answer() {
    let mut now = Instant::now();
    let (mut tracker, group) = with_default_route(now);
    for _ in 0..5 {
        let due = tracker.due_probes(now);
        assert!(!tracker.record_probe(&group, due[0].1, ProbeResult::LocalError("too many files".into()), now));
        now = tracker.next_probe(now).unwrap();
    }
    assert_eq!(found(&tracker, &group), Reachability::Unknown);
}

#[test]
fn a_removed_route_makes_the_group_unknown_and_probes_it_at_once() {
    let now = Instant::now();
    let (mut tracker, group) = with_default_route(now);
    tracker.set_route(&group, RouteMatch::new("10.244.1.0/24".parse().unwrap()), now);
    let later = now + Duration::from_secs(100);
    assert!(tracker.set_route(&group, RouteMatch::Default, later));
    assert_eq!((found(&tracker, &group), tracker.due_probes(later).len()), (Reachability::Unknown, 1));
    // The route comes back while the probe is in progress: the result of the probe does not count then.
    assert!(tracker.set_route(&group, RouteMatch::new("10.244.1.0/24".parse().unwrap()), later));
    assert!(!tracker.record_probe(&group, at("10.244.1.2:80"), no_answer(), later));
    assert_eq!(found(&tracker, &group), Reachability::Direct);
}

#[test]
fn a_change_of_another_route_probes_again() {
    let now = Instant::now();
    let (mut tracker, group) = with_default_route(now);
    let due = tracker.due_probes(now);
    tracker.record_probe(&group, due[0].1, ProbeResult::Connected, now);
    tracker.probe_all(now + Duration::from_secs(1));
    assert_eq!(tracker.due_probes(now + Duration::from_secs(1)).len(), 1);
    assert_eq!(found(&tracker, &group), Reachability::Direct, "until three probes have failed");
}

#[test]
fn probes_are_rate_limited_and_every_group_is_probed() {
    let mut now = Instant::now();
    let mut tracker = ReachTracker::new(ProbeRate { per_second: 10, ..RATE }, now);
    let groups: Vec<ReachTarget> =
        (0..100).map(|i| (group(&format!("10.244.{i}.0/24")), pods(&[&format!("10.244.{i}.2:80")]))).collect();
    tracker.set_targets(&groups, now);
    for (group, _) in &groups {
        tracker.set_route(group, RouteMatch::Default, now);
    }
    let (start, mut probed) = (now, std::collections::BTreeSet::new());
    while probed.len() < 100 {
        for (group, at) in tracker.due_probes(now) {
            tracker.record_probe(&group, at, ProbeResult::Connected, now);
            probed.insert(group);
        }
        let taken = now - start;
        assert!(probed.len() <= 10 + (taken.as_secs_f64() * 10.0).ceil() as usize, "{} in {taken:?}", probed.len());
        now = tracker.next_probe(now).unwrap();
    }
    assert!(now - start >= Duration::from_millis(8_900), "{:?}", now - start);
}

#[test]
fn the_result_of_an_unused_group_is_kept_for_a_while() {
    let now = Instant::now();
    let (mut tracker, group) = with_default_route(now);
    tracker.due_probes(now);
    tracker.record_probe(&group, at("10.244.1.2:80"), ProbeResult::Reset, now);
    tracker.set_targets(&[], now);
    assert!(
        tracker.findings().is_empty() && tracker.due_probes(now + RATE.interval).is_empty(),
        "an unused group is not probed"
    );
    let targets = [(group.clone(), pods(&["10.244.1.9:80"]))];
    tracker.set_targets(&targets, now + Duration::from_secs(60));
    assert_eq!(found(&tracker, &group), Reachability::Direct);
    tracker.set_targets(&[], now + Duration::from_secs(61));
    tracker.set_targets(&[], now + Duration::from_secs(61) + RETENTION);
    assert!(tracker.reachability().is_empty());
}

#[test]
fn without_a_ready_endpoint_the_group_stays_unknown() {
    let now = Instant::now();
    let (mut tracker, group) = (ReachTracker::new(RATE, now), group("10.244.1.0/24"));
    tracker.set_targets(&[(group.clone(), Vec::new())], now);
    assert_eq!(tracker.addresses()[0].1, pods(&["10.244.1.1:1"]).iter().map(|(a, _)| *a).collect::<Vec<_>>());
    tracker.set_route(&group, RouteMatch::Default, now);
    assert_eq!(
        (found(&tracker, &group), tracker.due_probes(now).len(), tracker.next_probe(now)),
        (Reachability::Unknown, 0, None)
    );
}
