//! The reported metrics: how each is computed from the results, and its limit.

use super::{change::Changes, contender::Contender, measurement::ContenderFigures};
use crate::{report::ReportRow, stats::Samples};

pub const MB: f64 = 1e6;
pub const S: f64 = 1e9;
pub const MS: f64 = 1e6;
pub const US: f64 = 1e3;

/// A value and its number of samples.
type Value = (f64, usize);

/// One line of the table, and one report row for each contender.
pub struct MetricLine {
    pub name: &'static str,
    pub unit: &'static str,
    pub digits: usize,
    value: fn(&ContenderFigures) -> Value,
    /// Limit for Beeline at a number of services.
    limit: fn(u32) -> Option<f64>,
}

impl MetricLine {
    const fn new(name: &'static str, unit: &'static str, digits: usize, value: fn(&ContenderFigures) -> Value) -> Self {
        Self { name, unit, digits, value, limit: |_| None }
    }

    const fn with_limit(self, limit: fn(u32) -> Option<f64>) -> Self {
        Self { limit, ..self }
    }

    pub fn row(&self, services: u32, contender: Contender, figures: &ContenderFigures) -> ReportRow {
        let (value, number) = (self.value)(figures);
        let row =
            ReportRow::new(format!("{}/{services}/{}", self.name, contender.name()), value, self.unit).samples(number);
        match (self.limit)(services).filter(|_| contender == Contender::Beeline) {
            Some(limit) => row.at_most(limit),
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

fn max(samples: &Samples, scale: f64) -> Value {
    (samples.percentile(1.0) / scale, samples.len())
}

/// Milliseconds of processor time per change.
fn cpu_per_change(changes: &Changes) -> Value {
    let number = changes.kernel.len();
    (changes.cpu * 1e3 / number.max(1) as f64, number)
}

fn at_ten_thousand(services: u32, limit: f64) -> Option<f64> {
    (services == 10_000).then_some(limit)
}

pub const LINES: [MetricLine; 24] = [
    MetricLine::new("cold start until the last service answers, median", "s", 2, |f| p50(&f.cold, S)),
    MetricLine::new("cold start until the last service answers, slowest", "s", 2, |f| max(&f.cold, S))
        .with_limit(|services| at_ten_thousand(services, 3.0)),
    MetricLine::new("processor time of a cold start", "s", 2, |f| p50(&f.cold_cpu, 1e6)),
    MetricLine::new("one endpoint, answer to kernel, p50", "ms", 2, |f| p50(&f.endpoint.kernel, MS)),
    MetricLine::new("one endpoint, answer to kernel, p99", "ms", 2, |f| p99(&f.endpoint.kernel, MS))
        .with_limit(|_| Some(20.0)),
    MetricLine::new("one endpoint, answer to dialled, p50", "ms", 2, |f| p50(&f.endpoint.dialled, MS)),
    MetricLine::new("one endpoint, answer to dialled, p99", "ms", 2, |f| p99(&f.endpoint.dialled, MS)),
    MetricLine::new("one endpoint, sent to dialled, p50", "ms", 2, |f| p50(&f.endpoint.sent, MS)),
    MetricLine::new("processor time of one endpoint", "ms", 2, |f| cpu_per_change(&f.endpoint)),
    MetricLine::new("one new service, answer to kernel, p50", "ms", 2, |f| p50(&f.service.kernel, MS)),
    MetricLine::new("one new service, answer to kernel, p99", "ms", 2, |f| p99(&f.service.kernel, MS))
        .with_limit(|_| Some(20.0)),
    MetricLine::new("one new service, answer to dialled, p50", "ms", 2, |f| p50(&f.service.dialled, MS)),
    MetricLine::new("one new service, answer to dialled, p99", "ms", 2, |f| p99(&f.service.dialled, MS)),
    MetricLine::new("one new service, sent to dialled, p50", "ms", 2, |f| p50(&f.service.sent, MS)),
    MetricLine::new("processor time of one new service", "ms", 2, |f| cpu_per_change(&f.service)),
    MetricLine::new("peak memory of the agent", "MB", 1, |f| max(&f.memory, MB))
        .with_limit(|services| at_ten_thousand(services, 120.0)),
    MetricLine::new("the same with what it starts (nft, iptables-restore)", "MB", 1, |f| max(&f.memory_all, MB)),
    MetricLine::new("connect() of a pod, p50", "us", 1, |f| p50(&f.traffic.connect[0], US)),
    MetricLine::new("connect() of a pod, p99", "us", 1, |f| p99(&f.traffic.connect[0], US)),
    MetricLine::new("connect() direct, in the same rounds, p50", "us", 1, |f| p50(&f.traffic.connect[1], US)),
    MetricLine::new("requests over fresh connections", "1/s", 0, |f| p50(&f.traffic.fresh[0], 1.0)),
    MetricLine::new("requests over fresh connections, direct", "1/s", 0, |f| p50(&f.traffic.fresh[1], 1.0)),
    MetricLine::new("requests over kept connections", "1/s", 0, |f| p50(&f.traffic.kept[0], 1.0)),
    MetricLine::new("requests over kept connections, direct", "1/s", 0, |f| p50(&f.traffic.kept[1], 1.0)),
];
