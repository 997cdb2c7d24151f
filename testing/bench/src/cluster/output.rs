//! Prints the results with their limits as tables, and writes report rows and a plot.

use std::path::Path;

use anyhow::Result;
use plotters::prelude::*;

use super::{
    SizeResult,
    change::Changes,
    contender::Contender,
    line::{LINES, MB, MS, S, US},
    measurement::ContenderFigures,
};
use crate::{
    plot::{self, AxisScale, Series, draw_error},
    report::{BenchReport, ReportRow, TextTable},
};

pub fn print_header(rounds: usize) {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let version = kit::program::KUBERNETES.version();
    println!("A node with a real API server: Beeline {} and", env!("CARGO_PKG_VERSION"));
    println!("kube-proxy {version} (nftables; iptables with the legacy tables), Linux {release}.");
    println!(
        "Measurements of each contender at each size: {rounds}, each on a new node. Number of samples in brackets."
    );
    println!("Effect: from the API server's response to the first dial that uses the change. A percentile of n");
    println!("samples is one of them: with n < 100 the p99 is the slowest one.");
}

pub fn table(report: &mut BenchReport, result: &SizeResult) {
    let names: Vec<&str> = result.figures.keys().map(|contender| contender.name()).collect();
    let columns: Vec<&str> = [""].into_iter().chain(names).chain(["limit for Beeline", "met"]).collect();
    let mut table = TextTable::new(format!("{} services of 10 endpoints", result.services), &columns);
    for line in &LINES {
        let rows: Vec<ReportRow> =
            result.figures.iter().map(|(contender, figures)| line.row(result.services, *contender, figures)).collect();
        let cells = rows.iter().map(|row| cell(row, line.digits));
        table.line(&format!("{}, {}", line.name, line.unit), cells.chain(limit_cells(rows.iter())));
        rows.into_iter().for_each(|row| report.row(row));
    }
    counts(report, &mut table, result);
    print!("{table}");
    compare(report, result);
}

fn cell(row: &ReportRow, digits: usize) -> String {
    format!("{:.digits$} ({})", row.value, row.n.unwrap_or_default())
}

fn limit_cells<'a>(mut rows: impl Iterator<Item = &'a ReportRow>) -> Vec<String> {
    let limit = rows.find_map(|row| Some((row.limit?, row.met?)));
    let word = |is_met| if is_met { "yes" } else { "EXCEEDED" };
    limit.map_or_else(Vec::new, |(limit, is_met)| vec![format!("<= {limit}"), word(is_met).into()])
}

/// Adds lines with the number of failures and of attempts.
fn counts(report: &mut BenchReport, table: &mut TextTable, result: &SizeResult) {
    type Count = fn(&ContenderFigures) -> (u64, u64);
    let lines: [(&str, Count); 4] = [
        ("services that did not answer when the last one did", |f| (f.late, f.dialled)),
        ("dials and requests that failed", |f| (f.traffic.failed, f.traffic.tried)),
        ("endpoints in effect before the API server's response (as 0 ms)", |f| early(&f.endpoint)),
        ("services in effect before the API server's response (as 0 ms)", |f| early(&f.service)),
    ];
    for (name, count) in lines {
        let counted: Vec<_> =
            result.figures.iter().map(|(contender, figures)| (contender.name(), count(figures))).collect();
        table.line(name, counted.iter().map(|(_, (some, all))| format!("{some} of {all}")));
        for (contender, (some, all)) in counted {
            report.row(
                ReportRow::new(format!("{name}/{}/{contender}", result.services), some as f64, "of n")
                    .samples(all as usize),
            );
        }
    }
    let resolution = |changes: &Changes| format!("{:.2} ({})", changes.interval.p50() / MS, changes.interval.len());
    let name = "interval of dials while waiting for";
    let figures = || result.figures.values();
    table.line(&format!("{name} an endpoint, p50, ms"), figures().map(|f| resolution(&f.endpoint)));
    table.line(&format!("{name} a service, p50, ms"), figures().map(|f| resolution(&f.service)));
}

fn early(changes: &Changes) -> (u64, u64) {
    (changes.early as u64, changes.kernel.len() as u64)
}

/// Compares Beeline with the better of kube-proxy's modes, and with dialling pods directly.
fn compare(report: &mut BenchReport, result: &SizeResult) {
    let Some(own) = result.figures.get(&Contender::Beeline) else { return };
    let services = result.services;
    let others: Vec<&ContenderFigures> = result
        .figures
        .iter()
        .filter(|(contender, _)| **contender != Contender::Beeline)
        .map(|(_, figures)| figures)
        .collect();
    if let Some(least) = others.iter().map(|other| other.memory.percentile(1.0)).min_by(f64::total_cmp) {
        let over = own.memory.percentile(1.0) / least;
        report.row(
            ReportRow::new(format!("peak memory relative to the smaller kube-proxy's/{services}"), over, "x")
                .at_most(1.0),
        );
    }
    if let Some(best) = others.iter().map(|other| other.traffic.fresh[0].p50()).max_by(f64::total_cmp) {
        let over = best / own.traffic.fresh[0].p50().max(1.0);
        let name = format!("fresh requests of the faster kube-proxy over Beeline's/{services}");
        report.row(ReportRow::new(name, over, "x").at_most(1.0));
    }
    let short = 100.0 * (1.0 - own.traffic.kept[0].p50() / own.traffic.kept[1].p50().max(1.0));
    report.row(ReportRow::new(format!("kept requests short of direct/{services}"), short, "%").at_most(2.0));
}

/// Prints every limit and whether it was met.
pub fn print_limits(report: &BenchReport) {
    let mut table = TextTable::new("Limits", &["", "value", "at most", "unit", "met"]);
    for row in report.rows() {
        if let (Some(limit), Some(is_met)) = (row.limit, row.met) {
            let word = if is_met { "yes" } else { "EXCEEDED" };
            table.line(&row.name, [format!("{:.2}", row.value), limit.to_string(), row.unit.into(), word.into()]);
        }
    }
    print!("{table}");
}

/// Title, unit, scale and value.
type Panel = (&'static str, &'static str, AxisScale, fn(&ContenderFigures) -> f64);

const PANELS: [Panel; 6] = [
    ("Cold start until the last service answers", "s", AxisScale::Logarithmic, |f| f.cold.p50() / S),
    ("One endpoint, write sent to dialled (p50)", "ms", AxisScale::Logarithmic, |f| f.endpoint.sent.p50() / MS),
    ("One new service, write sent to dialled (p50)", "ms", AxisScale::Logarithmic, |f| f.service.sent.p50() / MS),
    ("Peak memory of the agent", "MB", AxisScale::Logarithmic, |f| f.memory.percentile(1.0) / MB),
    ("connect() of a pod (p50)", "us", AxisScale::Linear, |f| f.traffic.connect[0].p50() / US),
    ("Requests over fresh connections", "1/s", AxisScale::Linear, |f| f.traffic.fresh[0].p50()),
];

pub fn plot(file: &Path, all: &[SizeResult]) -> Result<()> {
    let picture = SVGBackend::new(file, (1300, 1200)).into_drawing_area();
    picture.fill(&WHITE).map_err(draw_error)?;
    let groups: Vec<String> = all.iter().map(|result| format!("{} services", result.services)).collect();
    let groups: Vec<&str> = groups.iter().map(String::as_str).collect();
    for (area, (title, unit, scale, of)) in picture.split_evenly((3, 2)).iter().zip(PANELS) {
        let value = |result: &SizeResult, contender| result.figures.get(&contender).map_or(0.0, of);
        let series = Contender::ALL.map(|contender| Series {
            name: contender.name().into(),
            values: all.iter().map(|result| value(result, contender)).collect(),
        });
        plot::bars(area, title, unit, &groups, &series, scale)?;
    }
    picture.present().map_err(draw_error)
}
