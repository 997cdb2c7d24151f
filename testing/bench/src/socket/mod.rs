//! The socket path against its promises: what the hook costs, what a dial through a service costs over a direct one and
//! over kube-proxy's rules, how fast state reaches the kernel, and what it takes to hold it.
//!
//! Every ratio comes from one run in which the things compared take turns, one dial each, in random order.

mod agent;
mod beeline;
mod connect;
mod dial;
mod field;
mod hook;
mod manifest;
mod programming;
mod rival;
mod show;
mod site;
mod world;

use std::{path::Path, thread};

use anyhow::Result;
use beeline_datapath::program::quiet_libbpf;
use clap::ValueEnum;

use crate::{ground, report::Report, stats::Samples};
use site::Site;

pub const SIZES: [u32; 4] = [10, 1_000, 10_000, 100_000];

/// What was measured at one number of services.
pub struct Sized {
    pub services: u32,
    pub connect: Vec<Samples>,
    pub hook: hook::Figures,
    /// Bytes of all maps.
    pub map_memory: u64,
}

/// What can be measured by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Part {
    /// connect() and the hook
    Dials,
    /// From facts to the kernel
    Programming,
    /// The agent on a folder
    Agent,
}

pub fn run(directory: &Path, only: Option<Part>) -> Result<()> {
    quiet_libbpf();
    let mut report = Report::new("socket", directory)?;
    let wanted = |part| only.is_none_or(|only| only == part);
    show::preface();
    if wanted(Part::Dials) {
        dials(&mut report)?;
    }
    if wanted(Part::Programming) {
        show::programming(&mut report, &alone(programming::measure)?);
    }
    if wanted(Part::Agent) {
        show::agent(&mut report, &agent::measure(1_000)?);
        show::agent(&mut report, &agent::measure(100_000)?);
    }
    show::verdict(&report);
    report.write()?;
    println!("\nWrote {}.", report.file("json").display());
    Ok(())
}

fn dials(report: &mut Report) -> Result<()> {
    let mut all = Vec::new();
    for services in SIZES {
        let sized = alone(move || measure(services))?;
        show::connect(report, &sized);
        all.push(sized);
    }
    show::hook(report, &all);
    show::plot(&report.file("svg"), &all)
}

fn measure(services: u32) -> Result<Sized> {
    let site = Site::build(services)?;
    let connect = connect::measure(&site)?;
    let hook = hook::measure(&site)?;
    Ok(Sized { services, connect, hook, map_memory: site.tcp.map_memory()? })
}

/// On a thread of its own, kept to one processor and before all others there: the process stays as it is.
fn alone<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    thread::spawn(|| ground::pin().and_then(|()| ground::go_first()).and_then(|()| work()))
        .join()
        .expect("the conductor panicked")
}
