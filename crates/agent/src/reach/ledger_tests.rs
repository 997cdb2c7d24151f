use super::super::way::Bar;
use super::*;

const PACE: Pace = Pace { interval: Duration::from_secs(30), per_second: 50 };

fn group(prefix: &str) -> Group {
    Group { cluster: "far".into(), node: Some("n1".into()), prefix: prefix.parse().unwrap() }
}

fn at(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn pods(texts: &[&str]) -> Vec<(Address, u16)> {
    texts.iter().map(|text| at(text)).map(|at| (Address::from(at.ip()), at.port())).collect()
}

fn missed() -> Answer {
    Answer::Missed("silent".into())
}

/// One group of two pods that only a default route leads to.
fn by_default(now: Instant) -> (Ledger, Group) {
    let (mut ledger, group) = (Ledger::new(PACE, now), group("10.244.1.0/24"));
    assert!(ledger.ask(&[(group.clone(), pods(&["10.244.1.2:80", "10.244.1.3:81"]))], now));
    assert!(!ledger.see(&group, Way::Default, now), "unknown it was before");
    (ledger, group)
}

fn found(ledger: &Ledger, group: &Group) -> Found {
    ledger.found()[group]
}

#[test]
fn a_specific_route_is_direct_and_nobody_is_knocked_at() {
    let now = Instant::now();
    let (mut ledger, group) = by_default(now);
    let way = Way::by("10.244.0.0/16".parse().unwrap());
    assert!(ledger.see(&group, way, now) && !ledger.see(&group, way, now));
    assert_eq!((found(&ledger, &group), ledger.due(now).len(), ledger.next(now)), (Found::Direct, 0, None));
    assert_eq!(ledger.findings()[0].evidence, "route to 10.244.0.0/16");
}

#[test]
fn routes_that_bar_the_way_are_none() {
    let now = Instant::now();
    let (mut ledger, group) = by_default(now);
    for bar in [Bar::NoRoute, Bar::Blackhole, Bar::Unreachable, Bar::Prohibit] {
        ledger.see(&group, Way::Barred(bar), now);
        assert_eq!((found(&ledger, &group), ledger.due(now).len()), (Found::Node, 0));
    }
}

#[test]
fn any_answer_proves_the_way_and_is_asked_for_again() {
    for answer in [Answer::Connected, Answer::Reset] {
        let now = Instant::now();
        let (mut ledger, group) = by_default(now);
        assert_eq!(ledger.due(now), [(group.clone(), at("10.244.1.2:80"))]);
        assert!(ledger.due(now).is_empty(), "one at a time");
        assert!(ledger.hear(&group, at("10.244.1.2:80"), answer.clone(), now));
        assert_eq!((found(&ledger, &group), ledger.next(now)), (Found::Direct, Some(now + PACE.interval)));
        let later = now + PACE.interval;
        assert!(ledger.due(later - Duration::from_millis(1)).is_empty());
        assert_eq!(ledger.due(later).len(), 1);
        assert!(!ledger.hear(&group, at("10.244.1.2:80"), answer, later), "nothing new");
        assert_eq!(ledger.findings()[0].since, now);
    }
}

#[test]
fn three_misses_after_each_other_flip_it_and_one_answer_flips_it_back() {
    let start = Instant::now();
    let (mut ledger, group) = by_default(start);
    ledger.due(start);
    ledger.hear(&group, at("10.244.1.2:80"), Answer::Connected, start);
    let mut now = start + PACE.interval;
    let mut asked = Vec::new();
    let mut flips = Vec::new();
    for answer in [missed(), missed(), Answer::Reset, missed(), missed(), missed(), missed(), Answer::Connected] {
        let due = ledger.due(now);
        asked.push(due[0].1.port());
        flips.push(ledger.hear(&group, due[0].1, answer, now));
        now = ledger.next(now).unwrap();
    }
    assert_eq!(flips, [false, false, false, false, false, true, false, true]);
    assert_eq!(asked, [80, 81, 80, 80, 81, 80, 81, 80], "another endpoint after each miss");
    assert_eq!(found(&ledger, &group), Found::Direct);
}

#[test]
fn what_is_unknown_needs_three_misses_too_and_then_waits_the_whole_interval() {
    let mut now = Instant::now();
    let (mut ledger, group) = by_default(now);
    for n in 1..=3 {
        assert_eq!(found(&ledger, &group), Found::Unknown, "before miss {n}");
        let due = ledger.due(now);
        ledger.hear(&group, due[0].1, missed(), now);
        now = if n < 3 { ledger.next(now).unwrap() } else { now };
    }
    assert_eq!((found(&ledger, &group), ledger.next(now)), (Found::Node, Some(now + PACE.interval)));
    assert!(ledger.findings()[0].evidence.starts_with("3 misses"));
}

#[test]
fn what_says_nothing_of_the_way_is_no_miss() {
    let mut now = Instant::now();
    let (mut ledger, group) = by_default(now);
    for _ in 0..5 {
        let due = ledger.due(now);
        assert!(!ledger.hear(&group, due[0].1, Answer::Unable("too many files".into()), now));
        now = ledger.next(now).unwrap();
    }
    assert_eq!(found(&ledger, &group), Found::Unknown);
}

#[test]
fn a_route_that_goes_leaves_the_question_open_and_asks_at_once() {
    let now = Instant::now();
    let (mut ledger, group) = by_default(now);
    ledger.see(&group, Way::by("10.244.1.0/24".parse().unwrap()), now);
    let later = now + Duration::from_secs(100);
    assert!(ledger.see(&group, Way::Default, later));
    assert_eq!((found(&ledger, &group), ledger.due(later).len()), (Found::Unknown, 1));
    // It comes back while somebody is being asked: what that one says then does not matter.
    assert!(ledger.see(&group, Way::by("10.244.1.0/24".parse().unwrap()), later));
    assert!(!ledger.hear(&group, at("10.244.1.2:80"), missed(), later));
    assert_eq!(found(&ledger, &group), Found::Direct);
}

#[test]
fn routes_that_change_elsewhere_make_it_ask_again() {
    let now = Instant::now();
    let (mut ledger, group) = by_default(now);
    let due = ledger.due(now);
    ledger.hear(&group, due[0].1, Answer::Connected, now);
    ledger.stir(now + Duration::from_secs(1));
    assert_eq!(ledger.due(now + Duration::from_secs(1)).len(), 1);
    assert_eq!(found(&ledger, &group), Found::Direct, "until three misses");
}

#[test]
fn knocks_are_few_a_second_and_everybody_has_a_turn() {
    let mut now = Instant::now();
    let mut ledger = Ledger::new(Pace { per_second: 10, ..PACE }, now);
    let groups: Vec<Asked> =
        (0..100).map(|i| (group(&format!("10.244.{i}.0/24")), pods(&[&format!("10.244.{i}.2:80")]))).collect();
    ledger.ask(&groups, now);
    for (group, _) in &groups {
        ledger.see(group, Way::Default, now);
    }
    let (start, mut asked) = (now, std::collections::BTreeSet::new());
    while asked.len() < 100 {
        for (group, at) in ledger.due(now) {
            ledger.hear(&group, at, Answer::Connected, now);
            asked.insert(group);
        }
        let taken = now - start;
        assert!(asked.len() <= 10 + (taken.as_secs_f64() * 10.0).ceil() as usize, "{} in {taken:?}", asked.len());
        now = ledger.next(now).unwrap();
    }
    assert!(now - start >= Duration::from_millis(8_900), "{:?}", now - start);
}

#[test]
fn a_group_that_is_asked_for_again_is_remembered_for_a_while() {
    let now = Instant::now();
    let (mut ledger, group) = by_default(now);
    ledger.due(now);
    ledger.hear(&group, at("10.244.1.2:80"), Answer::Reset, now);
    ledger.ask(&[], now);
    assert!(ledger.findings().is_empty() && ledger.due(now + PACE.interval).is_empty(), "nobody is asked in vain");
    let asked = [(group.clone(), pods(&["10.244.1.9:80"]))];
    ledger.ask(&asked, now + Duration::from_secs(60));
    assert_eq!(found(&ledger, &group), Found::Direct);
    ledger.ask(&[], now + Duration::from_secs(61));
    ledger.ask(&[], now + Duration::from_secs(61) + FORGET);
    assert!(ledger.found().is_empty());
}

#[test]
fn without_an_endpoint_to_ask_it_stays_unknown() {
    let now = Instant::now();
    let (mut ledger, group) = (Ledger::new(PACE, now), group("10.244.1.0/24"));
    ledger.ask(&[(group.clone(), Vec::new())], now);
    assert_eq!(ledger.addresses()[0].1, pods(&["10.244.1.1:1"]).iter().map(|(a, _)| *a).collect::<Vec<_>>());
    ledger.see(&group, Way::Default, now);
    assert_eq!((found(&ledger, &group), ledger.due(now).len(), ledger.next(now)), (Found::Unknown, 0, None));
}
