//! A process that dials in a loop and is refused each time: it costs the agent nothing while nobody reads events, and does
//! not lose the events of others while somebody does.

mod fixture;

use beeline_datapath::control::{Control, EventLevel};
use beeline_harness::{Client, DialKind, DialRequest, RunningProgram};
use fixture::{AgentFixture, TIMEOUT, TestService, wait_until};
use std::time::{Duration, Instant};

/// Dials 10.96.0.1:80 without a pause, and prints a line when it begins.
const LOOP: &str = "
import socket
print('dialling', flush=True)
while True:
    with socket.socket() as s:
        s.connect_ex(('10.96.0.1', 80))
";
/// The number of failures of the other cgroup.
const FAILURES: usize = 40;

/// An agent with a service without endpoints.
fn fixture() -> AgentFixture {
    let (mut fixture, target) = (AgentFixture::new(), TestService::new("a", 1));
    fixture.write_file("a.yaml", target.service(""));
    fixture.start(&[]);
    fixture
}

fn start_loop(fixture: &AgentFixture) -> RunningProgram {
    let program = fixture.network.pod(0).program("python3").unwrap().args(["-c", LOOP]);
    let running = program.spawn().unwrap();
    wait_until("the loop runs", || running.stdout().contains("dialling"));
    running
}

fn kernel_level(fixture: &AgentFixture) -> EventLevel {
    Control::new(&fixture.maps()).unwrap().event_level()
}

/// User and system time of a process.
fn cpu_time(pid: u32) -> Duration {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = text.rsplit_once(')').unwrap().1.split_whitespace().collect();
    let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
    Duration::from_millis(ticks * 1000 / rustix::param::clock_ticks_per_second())
}

fn refuse(client: &Client) {
    let dial = DialRequest::new(DialKind::Tcp, "10.96.0.1:80".parse().unwrap());
    assert!(client.dial(&dial).unwrap().name().is_empty());
}

#[test]
fn refused_dials_cost_the_agent_nothing_without_a_monitor() {
    let _alone = fixture::run_alone();
    let mut fixture = fixture();
    assert_eq!((kernel_level(&fixture), &fixture.status()["events"]), (EventLevel::Off, &"failures".into()));
    let agent = fixture.running().pid();
    let refused = || fixture.counters("test/a/t/TCP").refused;
    let _loop = start_loop(&fixture);
    let (before, cpu, start) = (refused(), cpu_time(agent), Instant::now());
    std::thread::sleep(Duration::from_secs(5));
    let (dials, used) = (refused() - before, cpu_time(agent) - cpu);
    assert!(dials > 10_000, "only {dials} dials were refused");
    assert!(used < start.elapsed() / 20, "the agent used {used:?} for {dials} refused dials");

    let monitor = fixture.command(&["monitor", "--count", "1"]).spawn().unwrap();
    wait_until("the monitor reads an event", || !monitor.stdout().is_empty());
    drop(monitor);
    wait_until("the kernel reports no events after the last monitor", || kernel_level(&fixture) == EventLevel::Off);
    let mut monitor = fixture.command(&["monitor", "--events", "all"]).spawn().unwrap();
    wait_until("the level of the monitor is in effect", || kernel_level(&fixture) == EventLevel::All);
    assert_eq!(fixture.status()["monitors"], 1);
    monitor.kill().unwrap();
    wait_until("a killed monitor counts no more", || kernel_level(&fixture) == EventLevel::Off);
}

#[test]
fn refused_dials_of_one_cgroup_do_not_lose_the_events_of_another() {
    let _alone = fixture::run_alone();
    let fixture = fixture();
    let client = fixture.network.pod(1).client().unwrap();
    let cgroup = fixture.network.pod(1).cgroup.id().unwrap().to_string();
    // One monitor reads the events of all cgroups, the other those of one.
    let all = fixture.command(&["monitor", "--events", "failures", "-o", "json"]).spawn().unwrap();
    let one = fixture.command(&["monitor", "--cgroup", &cgroup, "-o", "json"]).spawn().unwrap();
    wait_until("both monitors read events", || fixture.status()["monitors"] == 2);
    let _loops = [start_loop(&fixture), start_loop(&fixture)];
    wait_until("the rate of the loop is exceeded", || fixture.stat("event_limited") > 10_000);
    for _ in 0..FAILURES {
        refuse(&client);
        std::thread::sleep(Duration::from_millis(50));
    }
    let lines = || one.stdout().lines().count();
    let deadline = Instant::now() + TIMEOUT / 4;
    while lines() < FAILURES && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!((lines(), fixture.stat("event_lost")), (FAILURES, 0));
    let others = all.stdout().lines().filter(|line| line.contains(&format!("\"cgroup\":{cgroup},"))).count();
    assert_eq!(others, FAILURES, "the monitor of all events lost some");
    assert!(!all.stdout().contains("\"lost\""), "the monitor of all events could not keep up");
}
