//! The cases on maps with failing writes: between two writes, every dial gets the old verdict or the new one.

use super::*;

type DialAnswer = (Action, Reason, BTreeSet<String>);

fn answers(case: &Case, rows: &Rows) -> Vec<DialAnswer> {
    let answer = |dial: &Dial, before: usize| {
        let v = decide(rows, dial, before, case.rules.no_local_endpoint_action);
        (v.action, v.reason, backends(rows, &v.backends).into_iter().collect())
    };
    case.dials.iter().map(|(_, dial, before)| answer(dial, *before)).collect()
}

/// Maps in memory that check every dial of the case after each write.
struct CheckedMaps<'a> {
    case: &'a Case,
    memory: MemoryMaps,
    allowed: [Vec<DialAnswer>; 2],
    /// Backends of sets with lower precedence. If the write of a Service failed, they serve when its policy has no backend
    /// any more.
    lower: Vec<BTreeSet<String>>,
    checks: usize,
}

fn lower_backends(case: &Case, rows: &Rows) -> Vec<BTreeSet<String>> {
    let chain = |dial: &Dial, before: usize| {
        let verdict = decide(rows, dial, before, case.rules.no_local_endpoint_action);
        let next = |id: SetId| rows.sets.get(id).map(|set| set.header.next).filter(|next| *next != SET_NONE);
        let sets = std::iter::successors(verdict.path.last().and_then(|id| next(*id)), |id| next(*id)).take(3);
        let members = sets.filter_map(|id| rows.sets.get(id)).flat_map(|set| rows.members(set).to_vec());
        backends(rows, &members.collect::<Vec<_>>()).into_iter().collect()
    };
    case.dials.iter().map(|(_, dial, before)| chain(dial, *before)).collect()
}

impl Maps for CheckedMaps<'_> {
    fn write(&mut self, op: &Op) -> Result<(), MapError> {
        self.memory.write(op)?;
        for (i, (action, reason, backends)) in answers(self.case, &self.memory.rows).into_iter().enumerate() {
            let [old, new] = [&self.allowed[0][i], &self.allowed[1][i]];
            let is_allowed = [old, new].iter().any(|a| (a.0, a.1) == (action, reason));
            let allowed = [&old.2, &new.2, &self.lower[i]];
            let are_allowed = backends.iter().all(|b| allowed.iter().any(|all| all.contains(b)));
            let dial = &self.case.dials[i].0;
            assert!(
                is_allowed && are_allowed,
                "{} {dial}: {action:?} {reason:?} {backends:?} after {op:?}\nold {old:?}\nnew {new:?}",
                self.case.name
            );
            self.checks += 1;
        }
        Ok(())
    }

    fn dump(&self) -> Result<Rows, MapError> {
        self.memory.dump()
    }

    fn wait_grace_period(&mut self) -> Result<(), MapError> {
        Ok(())
    }

    fn sizes(&self) -> Sizes {
        self.memory.sizes
    }
}

/// Runs all steps of a case on maps whose writes fail as `fails` says, and repeats until everything is written. Returns the
/// number of writes and of checked dials.
fn run_faulty(case: &Case, fails: impl FnMut(u64) -> bool + Send + Clone + 'static) -> (u64, usize) {
    let steps = deltas(case);
    let (mut clean_tables, mut clean) = (Tables::new(SIZES()), MemoryMaps::new(SIZES()));
    let mut tables = Tables::new(SIZES());
    let allowed = [answers(case, &clean.rows), Vec::new()];
    let lower = lower_backends(case, &clean.rows);
    let checked = CheckedMaps { case, memory: MemoryMaps::new(SIZES()), allowed, lower, checks: 0 };
    let mut faulty = FaultyMaps::new(checked, fails);
    for (i, (delta, _)) in steps.iter().enumerate() {
        reconcile(&mut clean_tables, &mut clean, delta, i == 0);
        faulty.inner.allowed[1] = answers(case, &clean.rows);
        let mut tries = 0;
        while !reconcile(&mut tables, &mut faulty, delta, i == 0).is_clean() {
            tries += 1;
            assert!(tries < 200, "{}: not written after 200 attempts", case.name);
        }
        assert_eq!(answers(case, &faulty.inner.memory.rows), faulty.inner.allowed[1], "{}", case.name);
        assert_eq!(frontends(case, &faulty.inner.memory.rows), frontends(case, &clean.rows), "{}", case.name);
        faulty.inner.allowed[0] = faulty.inner.allowed[1].clone();
        faulty.inner.lower = lower_backends(case, &clean.rows);
    }
    (faulty.writes, faulty.inner.checks)
}

#[test]
fn a_failed_write_leaves_the_old_verdict_or_the_new_one() {
    let (mut runs, mut checks) = (0, 0);
    let first_seed = test_seed(1);
    for case in cases() {
        let (writes, checked) = run_faulty(&case, |_| false);
        checks += checked;
        for k in 1..=writes {
            checks += run_faulty(&case, move |n| n == k).1;
            runs += 1;
        }
        for number in first_seed..first_seed + 20 {
            let mut state = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            checks += run_faulty(&case, move |_| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                state % 10 == 0
            })
            .1;
            runs += 1;
        }
    }
    println!("{runs} runs with failures, {checks} dials checked between writes");
}
