//! Bench of the socket path against its limits: cost of the hook, cost of a Service dial compared with a direct one and
//! with kube-proxy's rules, time to program the kernel, and memory.
//!
//! Ratios come from runs in which the compared variants alternate, one dial each, in random order.

mod agent;
mod beeline;
mod connect;
mod dial;
mod hook;
mod kube_proxy_rules;
mod manifest;
mod network;
mod objects;
mod output;
mod programming;
mod setup;

use std::{path::Path, thread};

use anyhow::Result;
use beeline_datapath::program::redirect_libbpf_log;
use clap::ValueEnum;

use crate::{isolation, report::BenchReport, stats::Samples};
use setup::BenchSetup;

pub const SIZES: [u32; 4] = [10, 1_000, 10_000, 100_000];

/// Results for one number of Services.
pub struct SizeResult {
    pub services: u32,
    pub connect: Vec<Samples>,
    pub hook: hook::HookFigures,
    /// Memory of all maps in bytes.
    pub map_memory: u64,
}

/// Parts of the bench that can be run alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SocketBenchPart {
    /// connect() and the hook
    Dials,
    /// Programming: from objects to kernel maps
    Programming,
    /// The agent with a manifest directory
    Agent,
}

pub fn run(directory: &Path, only: Option<SocketBenchPart>) -> Result<()> {
    redirect_libbpf_log();
    let mut report = BenchReport::new("socket", directory)?;
    let wanted = |part| only.is_none_or(|only| only == part);
    output::print_header();
    if wanted(SocketBenchPart::Dials) {
        measure_dials(&mut report)?;
    }
    if wanted(SocketBenchPart::Programming) {
        output::programming(&mut report, &on_reserved_cpu(programming::measure)?);
    }
    if wanted(SocketBenchPart::Agent) {
        output::agent(&mut report, &agent::measure(1_000)?);
        output::agent(&mut report, &agent::measure(100_000)?);
    }
    output::print_limits(&report);
    report.write()?;
    println!("\nWrote {}.", report.file("json").display());
    Ok(())
}

fn measure_dials(report: &mut BenchReport) -> Result<()> {
    let mut all = Vec::new();
    for services in SIZES {
        let result = on_reserved_cpu(move || measure(services))?;
        output::connect(report, &result);
        all.push(result);
    }
    output::hook(report, &all);
    output::plot(&report.file("svg"), &all)
}

fn measure(services: u32) -> Result<SizeResult> {
    let setup = BenchSetup::build(services)?;
    let connect = connect::measure(&setup)?;
    let hook = hook::measure(&setup)?;
    Ok(SizeResult { services, connect, hook, map_memory: setup.tcp.map_memory()? })
}

/// Runs `work` in a thread that is pinned to one processor with real-time priority.
fn on_reserved_cpu<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    thread::spawn(|| isolation::pin_to_cpu().and_then(|()| isolation::set_realtime_priority()).and_then(|()| work()))
        .join()
        .expect("the measuring thread panicked")
}
