//! Evaluates policies: whether a policy can be accepted, and which other policies conflict with it. The webhook checks new
//! policies, the status reports on existing ones.

use crate::cluster_state::ClusterState;
use crate::policy_finding::{Evaluation, FindingReason, PolicyFinding};
use crate::policy_target::{PolicyRank, PolicyTarget, listed_ports};
use crate::port_owner::Port;
use crate::settings::Overlap;
use beeline_model::object::Service;
use beeline_model::plan::PortPairs;
use beeline_model::plan::policy::check_policy;
use beeline_model::policy::{DialledPort, Matcher, Policy, PolicyKind, PolicyName, Target};
use beeline_model::virtual_address;
use std::collections::BTreeMap;

/// Number of ports, and of policies, that a message names.
const MAX_NAMED: usize = 10;
const RESOLVE_CONFLICT: &str = "change or delete one of the two";

/// Another policy that claims a port of this one.
struct OverlappingPolicy<'a> {
    rank: &'a PolicyRank,
    /// One of the common ports; `None` means all ports.
    port: Option<Port>,
}

impl ClusterState {
    /// Evaluates an existing policy.
    pub fn evaluate(&self, policy: &Policy) -> Evaluation {
        self.check_alone(policy)?;
        let conflict = self.check_conflict(policy)?;
        let overridden = self.find_override(policy);
        let both = [conflict, overridden].into_iter().flatten();
        Ok(both.reduce(|a, b| PolicyFinding::new(a.reason, format!("{a}; {b}"))))
    }

    /// Agents serve each port separately, so a policy keeps the ports that no older policy of its kind owns.
    fn check_conflict(&self, policy: &Policy) -> Evaluation {
        let (mut kept, mut lost) = (Vec::new(), BTreeMap::<&PolicyName, Vec<Port>>::new());
        for (port, owner) in self.port_owners.owners(&policy.name, policy.name.kind) {
            match owner.filter(|owner| **owner != policy.name) {
                None => kept.push(port),
                Some(owner) => lost.entry(owner).or_default().push(port),
            }
        }
        if lost.is_empty() {
            return Ok(None);
        }
        let owners = lost.iter().take(MAX_NAMED);
        let owners = owners.map(|(owner, ports)| format!("{} ({} is older)", format_ports(ports), title(owner)));
        let conflict = format!("Conflict at {}", owners.collect::<Vec<_>>().join(", "));
        if kept.is_empty() {
            let message = format!("{conflict}; {RESOLVE_CONFLICT}");
            return Err(PolicyFinding::new(FindingReason::Conflict, message));
        }
        let message = format!("{conflict}; serves {}; {RESOLVE_CONFLICT}", format_ports(&kept));
        Ok(Some(PolicyFinding::new(FindingReason::PartialConflict, message)))
    }

    /// A policy of a kind with precedence for a port of this policy.
    fn find_override(&self, policy: &Policy) -> Option<PolicyFinding> {
        let above = PolicyKind::BOTH.into_iter().filter(|kind| *kind < policy.name.kind);
        let mut above = above.flat_map(|kind| self.port_owners.owners(&policy.name, kind));
        let (port, owner) = above.find_map(|(port, owner)| Some((port, owner?)))?;
        let (owner, port) = (title(owner), format_ports(&[port]));
        let message = format!("{owner} has precedence at {port}; this policy serves the remaining connections");
        Some(PolicyFinding::new(FindingReason::Overridden, message))
    }

    /// Checks a policy that is to be created or changed. Its Service need not exist yet.
    pub fn check_admission(&self, policy: &Policy) -> Result<(), PolicyFinding> {
        self.check_address(policy)?;
        let conflicts = |kind: &PolicyKind| self.overlap == Overlap::Refuse || *kind == policy.name.kind;
        let overlapping = PolicyKind::BOTH.into_iter().filter(conflicts);
        let overlapping = overlapping.filter_map(|kind| self.first_overlap(policy, kind));
        match overlapping.min_by_key(|other| other.rank) {
            None => Ok(()),
            Some(other) => {
                let (name, port) = (title(&other.rank.1), other.describe(policy));
                let message = format!("{name} already matches {port}; {RESOLVE_CONFLICT}: policies are never merged");
                Err(PolicyFinding::new(FindingReason::Conflict, message))
            }
        }
    }

    /// Checks a policy by itself, without other policies. A policy that fails claims no port.
    fn check_alone(&self, policy: &Policy) -> Result<PortPairs, PolicyFinding> {
        self.check_address(policy)?;
        Ok(check_policy(policy, self.service_of(policy))?)
    }

    fn service_of(&self, policy: &Policy) -> Option<&Service> {
        match PolicyTarget::of(policy) {
            PolicyTarget::Service(name) => self.services.get(&name),
            PolicyTarget::Address(_) => None,
        }
    }

    /// The ports that a policy claims: those that agents pair.
    pub(crate) fn claimed_ports(&self, policy: &Policy) -> Vec<Port> {
        let pairs = self.check_alone(policy).map(|found| found.pairs).unwrap_or_default();
        pairs.into_iter().map(|pair| (pair.dialled.port, pair.dialled.protocol)).collect()
    }

    pub fn check_address(&self, policy: &Policy) -> Result<(), PolicyFinding> {
        let Matcher::Address { address, .. } = &policy.matcher else { return Ok(()) };
        virtual_address::check(&self.virtual_ranges, *address).map_err(|error| {
            let message = format!("virtual address {address}: {error}");
            PolicyFinding::new(FindingReason::AddressNotAllowed, message)
        })?;
        match self.address_owners.owner(*address) {
            None => Ok(()),
            Some(owner) => {
                let message = format!("virtual address {address} is the address of {owner}: choose another");
                Err(PolicyFinding::new(FindingReason::AddressTaken, message))
            }
        }
    }

    /// The oldest other policy of a kind that claims a port of this policy.
    fn first_overlap(&self, policy: &Policy, kind: PolicyKind) -> Option<OverlappingPolicy<'_>> {
        let target = PolicyTarget::of(policy);
        // Without its Service no policy is accepted, but those that list a common port would conflict as soon as it exists.
        if matches!(policy.matcher, Matcher::Service { .. }) && self.service_of(policy).is_none() {
            let rank = self.targets.first_overlap(policy, kind)?;
            let other = self.policies.get(&rank.1)?;
            return Some(OverlappingPolicy { rank, port: common_port(policy, other) });
        }
        let mut ports = self.claimed_ports(policy);
        if ports.is_empty() {
            ports = listed_ports(policy).unwrap_or_default().iter().map(port_of).collect();
        }
        let (rank, port) = self.port_owners.first_claim(&target, &ports, kind, &policy.name)?;
        Some(OverlappingPolicy { rank, port: Some(port) })
    }
}

impl OverlappingPolicy<'_> {
    fn describe(&self, policy: &Policy) -> String {
        let target = match &policy.matcher {
            Matcher::Service { name, .. } => format!("the Service {}/{name}", policy.name.namespace),
            Matcher::Address { address, .. } => address.to_string(),
        };
        match self.port {
            Some((port, protocol)) => format!("{target}, port {port}/{protocol}"),
            None => format!("all ports of {target}"),
        }
    }
}

/// A port of two overlapping policies; `None` if both match all ports.
fn common_port(policy: &Policy, other: &Policy) -> Option<Port> {
    let common = match (listed_ports(policy), listed_ports(other)) {
        (Some(ports), Some(others)) => {
            ports.iter().find(|port| others.iter().any(|other| port_of(other) == port_of(port)))
        }
        (Some(ports), None) | (None, Some(ports)) => ports.first(),
        (None, None) => None,
    };
    common.map(port_of)
}

fn port_of(port: &DialledPort) -> Port {
    (port.port, port.protocol)
}

fn format_ports(ports: &[Port]) -> String {
    let named = ports.iter().take(MAX_NAMED).map(|(port, protocol)| format!("{port}/{protocol}"));
    let named: Vec<String> = named.collect();
    match ports.len() - named.len() {
        0 => named.join(", "),
        more => format!("{} and {more} more", named.join(", ")),
    }
}

/// `BalancingPolicy default/web`.
pub fn title(name: &PolicyName) -> String {
    format!("{} {}/{}", name.kind, name.namespace, name.name)
}

/// What of a policy reaches beyond its namespace; `None` if nothing does, or nothing that was not in `before`. A change of
/// other fields needs no right. The chart's ValidatingAdmissionPolicies have the same rule.
pub fn cluster_scope(policy: &Policy, before: Option<&Policy>) -> Option<String> {
    if let Matcher::Address { address, .. } = &policy.matcher
        && before.is_none_or(|before| before.matcher != policy.matcher)
    {
        return Some(format!("the virtual address {address} applies to all namespaces"));
    }
    if before.is_some_and(|before| before.target == policy.target) {
        return None;
    }
    match &policy.target {
        Target::Pods { namespaces: Some(_), .. } => Some("namespaceSelector selects pods of other namespaces".into()),
        Target::Addresses { .. } => Some("addressEndpoint uses addresses outside the namespace".into()),
        Target::Pods { namespaces: None, .. } | Target::LocalPods { .. } => None,
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::cluster_state::tests::{address, rename_port, state};
    use beeline_model::change::Change;
    use beeline_model::name::Protocol;
    use beeline_model::object::Object;
    use beeline_model::policy::{BackendPort, PortChoice, RedirectMode};
    use beeline_model::selector::Selector;

    /// A policy for the Service default/web.
    pub fn policy(kind: PolicyKind, name: &str, created: i64, ports: Option<&[u16]>) -> Policy {
        let port_name = |port: &u16| port.to_string().into();
        let dialled = |port: &u16| DialledPort { name: port_name(port), port: *port, protocol: Protocol::Tcp };
        let backend =
            |port: &u16| BackendPort { name: port_name(port), port: PortChoice::Number(8080), protocol: Protocol::Tcp };
        let all: Vec<u16> = (80..100).collect();
        let backends: Box<[BackendPort]> = ports.unwrap_or(&all).iter().map(backend).collect();
        let selector = Selector::default();
        Policy {
            name: PolicyName { kind, cluster: "local".into(), namespace: "default".into(), name: name.into() },
            uid: format!("uid-{name}").into(),
            created,
            generation: 1,
            matcher: Matcher::Service {
                name: "web".into(),
                ports: ports.map(|ports| ports.iter().map(dialled).collect()),
            },
            target: match kind {
                PolicyKind::LocalRedirect => Target::LocalPods { selector, ports: backends },
                PolicyKind::Balancing => {
                    Target::Pods { selector, namespaces: None, mode: RedirectMode::PodEndpoint, ports: backends }
                }
            },
            nodes: None,
            out_cluster: true,
            limit: None,
        }
    }

    fn balancing(name: &str, created: i64, ports: Option<&[u16]>) -> Policy {
        policy(PolicyKind::Balancing, name, created, ports)
    }

    fn describe(evaluation: Evaluation) -> String {
        match evaluation {
            Ok(None) => "accepted".into(),
            Ok(Some(note)) => format!("{}: {note}", note.reason.as_str()),
            Err(error) => format!("refused: {}: {error}", error.reason.as_str()),
        }
    }

    #[test]
    fn the_oldest_policy_owns_a_port() {
        let all = [
            balancing("b", 2, Some(&[80, 81])),
            balancing("a", 1, Some(&[81, 82])),
            balancing("all", 3, None),
            policy(PolicyKind::LocalRedirect, "local", 9, Some(&[83])),
            balancing("c", 4, Some(&[83])),
        ];
        let state = state(all.iter().cloned().map(Object::Policy).map(Change::Upsert).collect());
        let evaluated = |policy: &Policy| describe(state.evaluate(policy));
        let (a, b, end) = ("BalancingPolicy default/a", "BalancingPolicy default/b", "change or delete one of the two");
        assert_eq!(evaluated(&all[1]), "accepted");
        assert_eq!(
            evaluated(&all[0]),
            format!("PartialConflict: Conflict at 81/TCP ({a} is older); serves 80/TCP; {end}")
        );
        let rest = "83/TCP, 84/TCP, 85/TCP, 86/TCP, 87/TCP, 88/TCP, 89/TCP, 90/TCP, 91/TCP, 92/TCP and 7 more";
        let above =
            "LocalRedirectPolicy default/local has precedence at 83/TCP; this policy serves the remaining connections";
        let lost = format!("81/TCP, 82/TCP ({a} is older), 80/TCP ({b} is older)");
        assert_eq!(evaluated(&all[2]), format!("PartialConflict: Conflict at {lost}; serves {rest}; {end}; {above}"));
        assert_eq!(evaluated(&all[3]), "accepted");
        let lost = "refused: Conflict: Conflict at 83/TCP (BalancingPolicy default/all is older)";
        assert_eq!(evaluated(&all[4]), format!("{lost}; {end}"));
        assert!(state.check_admission(&balancing("new", 10, Some(&[84]))).is_err(), "a policy matches all ports");
        assert!(state.check_admission(&balancing("a", 1, Some(&[84]))).is_err());
    }

    #[test]
    fn a_policy_with_a_missing_port_blocks_no_other_policy() {
        let (bad, good) = (balancing("a", 1, Some(&[80, 9999])), balancing("b", 2, Some(&[80])));
        let state = state([&bad, &good].map(|policy| Change::Upsert(Object::Policy(policy.clone()))).into());
        assert_eq!(describe(state.evaluate(&good)), "accepted");
        assert!(describe(state.evaluate(&bad)).starts_with("refused: PortNotFound"));
        assert!(state.check_admission(&balancing("c", 3, Some(&[80]))).is_err(), "admission reports both policies");
    }

    /// A LocalRedirectPolicy for all ports of default/web, with one backend port of this name.
    fn redirect_to(name: &str, port_name: &str) -> Policy {
        let mut redirect = policy(PolicyKind::LocalRedirect, name, 1, None);
        let Target::LocalPods { ports, .. } = &mut redirect.target else { panic!() };
        *ports = ports.iter().take(1).cloned().map(|port| BackendPort { name: port_name.into(), ..port }).collect();
        redirect
    }

    #[test]
    fn a_backend_port_that_the_service_does_not_have_is_not_accepted() {
        let (bad, good) = (redirect_to("bad", "metrics"), policy(PolicyKind::LocalRedirect, "good", 2, Some(&[80])));
        let state = state([&bad, &good].map(|policy| Change::Upsert(Object::Policy(policy.clone()))).into());
        let message = describe(state.evaluate(&bad));
        let wanted = "refused: PortNotFound: Service default/web has no port called \"metrics\" for TCP: it has \"80\"/TCP";
        assert!(message.starts_with(wanted), "{message}");
        assert_eq!(describe(state.evaluate(&good)), "accepted");
        let status = state.wanted_status(&bad);
        assert_eq!((status.backends, status.nodes.unwrap().programmed), (Some(0), 0));
    }

    #[test]
    fn a_policy_that_is_not_accepted_blocks_no_other_at_admission() {
        let upsert = |policy: Policy| Change::Upsert(Object::Policy(policy));
        let state = state(vec![upsert(redirect_to("bad", "metrics")), upsert(redirect_to("one", "81"))]);
        let new = |ports: &[u16]| policy(PolicyKind::LocalRedirect, "new", 9, Some(ports));
        assert_eq!(state.check_admission(&new(&[80])), Ok(()), "neither of the two claims this port");
        assert_eq!(state.check_admission(&balancing("new", 9, Some(&[80]))), Ok(()));
        let message = state.check_admission(&new(&[81])).unwrap_err().message;
        assert!(message.starts_with("LocalRedirectPolicy default/one already matches"), "{message}");
        assert!(message.contains("port 81/TCP"), "{message}");
    }

    #[test]
    fn policies_that_wait_for_the_same_service_conflict_at_admission() {
        let mut waiting = balancing("a", 1, Some(&[80]));
        let Matcher::Service { name, .. } = &mut waiting.matcher else { panic!() };
        *name = "later".into();
        let state = state(vec![Change::Upsert(Object::Policy(waiting.clone()))]);
        let mut other = Policy { name: balancing("b", 2, None).name, ..waiting.clone() };
        let message = state.check_admission(&other).unwrap_err().message;
        assert!(message.contains("BalancingPolicy default/a already matches the Service default/later"), "{message}");
        let Matcher::Service { ports, .. } = &mut other.matcher else { panic!() };
        *ports = Some([DialledPort { name: "81".into(), port: 81, protocol: Protocol::Tcp }].into());
        assert_eq!(state.check_admission(&other), Ok(()));
        assert!(describe(state.evaluate(&waiting)).starts_with("refused: ServiceNotFound"));
    }

    #[test]
    fn a_renamed_service_port_is_not_accepted_and_releases_its_claim() {
        let (one, other) = (redirect_to("one", "81"), policy(PolicyKind::LocalRedirect, "other", 2, Some(&[81])));
        let upsert = |policy: &Policy| Change::Upsert(Object::Policy(policy.clone()));
        let mut state = state(vec![upsert(&one), upsert(&other)]);
        assert_eq!(describe(state.evaluate(&one)), "accepted");
        assert!(describe(state.evaluate(&other)).starts_with("refused: Conflict"));
        rename_port(&mut state, 81, "renamed");
        assert!(describe(state.evaluate(&one)).starts_with("refused: PortNotFound"));
        assert_eq!(describe(state.evaluate(&other)), "accepted", "it is listed by number and owns the port now");
    }

    #[test]
    fn messages_name_a_limited_number_of_ports() {
        let state = state(Vec::new());
        let message = describe(state.evaluate(&balancing("x", 1, Some(&[9999]))));
        assert!(message.ends_with("88/TCP, 89/TCP and 10 more"), "{message}");
    }

    #[test]
    fn cluster_scope_needs_a_right_only_when_it_is_new() {
        let plain = balancing("x", 1, Some(&[80]));
        assert_eq!(cluster_scope(&plain, None), None);
        let outside = Target::Addresses { addresses: [address("192.0.2.1")].into(), ports: [].into() };
        let external = Policy { target: outside, ..plain.clone() };
        assert!(cluster_scope(&external, None).unwrap().contains("addressEndpoint"));
        assert!(cluster_scope(&external, Some(&plain)).is_some(), "the addresses are new");
        let other = Policy { limit: None, out_cluster: false, ..external.clone() };
        assert_eq!(cluster_scope(&other, Some(&external)), None, "other fields need no right");
        let ports = Matcher::Address { address: address("169.254.0.9"), ports: [].into() };
        let virtual_one = Policy { matcher: ports, ..external.clone() };
        assert!(cluster_scope(&virtual_one, Some(&external)).unwrap().contains("virtual address"));
        assert_eq!(cluster_scope(&virtual_one, Some(&virtual_one)), None);
    }
}
