//! What the agent was told, checked: options and configuration file have become this.

use beeline_cluster::{Claim, Server};
use beeline_datapath::control::EventLevel;
use beeline_model::row::Sizes;
use beeline_model::rules::Rules;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Orphan {
    /// A dead agent means a frozen table.
    Keep,
    /// After this long without an agent dials are left alone.
    Passthrough(Duration),
}

/// Who works out which pods a BalancingPolicy chooses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Controller {
    /// It publishes slices, which are read.
    #[default]
    Watch,
    /// There is none: this agent, from all pods and namespaces.
    None,
}

/// Where the facts come from.
#[derive(Clone, Debug)]
pub enum Origin {
    Folder { path: PathBuf, claim: Claim },
    Server(Box<Server>),
}

#[derive(Clone, Debug)]
pub struct Settings {
    pub origin: Origin,
    pub rules: Rules,
    pub cgroup: PathBuf,
    pub pin_dir: PathBuf,
    /// Where the CLI finds the agent.
    pub socket: PathBuf,
    pub sizes: Sizes,
    pub events: EventLevel,
    pub orphan: Orphan,
    /// `None`: no such listener.
    pub metrics: Option<SocketAddr>,
    pub health: Option<SocketAddr>,
    /// Answer load balancers at the services' healthCheckNodePorts.
    pub probes: bool,
    pub sync_period: Duration,
    /// Processes below these cgroups keep the address that they dialled.
    pub untouched: Vec<PathBuf>,
    /// Addresses of the host were given, and are not looked for.
    pub fixed_addresses: bool,
    pub self_test: bool,
    /// For the test that proves the grace period needed.
    pub skip_grace: bool,
    pub controller: Controller,
    /// How often at most this node reports what it has programmed; `None`: never.
    pub report: Option<Duration>,
}
