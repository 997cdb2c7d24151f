//! What the hook itself costs: by the kernel's run-time statistics of the connect hook, record and counters included,
//! and by the door, which makes the decision alone in a tight loop.
//!
//! The statistics read the clock twice a run, which is part of what they tell (some 20 ns).

use std::net::{IpAddr, Ipv4Addr};

use anyhow::{Context, Result, ensure};
use beeline_datapath::{Door, query};
use beeline_model::{Address, Protocol, resolve::Dial};

use super::{
    beeline::Beeline,
    site::{BEELINE, Site, UDP, UNUSED, USED},
    world::{BACKENDS, FIRST_POD, FIRST_SERVICE, POD_PORT, SERVICE_PORT},
};
use crate::{
    ground::ThreadGroup,
    stats::{Samples, turns},
};

pub const CASES: [&str; 4] = ["miss, port unused", "miss, port used", "TCP hit", "UDP hit"];
const DIALLED: [usize; 4] = [UNUSED, USED, BEELINE, UDP];
const ROUNDS: usize = 60;
const DIALS: u32 = 100;
const DECISIONS: u32 = 20_000;

/// Nanoseconds, in the order of [`CASES`]; the median of many means.
pub struct Figures {
    pub hook: [f64; 4],
    pub decision: [f64; 4],
}

pub fn measure(site: &Site) -> Result<Figures> {
    Ok(Figures { hook: by_statistics(site)?, decision: by_door(site)? })
}

fn by_statistics(site: &Site) -> Result<[f64; 4]> {
    let programs = [connect_hook(&site.groups.tcp)?, connect_hook(&site.groups.udp)?];
    let program = |case: usize| programs[usize::from(DIALLED[case] == UDP)];
    // Until it is dropped; closing the descriptor is enough for the kernel to stop.
    let _timing = query::time_programs()?;
    let mut samples: [Samples; 4] = Default::default();
    for case in turns(CASES.len(), ROUNDS, 4) {
        let before = run_time(program(case))?;
        site.turn(DIALLED[case], DIALS)?;
        let after = run_time(program(case))?;
        let runs = after.0 - before.0;
        ensure!(runs == u64::from(DIALS), "{}: the hook ran {runs} times in {DIALS} dials", CASES[case]);
        samples[case].push((after.1 - before.1) * 1_000 / runs);
    }
    Ok(samples.map(|samples| samples.p50() / 1_000.0))
}

fn connect_hook(group: &ThreadGroup) -> Result<u32> {
    let attached = query::attached(group.path())?;
    Ok(attached.iter().find(|program| program.hook == "connect4").context("nothing is at connect4")?.id)
}

fn run_time(program: u32) -> Result<(u64, u64)> {
    query::run_time(program).context("the hook's program is gone")
}

fn by_door(site: &Site) -> Result<[f64; 4]> {
    let (tcp, udp) = (door(&site.tcp)?, door(&site.udp)?);
    let pods = site.services * BACKENDS;
    let cases: [(&Door, Dial, u32); 4] = [
        (&tcp, dial(FIRST_POD, POD_PORT, Protocol::Tcp), pods),
        (&tcp, dial(FIRST_POD, SERVICE_PORT, Protocol::Tcp), pods),
        (&tcp, dial(FIRST_SERVICE, SERVICE_PORT, Protocol::Tcp), site.services),
        (&udp, dial(FIRST_SERVICE, SERVICE_PORT, Protocol::Udp), site.services),
    ];
    let mut samples: [Samples; 4] = Default::default();
    for case in turns(cases.len(), ROUNDS, 5) {
        let (door, dial, spread) = &cases[case];
        let toll = door.besiege(dial, DECISIONS, 0, *spread)?;
        let expected = if case < 2 { toll.untouched } else { toll.resolved };
        ensure!(expected == u64::from(DECISIONS), "{}: {toll:?}", CASES[case]);
        samples[case].push(toll.nanos * 1_000 / u64::from(DECISIONS));
    }
    Ok(samples.map(|samples| samples.p50() / 1_000.0))
}

fn door(beeline: &Beeline) -> Result<Door> {
    Ok(beeline.program.as_ref().context("no program")?.door()?)
}

fn dial(first: Ipv4Addr, port: u16, protocol: Protocol) -> Dial {
    Dial::to(Address::from(IpAddr::from(first)), port, protocol)
}
