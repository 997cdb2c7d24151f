//! `beeline-bench`: measures what the design rests on. Prints a table, writes `target/bench/<name>.json` and a plot.

mod candidates;
mod cluster;
mod ground;
mod mapping;
mod outside;
mod plot;
mod report;
mod socket;
mod stats;

use std::{net::Ipv4Addr, path::PathBuf};

use clap::{Parser, Subcommand};

/// Benches of Beeline. They need root; they attach to a cgroup of their own and dial in a network namespace of their own.
#[derive(Parser)]
#[command(version)]
struct Args {
    /// Where the figures and the plot go
    #[arg(long, global = true, default_value = "target/bench")]
    out: PathBuf,
    #[command(subcommand)]
    bench: Bench,
}

#[derive(Subcommand)]
enum Bench {
    /// Design candidates: the per-socket record and the table layouts
    Candidates,
    /// The socket path: hooks, dials against direct, nftables and iptables, programming, memory
    Socket {
        /// Only this part
        #[arg(long, value_enum)]
        only: Option<socket::Part>,
    },
    /// A node against a real API server: Beeline and kube-proxy in both modes, in turn; needs `kit build`
    Cluster(cluster::Wish),
    /// From a host outside the cluster: through Beeline to pods and to nodePorts, and plain nodePorts; needs `kit build`
    Outside(outside::Wish),
    /// A process of the application on the host outside (the bench starts it)
    #[command(hide = true)]
    Application(outside::Role),
    /// A pod that answers at its address (the bench starts it)
    #[command(hide = true)]
    Pod { address: Ipv4Addr },
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    match args.bench {
        Bench::Candidates => candidates::run(&args.out),
        Bench::Socket { only } => socket::run(&args.out, only),
        Bench::Cluster(wish) => cluster::run(&args.out, &wish),
        Bench::Outside(wish) => outside::run(&args.out, &wish),
        Bench::Application(role) => outside::serve(role),
        Bench::Pod { address } => cluster::server::serve(address),
    }
}
