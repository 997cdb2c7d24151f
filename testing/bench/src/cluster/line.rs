//! The figures that are told, one line each: how a value comes out of what was measured, and what it is to stay below.

use super::{change::Changes, contender::Contender, turn::Figures};
use crate::{report::Row, stats::Samples};

pub const MB: f64 = 1e6;
pub const S: f64 = 1e9;
pub const MS: f64 = 1e6;
pub const US: f64 = 1e3;

/// A value and how many samples it stands on.
type Value = (f64, usize);

/// One line of a table, and one row for each contender.
pub struct Line {
    pub name: &'static str,
    pub unit: &'static str,
    pub digits: usize,
    of: fn(&Figures) -> Value,
    /// For Beeline, at this number of services.
    bar: fn(u32) -> Option<f64>,
}

impl Line {
    const fn new(name: &'static str, unit: &'static str, digits: usize, of: fn(&Figures) -> Value) -> Self {
        Self { name, unit, digits, of, bar: |_| None }
    }

    const fn promised(self, bar: fn(u32) -> Option<f64>) -> Self {
        Self { bar, ..self }
    }

    pub fn row(&self, services: u32, who: Contender, figures: &Figures) -> Row {
        let (value, number) = (self.of)(figures);
        let row = Row::new(format!("{}/{services}/{}", self.name, who.name()), value, self.unit).samples(number);
        match (self.bar)(services).filter(|_| who == Contender::Beeline) {
            Some(bar) => row.at_most(bar),
            None => row,
        }
    }
}

fn p50(samples: &Samples, scale: f64) -> Value {
    (samples.p50() / scale, samples.len())
}

fn p99(samples: &Samples, scale: f64) -> Value {
    (samples.p99() / scale, samples.len())
}

fn most(samples: &Samples, scale: f64) -> Value {
    (samples.percentile(1.0) / scale, samples.len())
}

/// Milliseconds of processor time for one.
fn each(changes: &Changes) -> Value {
    let number = changes.kernel.len();
    (changes.cpu * 1e3 / number.max(1) as f64, number)
}

fn at_ten_thousand(services: u32, bar: f64) -> Option<f64> {
    (services == 10_000).then_some(bar)
}

pub const LINES: [Line; 24] = [
    Line::new("cold start until the last service answers, median", "s", 2, |f| p50(&f.cold, S)),
    Line::new("cold start until the last service answers, slowest", "s", 2, |f| most(&f.cold, S))
        .promised(|services| at_ten_thousand(services, 3.0)),
    Line::new("processor time of a cold start", "s", 2, |f| p50(&f.cold_cpu, 1e6)),
    Line::new("one endpoint, answer to kernel, p50", "ms", 2, |f| p50(&f.endpoint.kernel, MS)),
    Line::new("one endpoint, answer to kernel, p99", "ms", 2, |f| p99(&f.endpoint.kernel, MS)).promised(|_| Some(20.0)),
    Line::new("one endpoint, answer to dialled, p50", "ms", 2, |f| p50(&f.endpoint.dialled, MS)),
    Line::new("one endpoint, answer to dialled, p99", "ms", 2, |f| p99(&f.endpoint.dialled, MS)),
    Line::new("one endpoint, sent to dialled, p50", "ms", 2, |f| p50(&f.endpoint.sent, MS)),
    Line::new("processor time of one endpoint", "ms", 2, |f| each(&f.endpoint)),
    Line::new("one new service, answer to kernel, p50", "ms", 2, |f| p50(&f.service.kernel, MS)),
    Line::new("one new service, answer to kernel, p99", "ms", 2, |f| p99(&f.service.kernel, MS))
        .promised(|_| Some(20.0)),
    Line::new("one new service, answer to dialled, p50", "ms", 2, |f| p50(&f.service.dialled, MS)),
    Line::new("one new service, answer to dialled, p99", "ms", 2, |f| p99(&f.service.dialled, MS)),
    Line::new("one new service, sent to dialled, p50", "ms", 2, |f| p50(&f.service.sent, MS)),
    Line::new("processor time of one new service", "ms", 2, |f| each(&f.service)),
    Line::new("peak memory of the agent", "MB", 1, |f| most(&f.memory, MB))
        .promised(|services| at_ten_thousand(services, 120.0)),
    Line::new("the same with what it starts (nft, iptables-restore)", "MB", 1, |f| most(&f.memory_all, MB)),
    Line::new("connect() of a pod, p50", "us", 1, |f| p50(&f.traffic.connect[0], US)),
    Line::new("connect() of a pod, p99", "us", 1, |f| p99(&f.traffic.connect[0], US)),
    Line::new("connect() direct, in the same turns, p50", "us", 1, |f| p50(&f.traffic.connect[1], US)),
    Line::new("requests over fresh connections", "1/s", 0, |f| p50(&f.traffic.fresh[0], 1.0)),
    Line::new("requests over fresh connections, direct", "1/s", 0, |f| p50(&f.traffic.fresh[1], 1.0)),
    Line::new("requests over kept connections", "1/s", 0, |f| p50(&f.traffic.kept[0], 1.0)),
    Line::new("requests over kept connections, direct", "1/s", 0, |f| p50(&f.traffic.kept[1], 1.0)),
];
