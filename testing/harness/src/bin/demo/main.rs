//! The main job, shown on one machine: real backends in network namespaces, the agent on the manifests of
//! `examples/manifests`, every kind of address dialled, a backend killed, one table of what came of it. All that it makes
//! is its own, and is gone again at the end, also after Ctrl-C or a failure.

mod stage;
mod story;
mod table;

use std::{process::ExitCode, time::Instant};

use anyhow::{Result, ensure};
use beeline_harness::{Example, interrupt};

use crate::table::Table;

fn main() -> ExitCode {
    interrupt::catch();
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) if interrupt::seen() => {
            eprintln!("\ndemo: interrupted; what it had made is removed");
            ExitCode::from(130)
        }
        Err(error) => {
            eprintln!("demo: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let start = Instant::now();
    beeline_harness::require()?;
    let mut example = Example::build()?;
    println!("{}", stage::map(&example));
    let mut table = Table::begin();
    story::every_address(&example, &mut table)?;
    story::a_backend_dies(&mut example, &mut table)?;
    println!();
    story::ask(&example, &["status"])?;
    story::ask(&example, &["explain", "10.96.0.10:80/TCP"])?;
    stage::clear(example)?;
    let (rows, faults) = (table.rows(), table.faults());
    ensure!(faults == 0, "{faults} of {rows} rows are not as expected, see above");
    println!("demo: {rows} of {rows} as expected, in {:.1} s; nothing is left behind", start.elapsed().as_secs_f64());
    Ok(())
}
