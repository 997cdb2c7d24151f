//! The arguments of the commands that only hosts outside the cluster need, and their administrators.

use clap::{Args as ClapArgs, Subcommand};
use std::path::PathBuf;

#[derive(Clone, Debug, Subcommand)]
pub enum DnsCommand {
    /// Route the domains of the clusters from systemd-resolved to the agent; resolv.conf is not changed
    #[command(
        after_help = "Examples:\n  beeline dns route --dry-run\n  beeline dns route && systemctl reload-or-restart systemd-resolved\n  \
                            beeline dns route --address 127.0.0.55:53 --domains cluster.local,beeline\n  beeline dns route --remove"
    )]
    Route(DnsRouteArgs),
}

#[derive(Clone, Debug, ClapArgs)]
pub struct DnsRouteArgs {
    /// Address of the DNS server of the agent [default: as the running agent reports]
    #[arg(long, value_name = "ADDR:PORT", conflicts_with = "remove")]
    pub address: Option<std::net::SocketAddr>,
    /// Domains to route to the agent, comma-separated [default: as the running agent reports]
    #[arg(long, value_name = "LIST", value_delimiter = ',', conflicts_with = "remove")]
    pub domains: Option<Vec<String>>,
    /// Print what would be written or removed without doing it
    #[arg(long)]
    pub dry_run: bool,
    /// Remove the file that an earlier run wrote
    #[arg(long)]
    pub remove: bool,
    /// Directory of the drop-in files of systemd-resolved
    #[arg(long, default_value = "/etc/systemd/resolved.conf.d", value_name = "DIR")]
    pub resolved_dir: PathBuf,
    /// Unix socket of the agent
    #[arg(long, default_value = crate::options::SOCKET, value_name = "PATH")]
    pub socket: PathBuf,
}

/// The account of a host outside, and the cluster in which the account is.
#[derive(Clone, Debug, ClapArgs)]
pub struct HostAccountArgs {
    /// Name of the host: lower-case letters, digits, '-' and '.'
    pub host: String,
    /// Kubeconfig of the administrator [default: KUBECONFIG, else ~/.kube/config]
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig [default: its current context]
    #[arg(long, value_name = "NAME")]
    pub context: Option<String>,
    /// Namespace of the accounts of hosts
    #[arg(long, value_name = "NAME", default_value = beeline_join::DEFAULT_NAMESPACE)]
    pub namespace: String,
}

#[derive(Clone, Debug, ClapArgs)]
pub struct GrantArgs {
    #[command(flatten)]
    pub account: HostAccountArgs,
    /// Time for which the printed join code is valid, such as 30m or 2h; at least 10m
    #[arg(long, value_name = "DURATION", default_value = "1h")]
    pub code_lifetime: crate::options::HumanDuration,
    /// Lifetime of the host's tokens, such as 72h; at least 10m. Each is renewed at half of it; a host that is offline
    /// for longer must join again
    #[arg(long, value_name = "DURATION", default_value = "24h")]
    pub token_lifetime: crate::options::HumanDuration,
    /// URL of the API server as the host reaches it; may be repeated, the servers are tried in turn [default: that of
    /// the kubeconfig]
    #[arg(long, value_name = "URL")]
    pub api_server: Vec<String>,
}

#[derive(Clone, Debug, ClapArgs)]
pub struct JoinArgs {
    /// Join code that `beeline grant HOST` printed; `-` reads it from standard input
    pub code: String,
    /// Name of the cluster on this host [default: its name in the kubeconfig of the administrator]
    #[arg(long, value_name = "CLUSTER")]
    pub name: Option<String>,
    /// Write all files, but do not start the agent
    #[arg(long)]
    pub no_start: bool,
    /// Directory to write below instead of /, for images and packages; nothing is started
    #[arg(long, value_name = "DIR", default_value = "/")]
    pub root: PathBuf,
    /// Unix socket of the agent [default: as in the configuration]
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
}

#[derive(Clone, Debug, ClapArgs)]
pub struct LeaveArgs {
    /// Cluster to leave; optional if this host has joined one cluster only
    pub cluster: Option<String>,
    /// Directory to look below instead of /
    #[arg(long, value_name = "DIR", default_value = "/")]
    pub root: PathBuf,
    /// Unix socket of the agent [default: as in the configuration]
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// Directory of the pinned maps and links [default: as in the configuration]
    #[arg(long, value_name = "DIR")]
    pub pin_dir: Option<PathBuf>,
}
