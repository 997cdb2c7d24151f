//! The command line as clap parses it: one struct of arguments per subcommand. The checks that need more than one
//! option are in `options` and in the commands.

#[cfg(feature = "outside")]
mod outside;

use crate::options::Options;
use clap::{Args as ClapArgs, Parser, Subcommand, ValueEnum};
#[cfg(feature = "outside")]
pub use outside::{DnsCommand, DnsRouteArgs, GrantArgs, HostAccountArgs, JoinArgs, LeaveArgs};
use std::path::PathBuf;

/// The version of the package and the commit that the binary was built from.
pub const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), " (commit ", env!("BEELINE_COMMIT"), ")");

#[derive(Debug, Parser)]
#[command(
    name = "beeline",
    version = VERSION,
    about = "Kubernetes Service load balancing at connect(), by eBPF",
    after_help = "Exit codes: 0 success; 1 failure; 2 wrong usage; 3 not found; 4 a check failed (doctor, plan --diff) or no agent\n\
                  runs (status).\n\n\
                  Examples:\n  \
                  beeline agent --manifests /etc/beeline/manifests --node-name n1\n  \
                  beeline explain 10.96.0.10:53/UDP\n  \
                  beeline plan --manifests ./manifests --node-name n1 --diff"
)]
pub struct Args {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the agent: watch an API server or a directory of manifests and program the kernel
    #[command(
        after_help = "Example:\n  beeline agent --manifests ./examples/manifests --node-name node-1 --cgroup /sys/fs/cgroup/unified/demo\n\n\
                            A configuration file may set every option by its name without the dashes: beeline agent --config beeline.yaml"
    )]
    Agent(Box<Options>),
    /// Run the controller, once per cluster (two replicas): validate policies, publish their backends and their status
    #[command(
        after_help = "Example:\n  beeline controller --kubeconfig ~/.kube/config --webhook-name controller.example.com"
    )]
    Controller(Box<crate::command::controller::ControllerOptions>),
    /// Show the state of the agent and of its kernel tables
    Status(QueryArgs),
    /// List services with their frontends and backends
    #[command(
        after_help = "Examples:\n  beeline services\n  beeline services default/web\n  beeline services -n kube-system\n  \
                            beeline services -o json | jq '.[].service'"
    )]
    Services(ServicesArgs),
    /// List backends with the number of connections that each received
    Backends(QueryArgs),
    /// List policies: whether each is accepted, which policy owns its frontends, and its backends
    #[command(
        after_help = "Examples:\n  beeline policies\n  beeline policies kube-system/node-local-dns\n  beeline policies -o json"
    )]
    Policies(PoliciesArgs),
    /// Explain how a destination is resolved and why each endpoint is used or not
    #[command(
        after_help = "Examples:\n  beeline explain 10.96.0.10:53/UDP\n  beeline explain [fd00:96::1]:80/TCP --from 4711\n  \
                            beeline explain default/web:http --from default/client\n  \
                            beeline explain 172.31.0.11:30080/TCP --from /sys/fs/cgroup/unified/kubepods/pod1"
    )]
    Explain(ExplainArgs),
    /// Print what an agent would program for these objects, without changing the kernel
    #[command(
        after_help = "Examples:\n  beeline plan --manifests ./manifests --node-name n1\n  beeline plan --manifests ./manifests --node-name n1 -o json\n  \
                            beeline plan --kubeconfig ~/.kube/config --node-source watch --node-name n1\n  \
                            beeline plan --manifests ./manifests --node-name n1 --diff    # exit code 4 if the kernel differs"
    )]
    Plan(Box<PlanArgs>),
    /// Run a command in a view: its connections prefer the cluster of that view
    #[command(after_help = "Example:\n  beeline run --view green -- curl http://10.43.0.10/\n\n\
                            Exit code: that of the command; 126 if it cannot be executed, 127 if it is not found.")]
    Run(RunArgs),
    /// Print every row of a kernel table
    #[command(after_help = "Example:\n  beeline dump backend")]
    Dump(DumpArgs),
    /// Stream connection events: client, destination, verdict and backend
    #[command(
        after_help = "Examples:\n  beeline monitor --events all\n  beeline monitor --service default/web --verdict refused -o json"
    )]
    Monitor(MonitorArgs),
    /// Set which connections are reported as events: off, failures, sample:N, all
    #[command(after_help = "Example:\n  beeline events sample:100")]
    Events(EventsArgs),
    /// Check the kernel and the host for everything that the agent needs, and say what to change
    Doctor(DoctorArgs),
    #[cfg(feature = "outside")]
    /// Configure how the host finds the DNS server of the agent
    #[command(subcommand)]
    Dns(DnsCommand),
    /// Detach all BPF programs and remove all pinned maps
    Cleanup(CleanupArgs),
    /// Print the CustomResourceDefinitions of LocalRedirectPolicy and BalancingPolicy as YAML
    #[command(after_help = "Example:\n  beeline crds | kubectl apply -f -")]
    Crds,
    #[cfg(feature = "outside")]
    /// Create the account of a host outside the cluster and print the command that joins it (for administrators)
    #[command(
        after_help = "Creates a service account for the host. It may read services, endpoints, nodes and policies and renew its own\n\
                      token; nothing else. Each run prints a new join code; earlier codes stay valid until they expire.\n\
                      Anyone who has the code can join as that host until then. If a code has leaked: beeline revoke HOST.\n\n\
                      Examples:\n  beeline grant vm-1\n  beeline grant vm-1 --context production --api-server https://192.0.2.1:6443 --token-lifetime 72h\n  \
                      beeline grant vm-1 | ssh root@vm-1 beeline join -"
    )]
    Grant(GrantArgs),
    #[cfg(feature = "outside")]
    /// Delete the account of a host; its tokens become invalid (for administrators)
    #[command(after_help = "Example:\n  beeline revoke vm-1")]
    Revoke(HostAccountArgs),
    #[cfg(feature = "outside")]
    /// Join this host to a cluster with a code from `beeline grant`: check, write the configuration, start the agent
    #[command(
        after_help = "Joining the same cluster again replaces its credentials. Nothing is written before the API server has answered.\n\
                      The code is not stored: the host uses it once to request its own token.\n\n\
                      Examples:\n  beeline join AQAABk...\n  beeline join - < code.txt"
    )]
    Join(JoinArgs),
    #[cfg(feature = "outside")]
    /// Undo `beeline join`: remove credentials and configuration; with the last cluster also the hooks and the unit
    #[command(after_help = "Examples:\n  beeline leave\n  beeline leave shop")]
    Leave(LeaveArgs),
    /// A command of the feature `outside`, or an unknown one
    #[cfg(not(feature = "outside"))]
    #[command(external_subcommand)]
    Other(Vec<String>),
    /// Write the manual pages into a directory
    #[command(hide = true)]
    Man {
        /// Directory for the manual pages
        dir: PathBuf,
    },
    /// Print shell completions
    #[command(after_help = "Example:\n  beeline completions bash > /etc/bash_completion.d/beeline")]
    Completions {
        /// Shell to print completions for
        shell: clap_complete::Shell,
    },
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum OutputFormat {
    #[default]
    Table,
    Json,
    Yaml,
}

/// Where a running agent pins its maps and listens for commands.
#[derive(Clone, Debug, ClapArgs)]
pub struct AgentPaths {
    /// Directory of the pinned maps and links [default: as the running agent reports, else /sys/fs/bpf/beeline]
    #[arg(long, value_name = "DIR")]
    pub pin_dir: Option<PathBuf>,
    /// Unix socket of the agent
    #[arg(long, default_value = crate::options::SOCKET, value_name = "PATH")]
    pub socket: PathBuf,
}

/// The options of every command that reads from a running agent or its maps.
#[derive(Clone, Debug, ClapArgs)]
pub struct QueryArgs {
    #[command(flatten)]
    pub paths: AgentPaths,
    /// Output format
    #[arg(short, long, value_enum, default_value_t)]
    pub output: OutputFormat,
}

#[derive(Clone, Debug, ClapArgs)]
pub struct ServicesArgs {
    /// Services to list: NAME, NAMESPACE/NAME or CLUSTER:NAMESPACE/NAME [default: all]
    #[arg(value_name = "NAME")]
    pub names: Vec<String>,
    /// Namespace to list the services of [default: all]
    #[arg(short, long, value_name = "NAMESPACE")]
    pub namespace: Option<String>,
    #[command(flatten)]
    pub query: QueryArgs,
}

#[derive(Clone, Debug, ClapArgs)]
pub struct PoliciesArgs {
    /// Policy to show in detail: NAME or NAMESPACE/NAME
    pub name: Option<String>,
    #[command(flatten)]
    pub query: QueryArgs,
}

#[derive(Clone, Debug, ClapArgs)]
pub struct ExplainArgs {
    /// Destination: ADDRESS:PORT[/PROTOCOL] (protocol: TCP by default) or a service, NAMESPACE/NAME[:PORT]
    #[arg(value_name = "DESTINATION")]
    pub dial: String,
    /// Client: a process id, a cgroup directory, a pod of this node as NAME or NAMESPACE/NAME, or the source address of
    /// packets that arrive at this node [default: a process in the host's network namespace]
    #[arg(long, value_name = "PID|CGROUP|POD|ADDRESS")]
    pub from: Option<String>,
    /// View to resolve in [default: the view of the client]
    #[arg(long, value_name = "NAME")]
    pub view: Option<String>,
    #[command(flatten)]
    pub query: QueryArgs,
}

#[derive(Clone, Debug, ClapArgs)]
pub struct RunArgs {
    /// Name of a view from the configuration of the agent
    #[arg(long, value_name = "NAME")]
    pub view: String,
    /// Unix socket of the agent
    #[arg(long, default_value = crate::options::SOCKET, value_name = "PATH")]
    pub socket: PathBuf,
    /// Command and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "CMD")]
    pub command: Vec<String>,
}

#[derive(Clone, Debug, ClapArgs)]
pub struct PlanArgs {
    #[command(flatten)]
    pub options: Options,
    /// Output format
    #[arg(short, long, value_enum, default_value_t)]
    pub output: OutputFormat,
    /// Compare the plan with the tables in the kernel
    #[arg(long)]
    pub diff: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DumpTable {
    /// Frontends: one row per address, port and protocol
    Service,
    /// Backends: one row per service port and endpoint
    Backend,
    /// Addresses of nodes
    Node,
    /// Session affinity: client and backend
    Affinity,
    /// Open sockets: original destination and backend
    Nat,
    /// Policies: connection limit, remaining tokens, backend sets
    Policy,
    /// Pods that a policy selects, by cgroup
    Member,
}

#[derive(Clone, Debug, ClapArgs)]
pub struct DumpArgs {
    /// Table to print
    #[arg(value_enum)]
    pub table: DumpTable,
    #[command(flatten)]
    pub query: QueryArgs,
}

#[derive(Clone, Debug, ClapArgs)]
pub struct MonitorArgs {
    /// Service to show events of: NAMESPACE/NAME or CLUSTER:NAMESPACE/NAME
    #[arg(long, value_name = "NS/NAME")]
    pub service: Option<String>,
    /// Cgroup to show events of: a directory or an id
    #[arg(long, value_name = "CGROUP")]
    pub cgroup: Option<String>,
    /// Verdict to show events of
    #[arg(long, value_enum)]
    pub verdict: Option<VerdictFilter>,
    /// Event level while this command runs: off, failures, sample:N or all [default: unchanged]
    #[arg(long, value_name = "LEVEL")]
    pub events: Option<String>,
    /// Number of events after which the command ends
    #[arg(long, value_name = "N")]
    pub count: Option<usize>,
    #[command(flatten)]
    pub query: QueryArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum VerdictFilter {
    Resolved,
    Refused,
    Untouched,
}

#[derive(Clone, Debug, ClapArgs)]
pub struct EventsArgs {
    /// Event level: off, failures, sample:N or all
    pub level: String,
    #[command(flatten)]
    pub paths: AgentPaths,
}

#[derive(Clone, Debug, ClapArgs)]
pub struct DoctorArgs {
    /// Cgroup that the agent serves [default: as the running agent reports, else the root of cgroup2]
    #[arg(long, value_name = "DIR")]
    pub cgroup: Option<PathBuf>,
    #[command(flatten)]
    pub query: QueryArgs,
}

#[derive(Clone, Debug, ClapArgs)]
pub struct CleanupArgs {
    /// Configuration file of the agent; its pin-dir and cgroup are cleaned up
    #[arg(long, value_name = "FILE", conflicts_with = "pin_dir")]
    pub config: Option<PathBuf>,
    #[command(flatten)]
    pub query: QueryArgs,
}
