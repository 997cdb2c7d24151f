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

pub fn run(directory: &Path) -> Result<()> {
    quiet_libbpf();
    let mut report = Report::new("socket", directory)?;
    show::preface();
    let mut all = Vec::new();
    for services in SIZES {
        let sized = alone(move || measure(services))?;
        show::connect(&mut report, &sized);
        all.push(sized);
    }
    show::hook(&mut report, &all);
    show::programming(&mut report, &alone(programming::measure)?);
    let agents = [1_000, 100_000].map(agent::measure);
    for figures in agents {
        show::agent(&mut report, &figures?);
    }
    show::verdict(&report);
    report.write()?;
    show::plot(&report.file("svg"), &all)?;
    println!("\nWrote {} and {}.", report.file("json").display(), report.file("svg").display());
    Ok(())
}

fn measure(services: u32) -> Result<Sized> {
    let site = Site::build(services)?;
    let connect = connect::measure(&site)?;
    let hook = hook::measure(&site)?;
    Ok(Sized { services, connect, hook, map_memory: site.tcp.map_memory()? })
}

/// On a thread of its own, kept to one processor: namespaces and processor of the process stay as they are.
fn alone<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    thread::spawn(|| ground::pin().and_then(|()| work())).join().expect("the conductor panicked")
}
