//! Everything that is dialled at one number of services: nodes with Beeline, with nftables, with iptables and with
//! nothing, and a dialler for each kind of dial.

use std::sync::Arc;

use anyhow::{Context, Result};
use beeline_model::Protocol;

use super::{
    beeline::Beeline,
    dial::{Dialler, Target},
    field::Field,
    rival, world,
};
use crate::ground::{Cgroup, ThreadGroup};

/// Who resolves, if anybody.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Nobody,
    Beeline,
    BeelineUdp,
    Nftables,
    Iptables,
}

pub struct Variant {
    pub name: &'static str,
    way: Way,
    target: Target,
}

const TCP: Target = Target::Service(Protocol::Tcp);

pub const DIRECT: usize = 0;
pub const BEELINE: usize = 1;
pub const UNUSED: usize = 2;
pub const USED: usize = 3;
pub const NFTABLES: usize = 4;
pub const IPTABLES: usize = 6;
/// Not compared: the rivals do nothing at the connect() of a datagram socket.
pub const UDP: usize = 8;
/// Those that take turns.
pub const COMPARED: usize = 8;

pub const VARIANTS: [Variant; 9] = [
    Variant { name: "direct to the pod", way: Way::Nobody, target: Target::Pod },
    Variant { name: "Beeline: service", way: Way::Beeline, target: TCP },
    Variant { name: "Beeline: no service, port unused", way: Way::Beeline, target: Target::Pod },
    Variant { name: "Beeline: no service, port used", way: Way::Beeline, target: Target::Lookalike },
    Variant { name: "nftables: service", way: Way::Nftables, target: TCP },
    Variant { name: "nftables: no service", way: Way::Nftables, target: Target::Pod },
    Variant { name: "iptables: service", way: Way::Iptables, target: TCP },
    Variant { name: "iptables: no service", way: Way::Iptables, target: Target::Pod },
    Variant { name: "Beeline: UDP service", way: Way::BeelineUdp, target: Target::Service(Protocol::Udp) },
];

/// Fields go in this order: threads before the programs, programs before their cgroups.
pub struct Site {
    pub services: u32,
    diallers: Vec<Dialler>,
    pub tcp: Beeline,
    pub udp: Beeline,
    pub groups: Groups,
    _cgroup: Cgroup,
    _field: Field,
}

pub struct Groups {
    nobody: Arc<ThreadGroup>,
    pub tcp: Arc<ThreadGroup>,
    pub udp: Arc<ThreadGroup>,
}

impl Groups {
    fn new(cgroup: &Cgroup) -> Result<Self> {
        let group = |name| cgroup.thread_group(name).map(Arc::new);
        Ok(Self { nobody: group("nobody")?, tcp: group("tcp")?, udp: group("udp")? })
    }

    fn of(&self, way: Way) -> &Arc<ThreadGroup> {
        match way {
            Way::Beeline => &self.tcp,
            Way::BeelineUdp => &self.udp,
            Way::Nobody | Way::Nftables | Way::Iptables => &self.nobody,
        }
    }
}

impl Site {
    pub fn build(services: u32) -> Result<Self> {
        let mut field = Field::lay()?;
        let cgroup = Cgroup::enter("beeline-bench")?;
        let groups = Groups::new(&cgroup)?;
        let tcp = filled("tcp", &groups.tcp, services, Protocol::Tcp)?;
        let udp = filled("udp", &groups.udp, services, Protocol::Udp)?;
        let mut diallers = Vec::new();
        for (number, variant) in VARIANTS.iter().enumerate() {
            let node = field.node(&format!("node{number}"))?;
            match variant.way {
                Way::Nftables => rival::load_nftables(&node, services)?,
                Way::Iptables => rival::load_iptables(&node, services)?,
                Way::Nobody | Way::Beeline | Way::BeelineUdp => {}
            }
            let group = groups.of(variant.way).clone();
            diallers.push(Dialler::start(group, node, field.server.clone(), variant.target, services));
        }
        Ok(Self { services, diallers, tcp, udp, groups, _cgroup: cgroup, _field: field })
    }

    /// So many dials; the nanoseconds that their connect() took together.
    pub fn turn(&self, variant: usize, dials: u32) -> Result<u64> {
        self.diallers[variant].turn(dials).context(VARIANTS[variant].name)
    }
}

fn filled(name: &str, group: &ThreadGroup, services: u32, protocol: Protocol) -> Result<Beeline> {
    let mut beeline = Beeline::open(name, group.path(), services)?;
    beeline.fill(world::facts(services, protocol))?;
    beeline.go_live()?;
    Ok(beeline)
}
