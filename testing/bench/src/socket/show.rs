//! The figures as tables, rows with their bars, and a picture.

use std::path::Path;

use anyhow::Result;
use plotters::prelude::*;

use super::{
    SIZES, Sized, agent, connect, hook,
    programming::{self, ENDPOINTS, SERVICES},
    site::{BEELINE, COMPARED, DIRECT, IPTABLES, NFTABLES, UNUSED, USED, VARIANTS},
};
use crate::{
    plot::{self, Scale, Series, failed},
    report::{Report, Row, Table, ratio},
};

const MIB: f64 = 1024.0 * 1024.0;

pub fn preface() {
    println!("The socket path, Linux {}.", rustix::system::uname().release().to_string_lossy());
    println!("Dials of all ways alternate one by one, in random order. Over and x: against direct. Times in us.");
}

/// Microseconds above a direct dial, by the medians.
fn over(sized: &Sized, variant: usize, reference: usize) -> f64 {
    (sized.connect[variant].p50() - sized.connect[reference].p50()) / 1_000.0
}

/// What a service may add to connect(), where something was promised.
fn bar(services: u32) -> Option<f64> {
    match services {
        10_000 => Some(1.5),
        100_000 => Some(2.0),
        _ => None,
    }
}

pub fn connect(report: &mut Report, sized: &Sized) {
    let services = sized.services;
    let title = format!("connect() at {services} services of 3 backends, {} dials each", connect::rounds(services));
    let mut table = Table::new(title, &["", "p50", "p99", "over p50", "over p99", "x"]);
    let direct = &sized.connect[DIRECT];
    for (variant, own) in VARIANTS[..COMPARED].iter().zip(&sized.connect) {
        let (p50, p99) = (own.p50() / 1e3, own.p99() / 1e3);
        let above = [p50 - direct.p50() / 1e3, p99 - direct.p99() / 1e3].map(|over| format!("{over:+.2}"));
        let cells = [format!("{p50:.2}"), format!("{p99:.2}")].into_iter().chain(above);
        table.line(variant.name, cells.chain([ratio(own.p50(), direct.p50())]));
        report.row(Row::new(format!("connect/{services}/{}/p50", variant.name), p50, "us"));
        report.row(Row::new(format!("connect/{services}/{}/p99", variant.name), p99, "us"));
    }
    print!("{table}");
    promises(report, sized);
}

fn promises(report: &mut Report, sized: &Sized) {
    let services = sized.services;
    let row = |name: &str, value| Row::new(format!("connect/{services}/{name}"), value, "us");
    let service = row("Beeline service over direct, p50", over(sized, BEELINE, DIRECT));
    report.row(match bar(services) {
        Some(bar) => service.at_most(bar),
        None => service,
    });
    report.row(row("no service, port unused, over direct, p50", over(sized, UNUSED, DIRECT)).at_most(0.15));
    report.row(row("no service, port used, over direct, p50", over(sized, USED, DIRECT)).at_most(0.6));
    report.row(row("Beeline over nftables, p50", over(sized, BEELINE, NFTABLES)).at_most(0.0));
    report.row(row("Beeline over iptables, p50", over(sized, BEELINE, IPTABLES)).at_most(0.0));
}

pub fn hook(report: &mut Report, all: &[Sized]) {
    let sizes = SIZES.map(|services| services.to_string());
    let columns: Vec<&str> = std::iter::once("").chain(sizes.iter().map(String::as_str)).collect();
    let by = [
        ("hook", "The connect hook, ns by run-time statistics (record and counters included), by number of services"),
        ("decision", "The decision alone, ns in a tight loop through the door, by number of services"),
    ];
    for (what, title) in by {
        let mut table = Table::new(title, &columns);
        for (case, name) in hook::CASES.iter().enumerate() {
            let cost = |sized: &Sized| if what == "hook" { sized.hook.hook[case] } else { sized.hook.decision[case] };
            table.line(name, all.iter().map(|sized| format!("{:.0}", cost(sized))));
            for sized in all {
                report.row(Row::new(format!("{what}/{}/{name}", sized.services), cost(sized), "ns"));
            }
        }
        print!("{table}");
    }
    for sized in all {
        let name = format!("memory/{}/kernel maps", sized.services);
        report.row(Row::new(name, sized.map_memory as f64 / MIB, "MiB"));
    }
}

pub fn programming(report: &mut Report, figures: &programming::Figures) {
    let title = format!("Programming {SERVICES} services of 3 backends, {} writes", figures.writes);
    let mut table = Table::new(title, &["", "p50", "p99", "writes"]);
    let seconds = |value: f64| format!("{value:.3} s");
    table.line("parsed facts to kernel", [seconds(figures.total)]);
    table.line("of that, the same writes into the maps", [seconds(figures.maps)]);
    report.row(Row::new("programming/full state", figures.total, "s").at_most(1.0));
    report.row(Row::new("programming/full state, maps alone", figures.maps, "s").at_most(0.2));
    for (which, endpoints) in ENDPOINTS.into_iter().enumerate() {
        let (p50, p99) = (figures.change[which].p50() / 1e6, figures.change[which].p99() / 1e6);
        let writes = figures.change_writes[which].to_string();
        let name = format!("one endpoint of {endpoints}, fact to kernel");
        table.line(&name, [format!("{p50:.4} ms"), format!("{p99:.4} ms"), writes]);
        report.row(Row::new(format!("programming/{name}, p50"), p50, "ms").at_most(1.0));
        report.row(Row::new(format!("programming/{name}, p99"), p99, "ms"));
        report.row(Row::new(format!("programming/{name}, writes"), figures.change_writes[which] as f64, "writes"));
    }
    let [small, large] = &figures.change;
    let growth = large.p50() / small.p50();
    table.line("the larger over the smaller", [format!("{growth:.2}x")]);
    report.row(Row::new("programming/one endpoint of 1000 over one of 10, p50", growth, "x").at_most(1.5));
    print!("{table}");
    report.row(Row::new("memory/100000/kernel maps, with room for changes", figures.map_memory as f64 / MIB, "MiB"));
}

pub fn agent(report: &mut Report, figures: &agent::Figures) {
    let services = figures.services;
    let bar = if services > 1_000 { 200.0 } else { 30.0 };
    let mut table = Table::new(format!("The agent on a folder of {services} services of 3 backends"), &["", ""]);
    let (resident, anonymous) = (figures.resident as f64 / MIB, figures.anonymous as f64 / MIB);
    let change = (figures.change.p50() / 1e6, figures.change.percentile(1.0) / 1e6);
    table.line("start to serving", [format!("{:.2} s", figures.start)]);
    table.line("resident memory", [format!("{resident:.1} MiB")]);
    table.line("of that anonymous", [format!("{anonymous:.1} MiB")]);
    table.line("a changed file until a dial meets it, p50", [format!("{:.1} ms", change.0)]);
    table.line("the slowest of them", [format!("{:.1} ms", change.1)]);
    print!("{table}");
    let row = |name: &str, value, unit| Row::new(format!("agent/{services}/{name}"), value, unit);
    report.row(row("start to serving", figures.start, "s"));
    report.row(row("resident", resident, "MiB").at_most(bar));
    report.row(row("anonymous", anonymous, "MiB"));
    report.row(row("changed file to dial, p50", change.0, "ms"));
    report.row(row("changed file to dial, slowest", change.1, "ms").at_most(100.0));
}

/// Every promise, and whether it was kept.
pub fn verdict(report: &Report) {
    let mut table = Table::new("Promises", &["", "value", "at most", "unit", ""]);
    for row in report.rows() {
        if let (Some(bar), Some(holds)) = (row.bar, row.holds) {
            let word = if holds { "holds" } else { "MISSED" };
            table.line(&row.name, [format!("{:.2}", row.value), bar.to_string(), row.unit.into(), word.into()]);
        }
    }
    print!("{table}");
}

/// Above, what each way adds to a dial as services grow; below, what the hook costs.
pub fn plot(file: &Path, all: &[Sized]) -> Result<()> {
    let picture = SVGBackend::new(file, (1000, 900)).into_drawing_area();
    picture.fill(&WHITE).map_err(failed)?;
    let (above, below) = picture.split_vertically(450);
    let added = [BEELINE, UNUSED, USED, NFTABLES, IPTABLES].map(|variant| Series {
        name: VARIANTS[variant].name.into(),
        values: all.iter().map(|sized| over(sized, variant, DIRECT)).collect(),
    });
    plot::lines(&above, "What is added to connect() over a direct dial (p50)", "us", &SIZES, &added, Scale::Powers)?;
    let costs = hook::CASES.iter().enumerate().map(|(case, name)| Series {
        name: (*name).into(),
        values: all.iter().map(|sized| sized.hook.hook[case]).collect(),
    });
    let costs: Vec<Series> = costs.collect();
    plot::lines(&below, "What the connect hook costs (run-time statistics)", "ns", &SIZES, &costs, Scale::Even)?;
    picture.present().map_err(failed)
}
