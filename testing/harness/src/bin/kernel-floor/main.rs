//! Does this kernel do all that we need? Load, attach, every way to dial, refuse, cut off, restart, clean up; a line for
//! each. Made to be the one program of a guest (`scripts/kernels.sh`), and runs anywhere else too.

mod check;
mod dials;
mod life;
mod policies;

use std::process::ExitCode;

use anyhow::Result;
use beeline_harness::{Example, interrupt};

use crate::check::Checks;

fn main() -> ExitCode {
    interrupt::catch();
    let mut checks = Checks::default();
    checks.check("the whole run", |checks| run(checks).map(|()| ""));
    println!("RESULT: {} passed, {} failed", checks.passed, checks.failed);
    if checks.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn run(checks: &mut Checks) -> Result<()> {
    beeline_harness::require()?;
    let mut example = Example::build()?;
    life::attached(&example, checks);
    dials::sockets(&example, checks);
    dials::addresses(&example, checks);
    dials::refusals(&example, checks);
    life::watched(&example, checks);
    policies::policies(&example, checks);
    life::cut_off(&mut example, checks);
    life::restarted(&mut example, checks);
    life::cleaned(&mut example, checks);
    Ok(())
}
