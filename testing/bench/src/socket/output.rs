//! Prints the results as tables, and writes report rows and a plot.

use std::path::Path;

use anyhow::Result;
use plotters::prelude::*;

use super::{
    SIZES, SizeResult, agent, connect, hook,
    programming::{self, ENDPOINTS, SERVICES},
    setup::{BEELINE, COMPARED, DIRECT, IPTABLES, NFTABLES, UNUSED, USED, VARIANTS},
};
use crate::{
    plot::{self, AxisScale, Series, draw_error},
    report::{BenchReport, ReportRow, TextTable, ratio},
};

const MIB: f64 = 1024.0 * 1024.0;

pub fn print_header() {
    println!("Socket path, Linux {}.", rustix::system::uname().release().to_string_lossy());
    println!("All variants alternate in random order. `over` and `x` compare with a direct dial. Times in us.");
}

/// Difference of the medians in microseconds.
fn over(result: &SizeResult, variant: usize, reference: usize) -> f64 {
    (result.connect[variant].p50() - result.connect[reference].p50()) / 1_000.0
}

/// Limit for the time that a Service adds to connect(), in microseconds.
fn limit(services: u32) -> Option<f64> {
    match services {
        10_000 => Some(1.5),
        100_000 => Some(2.0),
        _ => None,
    }
}

pub fn connect(report: &mut BenchReport, result: &SizeResult) {
    let services = result.services;
    let title = format!("connect() at {services} services of 3 backends, {} dials each", connect::rounds(services));
    let mut table = TextTable::new(title, &["", "p50", "p99", "over p50", "over p99", "x"]);
    let direct = &result.connect[DIRECT];
    for (variant, own) in VARIANTS[..COMPARED].iter().zip(&result.connect) {
        let (p50, p99) = (own.p50() / 1e3, own.p99() / 1e3);
        let above = [p50 - direct.p50() / 1e3, p99 - direct.p99() / 1e3].map(|over| format!("{over:+.2}"));
        let cells = [format!("{p50:.2}"), format!("{p99:.2}")].into_iter().chain(above);
        table.line(variant.name, cells.chain([ratio(own.p50(), direct.p50())]));
        report.row(ReportRow::new(format!("connect/{services}/{}/p50", variant.name), p50, "us"));
        report.row(ReportRow::new(format!("connect/{services}/{}/p99", variant.name), p99, "us"));
    }
    print!("{table}");
    check_limits(report, result);
}

fn check_limits(report: &mut BenchReport, result: &SizeResult) {
    let services = result.services;
    let row = |name: &str, value| ReportRow::new(format!("connect/{services}/{name}"), value, "us");
    let service = row("Beeline service over direct, p50", over(result, BEELINE, DIRECT));
    report.row(match limit(services) {
        Some(limit) => service.at_most(limit),
        None => service,
    });
    report.row(row("no service, port unused, over direct, p50", over(result, UNUSED, DIRECT)).at_most(0.15));
    report.row(row("no service, port used, over direct, p50", over(result, USED, DIRECT)).at_most(0.6));
    report.row(row("Beeline over nftables, p50", over(result, BEELINE, NFTABLES)).at_most(0.0));
    report.row(row("Beeline over iptables, p50", over(result, BEELINE, IPTABLES)).at_most(0.0));
}

pub fn hook(report: &mut BenchReport, all: &[SizeResult]) {
    let sizes = SIZES.map(|services| services.to_string());
    let columns: Vec<&str> = std::iter::once("").chain(sizes.iter().map(String::as_str)).collect();
    let by = [
        ("hook", "The connect hook, ns by run-time statistics (record and counters included), by number of services"),
        ("decision", "The decision alone, ns in a tight loop in the test resolver, by number of services"),
    ];
    for (what, title) in by {
        let mut table = TextTable::new(title, &columns);
        for (case, name) in hook::CASES.iter().enumerate() {
            let cost =
                |result: &SizeResult| if what == "hook" { result.hook.hook[case] } else { result.hook.decision[case] };
            table.line(name, all.iter().map(|result| format!("{:.0}", cost(result))));
            for result in all {
                report.row(ReportRow::new(format!("{what}/{}/{name}", result.services), cost(result), "ns"));
            }
        }
        print!("{table}");
    }
    for result in all {
        let name = format!("memory/{}/kernel maps", result.services);
        report.row(ReportRow::new(name, result.map_memory as f64 / MIB, "MiB"));
    }
}

pub fn programming(report: &mut BenchReport, figures: &programming::ProgrammingFigures) {
    let title = format!("Programming {SERVICES} services of 3 backends, {} writes", figures.writes);
    let mut table = TextTable::new(title, &["", "p50", "p99", "writes"]);
    let seconds = |value: f64| format!("{value:.3} s");
    table.line("parsed objects to kernel", [seconds(figures.total)]);
    table.line("of that, the same writes into the maps", [seconds(figures.maps)]);
    report.row(ReportRow::new("programming/full state", figures.total, "s").at_most(1.0));
    report.row(ReportRow::new("programming/full state, maps alone", figures.maps, "s").at_most(0.2));
    for (which, endpoints) in ENDPOINTS.into_iter().enumerate() {
        let (p50, p99) = (figures.change[which].p50() / 1e6, figures.change[which].p99() / 1e6);
        let writes = figures.change_writes[which].to_string();
        let name = format!("one endpoint of {endpoints}, change to kernel");
        table.line(&name, [format!("{p50:.4} ms"), format!("{p99:.4} ms"), writes]);
        report.row(ReportRow::new(format!("programming/{name}, p50"), p50, "ms").at_most(1.0));
        report.row(ReportRow::new(format!("programming/{name}, p99"), p99, "ms"));
        report.row(ReportRow::new(
            format!("programming/{name}, writes"),
            figures.change_writes[which] as f64,
            "writes",
        ));
    }
    let [small, large] = &figures.change;
    let growth = large.p50() / small.p50();
    table.line("the larger over the smaller", [format!("{growth:.2}x")]);
    report.row(ReportRow::new("programming/one endpoint of 1000 over one of 10, p50", growth, "x").at_most(1.5));
    print!("{table}");
    report.row(ReportRow::new(
        "memory/100000/kernel maps, with space for changes",
        figures.map_memory as f64 / MIB,
        "MiB",
    ));
}

pub fn agent(report: &mut BenchReport, figures: &agent::AgentFigures) {
    let services = figures.services;
    let limit = if services > 1_000 { 200.0 } else { 30.0 };
    let mut table = TextTable::new(format!("The agent with manifests of {services} services of 3 backends"), &["", ""]);
    let (resident, anonymous) = (figures.resident as f64 / MIB, figures.anonymous as f64 / MIB);
    let change = (figures.change.p50() / 1e6, figures.change.percentile(1.0) / 1e6);
    table.line("start to serving", [format!("{:.2} s", figures.start)]);
    table.line("resident memory", [format!("{resident:.1} MiB")]);
    table.line("of that anonymous", [format!("{anonymous:.1} MiB")]);
    table.line("a changed file until a dial uses it, p50", [format!("{:.1} ms", change.0)]);
    table.line("the slowest of them", [format!("{:.1} ms", change.1)]);
    print!("{table}");
    let row = |name: &str, value, unit| ReportRow::new(format!("agent/{services}/{name}"), value, unit);
    report.row(row("start to serving", figures.start, "s"));
    report.row(row("resident", resident, "MiB").at_most(limit));
    report.row(row("anonymous", anonymous, "MiB"));
    report.row(row("changed file to dial, p50", change.0, "ms"));
    report.row(row("changed file to dial, slowest", change.1, "ms").at_most(100.0));
}

/// Prints every limit and whether it was met.
pub fn print_limits(report: &BenchReport) {
    let mut table = TextTable::new("Limits", &["", "value", "at most", "unit", ""]);
    for row in report.rows() {
        if let (Some(limit), Some(is_met)) = (row.limit, row.met) {
            let word = if is_met { "met" } else { "EXCEEDED" };
            table.line(&row.name, [format!("{:.2}", row.value), limit.to_string(), row.unit.into(), word.into()]);
        }
    }
    print!("{table}");
}

/// The upper plot shows the time that each variant adds to a dial, the lower one the cost of the hook.
pub fn plot(file: &Path, all: &[SizeResult]) -> Result<()> {
    let picture = SVGBackend::new(file, (1000, 900)).into_drawing_area();
    picture.fill(&WHITE).map_err(draw_error)?;
    let (above, below) = picture.split_vertically(450);
    let added = [BEELINE, UNUSED, USED, NFTABLES, IPTABLES].map(|variant| Series {
        name: VARIANTS[variant].name.into(),
        values: all.iter().map(|result| over(result, variant, DIRECT)).collect(),
    });
    plot::lines(
        &above,
        "Time added to connect() compared with a direct dial (p50)",
        "us",
        &SIZES,
        &added,
        AxisScale::Logarithmic,
    )?;
    let costs = hook::CASES.iter().enumerate().map(|(case, name)| Series {
        name: (*name).into(),
        values: all.iter().map(|result| result.hook.hook[case]).collect(),
    });
    let costs: Vec<Series> = costs.collect();
    plot::lines(&below, "Cost of the connect hook (run-time statistics)", "ns", &SIZES, &costs, AxisScale::Linear)?;
    picture.present().map_err(draw_error)
}
