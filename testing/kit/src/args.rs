//! The command line, as typed.

use std::path::PathBuf;

use clap::{Parser, Subcommand, ValueEnum};

use kit::{Host, Node, proxy::Mode, storm::Target};

/// A real Kubernetes of several nodes on one machine, to run Beeline in
#[derive(Debug, Parser)]
#[command(version, max_term_width = 110)]
pub struct Args {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Build all that a cluster needs into the cache ($BEELINE_CACHE/kit); what is there is kept
    Build {
        /// Upstream's end-to-end tests too
        #[arg(long)]
        e2e: bool,
        /// Helm too
        #[arg(long)]
        helm: bool,
        /// KubeEdge too: cloudcore, edgecore and their definitions
        #[arg(long)]
        edge: bool,
        /// Helm and nothing else
        #[arg(long, conflicts_with_all = ["e2e", "helm", "edge"])]
        only_helm: bool,
    },
    /// Start the cluster, with Beeline on every node
    Up {
        /// Run upstream's kube-proxy on every node, in this mode
        #[arg(long, value_enum, default_value = "none")]
        proxy: ProxyMode,
        #[arg(long, default_value_t = 3)]
        nodes: u8,
        /// Label the nodes with zones z1, z2 and z3, in turn
        #[arg(long)]
        zones: bool,
        /// Leave Beeline out
        #[arg(long)]
        no_beeline: bool,
        /// Beeline's program [default: beside this one]
        #[arg(long)]
        binary: Option<PathBuf>,
        /// Leave cluster DNS and load-balancer addresses out
        #[arg(long)]
        no_addon: bool,
    },
    /// End and remove all of the cluster, also one that came up only in part
    Down,
    /// What runs, and where its log is
    Status,
    /// kubectl as administrator
    #[command(disable_help_flag = true)]
    Kubectl {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        words: Vec<String>,
    },
    /// Run a command inside a node: all its namespaces and its cgroup
    Node {
        node: Node,
        #[command(flatten)]
        entry: Entry,
    },
    /// Run a command on a host outside the cluster, one that a test has made
    Host {
        host: Host,
        #[command(flatten)]
        entry: Entry,
    },
    /// Run a command in the network of the control plane
    Control {
        #[command(flatten)]
        entry: Entry,
    },
    /// Start a part of the cluster that was stopped: etcd, kube-apiserver, n1/kubelet (`kit status` lists them)
    Start { part: String },
    /// Stop a part of the cluster
    Stop { part: String },
    /// Stop and start a part of the cluster
    Restart { part: String },
    /// Make an image from a program, on a Debian root file system, and import it into every node
    Image {
        /// Its full name, such as example.org/beeline:dev
        name: String,
        #[arg(long)]
        binary: PathBuf,
        /// Another program to put in: where it is, and where it goes, such as deploy/detach-wait=usr/share/x
        #[arg(long, value_name = "FILE=PATH")]
        with: Vec<String>,
    },
    /// Change to kube-proxy in a mode, or to none
    Proxy { mode: ProxyMode },
    /// Dial agnhost's netexec, until the standard input ends, and print who answered (tests run it)
    #[command(hide = true)]
    Storm {
        /// So many dials to each target, instead
        #[arg(long)]
        times: Option<u32>,
        #[arg(required = true)]
        targets: Vec<Target>,
    },
    /// Start or end Beeline's agent on a node; what follows `--` are more options for it
    Agent {
        node: Node,
        deed: Deed,
        /// Beeline's program [default: beside this one]
        #[arg(long)]
        binary: Option<PathBuf>,
        #[arg(last = true)]
        extra: Vec<String>,
    },
    /// Run upstream's specs whose names match FOCUS and not SKIP, and print what came of them
    E2e {
        /// What to call the run; its log and reports are kept under this name
        name: String,
        focus: String,
        #[arg(default_value = kit::e2e::SKIP)]
        skip: String,
        #[arg(default_value_t = 1)]
        processes: u8,
        /// Seconds after which the rest is interrupted
        #[arg(long, default_value_t = 1200)]
        limit: u64,
    },
    /// Dial an address without pause and print who answers
    #[command(hide = true)]
    Dial { target: Target },
    /// Cluster DNS and load-balancer addresses (the kit starts it)
    #[command(hide = true)]
    Addon,
    /// First process of a node (the kit starts it)
    #[command(hide = true)]
    First {
        node: Node,
        #[arg(long)]
        inside: bool,
    },
}

#[derive(Debug, clap::Args)]
pub struct Entry {
    /// Name of the cgroup to run in, below the node's
    #[arg(long, default_value = "command", hide = true)]
    pub part: String,
    /// In a session of its own
    #[arg(long, hide = true)]
    pub detach: bool,
    #[arg(last = true, required = true)]
    pub words: Vec<String>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum ProxyMode {
    #[value(alias = "stop")]
    None,
    Nftables,
    Iptables,
}

impl ProxyMode {
    pub fn mode(self) -> Option<Mode> {
        match self {
            ProxyMode::None => None,
            ProxyMode::Nftables => Some(Mode::Nftables),
            ProxyMode::Iptables => Some(Mode::Iptables),
        }
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Deed {
    Start,
    Stop,
    Kill,
}
