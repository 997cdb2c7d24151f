//! Rules of cgroups (views, exclusion) are replaced as fast as possible while processes in other cgroups dial. The kernel
//! recycles the rows of a hash at once, so a lookup may hold a row that belongs to another cgroup by now. No dial may use
//! the rule of another cgroup. Without the check of the row's tag the same test must find such dials, or it would prove
//! nothing.

mod fixture;

use beeline_datapath::control::{CgroupRule, Control};
use beeline_datapath::{Config, Program};
use beeline_harness::{Cgroup, TestNetwork, TestProgram};
use beeline_model::change::Change;
use beeline_model::diff::reconcile;
use beeline_model::object::{Object, Service, ServicePort};
use beeline_model::planner::Planner;
use beeline_model::row::Sizes;
use beeline_model::rules::{NoLocalEndpointAction, Rules};
use beeline_model::table::Tables;
use beeline_model::{Address, Protocol, ServiceName};
use fixture::StopOnDrop;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const DIALS: usize = 400_000;
/// Cgroups whose rules flap beside those of the two processes.
const FLAPPING: u64 = 30;

/// Connects a UDP socket to a service without endpoints, which the programs refuse. For an excluded process the kernel
/// decides, which never refuses. Prints the number of refused connects.
const DIAL: &str = r"
import errno, socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
to = ('10.96.0.1', 80)
print(sum(s.connect_ex(to) == errno.ECONNREFUSED for _ in range(int(sys.argv[1]))))
";

struct Pins(PathBuf);

impl Drop for Pins {
    fn drop(&mut self) {
        let _ = beeline_datapath::program::cleanup(&self.0);
    }
}

fn service_without_endpoints() -> Change {
    Change::Upsert(Object::Service(Service {
        cluster_ips: Box::new([Address::from(IpAddr::from([10, 96, 0, 1]))]),
        ports: Box::new([ServicePort { name: "".into(), protocol: Protocol::Udp, port: 80, node_port: 0 }]),
        ..Service::named(ServiceName::local("test", "web"))
    }))
}

/// Replaces every rule in turn; the rules of `steady` never change.
fn flap(control: &Control, steady: &[(u64, CgroupRule)], stop: &AtomicBool) -> u64 {
    let mut rounds = 0;
    while !stop.load(Ordering::Relaxed) {
        for id in 0..FLAPPING {
            let excluded = (rounds + id).is_multiple_of(2);
            // Ids that no cgroup of this machine has.
            control.replace_rule((1 << 40) + id, CgroupRule { excluded, view: 0 }).unwrap();
            for (id, rule) in steady {
                control.replace_rule(*id, *rule).unwrap();
            }
        }
        rounds += 1;
    }
    rounds * FLAPPING * (steady.len() as u64 + 1)
}

/// Returns the number of dials that used another cgroup's rule.
fn wrong_dials(skip_rule_check: bool) -> usize {
    let network = TestNetwork::new(0).unwrap();
    let cgroup = network.cgroup();
    let pins = Pins(format!("/sys/fs/bpf/beeline-rules-{}-{skip_rule_check}", std::process::id()).into());
    let mut program = Program::open(Config {
        pin_dir: pins.0.clone(),
        cgroup: cgroup.path().to_owned(),
        sizes: Sizes::for_services(16),
        no_local_endpoint_action: NoLocalEndpointAction::Refuse,
        skip_rule_check,
    })
    .unwrap();
    let mut planner = Planner::new(Rules::for_node("n1"));
    planner.apply(service_without_endpoints());
    let mut tables = Tables::new(program.config().sizes);
    let outcome = reconcile(&mut tables, &mut program.kernel().unwrap(), &planner.take_delta(), false);
    assert!(outcome.is_clean(), "{outcome:?}");
    let (excluded, resolved) = (cgroup.child("excluded").unwrap(), cgroup.child("resolved").unwrap());
    let control = program.control().unwrap();
    let rules = [(excluded.path(), CgroupRule::EXCLUDED), (resolved.path(), CgroupRule::default())];
    control.set_rules(&rules).unwrap();
    program.attach_hooks().unwrap();
    let steady = [(excluded.id().unwrap(), CgroupRule::EXCLUDED), (resolved.id().unwrap(), CgroupRule::default())];
    let dial = |cgroup: &Cgroup| {
        let program = TestProgram::new("python3", Some(&network.node().namespace), Some(cgroup)).unwrap();
        program.args(["-c", DIAL, &DIALS.to_string()]).limit(Duration::from_secs(300)).spawn().unwrap()
    };
    let stop = AtomicBool::new(false);
    let (refused, writes) = std::thread::scope(|scope| {
        let writer = scope.spawn(|| flap(&control, &steady, &stop));
        let stop_at_end = StopOnDrop(&stop);
        let refused = [dial(&excluded), dial(&resolved)].map(|program| {
            let output = program.finish(Duration::from_secs(300)).unwrap();
            output.stdout.trim().parse::<usize>().unwrap_or_else(|_| panic!("{output:?}"))
        });
        drop(stop_at_end);
        (refused, writer.join().unwrap())
    });
    let wrong = refused[0] + (DIALS - refused[1]);
    println!("{wrong} of {} dials used the rule of another cgroup during {writes} writes", 2 * DIALS);
    wrong
}

#[test]
fn no_dial_uses_the_rule_of_another_cgroup_while_rules_change() {
    assert_eq!(wrong_dials(false), 0, "of {}", 2 * DIALS);
}

#[test]
fn without_the_check_dials_use_the_rules_of_other_cgroups() {
    let found = (0..10).any(|_| wrong_dials(true) > 0);
    assert!(found, "0 of {} dials: this test does not show that the check is needed", 20 * DIALS);
}
