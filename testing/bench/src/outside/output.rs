//! Prints the results as a table, and writes report rows and a plot.

use std::{collections::BTreeMap, path::Path};

use anyhow::Result;
use plotters::prelude::*;

use super::{
    path::DialPath,
    processes::{LoadSize, Operation, OutsideFigures, PROCESSES},
};
use crate::{
    plot::{self, AxisScale, Series, draw_error},
    report::{BenchReport, ReportRow, TextTable, ratio},
};

pub fn print_header(rounds: usize, load: LoadSize) {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    println!(
        "From one host outside to one service of 20 pods on two nodes, kube-proxy {} (nftables),",
        kit::program::KUBERNETES.version()
    );
    println!(
        "Linux {release}. Rounds: {rounds}. Held: {} connections at once by {PROCESSES} processes, each checked when all are open.",
        load.held
    );
    println!(
        "Reset: {} dials that are reset. Closed: {} dials that the host closes normally, so that its ports are in TIME_WAIT.",
        load.reset, load.closed
    );
}

pub fn table(report: &mut BenchReport, load: LoadSize, all: &BTreeMap<DialPath, OutsideFigures>) {
    let columns =
        ["", "held", "alive", "filled, s", "reset, 1/s", "x", "closed, 1/s", "x", "failed: held", "reset", "closed"];
    let mut table = TextTable::new(
        format!("{} connections, and dials per second; x: compared with one node's nodePort", load.held),
        &columns,
    );
    let plain = all.get(&DialPath::Plain);
    for (path, own) in all {
        let over = |of: fn(&OutsideFigures) -> f64| plain.map_or_else(String::new, |plain| ratio(of(own), of(plain)));
        let failures = [(Operation::Held, load.held), (Operation::Reset, load.reset), (Operation::Closed, load.closed)];
        let failures =
            failures.map(|(operation, tries)| format!("{} of {}", own.failures(operation), tries * own.filled.len()));
        let cells = [
            own.held.to_string(),
            own.alive.to_string(),
            format!("{:.1}", own.filled.p50() / 1e3),
            format!("{:.0}", own.reset.p50()),
            over(|f| f.reset.p50()),
            format!("{:.0}", own.closed.p50()),
            over(|f| f.closed.p50()),
        ];
        table.line(path.name(), cells.into_iter().chain(failures));
        rows(report, load, *path, own);
    }
    print!("{table}");
    print_failures(all);
}

fn rows(report: &mut BenchReport, load: LoadSize, path: DialPath, own: &OutsideFigures) {
    let row = |name: &str, value: f64, unit| ReportRow::new(format!("{name}/{}", path.name()), value, unit);
    let rounds = own.filled.len();
    let lost = row("connections that could not be held", (load.held - own.alive) as f64, "of n").samples(load.held);
    // Limits apply to Beeline only.
    report.row(if path.pods().is_some() { lost.at_most(0.0) } else { lost });
    report.row(row("until all are held", own.filled.p50() / 1e3, "s").samples(rounds));
    report.row(row("dials that are reset", own.reset.p50(), "1/s").samples(rounds));
    report.row(row("dials that are closed normally", own.closed.p50(), "1/s").samples(rounds));
    for (operation, tries) in [(Operation::Reset, load.reset), (Operation::Closed, load.closed)] {
        let name = format!("{} dials that failed", operation.name());
        let failed = row(&name, own.failures(operation) as f64, "of n").samples(tries * rounds);
        report.row(if path.pods().is_some() { failed.at_most(0.0) } else { failed });
    }
}

/// Prints the reasons of failed dials, if there are any.
fn print_failures(all: &BTreeMap<DialPath, OutsideFigures>) {
    let mut table = TextTable::new("Failures, of all rounds", &["", "what", "number"]);
    let mut any = false;
    for (path, own) in all {
        for (operation, reason, number) in summed(own) {
            any = true;
            table.line(path.name(), [format!("{}: {reason}", operation.name()), number.to_string()]);
        }
    }
    if any {
        print!("{table}");
    }
}

fn summed(own: &OutsideFigures) -> impl Iterator<Item = (Operation, &str, usize)> {
    let mut all: BTreeMap<(Operation, &str), usize> = BTreeMap::new();
    for (operation, reasons) in &own.failed {
        reasons.iter().for_each(|(reason, number)| *all.entry((*operation, reason)).or_default() += number);
    }
    all.into_iter().map(|((operation, reason), number)| (operation, reason, number))
}

type Panel = (&'static str, &'static str, fn(&OutsideFigures) -> f64);

const PANELS: [Panel; 3] = [
    ("Connections at once that answered", "connections", |f| f.alive as f64),
    ("Dials that are reset", "1/s", |f| f.reset.p50()),
    ("Dials that are closed normally", "1/s", |f| f.closed.p50()),
];

pub fn plot(file: &Path, all: &BTreeMap<DialPath, OutsideFigures>) -> Result<()> {
    let picture = SVGBackend::new(file, (1000, 1200)).into_drawing_area();
    picture.fill(&WHITE).map_err(draw_error)?;
    for (area, (title, unit, of)) in picture.split_evenly((3, 1)).iter().zip(PANELS) {
        let series = |path: DialPath| Series { name: path.name().into(), values: vec![all.get(&path).map_or(0.0, of)] };
        plot::bars(area, title, unit, &["one host, one service"], &DialPath::ALL.map(series), AxisScale::Linear)?;
    }
    picture.present().map_err(draw_error)
}
