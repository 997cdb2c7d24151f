//! Cost of the connect hook: by the kernel's run-time statistics, including record and counters, and by the test
//! resolver, which runs only the decision in a loop.
//!
//! The statistics include two clock reads per run (about 20 ns).

use std::net::{IpAddr, Ipv4Addr};

use anyhow::{Context, Result, ensure};
use beeline_datapath::{TestResolver, query};
use beeline_model::{Address, Protocol, resolve::Dial};

use super::{
    beeline::Beeline,
    objects::{BACKENDS, FIRST_POD, FIRST_SERVICE, POD_PORT, SERVICE_PORT},
    setup::{BEELINE, BenchSetup, UDP, UNUSED, USED},
};
use crate::{
    isolation::ThreadGroup,
    stats::{Samples, random_rounds},
};

pub const CASES: [&str; 4] = ["miss, port unused", "miss, port used", "TCP hit", "UDP hit"];
const VARIANT_OF_CASE: [usize; 4] = [UNUSED, USED, BEELINE, UDP];
const ROUNDS: usize = 60;
const DIALS: u32 = 100;
const DECISIONS: u32 = 20_000;

/// Nanoseconds in the order of [`CASES`]: medians of many means.
pub struct HookFigures {
    pub hook: [f64; 4],
    pub decision: [f64; 4],
}

pub fn measure(setup: &BenchSetup) -> Result<HookFigures> {
    Ok(HookFigures { hook: by_statistics(setup)?, decision: by_test_resolver(setup)? })
}

fn by_statistics(setup: &BenchSetup) -> Result<[f64; 4]> {
    let programs = [connect_hook(&setup.groups.tcp)?, connect_hook(&setup.groups.udp)?];
    let program = |case: usize| programs[usize::from(VARIANT_OF_CASE[case] == UDP)];
    // The kernel collects statistics until the descriptor is closed.
    let _timing = query::enable_run_time_stats()?;
    let mut samples: [Samples; 4] = Default::default();
    for case in random_rounds(CASES.len(), ROUNDS, 4) {
        let before = run_time(program(case))?;
        setup.dial(VARIANT_OF_CASE[case], DIALS)?;
        let after = run_time(program(case))?;
        let runs = after.0 - before.0;
        ensure!(runs == u64::from(DIALS), "{}: the hook ran {runs} times in {DIALS} dials", CASES[case]);
        samples[case].push((after.1 - before.1) * 1_000 / runs);
    }
    Ok(samples.map(|samples| samples.p50() / 1_000.0))
}

fn connect_hook(group: &ThreadGroup) -> Result<u32> {
    let attached = query::attached(group.path())?;
    Ok(attached.iter().find(|program| program.hook == "connect4").context("no program is attached to connect4")?.id)
}

fn run_time(program: u32) -> Result<(u64, u64)> {
    query::run_time(program).context("the hook's program no longer exists")
}

fn by_test_resolver(setup: &BenchSetup) -> Result<[f64; 4]> {
    let (tcp, udp) = (resolver(&setup.tcp)?, resolver(&setup.udp)?);
    let pods = setup.services * BACKENDS;
    let cases: [(&TestResolver, Dial, u32); 4] = [
        (&tcp, dial(FIRST_POD, POD_PORT, Protocol::Tcp), pods),
        (&tcp, dial(FIRST_POD, SERVICE_PORT, Protocol::Tcp), pods),
        (&tcp, dial(FIRST_SERVICE, SERVICE_PORT, Protocol::Tcp), setup.services),
        (&udp, dial(FIRST_SERVICE, SERVICE_PORT, Protocol::Udp), setup.services),
    ];
    let mut samples: [Samples; 4] = Default::default();
    for case in random_rounds(cases.len(), ROUNDS, 5) {
        let (resolver, dial, spread) = &cases[case];
        let counts = resolver.resolve_many(dial, DECISIONS, 0, *spread)?;
        let expected = if case < 2 { counts.untouched } else { counts.resolved };
        ensure!(expected == u64::from(DECISIONS), "{}: {counts:?}", CASES[case]);
        samples[case].push(counts.nanos * 1_000 / u64::from(DECISIONS));
    }
    Ok(samples.map(|samples| samples.p50() / 1_000.0))
}

fn resolver(beeline: &Beeline) -> Result<TestResolver> {
    Ok(beeline.program.as_ref().context("no program")?.test_resolver()?)
}

fn dial(first: Ipv4Addr, port: u16, protocol: Protocol) -> Dial {
    Dial::to(Address::from(IpAddr::from(first)), port, protocol)
}
