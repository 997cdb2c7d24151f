//! Full tables: services that were programmed keep serving, the others are refused with a reason that names the option, and
//! a start with larger tables programs all of them without interruption.

mod fixture;

use beeline_harness::LoadKind;
use fixture::{AgentFixture, LoadSummary, TestService, wait_until};

/// Options that make one table small or large, and the number of backends per service. Each service has two ports.
struct Case {
    small: &'static [&'static str],
    large: &'static [&'static str],
    backends: u8,
    option: &'static str,
}

const CASES: [Case; 4] = [
    // The set table has 34 rows.
    Case { small: &["--max-services", "16"], large: &["--max-services", "64"], backends: 1, option: "--max-services" },
    // A service has three rows: one per port, and one that marks the address as known.
    Case {
        small: &["--max-frontends", "20"],
        large: &["--max-frontends", "200"],
        backends: 1,
        option: "--max-frontends",
    },
    Case { small: &["--max-backends", "24"], large: &["--max-backends", "400"], backends: 2, option: "--max-backends" },
    // A set with more than eight backends uses the slot table, 16 slots per port.
    Case { small: &["--max-slots", "128"], large: &["--max-slots", "2048"], backends: 9, option: "--max-slots" },
];

const FIRST: u8 = 2;
const ALL: u8 = 20;

#[test]
fn a_full_table_keeps_programmed_services_and_refuses_new_ones() {
    let _alone = fixture::run_alone();
    CASES.iter().for_each(check_case);
}

fn check_case(case: &Case) {
    let Case { small, large, backends, option } = case;
    let mut fixture = AgentFixture::new();
    let services: Vec<TestService> = (0..ALL).map(|n| TestService::new(&format!("s{n:02}"), 1 + n)).collect();
    let mut manifests = Vec::new();
    for (number, service) in (0..).zip(&services) {
        let pods = fixture.start_backends(&service.name, 10 + number * backends, *backends);
        manifests.push(service.manifest(&pods));
    }
    let write = |fixture: &AgentFixture, range: std::ops::Range<u8>| {
        for number in range {
            fixture.write_file(&format!("s{number:02}.yaml"), &manifests[usize::from(number)]);
        }
    };
    write(&fixture, 0..FIRST);
    fixture.start(small);
    let first = &services[..usize::from(FIRST)];
    let loads = vec![
        fixture.start_load(fixture.network.node(), LoadKind::Tcp, first),
        fixture.start_load(fixture.network.pod(1), LoadKind::UdpUnconnected, first),
    ];
    write(&fixture, FIRST..ALL);
    wait_until("some services are refused", || !refused(&fixture).is_empty());
    let full = refused(&fixture);
    let message = fixture.status()["refusals"][0]["message"].as_str().unwrap().to_owned();
    assert!(message.contains(option), "{small:?}: {message}");
    assert_eq!(fixture.metric("beeline_refused_objects{reason=\"tableFull\"}"), full.len() as u64, "{full:?}");
    assert!(full.len() < usize::from(ALL - FIRST), "{small:?}: no new service was programmed, though there was space");
    let answers = |fixture: &AgentFixture, service: &TestService| {
        fixture.udp_answer(fixture.network.node(), service) == service.name
    };
    let is_refused =
        |full: &[String], service: &TestService| full.iter().any(|s| s.ends_with(&format!("/{}", service.name)));
    for service in services.iter().filter(|t| !is_refused(&full, t)) {
        assert!(answers(&fixture, service), "{small:?}: {} is neither refused nor answers", service.name);
    }

    // Deleting a service frees space for one that was refused.
    let served = services.iter().rfind(|t| !is_refused(&full, t)).unwrap();
    fixture.remove_file(&format!("{}.yaml", served.name));
    wait_until("a refused service is programmed", || refused(&fixture).len() < full.len());
    fixture.write_file(&format!("{}.yaml", served.name), manifests.iter().find(|m| m.contains(&served.name)).unwrap());

    fixture.stop();
    fixture.start(large);
    assert_eq!(fixture.status()["kernel"]["start"], "resized");
    assert_eq!(refused(&fixture), [""; 0], "{large:?}");
    assert_eq!(fixture.metric("beeline_refused_objects{reason=\"tableFull\"}"), 0);
    services.iter().for_each(|service| assert!(answers(&fixture, service), "{large:?}: {}", service.name));
    let what = format!("{small:?}, {} of {ALL} services refused; then {large:?}", full.len());
    LoadSummary::collect(loads).assert_clean(&what, 1_000);
}

fn refused(fixture: &AgentFixture) -> Vec<String> {
    fixture.refusals().into_iter().filter(|(reason, _)| reason == "tableFull").map(|(_, subject)| subject).collect()
}

/// Fills the frontend table from a namespace whose name comes first. Everybody else is served: on a new node, when the
/// table was full before, and after a restart.
#[test]
fn one_namespace_cannot_fill_the_tables_for_the_others() {
    let _alone = fixture::run_alone();
    let small = ["--max-frontends", "80"];
    let mut fixture = AgentFixture::new();
    let services: Vec<TestService> = (0..4).map(|n| TestService::new(&format!("s{n:02}"), 1 + n)).collect();
    let write_others = |fixture: &mut AgentFixture| {
        for (number, service) in (0..).zip(&services) {
            let pods = fixture.start_backends(&service.name, 10 + number, 1);
            fixture.write_file(&format!("{}.yaml", service.name), service.manifest(&pods));
        }
    };
    fixture.write_file("greedy.yaml", greedy_manifests());
    fixture.start(&small);
    wait_until("the greedy namespace is refused", || !refused(&fixture).is_empty());
    write_others(&mut fixture);
    let all_answer = |fixture: &AgentFixture| services.iter().all(|service| fixture.answers(service));
    wait_until("everybody else is served", || all_answer(&fixture));
    let greedy_only = |fixture: &AgentFixture| {
        let full = refused(fixture);
        assert!(!full.is_empty() && full.iter().all(|subject| subject.starts_with("Service aaa/")), "{full:?}");
        full
    };
    let before = greedy_only(&fixture);
    let message = fixture.status()["refusals"][0]["message"].as_str().unwrap().to_owned();
    assert!(message.contains("namespace aaa") && message.contains("--max-frontends"), "{message}");
    fixture.stop();
    fixture.start(&small);
    assert!(all_answer(&fixture), "at once after a restart");
    assert_eq!(greedy_only(&fixture), before, "the same Services are refused");
}

/// 20 Services of 3 ports and 4 addresses.
fn greedy_manifests() -> String {
    let service = |number: u32| {
        let external = (0..3).map(|at| format!("198.51.{at}.{number}")).collect::<Vec<_>>().join(", ");
        format!(
            "apiVersion: v1\nkind: Service\nmetadata: {{name: g{number:02}, namespace: aaa}}\nspec:\n  \
             clusterIP: 10.96.1.{number}\n  externalIPs: [{external}]\n  ports:\n  \
             - {{name: a, port: 81}}\n  - {{name: b, port: 82}}\n  - {{name: c, port: 83}}\n---\n"
        )
    };
    (1..=20).map(service).collect()
}
