//! Command line of the kit, as typed.

use std::path::PathBuf;

use clap::{Parser, Subcommand, ValueEnum};

use kit::{HostId, NodeId, load::DialTarget, proxy::ProxyMode};

/// A real Kubernetes cluster of several nodes on one machine, for development and tests of Beeline
#[derive(Debug, Parser)]
#[command(version, max_term_width = 110)]
pub struct KitArgs {
    #[command(subcommand)]
    pub command: KitCommand,
}

#[derive(Debug, Subcommand)]
pub enum KitCommand {
    /// Build everything a cluster needs into the cache ($BEELINE_CACHE/kit); keeps what is already built
    Build {
        /// Build upstream's end-to-end tests too
        #[arg(long)]
        e2e: bool,
        /// Build Helm too
        #[arg(long)]
        helm: bool,
        /// Build KubeEdge too: cloudcore, edgecore and their definitions
        #[arg(long)]
        edge: bool,
        /// Build Helm and nothing else
        #[arg(long, conflicts_with_all = ["e2e", "helm", "edge"])]
        only_helm: bool,
    },
    /// Start the cluster, with Beeline on every node
    Up {
        /// Mode of upstream's kube-proxy on every node
        #[arg(long, value_enum, default_value = "none")]
        proxy: ProxyOption,
        /// Number of nodes, 1 to 9
        #[arg(long, default_value_t = 3)]
        nodes: u8,
        /// Label the nodes with zones z1, z2 and z3, round-robin
        #[arg(long)]
        zones: bool,
        /// Start the cluster without Beeline
        #[arg(long, conflicts_with = "chart")]
        no_beeline: bool,
        /// Install Beeline by its Helm chart (deploy/chart) instead of starting it as processes on the nodes; needs
        /// `kit build --helm`
        #[arg(long)]
        chart: bool,
        /// Path of the beeline program [default: beside this program]
        #[arg(long)]
        binary: Option<PathBuf>,
        /// Start the cluster without cluster DNS and load-balancer addresses
        #[arg(long)]
        no_addon: bool,
    },
    /// Stop the cluster and remove everything of it, also after a start that failed half-way
    Down,
    /// List the components, whether each runs, and its log file
    Status,
    /// Run kubectl as administrator
    #[command(disable_help_flag = true)]
    Kubectl {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Run a command inside a node: in all of its namespaces and in its cgroup
    Node {
        node: NodeId,
        #[command(flatten)]
        run: RunOptions,
    },
    /// Add, remove or use a host outside the cluster: `host add h1`, `host remove h1`, `host h1 -- COMMAND`
    #[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
    Host {
        #[command(subcommand)]
        action: Option<HostAction>,
        /// Host, such as h1
        #[arg(required = true)]
        host: Option<HostId>,
        #[command(flatten)]
        run: Option<RunOptions>,
    },
    /// Run a command in the network namespace of the control plane
    Control {
        #[command(flatten)]
        run: RunOptions,
    },
    /// Start a stopped component, such as etcd, kube-apiserver or n1/kubelet (`kit status` lists them)
    Start { component: String },
    /// Stop a component
    Stop { component: String },
    /// Stop and start a component
    Restart { component: String },
    /// Build an image from a program on a Debian root file system, and import it into every node
    Image {
        /// Full name of the image, such as example.org/beeline:dev
        name: String,
        /// Path of the program
        #[arg(long)]
        binary: PathBuf,
        /// Another file to add, as FILE=PATH in the image, such as deploy/detach-wait=usr/share/x
        #[arg(long, value_name = "FILE=PATH")]
        with: Vec<String>,
    },
    /// Switch kube-proxy on all nodes to a mode, or stop it
    Proxy { mode: ProxyOption },
    /// Dial agnhost's netexec until stdin ends, then print which servers answered (used by tests)
    #[command(hide = true)]
    Load {
        /// Number of dials to each target, instead of dialling until stdin ends
        #[arg(long)]
        times: Option<u32>,
        #[arg(required = true)]
        targets: Vec<DialTarget>,
    },
    /// Start, stop or kill Beeline's agent on a node; options after `--` are passed to the agent
    Agent {
        node: NodeId,
        action: AgentAction,
        /// Path of the beeline program [default: beside this program]
        #[arg(long)]
        binary: Option<PathBuf>,
        #[arg(last = true)]
        extra: Vec<String>,
    },
    /// Run upstream's specs whose names match FOCUS and not SKIP, and print their results
    E2e {
        /// Name of the run; its log and reports are kept under this name
        name: String,
        /// Regular expression on the names of specs
        focus: String,
        /// Regular expression on the names of specs
        #[arg(default_value = kit::e2e::SKIP)]
        skip: String,
        /// Number of specs that run at the same time
        #[arg(default_value_t = 1)]
        processes: u8,
        /// Time limit in seconds; specs that have not finished by then are interrupted
        #[arg(long, default_value_t = 1200)]
        limit: u64,
    },
    /// Dial a target in a loop and print the server of each answer (used by tests)
    #[command(hide = true)]
    Dial { target: DialTarget },
    /// Serve cluster DNS and load-balancer addresses (started by the kit)
    #[command(hide = true)]
    Addon,
    /// Run as the init process of a node (started by the kit)
    #[command(hide = true)]
    Init {
        node: NodeId,
        /// Whether this process is already in the node's namespaces
        #[arg(long)]
        inside: bool,
    },
}

#[derive(Debug, clap::Args)]
pub struct RunOptions {
    /// Name of the cgroup to run in, below that of the node or host
    #[arg(long, default_value = "command", hide = true)]
    pub component: String,
    /// Run in a session of its own
    #[arg(long, hide = true)]
    pub detach: bool,
    /// Command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub arguments: Vec<String>,
}

#[derive(Debug, Subcommand)]
pub enum HostAction {
    /// Create a host outside the cluster, let it join the cluster, and start the agent on it
    Add {
        /// Host to create: h1 to h9
        host: HostId,
        /// How the host reaches pods: by routes to each node, or not at all, so that it dials nodePorts
        #[arg(long, value_enum, default_value = "static")]
        route: RouteOption,
    },
    /// Stop the agent and remove the host
    Remove {
        /// Host to remove
        host: HostId,
    },
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum RouteOption {
    Static,
    Isolated,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum ProxyOption {
    #[value(alias = "stop")]
    None,
    Nftables,
    Iptables,
}

impl ProxyOption {
    pub fn mode(self) -> Option<ProxyMode> {
        match self {
            ProxyOption::None => None,
            ProxyOption::Nftables => Some(ProxyMode::Nftables),
            ProxyOption::Iptables => Some(ProxyMode::Iptables),
        }
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum AgentAction {
    Start,
    Stop,
    Kill,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(arguments: &[&str]) -> Result<KitCommand, clap::Error> {
        KitArgs::try_parse_from([&["kit"], arguments].concat()).map(|args| args.command)
    }

    #[test]
    fn a_host_is_added_or_runs_a_command() {
        let added = parse(&["host", "add", "h2", "--route", "isolated"]);
        let Ok(KitCommand::Host { action: Some(HostAction::Add { host, route: RouteOption::Isolated }), .. }) = added
        else {
            panic!("{added:?}")
        };
        assert_eq!(host.name(), "h2");
        let run = parse(&["host", "h1", "--component", "web", "--detach", "--", "curl", "-s"]);
        let Ok(KitCommand::Host { action: None, host: Some(host), run: Some(run) }) = run else { panic!("{run:?}") };
        assert_eq!((host.name().as_str(), run.component.as_str(), run.detach), ("h1", "web", true));
        assert_eq!(run.arguments, ["curl", "-s"]);
        assert!(parse(&["host", "add"]).is_err());
    }

    #[test]
    fn the_chart_needs_beeline() {
        assert!(parse(&["up", "--chart"]).is_ok());
        assert!(parse(&["up", "--chart", "--no-beeline"]).is_err());
    }
}
