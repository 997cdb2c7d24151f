//! Benches of design candidates: storage of the per-socket record, and layout of the maps.
//!
//! The product does not use this code; it keeps the measurements behind the design repeatable. Compare values of one
//! run only: between runs medians of dials differ by up to 10 % and of a resolve with 100,000 services by 25 %, but
//! ratios do not.

mod output;
mod record;
mod tables;

use std::path::Path;

use anyhow::Result;

use crate::report::BenchReport;

pub fn run(directory: &Path) -> Result<()> {
    let mut report = BenchReport::new("candidates", directory)?;
    let records = record::measure()?;
    output::record(&mut report, &records);
    let mut resolves = Vec::new();
    for services in tables::SIZES {
        let figures = tables::measure(services)?;
        output::tables(&mut report, services, &figures);
        resolves.push(figures);
    }
    report.write()?;
    output::plot(&report.file("svg"), &records, &resolves)?;
    println!("\nWrote {} and {}.", report.file("json").display(), report.file("svg").display());
    Ok(())
}
