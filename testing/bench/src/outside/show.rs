//! The figures as a table, rows for machines, and a picture.

use std::{collections::BTreeMap, path::Path};

use anyhow::Result;
use plotters::prelude::*;

use super::{
    crew::{Amount, CREW, Feat, Figures},
    way::Way,
};
use crate::{
    plot::{self, Scale, Series, failed},
    report::{Report, Row, Table, ratio},
};

pub fn preface(rounds: usize, amount: Amount) {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    println!(
        "From one host outside to one service of 20 pods on two nodes, kube-proxy {} (nftables),",
        kit::program::KUBERNETES.version()
    );
    println!(
        "Linux {release}. Rounds: {rounds}. Held: {} connections at once by {CREW} processes, each asked once all are there.",
        amount.held
    );
    println!(
        "Reset: {} dials that are reset. Closed: {} dials that the host closes in order, so that its ports wait.",
        amount.reset, amount.closed
    );
}

pub fn table(report: &mut Report, amount: Amount, all: &BTreeMap<Way, Figures>) {
    let columns =
        ["", "held", "alive", "filled, s", "reset, 1/s", "x", "closed, 1/s", "x", "failed: held", "reset", "closed"];
    let mut table = Table::new(
        format!("{} connections, and dials per second; x: against one node's nodePort", amount.held),
        &columns,
    );
    let plain = all.get(&Way::Plain);
    for (way, own) in all {
        let over = |of: fn(&Figures) -> f64| plain.map_or_else(String::new, |plain| ratio(of(own), of(plain)));
        let failures = [(Feat::Held, amount.held), (Feat::Reset, amount.reset), (Feat::Closed, amount.closed)];
        let failures = failures.map(|(feat, tries)| format!("{} of {}", own.failures(feat), tries * own.filled.len()));
        let cells = [
            own.held.to_string(),
            own.alive.to_string(),
            format!("{:.1}", own.filled.p50() / 1e3),
            format!("{:.0}", own.reset.p50()),
            over(|f| f.reset.p50()),
            format!("{:.0}", own.closed.p50()),
            over(|f| f.closed.p50()),
        ];
        table.line(way.name(), cells.into_iter().chain(failures));
        rows(report, amount, *way, own);
    }
    print!("{table}");
    reasons(all);
}

fn rows(report: &mut Report, amount: Amount, way: Way, own: &Figures) {
    let row = |name: &str, value: f64, unit| Row::new(format!("{name}/{}", way.name()), value, unit);
    let rounds = own.filled.len();
    let lost = row("connections that could not be held", (amount.held - own.alive) as f64, "of n").samples(amount.held);
    // What is promised is promised of Beeline.
    report.row(if way.pods().is_some() { lost.at_most(0.0) } else { lost });
    report.row(row("until all are held", own.filled.p50() / 1e3, "s").samples(rounds));
    report.row(row("dials that are reset", own.reset.p50(), "1/s").samples(rounds));
    report.row(row("dials that are closed in order", own.closed.p50(), "1/s").samples(rounds));
    for (feat, tries) in [(Feat::Reset, amount.reset), (Feat::Closed, amount.closed)] {
        let name = format!("{} dials that failed", feat.name());
        let failed = row(&name, own.failures(feat) as f64, "of n").samples(tries * rounds);
        report.row(if way.pods().is_some() { failed.at_most(0.0) } else { failed });
    }
}

/// Why dials failed, where some did.
fn reasons(all: &BTreeMap<Way, Figures>) {
    let mut table = Table::new("Failures, of all rounds", &["", "what", "number"]);
    let mut any = false;
    for (way, own) in all {
        for (feat, reason, number) in summed(own) {
            any = true;
            table.line(way.name(), [format!("{}: {reason}", feat.name()), number.to_string()]);
        }
    }
    if any {
        print!("{table}");
    }
}

fn summed(own: &Figures) -> impl Iterator<Item = (Feat, &str, usize)> {
    let mut all: BTreeMap<(Feat, &str), usize> = BTreeMap::new();
    for (feat, reasons) in &own.failed {
        reasons.iter().for_each(|(reason, number)| *all.entry((*feat, reason)).or_default() += number);
    }
    all.into_iter().map(|((feat, reason), number)| (feat, reason, number))
}

type Panel = (&'static str, &'static str, fn(&Figures) -> f64);

const PANELS: [Panel; 3] = [
    ("Connections at once that answered", "connections", |f| f.alive as f64),
    ("Dials that are reset", "1/s", |f| f.reset.p50()),
    ("Dials that are closed in order", "1/s", |f| f.closed.p50()),
];

pub fn plot(file: &Path, all: &BTreeMap<Way, Figures>) -> Result<()> {
    let picture = SVGBackend::new(file, (1000, 1200)).into_drawing_area();
    picture.fill(&WHITE).map_err(failed)?;
    for (area, (title, unit, of)) in picture.split_evenly((3, 1)).iter().zip(PANELS) {
        let series = |way: Way| Series { name: way.name().into(), values: vec![all.get(&way).map_or(0.0, of)] };
        plot::bars(area, title, unit, &["one host, one service"], &Way::ALL.map(series), Scale::Even)?;
    }
    picture.present().map_err(failed)
}
