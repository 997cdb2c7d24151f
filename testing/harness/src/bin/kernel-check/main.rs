//! Checks whether this kernel supports everything Beeline needs: load, attach, dial, refuse, close stale sockets,
//! restart, clean up. It prints one line per check. `scripts/kernels.sh` runs it as the only program of a guest.

mod check;
mod dials;
mod life;
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
    life::attached(&example, checks);
    dials::sockets(&example, checks);
    dials::addresses(&example, checks);
    dials::refusals(&example, checks);
    life::visible(&example, checks);
    policies::policies(&example, checks);
    life::endpoint_removed(&mut example, checks);
    life::restarted(&mut example, checks);
    life::cleaned(&mut example, checks);
    Ok(())
}
