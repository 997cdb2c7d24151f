//! What is to be said of a policy: whether it means something here, and who is in its way. The webhook asks it of policies
//! that are to be, the status of those that are.

use crate::settings::Overlap;
use crate::world::{Spot, World};
use beeline_model::fact::Service;
use beeline_model::policy::{DialledPort, Matcher, Policy, PolicyName, Target};
use beeline_model::virtual_address;
use std::fmt;

/// Why it is not accepted, or what should be known although it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// A word for conditions.
    pub reason: &'static str,
    pub message: String,
}

impl Finding {
    fn new(reason: &'static str, message: impl Into<String>) -> Finding {
        Finding { reason, message: message.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// Another policy for something that this one is for.
struct Rival<'a> {
    policy: &'a Policy,
    /// One of the ports that both are for; `None`: all.
    port: Option<&'a DialledPort>,
}

impl World {
    /// `Err`: not accepted. `Ok(Some)`: accepted, but another goes before it.
    pub fn judge(&self, policy: &Policy) -> Result<Option<Finding>, Finding> {
        self.check_frontend(policy)?;
        let rivals = self.rivals(policy);
        let older = |rival: &&Rival| rival.policy.name.kind == policy.name.kind && goes_before(rival.policy, policy);
        if let Some(rival) = rivals.iter().find(older) {
            let what = rival.describe(policy);
            return Err(Finding::new(
                "Conflict",
                format!("{}, which is older, is for {what}", title(&rival.policy.name)),
            ));
        }
        let above = rivals.iter().find(|rival| rival.policy.name.kind < policy.name.kind);
        Ok(above.map(|rival| {
            let what = rival.describe(policy);
            let message =
                format!("{} goes before it for {what}; it serves what falls through", title(&rival.policy.name));
            Finding::new("Overruled", message)
        }))
    }

    /// Whether a policy may come to be. A Service that does not exist yet is no hindrance.
    pub fn admit(&self, policy: &Policy) -> Result<(), Finding> {
        self.check_address(policy)?;
        let in_the_way = |rival: &&Rival| self.overlap == Overlap::Refuse || rival.policy.name.kind == policy.name.kind;
        match self.rivals(policy).iter().find(in_the_way) {
            None => Ok(()),
            Some(rival) => {
                let (who, what) = (title(&rival.policy.name), rival.describe(policy));
                let next = "change or delete one of the two: nothing is ever mixed";
                Err(Finding::new("Conflict", format!("{who} is for {what} already; {next}")))
            }
        }
    }

    fn check_frontend(&self, policy: &Policy) -> Result<(), Finding> {
        match &policy.matcher {
            Matcher::Address { .. } => self.check_address(policy),
            Matcher::Service { name, ports } => {
                let Spot::Service(owner) = Spot::of(policy) else { return Ok(()) };
                let service = self.services.get(&owner).ok_or_else(|| {
                    let message = format!(
                        "there is no Service {name} with a ClusterIP in the namespace {}",
                        policy.name.namespace
                    );
                    Finding::new("ServiceNotFound", message)
                })?;
                check_ports(service, ports.as_deref().unwrap_or_default())
            }
        }
    }

    fn check_address(&self, policy: &Policy) -> Result<(), Finding> {
        let Matcher::Address { address, .. } = &policy.matcher else { return Ok(()) };
        virtual_address::check(&self.virtual_ranges, *address)
            .map_err(|why| Finding::new("AddressNotAllowed", format!("virtual address {address}: {why}")))?;
        match self.taken.get(address).and_then(|owners| owners.first()) {
            None => Ok(()),
            Some(owner) => {
                let message = format!("virtual address {address} is the address of {owner}: choose another");
                Err(Finding::new("AddressTaken", message))
            }
        }
    }

    fn rivals<'a>(&'a self, policy: &'a Policy) -> Vec<Rival<'a>> {
        let names = self.spots.get(&Spot::of(policy)).into_iter().flatten().filter(|name| **name != policy.name);
        let others = names.filter_map(|name| self.policies.get(name));
        let mut rivals: Vec<Rival> = others.filter_map(|other| shared(policy, other)).collect();
        rivals.sort_by(|a, b| rank(a.policy).cmp(&rank(b.policy)));
        rivals
    }
}

impl Rival<'_> {
    fn describe(&self, policy: &Policy) -> String {
        let at = match &policy.matcher {
            Matcher::Service { name, .. } => format!("the Service {}/{name}", policy.name.namespace),
            Matcher::Address { address, .. } => address.to_string(),
        };
        match self.port {
            Some(port) => format!("{at}, port {}/{}", port.port, port.protocol),
            None => format!("all ports of {at}"),
        }
    }
}

/// `None` of a Service's ports means all of them.
fn ports(policy: &Policy) -> Option<&[DialledPort]> {
    match &policy.matcher {
        Matcher::Service { ports, .. } => ports.as_deref(),
        Matcher::Address { ports, .. } => Some(ports),
    }
}

fn shared<'a>(policy: &'a Policy, other: &'a Policy) -> Option<Rival<'a>> {
    let port = match (ports(policy), ports(other)) {
        (Some(ours), Some(theirs)) => {
            let same = |a: &&DialledPort| theirs.iter().any(|b| a.port == b.port && a.protocol == b.protocol);
            Some(ours.iter().find(same)?)
        }
        (Some(some), None) | (None, Some(some)) => some.first(),
        (None, None) => None,
    };
    Some(Rival { policy: other, port })
}

fn check_ports(service: &Service, wanted: &[DialledPort]) -> Result<(), Finding> {
    let has = |wanted: &&DialledPort| {
        service.ports.iter().any(|port| port.port == wanted.port && port.protocol == wanted.protocol)
    };
    match wanted.iter().find(|port| !has(port)) {
        None => Ok(()),
        Some(port) => {
            let all: Vec<String> = service.ports.iter().map(|p| format!("{}/{}", p.port, p.protocol)).collect();
            let (name, all) = (service.name.name(), all.join(", "));
            let message = format!("the Service {name} has no port {}/{}; it has {all}", port.port, port.protocol);
            Err(Finding::new("PortNotFound", message))
        }
    }
}

/// The older, then by name.
fn rank(policy: &Policy) -> (i64, &str, &str) {
    (policy.created, &policy.name.namespace, &policy.name.name)
}

fn goes_before(a: &Policy, b: &Policy) -> bool {
    rank(a) < rank(b)
}

pub fn title(name: &PolicyName) -> String {
    format!("{} {}/{}", name.kind, name.namespace, name.name)
}

/// What of it reaches beyond its own namespace, in words; `None`: nothing.
pub fn reach(policy: &Policy) -> Option<String> {
    if let Matcher::Address { address, .. } = &policy.matcher {
        return Some(format!("the virtual address {address} holds for every namespace"));
    }
    match &policy.target {
        Target::Pods { namespaces: Some(_), .. } => Some("namespaceSelector chooses pods of other namespaces".into()),
        _ => None,
    }
}
