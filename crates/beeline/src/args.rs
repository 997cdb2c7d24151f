//! What was typed.

use crate::options::Options;
use clap::{Args as ClapArgs, Parser, Subcommand, ValueEnum};
use std::path::PathBuf;

#[derive(Debug, Parser)]
#[command(
    name = "beeline",
    version,
    about = "Kubernetes services resolved where the application dials",
    after_help = "Exit codes: 0 done; 1 failed; 2 wrong use; 3 nothing found; 4 something is wrong (doctor, plan --diff).\n\n\
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
    /// Resolve services on this host: follow an API server or a folder of manifests and keep the kernel in step
    #[command(
        after_help = "Example:\n  beeline agent --manifests ./examples/manifests --node-name node-1 --cgroup /sys/fs/cgroup/unified/demo\n\n\
                            Every option can stand in a file: beeline agent --config beeline.yaml (the option's name without the dashes)."
    )]
    Agent(Box<Options>),
    /// Once for a cluster (two replicas): admit policies, publish their backends and the nodes' addresses, keep their status
    #[command(
        after_help = "Example:\n  beeline controller --kubeconfig ~/.kube/config --webhook-name controller.example.com"
    )]
    Controller(Box<crate::command::controller::ControllerOptions>),
    /// What the agent does and what the kernel holds
    Status(View),
    /// Every frontend: what is dialled, and what it becomes
    #[command(after_help = "Examples:\n  beeline services\n  beeline services -o json | jq '.[].service'")]
    Services(View),
    /// Every backend, with the number of dials that it got
    Backends(View),
    /// Every policy: accepted or why not, who holds its frontends, and its backends
    #[command(
        after_help = "Examples:\n  beeline policies\n  beeline policies kube-system/node-local-dns\n  beeline policies -o json"
    )]
    Policies(Policies),
    /// What this dial would become, and why each endpoint is in or out
    #[command(
        after_help = "Examples:\n  beeline explain 10.96.0.10:53/UDP\n  beeline explain [fd00:96::1]:80/TCP --from 4711\n  \
                            beeline explain 172.31.0.11:30080/TCP --from /sys/fs/cgroup/unified/kubepods/pod1"
    )]
    Explain(Explain),
    /// What a node would do with these objects, without touching the kernel
    #[command(
        after_help = "Examples:\n  beeline plan --manifests ./manifests --node-name n1\n  beeline plan --manifests ./manifests --node-name n1 -o json\n  \
                            beeline plan --kubeconfig ~/.kube/config --nodes watch --node-name n1\n  \
                            beeline plan --manifests ./manifests --node-name n1 --diff    # against the live tables; exit code 4 if they differ"
    )]
    Plan(Box<Plan>),
    /// Every row of a kernel table, readable
    #[command(after_help = "Example:\n  beeline dump backend")]
    Dump(Dump),
    /// Live events: who dialled what, and what it became
    #[command(
        after_help = "Examples:\n  beeline monitor --events all\n  beeline monitor --service default/web --verdict refused -o json"
    )]
    Monitor(Monitor),
    /// Change which dials are reported: off, failures, sample:N, all
    #[command(after_help = "Example:\n  beeline events sample:100")]
    Events(Events),
    /// What this kernel and host can and cannot do for us, and what to do about it
    Doctor(Doctor),
    /// Detach from every hook and remove every pin
    Cleanup(Cleanup),
    /// The definitions of LocalRedirectPolicy and BalancingPolicy, as YAML
    #[command(after_help = "Example:\n  beeline crds | kubectl apply -f -")]
    Crds,
    /// Completions for a shell
    #[command(after_help = "Example:\n  beeline completions bash > /etc/bash_completion.d/beeline")]
    Completions { shell: clap_complete::Shell },
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Output {
    #[default]
    Table,
    Json,
    Yaml,
}

/// Where the agent left its tables and where it listens.
#[derive(Clone, Debug, ClapArgs)]
pub struct Place {
    /// Folder of the pins
    #[arg(long, default_value = crate::options::PIN_DIR, value_name = "DIR")]
    pub pin_dir: PathBuf,
    /// The agent's socket
    #[arg(long, default_value = crate::options::SOCKET, value_name = "PATH")]
    pub socket: PathBuf,
}

#[derive(Clone, Debug, ClapArgs)]
pub struct View {
    #[command(flatten)]
    pub place: Place,
    /// How to print
    #[arg(short, long, value_enum, default_value_t)]
    pub output: Output,
}

#[derive(Clone, Debug, ClapArgs)]
pub struct Policies {
    /// Only this one: its name, or NAMESPACE/NAME
    pub name: Option<String>,
    #[command(flatten)]
    pub view: View,
}

#[derive(Clone, Debug, ClapArgs)]
pub struct Explain {
    /// ADDRESS:PORT/PROTOCOL; TCP if the protocol is left out
    pub dial: String,
    /// Who dials: a process id, or a cgroup directory
    #[arg(long, value_name = "PID|CGROUP")]
    pub from: Option<String>,
    #[command(flatten)]
    pub view: View,
}

#[derive(Clone, Debug, ClapArgs)]
pub struct Plan {
    #[command(flatten)]
    pub options: Options,
    /// How to print
    #[arg(short, long, value_enum, default_value_t)]
    pub output: Output,
    /// Compare with the live tables
    #[arg(long)]
    pub diff: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DumpTable {
    /// Frontends: one row an address, port and protocol
    Service,
    /// Backends: one row a service port and endpoint
    Backend,
    /// Which addresses are nodes'
    Node,
    /// Which client keeps which backend
    Affinity,
    /// What open sockets remember: dialled, and become
    Nat,
    /// Policies by their numbers: limit, tokens that are left, sets
    Policy,
    /// Pods that a policy selects, by their cgroups
    Member,
}

#[derive(Clone, Debug, ClapArgs)]
pub struct Dump {
    #[arg(value_enum)]
    pub table: DumpTable,
    #[command(flatten)]
    pub view: View,
}

#[derive(Clone, Debug, ClapArgs)]
pub struct Monitor {
    /// Only this service (namespace/name)
    #[arg(long, value_name = "NS/NAME")]
    pub service: Option<String>,
    /// Only dials from this cgroup (a directory, or an id)
    #[arg(long, value_name = "CGROUP")]
    pub cgroup: Option<String>,
    /// Only this verdict
    #[arg(long, value_enum)]
    pub verdict: Option<VerdictName>,
    /// Set the event level first (it stays so afterwards)
    #[arg(long, value_name = "LEVEL")]
    pub events: Option<String>,
    /// Stop after this many
    #[arg(long, value_name = "N")]
    pub count: Option<usize>,
    #[command(flatten)]
    pub view: View,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum VerdictName {
    Resolved,
    Refused,
    Untouched,
}

#[derive(Clone, Debug, ClapArgs)]
pub struct Events {
    /// off, failures, sample:N or all
    pub level: String,
    #[command(flatten)]
    pub place: Place,
}

#[derive(Clone, Debug, ClapArgs)]
pub struct Doctor {
    /// The cgroup that the agent serves; default: the root of cgroup2
    #[arg(long, value_name = "DIR")]
    pub cgroup: Option<PathBuf>,
    #[command(flatten)]
    pub view: View,
}

#[derive(Clone, Debug, ClapArgs)]
pub struct Cleanup {
    #[command(flatten)]
    pub view: View,
}
