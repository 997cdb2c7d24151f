//! What is to be said of a policy: whether it means something here, and who is in its way. The webhook asks it of policies
//! that are to be, the status of those that are.

use crate::claim::{Port, has_port};
use crate::settings::Overlap;
use crate::spot::{Spot, ports};
use crate::world::World;
use beeline_model::fact::Service;
use beeline_model::policy::{DialledPort, Matcher, Policy, PolicyKind, PolicyName, Target};
use beeline_model::virtual_address;
use std::collections::BTreeMap;
use std::fmt;

/// So many ports are named in a message.
const NAMED: usize = 10;

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
    /// Of one that is there. `Err`: not accepted. `Ok(Some)`: accepted, but another goes before it, somewhere.
    pub fn judge(&self, policy: &Policy) -> Result<Option<Finding>, Finding> {
        self.check_frontend(policy)?;
        let conflict = self.conflict(policy)?;
        let overruled = self.overruled(policy);
        let both = [conflict, overruled].into_iter().flatten();
        Ok(both.reduce(|a, b| Finding::new(a.reason, format!("{a}; {b}"))))
    }

    /// Agents serve per port, so a port that another holds says nothing of the others.
    fn conflict(&self, policy: &Policy) -> Result<Option<Finding>, Finding> {
        let (mut kept, mut lost) = (Vec::new(), BTreeMap::<&PolicyName, Vec<Port>>::new());
        for (port, holder) in self.claims.holders(&policy.name, policy.name.kind) {
            match holder.filter(|holder| **holder != policy.name) {
                None => kept.push(port),
                Some(holder) => lost.entry(holder).or_default().push(port),
            }
        }
        if lost.is_empty() {
            return Ok(None);
        }
        let each = lost.iter().take(NAMED);
        let each = each.map(|(who, ports)| format!("{} ({} is older)", show_ports(ports), title(who)));
        let at = format!("Conflict at {}", each.collect::<Vec<_>>().join(", "));
        let next = "change or delete one of the two";
        match kept.is_empty() {
            true => Err(Finding::new("Conflict", format!("{at}; {next}"))),
            false => Ok(Some(Finding::new("PartlyConflict", format!("{at}; serves {}; {next}", show_ports(&kept))))),
        }
    }

    fn overruled(&self, policy: &Policy) -> Option<Finding> {
        let above = PolicyKind::BOTH.into_iter().filter(|kind| *kind < policy.name.kind);
        let mut above = above.flat_map(|kind| self.claims.holders(&policy.name, kind));
        let (port, holder) = above.find_map(|(port, holder)| Some((port, holder?)))?;
        let (who, at) = (title(holder), show_ports(&[port]));
        Some(Finding::new("Overruled", format!("{who} goes before it at {at}; it serves what falls through")))
    }

    /// Whether a policy may come to be. A Service that does not exist yet is no hindrance.
    pub fn admit(&self, policy: &Policy) -> Result<(), Finding> {
        self.check_address(policy)?;
        let in_the_way = |kind: &PolicyKind| self.overlap == Overlap::Refuse || *kind == policy.name.kind;
        let rivals = PolicyKind::BOTH.into_iter().filter(in_the_way).filter_map(|kind| self.rival(policy, kind));
        match rivals.min_by(|a, b| rank(a.policy).cmp(&rank(b.policy))) {
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
                        "there is no Service {name} with a ClusterIP in the namespace {}: it is accepted as soon as there is one",
                        policy.name.namespace
                    );
                    Finding::new("ServiceNotFound", message)
                })?;
                check_ports(service, ports.as_deref().unwrap_or_default())
            }
        }
    }

    pub fn check_address(&self, policy: &Policy) -> Result<(), Finding> {
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

    /// The first one of a kind.
    fn rival<'a>(&'a self, policy: &'a Policy, kind: PolicyKind) -> Option<Rival<'a>> {
        let name = self.spots.rival(policy, kind)?;
        shared(policy, self.policies.get(name)?)
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
    match wanted.iter().find(|port| !has_port(service, (port.port, port.protocol))) {
        None => Ok(()),
        Some(port) => {
            let all: Vec<Port> = service.ports.iter().map(|port| (port.port, port.protocol)).collect();
            let (name, all) = (service.name.name(), show_ports(&all));
            let message = format!("the Service {name} has no port {}/{}; it has {all}", port.port, port.protocol);
            Err(Finding::new("PortNotFound", message))
        }
    }
}

fn show_ports(ports: &[Port]) -> String {
    let named: Vec<String> = ports.iter().take(NAMED).map(|(port, protocol)| format!("{port}/{protocol}")).collect();
    match ports.len() - named.len() {
        0 => named.join(", "),
        more => format!("{} and {more} more", named.join(", ")),
    }
}

/// The older, then by name.
fn rank(policy: &Policy) -> (i64, &str, &str) {
    (policy.created, &policy.name.namespace, &policy.name.name)
}

pub fn title(name: &PolicyName) -> String {
    format!("{} {}/{}", name.kind, name.namespace, name.name)
}

/// What of it reaches beyond its own namespace, in words; `None`: nothing, or nothing that was not there `before`: nobody
/// else's change needs the right. As the chart's ValidatingAdmissionPolicies have it.
pub fn reach(policy: &Policy, before: Option<&Policy>) -> Option<String> {
    if let Matcher::Address { address, .. } = &policy.matcher
        && before.is_none_or(|before| before.matcher != policy.matcher)
    {
        return Some(format!("the virtual address {address} holds for every namespace"));
    }
    if before.is_some_and(|before| before.target == policy.target) {
        return None;
    }
    match &policy.target {
        Target::Pods { namespaces: Some(_), .. } => Some("namespaceSelector chooses pods of other namespaces".into()),
        Target::Addresses { .. } => Some("addressEndpoint leads to addresses that are not the namespace's own".into()),
        Target::Pods { namespaces: None, .. } | Target::LocalPods { .. } => None,
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::world::tests::{address, world};
    use beeline_model::fact::Fact;
    use beeline_model::name::Protocol;
    use beeline_model::policy::{BackendPort, PortChoice, RedirectMode};
    use beeline_model::selector::Selector;

    /// For the Service default/web.
    pub fn policy(kind: PolicyKind, name: &str, created: i64, ports: Option<&[u16]>) -> Policy {
        let word = |port: &u16| port.to_string().into();
        let dialled = |port: &u16| DialledPort { name: word(port), port: *port, protocol: Protocol::Tcp };
        let backend =
            |port: &u16| BackendPort { name: word(port), port: PortChoice::Number(8080), protocol: Protocol::Tcp };
        let all: Vec<u16> = (80..100).collect();
        Policy {
            name: PolicyName { kind, cluster: "local".into(), namespace: "default".into(), name: name.into() },
            uid: format!("uid-{name}").into(),
            created,
            generation: 1,
            matcher: Matcher::Service {
                name: "web".into(),
                ports: ports.map(|ports| ports.iter().map(dialled).collect()),
            },
            target: Target::Pods {
                selector: Selector::default(),
                namespaces: None,
                mode: RedirectMode::PodEndpoint,
                ports: ports.unwrap_or(&all).iter().map(backend).collect(),
            },
            nodes: None,
            out_cluster: true,
            limit: None,
        }
    }

    fn balancing(name: &str, created: i64, ports: Option<&[u16]>) -> Policy {
        policy(PolicyKind::Balancing, name, created, ports)
    }

    fn message(verdict: Result<Option<Finding>, Finding>) -> String {
        match verdict {
            Ok(None) => "accepted".into(),
            Ok(Some(note)) => format!("{}: {note}", note.reason),
            Err(why) => format!("not: {}: {why}", why.reason),
        }
    }

    #[test]
    fn the_first_at_a_port_goes_before() {
        let all = [
            balancing("b", 2, Some(&[80, 81])),
            balancing("a", 1, Some(&[81, 82])),
            balancing("all", 3, None),
            policy(PolicyKind::LocalRedirect, "local", 9, Some(&[83])),
            balancing("c", 4, Some(&[83])),
        ];
        let world = world(all.iter().cloned().map(Fact::Policy).collect());
        let said = |policy: &Policy| message(world.judge(policy));
        let (a, b, end) = ("BalancingPolicy default/a", "BalancingPolicy default/b", "change or delete one of the two");
        assert_eq!(said(&all[1]), "accepted");
        assert_eq!(said(&all[0]), format!("PartlyConflict: Conflict at 81/TCP ({a} is older); serves 80/TCP; {end}"));
        let rest = "83/TCP, 84/TCP, 85/TCP, 86/TCP, 87/TCP, 88/TCP, 89/TCP, 90/TCP, 91/TCP, 92/TCP and 7 more";
        let above = "LocalRedirectPolicy default/local goes before it at 83/TCP; it serves what falls through";
        let lost = format!("81/TCP, 82/TCP ({a} is older), 80/TCP ({b} is older)");
        assert_eq!(said(&all[2]), format!("PartlyConflict: Conflict at {lost}; serves {rest}; {end}; {above}"));
        assert_eq!(said(&all[3]), "accepted");
        let lost = "not: Conflict: Conflict at 83/TCP (BalancingPolicy default/all is older)";
        assert_eq!(said(&all[4]), format!("{lost}; {end}"));
        assert!(world.admit(&balancing("new", 10, Some(&[84]))).is_err(), "one is for all ports");
        assert!(world.admit(&balancing("a", 1, Some(&[84]))).is_err());
    }

    #[test]
    fn one_that_means_nothing_is_in_nobodys_way() {
        let (bad, good) = (balancing("a", 1, Some(&[80, 9999])), balancing("b", 2, Some(&[80])));
        let world = world([&bad, &good].map(|policy| Fact::Policy(policy.clone())).into());
        assert_eq!(message(world.judge(&good)), "accepted");
        assert!(message(world.judge(&bad)).starts_with("not: PortNotFound"));
        assert!(world.admit(&balancing("c", 3, Some(&[80]))).is_err(), "who comes now is told of either");
    }

    #[test]
    fn ports_that_are_missing_are_told_in_few_words() {
        let world = world(Vec::new());
        let said = message(world.judge(&balancing("x", 1, Some(&[9999]))));
        assert!(said.ends_with("88/TCP, 89/TCP and 10 more"), "{said}");
    }

    #[test]
    fn what_reaches_beyond_its_namespace() {
        let plain = balancing("x", 1, Some(&[80]));
        assert_eq!(reach(&plain, None), None);
        let outside = Target::Addresses { addresses: [address("192.0.2.1")].into(), ports: [].into() };
        let far = Policy { target: outside, ..plain.clone() };
        assert!(reach(&far, None).unwrap().contains("addressEndpoint"));
        assert!(reach(&far, Some(&plain)).is_some(), "that part is new");
        let other = Policy { limit: None, out_cluster: false, ..far.clone() };
        assert_eq!(reach(&other, Some(&far)), None, "the rest is anybody's");
        let ports = Matcher::Address { address: address("169.254.0.9"), ports: [].into() };
        let virtual_one = Policy { matcher: ports, ..far.clone() };
        assert!(reach(&virtual_one, Some(&far)).unwrap().contains("virtual address"));
        assert_eq!(reach(&virtual_one, Some(&virtual_one)), None);
    }
}
