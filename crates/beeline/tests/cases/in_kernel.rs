//! The cases in the kernel: the BPF programs decide as `beeline_model::resolve` does.

use super::*;

struct Fixture {
    cgroup: PathBuf,
    pins: PathBuf,
}

impl Fixture {
    fn new(tag: &str) -> Fixture {
        let name = format!("beeline-cases-{}-{tag}", std::process::id());
        let cgroup = cgroup::root().expect("this test needs cgroup2: run `make setup`").join(&name);
        std::fs::create_dir(&cgroup).expect("this test needs root and a writable cgroup2");
        Fixture { cgroup, pins: Path::new("/sys/fs/bpf").join(name) }
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        let _ = beeline_datapath::program::cleanup(&self.pins);
        let _ = std::fs::remove_dir(&self.cgroup);
    }
}

fn check_in_kernel(case: &Case, rows: &Rows, resolver: &TestResolver, clock: &mut u64) -> usize {
    let mut dials = 0;
    for (text, dial, before) in &case.dials {
        let expected = decide(rows, dial, *before, case.rules.no_local_endpoint_action);
        let mut chosen = BTreeSet::new();
        for i in 0..64u32 {
            // So much later than the previous dial that every bucket is full again.
            *clock += 1_000_000_000_000;
            let resolve = || {
                resolver.resolve(dial, i.wrapping_mul(0x0800_0000).wrapping_add(i), u64::from(i) + 1, *clock).unwrap()
            };
            (0..*before).for_each(|_| {
                resolve();
            });
            let verdict = resolve();
            assert_eq!((verdict.action, verdict.reason), (expected.action, expected.reason), "{} {text}", case.name);
            chosen.extend(verdict.chosen.map(|(a, p)| std::net::SocketAddr::new(a.ip(), p).to_string()));
            dials += 1;
        }
        let wanted: BTreeSet<String> = backends(rows, &expected.backends).into_iter().collect();
        assert!(
            chosen.is_subset(&wanted) && chosen.is_empty() == wanted.is_empty(),
            "{} {text}: {chosen:?} of {wanted:?}",
            case.name
        );
        if wanted.len() <= 8 {
            assert_eq!(chosen, wanted, "{} {text}: a backend is never picked", case.name);
        }
    }
    dials
}

#[test]
fn the_bpf_programs_decide_as_planned() {
    let mut dials = 0;
    for no_local_endpoint_action in [NoLocalEndpointAction::Refuse, NoLocalEndpointAction::Drop] {
        let fixture =
            Fixture::new(if no_local_endpoint_action == NoLocalEndpointAction::Drop { "drop" } else { "refuse" });
        let config = Config {
            pin_dir: fixture.pins.clone(),
            cgroup: fixture.cgroup.clone(),
            sizes: SIZES(),
            no_local_endpoint_action,
            skip_rule_check: false,
        };
        let program = Program::open(config).unwrap();
        let (mut kernel, resolver) = (program.kernel().unwrap(), program.test_resolver().unwrap());
        let mut clock = 0;
        let mut tables = Tables::new(SIZES());
        for case in cases().iter().filter(|c| c.rules.no_local_endpoint_action == no_local_endpoint_action) {
            for (delta, _) in deltas(case) {
                let outcome = reconcile(&mut tables, &mut kernel, &delta, true);
                assert!(outcome.is_clean(), "{}: {outcome:?}", case.name);
                let rows = kernel.dump().unwrap();
                assert!(tables.matches(&rows), "{}: the kernel tables differ from the plan", case.name);
                dials += check_in_kernel(case, &rows, &resolver, &mut clock);
            }
            tables.recycle(&mut kernel).unwrap();
        }
    }
    println!("{dials} dials resolved in the kernel");
    assert!(dials > 5000);
}
