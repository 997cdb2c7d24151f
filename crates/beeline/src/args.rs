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
    /// Run a command whose dials see another cluster first
    #[command(after_help = "Example:\n  beeline run --view green -- curl http://10.43.0.10/\n\n\
                            Exit code: the command's; 126 and 127 where it cannot be run.")]
    Run(Run),
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
    /// How the host finds the agent's name server
    #[command(subcommand)]
    Dns(DnsCommand),
    /// Detach from every hook and remove every pin
    Cleanup(Cleanup),
    /// The definitions of LocalRedirectPolicy and BalancingPolicy, as YAML
    #[command(after_help = "Example:\n  beeline crds | kubectl apply -f -")]
    Crds,
    /// Make a host outside known to the cluster, and print the one line that joins it (for administrators)
    #[command(
        after_help = "Makes a service account of the host's own, which may read services, endpoints, nodes and policies, and renew its own\n\
                      token; nothing else. May be repeated: each time there is a new code, and the earlier one holds until it expires.\n\
                      Until then whoever has the code can become that host. If it got into other hands: beeline revoke HOST.\n\n\
                      Examples:\n  beeline grant vm-1\n  beeline grant vm-1 --context production --api-server https://192.0.2.1:6443 --lifetime 72h\n  \
                      beeline grant vm-1 | ssh root@vm-1 beeline join -"
    )]
    Grant(Grant),
    /// Forget a host: its account goes, and its tokens are worth nothing from then on (for administrators)
    #[command(after_help = "Example:\n  beeline revoke vm-1")]
    Revoke(Administer),
    /// With a code from `beeline grant`, make this host one of the cluster's: check, write, start, and say what is reached
    #[command(
        after_help = "The same cluster again replaces its credentials (a rejoin). Nothing is written before the API server has answered,\n\
                      and the code is not kept: with it the host asks for a token of its own.\n\n\
                      Examples:\n  beeline join AQAABk...\n  beeline join - < code.txt"
    )]
    Join(Join),
    /// Undo `beeline join`: credentials, configuration, and with the last cluster the hooks and the unit
    #[command(after_help = "Examples:\n  beeline leave\n  beeline leave shop")]
    Leave(Leave),
    /// Manual pages, into a folder
    #[command(hide = true)]
    Man { dir: PathBuf },
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
    /// In this view [default: the dialler's own]
    #[arg(long = "view", value_name = "NAME")]
    pub seen: Option<String>,
    #[command(flatten)]
    pub view: View,
}

#[derive(Clone, Debug, ClapArgs)]
pub struct Run {
    /// One of the configuration's views
    #[arg(long, value_name = "NAME")]
    pub view: String,
    /// The agent's socket
    #[arg(long, default_value = crate::options::SOCKET, value_name = "PATH")]
    pub socket: PathBuf,
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "CMD")]
    pub command: Vec<String>,
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
    /// Only this service (namespace/name, or cluster:namespace/name)
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

#[derive(Clone, Debug, Subcommand)]
pub enum DnsCommand {
    /// Send the cluster's domains, and no others, from systemd-resolved to the agent; resolv.conf is never touched
    #[command(
        after_help = "Examples:\n  beeline dns route --dry-run\n  beeline dns route && systemctl reload-or-restart systemd-resolved\n  \
                            beeline dns route --address 127.0.0.55:53 --domains cluster.local,beeline\n  beeline dns route --remove"
    )]
    Route(Route),
}

#[derive(Clone, Debug, ClapArgs)]
pub struct Route {
    /// Where names are answered [default: what the agent says]
    #[arg(long, value_name = "ADDR:PORT", conflicts_with = "remove")]
    pub address: Option<std::net::SocketAddr>,
    /// Which domains are sent there [default: what the agent says]
    #[arg(long, value_name = "LIST", value_delimiter = ',', conflicts_with = "remove")]
    pub domains: Option<Vec<String>>,
    /// Say what would be written or removed, and do nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Take back what was written
    #[arg(long)]
    pub remove: bool,
    /// systemd-resolved's folder of settings
    #[arg(long, default_value = "/etc/systemd/resolved.conf.d", value_name = "DIR")]
    pub folder: PathBuf,
    /// The agent's socket
    #[arg(long, default_value = crate::options::SOCKET, value_name = "PATH")]
    pub socket: PathBuf,
}

#[derive(Clone, Debug, ClapArgs)]
pub struct Cleanup {
    /// The agent's configuration file, which may name another folder of pins
    #[arg(long, value_name = "FILE", conflicts_with = "pin_dir")]
    pub config: Option<PathBuf>,
    #[command(flatten)]
    pub view: View,
}

/// A host, and the cluster that is to know it.
#[derive(Clone, Debug, ClapArgs)]
pub struct Administer {
    /// The host's name: small letters, digits, '-' and '.'
    pub host: String,
    /// The administrator's kubeconfig [default: KUBECONFIG, else ~/.kube/config]
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// The kubeconfig's context [default: its current one]
    #[arg(long, value_name = "NAME")]
    pub context: Option<String>,
    /// Where the accounts of hosts are
    #[arg(long, value_name = "NAME", default_value = beeline_join::NAMESPACE)]
    pub namespace: String,
}

#[derive(Clone, Debug, ClapArgs)]
pub struct Grant {
    #[command(flatten)]
    pub administer: Administer,
    /// How long the printed line can be used. At least 10m
    #[arg(long, value_name = "TIME", default_value = "1h")]
    pub valid: String,
    /// How long the host's own tokens hold; each is renewed at half of it. A host that is away for longer must join again.
    /// At least 10m
    #[arg(long, value_name = "TIME", default_value = "24h")]
    pub lifetime: String,
    /// The API server as the host reaches it (may be repeated: tried in turn) [default: the kubeconfig's]
    #[arg(long, value_name = "URL")]
    pub api_server: Vec<String>,
}

#[derive(Clone, Debug, ClapArgs)]
pub struct Join {
    /// What `beeline grant HOST` printed; - reads it from standard input
    pub code: String,
    /// What the cluster is called here [default: what the administrator's kubeconfig calls it]
    #[arg(long, value_name = "CLUSTER")]
    pub name: Option<String>,
    /// Write everything, and start nothing
    #[arg(long)]
    pub no_start: bool,
    /// Write below this folder instead, and start nothing: for images and packages
    #[arg(long, value_name = "DIR", default_value = "/", hide_default_value = true)]
    pub root: PathBuf,
    /// The agent's socket [default: as the configuration says]
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
}

#[derive(Clone, Debug, ClapArgs)]
pub struct Leave {
    /// Which cluster; may be left out if there is one
    pub cluster: Option<String>,
    /// Look below this folder instead
    #[arg(long, value_name = "DIR", default_value = "/", hide_default_value = true)]
    pub root: PathBuf,
    /// The agent's socket [default: as the configuration says]
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// Folder of the pins [default: as the configuration says]
    #[arg(long, value_name = "DIR")]
    pub pin_dir: Option<PathBuf>,
}
