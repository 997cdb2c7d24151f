//! Evaluates policies: whether a policy can be accepted, and which other policies conflict with it. The webhook checks
//! new policies, the status reports on existing ones.

use crate::cluster_state::ClusterState;
use crate::policy_finding::{Evaluation, FindingReason, PolicyFinding};
use crate::policy_target::{PolicyRank, PolicyTarget, listed_ports};
use crate::port_owner::Port;
use crate::settings::Overlap;
use beeline_model::Address;
use beeline_model::object::Service;
use beeline_model::plan::PortPairs;
use beeline_model::plan::policy::{check_policy, frontend_as_backend};
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
        self.check_backend_addresses(policy)?;
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
        self.check_backend_addresses(policy)?;
        Ok(check_policy(policy, self.service_of(policy))?)
    }

    pub(crate) fn service_of(&self, policy: &Policy) -> Option<&Service> {
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

    fn check_address(&self, policy: &Policy) -> Result<(), PolicyFinding> {
        let Matcher::Address { address, .. } = &policy.matcher else { return Ok(()) };
        if let Some(service) = self.address_owners.service(*address) {
            let message = format!(
                "virtual address {address} is the ClusterIP of Service {service}: use serviceMatcher in a policy of the \
                 namespace {}, or choose another address",
                service.namespace()
            );
            return Err(PolicyFinding::new(FindingReason::AddressTaken, message));
        }
        virtual_address::check(&self.virtual_address_cidrs, *address).map_err(|error| {
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

    fn check_backend_addresses(&self, policy: &Policy) -> Result<(), PolicyFinding> {
        let Target::Addresses { addresses, .. } = &policy.target else { return Ok(()) };
        match addresses.iter().find_map(|address| Some((*address, self.frontend_at(*address)?))) {
            None => Ok(()),
            Some((address, owner)) => {
                let message = frontend_as_backend(address, &owner);
                Err(PolicyFinding::new(FindingReason::BackendNotAllowed, message))
            }
        }
    }

    /// The ClusterIP or virtual address that an address is.
    fn frontend_at(&self, address: Address) -> Option<String> {
        if let Some(service) = self.address_owners.service(address) {
            return Some(format!("the ClusterIP of Service {service}"));
        }
        let is_allowed = virtual_address::check(&self.virtual_address_cidrs, address).is_ok();
        let policy = self.targets.policies_at(&PolicyTarget::Address(address)).next().filter(|_| is_allowed)?;
        Some(format!("the virtual address of {}", title(policy)))
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
    name.title()
}

/// What of a policy reaches beyond its namespace; `None` if nothing does, or if its spec is the same as `before`. Every
/// change of the spec needs the right that the creation needs: whoever may only edit a policy could otherwise lead a virtual
/// address to his own pods. The chart's ValidatingAdmissionPolicies have the same rule.
pub fn cluster_scope(policy: &Policy, before: Option<&Policy>) -> Option<String> {
    if before.is_some_and(|before| has_same_spec(before, policy)) {
        return None;
    }
    if let Matcher::Address { address, .. } = &policy.matcher {
        return Some(format!("the virtual address {address} applies to all namespaces"));
    }
    match &policy.target {
        Target::Pods { namespaces: Some(_), .. } => Some("namespaceSelector selects pods of other namespaces".into()),
        Target::Addresses { .. } => Some("addressEndpoint uses addresses outside the namespace".into()),
        Target::Pods { namespaces: None, .. } | Target::LocalPods { .. } => None,
    }
}

fn has_same_spec(a: &Policy, b: &Policy) -> bool {
    let spec = |policy: &Policy| Policy { uid: "".into(), created: 0, generation: 0, ..policy.clone() };
    spec(a) == spec(b)
}

#[cfg(test)]
pub(crate) mod tests;
