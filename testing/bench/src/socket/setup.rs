//! Setup for one number of Services: nodes with Beeline, nftables, iptables and none of them, and a thread for each
//! kind of dial.

use std::sync::Arc;

use anyhow::{Context, Result};
use beeline_model::Protocol;

use super::{
    beeline::Beeline,
    dial::{DialThread, SocketTarget},
    kube_proxy_rules,
    network::PodNetwork,
    objects,
};
use crate::isolation::{BenchCgroup, ThreadGroup};

/// The program that resolves Services on a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Resolver {
    None,
    Beeline,
    BeelineUdp,
    Nftables,
    Iptables,
}

pub struct DialVariant {
    pub name: &'static str,
    resolver: Resolver,
    target: SocketTarget,
}

const TCP: SocketTarget = SocketTarget::Service(Protocol::Tcp);

pub const DIRECT: usize = 0;
pub const BEELINE: usize = 1;
pub const UNUSED: usize = 2;
pub const USED: usize = 3;
pub const NFTABLES: usize = 4;
pub const IPTABLES: usize = 6;
/// Not compared, because kube-proxy does nothing at connect() of a datagram socket.
pub const UDP: usize = 8;
/// Number of variants that are compared.
pub const COMPARED: usize = 8;

pub const VARIANTS: [DialVariant; 9] = [
    DialVariant { name: "direct to the pod", resolver: Resolver::None, target: SocketTarget::Pod },
    DialVariant { name: "Beeline: service", resolver: Resolver::Beeline, target: TCP },
    DialVariant { name: "Beeline: no service, port unused", resolver: Resolver::Beeline, target: SocketTarget::Pod },
    DialVariant {
        name: "Beeline: no service, port used",
        resolver: Resolver::Beeline,
        target: SocketTarget::PodAtServicePort,
    },
    DialVariant { name: "nftables: service", resolver: Resolver::Nftables, target: TCP },
    DialVariant { name: "nftables: no service", resolver: Resolver::Nftables, target: SocketTarget::Pod },
    DialVariant { name: "iptables: service", resolver: Resolver::Iptables, target: TCP },
    DialVariant { name: "iptables: no service", resolver: Resolver::Iptables, target: SocketTarget::Pod },
    DialVariant {
        name: "Beeline: UDP service",
        resolver: Resolver::BeelineUdp,
        target: SocketTarget::Service(Protocol::Udp),
    },
];

/// Fields are dropped in this order: threads before programs, programs before their cgroups.
pub struct BenchSetup {
    pub services: u32,
    threads: Vec<DialThread>,
    pub tcp: Beeline,
    pub udp: Beeline,
    pub groups: ThreadGroups,
    _cgroup: BenchCgroup,
    _network: PodNetwork,
}

pub struct ThreadGroups {
    none: Arc<ThreadGroup>,
    pub tcp: Arc<ThreadGroup>,
    pub udp: Arc<ThreadGroup>,
}

impl ThreadGroups {
    fn new(cgroup: &BenchCgroup) -> Result<Self> {
        let group = |name| cgroup.thread_group(name).map(Arc::new);
        Ok(Self { none: group("none")?, tcp: group("tcp")?, udp: group("udp")? })
    }

    fn of(&self, resolver: Resolver) -> &Arc<ThreadGroup> {
        match resolver {
            Resolver::Beeline => &self.tcp,
            Resolver::BeelineUdp => &self.udp,
            Resolver::None | Resolver::Nftables | Resolver::Iptables => &self.none,
        }
    }
}

impl BenchSetup {
    pub fn build(services: u32) -> Result<Self> {
        let mut network = PodNetwork::create()?;
        let cgroup = BenchCgroup::enter("beeline-bench")?;
        let groups = ThreadGroups::new(&cgroup)?;
        let tcp = open_and_fill("tcp", &groups.tcp, services, Protocol::Tcp)?;
        let udp = open_and_fill("udp", &groups.udp, services, Protocol::Udp)?;
        let mut threads = Vec::new();
        for (number, variant) in VARIANTS.iter().enumerate() {
            let node = network.node(&format!("node{number}"))?;
            match variant.resolver {
                Resolver::Nftables => kube_proxy_rules::load_nftables(&node, services)?,
                Resolver::Iptables => kube_proxy_rules::load_iptables(&node, services)?,
                Resolver::None | Resolver::Beeline | Resolver::BeelineUdp => {}
            }
            let group = groups.of(variant.resolver).clone();
            threads.push(DialThread::start(group, node, network.server.clone(), variant.target, services));
        }
        Ok(Self { services, threads, tcp, udp, groups, _cgroup: cgroup, _network: network })
    }

    /// Makes this many dials and returns the total duration of their connect() calls in nanoseconds.
    pub fn dial(&self, variant: usize, dials: u32) -> Result<u64> {
        self.threads[variant].dial(dials).context(VARIANTS[variant].name)
    }
}

fn open_and_fill(name: &str, group: &ThreadGroup, services: u32, protocol: Protocol) -> Result<Beeline> {
    let mut beeline = Beeline::open(name, group.path(), services)?;
    beeline.fill(objects::changes(services, protocol))?;
    beeline.attach()?;
    Ok(beeline)
}
