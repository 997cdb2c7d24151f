//! Prints the results as tables, and writes report rows and a plot.

use std::path::Path;

use anyhow::Result;
use plotters::prelude::*;

use super::{
    record::{self, DIALS, DIRECT, LIVE, NONE, SocketProtocol, VARIANTS},
    tables::{self, CANDIDATES, SIZES, TWO_HASHES},
};
use crate::{
    plot::{self, AxisScale, Series, draw_error},
    report::{BenchReport, ReportRow, TextTable, over, ratio},
};

/// Percentile used for blocks of dials, whose upper percentiles contain disturbances of the machine.
const BLOCK_PERCENTILE: f64 = 0.1;

pub fn record(report: &mut BenchReport, figures: &[record::RecordFigures]) {
    println!("The per-socket record, Linux {}.", rustix::system::uname().release().to_string_lossy());
    println!("{DIALS} dials each, one by one in random order, beside {LIVE} records of other sockets.");
    println!("`over` and `x` compare with a direct dial. Sustained: per dial in blocks. Times in ns.");
    for variant in &VARIANTS {
        println!("  {:<12} {}", variant.name, variant.about);
    }
    for (index, protocol) in SocketProtocol::ALL.into_iter().enumerate() {
        dials(report, figures, index, protocol);
    }
    datagrams(report, figures);
}

fn dials(report: &mut BenchReport, figures: &[record::RecordFigures], index: usize, protocol: SocketProtocol) {
    let title = format!("{} dials: connect() alone, then socket() + connect() + close()", protocol.name());
    let columns = ["", "p50", "p99", "over", "x", "whole p50", "p99", "over", "x", "sustained", "over"];
    let mut table = TextTable::new(title, &columns);
    let direct = &figures[DIRECT];
    for (variant, own) in VARIANTS.iter().zip(figures) {
        let mut cells = Vec::new();
        for (own, direct) in [(&own.connect, &direct.connect), (&own.total, &direct.total)] {
            let (p50, reference) = (own[index].p50(), direct[index].p50());
            cells.extend([format!("{p50:.0}"), format!("{:.0}", own[index].p99())]);
            cells.extend([over(p50, reference), ratio(p50, reference)]);
        }
        let (block, reference) =
            (own.block[index].percentile(BLOCK_PERCENTILE), direct.block[index].percentile(BLOCK_PERCENTILE));
        table.line(variant.name, cells.into_iter().chain([format!("{block:.0}"), over(block, reference)]));
        let mut row = |what: &str, value| {
            report.row(ReportRow::new(format!("record/{}/{}/{what}", variant.name, protocol.name()), value, "ns"));
        };
        row("connect p50", own.connect[index].p50());
        row("connect p99", own.connect[index].p99());
        row("whole p50", own.total[index].p50());
        row("whole p99", own.total[index].p99());
        row("sustained", block);
    }
    print!("{table}");
}

fn datagrams(report: &mut BenchReport, figures: &[record::RecordFigures]) {
    let title = "Datagrams: recvfrom() on a connected UDP socket, and memory of the record's maps";
    let mut table = TextTable::new(title, &["", "p50", "p99", "over", "x", "map KiB"]);
    let direct = figures[DIRECT].receive.p50();
    for (variant, own) in VARIANTS.iter().zip(figures) {
        let (p50, p99) = (own.receive.p50(), own.receive.p99());
        let times = [format!("{p50:.0}"), format!("{p99:.0}"), over(p50, direct), ratio(p50, direct)];
        table.line(variant.name, times.into_iter().chain([(own.memory / 1024).to_string()]));
        report.row(ReportRow::new(format!("record/{}/receive p50", variant.name), p50, "ns"));
        report.row(ReportRow::new(format!("record/{}/receive p99", variant.name), p99, "ns"));
        report.row(ReportRow::new(format!("record/{}/map memory", variant.name), own.memory as f64, "bytes"));
    }
    print!("{table}");
}

pub fn tables(report: &mut BenchReport, services: u32, figures: &[tables::TableFigures]) {
    if services == SIZES[0] {
        println!("\nThe tables. x: compared with two hashes.");
        CANDIDATES.iter().for_each(|candidate| println!("  {:<12} {}", candidate.name, candidate.about));
    }
    let columns = ["", "resolve ns", "x", "fill ms", "x", "change ns", "x", "KiB", "x"];
    let mut table = TextTable::new(format!("{services} services of 3 backends"), &columns);
    let reference = &figures[TWO_HASHES];
    for (candidate, own) in CANDIDATES.iter().zip(figures) {
        let (memory, change) = (own.memory as f64, own.change.p50());
        table.line(
            candidate.name,
            [
                format!("{:.1}", own.resolve),
                ratio(own.resolve, reference.resolve),
                format!("{:.3}", own.fill / 1e6),
                ratio(own.fill, reference.fill),
                format!("{change:.0}"),
                ratio(change, reference.change.p50()),
                format!("{:.0}", memory / 1024.0),
                ratio(memory, reference.memory as f64),
            ],
        );
        let mut row = |what: &str, value, unit| {
            report.row(ReportRow::new(format!("tables/{}/{services}/{what}", candidate.name), value, unit));
        };
        row("resolve", own.resolve, "ns");
        row("fill", own.fill / 1e6, "ms");
        row("change", change, "ns");
        row("memory", memory, "bytes");
    }
    print!("{table}");
}

/// The upper plot shows the time that a record adds to a dial, the lower one the cost of a resolve.
pub fn plot(file: &Path, records: &[record::RecordFigures], resolves: &[Vec<tables::TableFigures>]) -> Result<()> {
    let picture = SVGBackend::new(file, (1000, 900)).into_drawing_area();
    picture.fill(&WHITE).map_err(draw_error)?;
    let (above, below) = picture.split_vertically(450);
    let shown = NONE + 1..VARIANTS.len();
    let groups: Vec<_> = VARIANTS[shown.clone()].iter().map(|variant| variant.name).collect();
    let mut added = Vec::new();
    for (index, protocol) in SocketProtocol::ALL.into_iter().enumerate() {
        let connect = |figures: &record::RecordFigures| figures.connect[index].p50();
        let lifetime = |figures: &record::RecordFigures| figures.total[index].p50();
        added.push(over_none(format!("{} connect()", protocol.name()), &records[NONE..], connect));
        added.push(over_none(format!("{} socket() to close()", protocol.name()), &records[NONE..], lifetime));
    }
    plot::bars(&above, "Time that a per-socket record adds to a dial (p50)", "ns", &groups, &added, AxisScale::Linear)?;
    let lines: Vec<_> = CANDIDATES
        .iter()
        .enumerate()
        .map(|(who, candidate)| Series {
            name: candidate.name.into(),
            values: resolves.iter().map(|figures| figures[who].resolve).collect(),
        })
        .collect();
    plot::lines(&below, "Cost of a resolve", "ns", &SIZES, &lines, AxisScale::Linear)?;
    picture.present().map_err(draw_error)
}

/// The first of `figures` is the dial without a record.
fn over_none(name: String, figures: &[record::RecordFigures], p50: impl Fn(&record::RecordFigures) -> f64) -> Series {
    Series { name, values: figures[1..].iter().map(|own| p50(own) - p50(&figures[0])).collect() }
}
