//! Design candidates, measured: where the per-socket record lives, and how the tables are laid out.
//!
//! Nothing here is the product; this keeps the figures that decided repeatable. Compare within a run only: between runs
//! the medians of dials differ by up to a tenth, and a resolve among 100,000 services by a quarter, while the ratios stay.

mod record;
mod show;
mod tables;

use std::path::Path;

use anyhow::Result;

use crate::report::Report;

pub fn run(directory: &Path) -> Result<()> {
    let mut report = Report::new("candidates", directory)?;
    let records = record::measure()?;
    show::record(&mut report, &records);
    let mut resolves = Vec::new();
    for services in tables::SIZES {
        let figures = tables::measure(services)?;
        show::tables(&mut report, services, &figures);
        resolves.push(figures);
    }
    report.write()?;
    show::plot(&report.file("svg"), &records, &resolves)?;
    println!("\nWrote {} and {}.", report.file("json").display(), report.file("svg").display());
    Ok(())
}
