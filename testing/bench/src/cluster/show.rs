//! The figures as tables with what was to be reached beside them, rows for machines, and a picture.

use std::path::Path;

use anyhow::Result;
use plotters::prelude::*;

use super::{
    Sized,
    change::Changes,
    contender::Contender,
    line::{LINES, MB, MS, S, US},
    turn::Figures,
};
use crate::{
    plot::{self, Scale, Series, failed},
    report::{Report, Row, Table},
};

pub fn preface(rounds: usize) {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let version = kit::program::KUBERNETES.version();
    println!("A node against a real API server: Beeline {} and", env!("CARGO_PKG_VERSION"));
    println!("kube-proxy {version} (nftables; iptables with the legacy tables), Linux {release}.");
    println!("Turns of each contender at each size: {rounds}, on a node made anew for each. In brackets: samples.");
    println!("Effect: from the API server's answer to the first dial of a pod that met the change. A percentile of n");
    println!("samples is one of them: with n < 100 the p99 is the slowest.");
}

pub fn table(report: &mut Report, sized: &Sized) {
    let names: Vec<&str> = sized.figures.keys().map(|who| who.name()).collect();
    let columns: Vec<&str> = [""].into_iter().chain(names).chain(["bar for Beeline", "reached"]).collect();
    let mut table = Table::new(format!("{} services of 10 endpoints", sized.services), &columns);
    for line in &LINES {
        let rows: Vec<Row> =
            sized.figures.iter().map(|(who, figures)| line.row(sized.services, *who, figures)).collect();
        let cells = rows.iter().map(|row| cell(row, line.digits));
        table.line(&format!("{}, {}", line.name, line.unit), cells.chain(promise(rows.iter())));
        rows.into_iter().for_each(|row| report.row(row));
    }
    counts(report, &mut table, sized);
    print!("{table}");
    compare(report, sized);
}

fn cell(row: &Row, digits: usize) -> String {
    format!("{:.digits$} ({})", row.value, row.n.unwrap_or_default())
}

fn promise<'a>(mut rows: impl Iterator<Item = &'a Row>) -> Vec<String> {
    let promised = rows.find_map(|row| Some((row.bar?, row.holds?)));
    let word = |holds| if holds { "yes" } else { "MISSED" };
    promised.map_or_else(Vec::new, |(bar, holds)| vec![format!("<= {bar}"), word(holds).into()])
}

/// What went wrong, with how often it might have.
fn counts(report: &mut Report, table: &mut Table, sized: &Sized) {
    type Count = fn(&Figures) -> (u64, u64);
    let lines: [(&str, Count); 4] = [
        ("services that did not answer when the last one did", |f| (f.late, f.asked)),
        ("dials and requests that failed", |f| (f.traffic.failed, f.traffic.tried)),
        ("endpoints met before the API server's answer (as 0 ms)", |f| early(&f.endpoint)),
        ("services met before the API server's answer (as 0 ms)", |f| early(&f.service)),
    ];
    for (name, count) in lines {
        let counted: Vec<_> = sized.figures.iter().map(|(who, figures)| (who.name(), count(figures))).collect();
        table.line(name, counted.iter().map(|(_, (some, all))| format!("{some} of {all}")));
        for (who, (some, all)) in counted {
            report.row(Row::new(format!("{name}/{}/{who}", sized.services), some as f64, "of n").samples(all as usize));
        }
    }
    let resolution = |changes: &Changes| format!("{:.2} ({})", changes.interval.p50() / MS, changes.interval.len());
    let name = "from one dial to the next while looking for";
    let figures = || sized.figures.values();
    table.line(&format!("{name} an endpoint, p50, ms"), figures().map(|f| resolution(&f.endpoint)));
    table.line(&format!("{name} a service, p50, ms"), figures().map(|f| resolution(&f.service)));
}

fn early(changes: &Changes) -> (u64, u64) {
    (changes.early as u64, changes.kernel.len() as u64)
}

/// Beeline against the better of kube-proxy's modes, and against dialling the pod.
fn compare(report: &mut Report, sized: &Sized) {
    let Some(own) = sized.figures.get(&Contender::Beeline) else { return };
    let services = sized.services;
    let rivals: Vec<&Figures> =
        sized.figures.iter().filter(|(who, _)| **who != Contender::Beeline).map(|(_, figures)| figures).collect();
    if let Some(least) = rivals.iter().map(|rival| rival.memory.percentile(1.0)).min_by(f64::total_cmp) {
        let over = own.memory.percentile(1.0) / least;
        report.row(Row::new(format!("peak memory over the leaner kube-proxy's/{services}"), over, "x").at_most(1.0));
    }
    if let Some(best) = rivals.iter().map(|rival| rival.traffic.fresh[0].p50()).max_by(f64::total_cmp) {
        let over = best / own.traffic.fresh[0].p50().max(1.0);
        let name = format!("fresh requests of the faster kube-proxy over Beeline's/{services}");
        report.row(Row::new(name, over, "x").at_most(1.0));
    }
    let short = 100.0 * (1.0 - own.traffic.kept[0].p50() / own.traffic.kept[1].p50().max(1.0));
    report.row(Row::new(format!("kept requests short of direct/{services}"), short, "%").at_most(2.0));
}

/// Every promise, and whether it was kept.
pub fn verdict(report: &Report) {
    let mut table = Table::new("To reach", &["", "value", "at most", "unit", "reached"]);
    for row in report.rows() {
        if let (Some(bar), Some(holds)) = (row.bar, row.holds) {
            let word = if holds { "yes" } else { "MISSED" };
            table.line(&row.name, [format!("{:.2}", row.value), bar.to_string(), row.unit.into(), word.into()]);
        }
    }
    print!("{table}");
}

/// Title, unit, scale and value.
type Panel = (&'static str, &'static str, Scale, fn(&Figures) -> f64);

const PANELS: [Panel; 6] = [
    ("Cold start until the last service answers", "s", Scale::Powers, |f| f.cold.p50() / S),
    ("One endpoint, write sent to dialled (p50)", "ms", Scale::Powers, |f| f.endpoint.sent.p50() / MS),
    ("One new service, write sent to dialled (p50)", "ms", Scale::Powers, |f| f.service.sent.p50() / MS),
    ("Peak memory of the agent", "MB", Scale::Powers, |f| f.memory.percentile(1.0) / MB),
    ("connect() of a pod (p50)", "us", Scale::Even, |f| f.traffic.connect[0].p50() / US),
    ("Requests over fresh connections", "1/s", Scale::Even, |f| f.traffic.fresh[0].p50()),
];

pub fn plot(file: &Path, all: &[Sized]) -> Result<()> {
    let picture = SVGBackend::new(file, (1300, 1200)).into_drawing_area();
    picture.fill(&WHITE).map_err(failed)?;
    let groups: Vec<String> = all.iter().map(|sized| format!("{} services", sized.services)).collect();
    let groups: Vec<&str> = groups.iter().map(String::as_str).collect();
    for (area, (title, unit, scale, of)) in picture.split_evenly((3, 2)).iter().zip(PANELS) {
        let value = |sized: &Sized, who| sized.figures.get(&who).map_or(0.0, of);
        let series = Contender::ALL
            .map(|who| Series { name: who.name().into(), values: all.iter().map(|sized| value(sized, who)).collect() });
        plot::bars(area, title, unit, &groups, &series, scale)?;
    }
    picture.present().map_err(failed)
}
