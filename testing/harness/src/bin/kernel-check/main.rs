//! Checks whether this kernel supports everything Beeline needs: load, attach, dial, refuse, close stale sockets,
//! restart, clean up, dial while everything changes. It prints one line per check. `scripts/kernels.sh` runs it as the
//! only program of a guest.

mod check;
mod churn;
mod code;
mod dials;
mod lifecycle;
mod nfs;
mod packets;
mod policies;

use std::process::ExitCode;

use anyhow::Result;
use beeline_harness::{ExampleCluster, interrupt};

use crate::check::Checks;

fn main() -> ExitCode {
    interrupt::install_handler();
    let mut checks = Checks::default();
    checks.check("the whole run", |checks| run(checks).map(|()| ""));
    println!("RESULT: {} passed, {} failed", checks.passed, checks.failed);
    if checks.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn run(checks: &mut Checks) -> Result<()> {
    beeline_harness::check_requirements()?;
    let mut example = ExampleCluster::build()?;
    lifecycle::attached(&example, checks);
    code::loaded(&example, checks);
    dials::sockets(&example, checks);
    dials::addresses(&example, checks);
    dials::refusals(&example, checks);
    lifecycle::visible(&example, checks);
    policies::policies(&example, checks);
    lifecycle::endpoint_removed(&mut example, checks);
    lifecycle::restarted(&mut example, checks);
    lifecycle::cleaned(&mut example, checks);
    churn::churn(&example.network, checks);
    packets::packets(checks);
    // The last one: it leaves an agent at the root cgroup of the guest.
    nfs::mounted(&mut example, checks);
    Ok(())
}
