//! `beeline-bench`: benchmarks of Beeline. Each prints a table and writes `target/bench/<name>.json` and a plot.

mod bar_chart;
mod candidates;
mod cluster;
mod isolation;
mod mapping;
mod outside;
mod plot;
mod readme;
mod report;
mod socket;
mod stats;

use std::{net::Ipv4Addr, path::PathBuf};

use clap::{Parser, Subcommand};

/// Benchmarks of Beeline. They need root, and use cgroups and network namespaces of their own
#[derive(Parser)]
#[command(version)]
struct BenchArgs {
    /// Directory for the results and the plot
    #[arg(long, global = true, default_value = "target/bench")]
    out: PathBuf,
    #[command(subcommand)]
    bench: Bench,
}

#[derive(Subcommand)]
enum Bench {
    /// Measure the design candidates for the per-socket record and the map layouts
    Candidates,
    /// Measure the socket path: hooks, dials compared with direct, nftables and iptables, programming, memory
    Socket {
        /// Part of the bench to run [default: all]
        #[arg(long, value_enum)]
        only: Option<socket::SocketBenchPart>,
    },
    /// Measure a node with a real API server: Beeline and kube-proxy in both modes; needs `kit build`
    Cluster(cluster::ClusterBenchOptions),
    /// Measure a host outside the cluster: Beeline with direct pods and with nodePorts, and nodePorts without Beeline;
    /// needs `kit build`
    Outside(outside::OutsideBenchOptions),
    /// Draw the plots of the README from the results in --out and the stored values
    Plot {
        /// Directory of the plots and of their stored values
        #[arg(long, default_value = "docs/images")]
        images: PathBuf,
    },
    /// Run as a process of the application on the host outside (started by the bench)
    #[command(hide = true)]
    Application(outside::ApplicationArgs),
    /// Run as a pod that answers at its address (started by the bench)
    #[command(hide = true)]
    Pod { address: Ipv4Addr },
}

fn main() -> anyhow::Result<()> {
    let args = BenchArgs::parse();
    match args.bench {
        Bench::Candidates => candidates::run(&args.out),
        Bench::Socket { only } => socket::run(&args.out, only),
        Bench::Cluster(options) => cluster::run(&args.out, &options),
        Bench::Outside(options) => outside::run(&args.out, &options),
        Bench::Plot { images } => readme::update(&args.out, &images),
        Bench::Application(arguments) => outside::serve(arguments),
        Bench::Pod { address } => cluster::server::serve(address),
    }
}
