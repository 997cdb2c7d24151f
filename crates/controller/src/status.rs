//! The status that a policy should have, from the evaluation of the policy and the reports of the nodes.

use crate::cluster_state::ClusterState;
use crate::policy_finding::Evaluation;
use crate::rollout::{MissingReason, Rollout};
use beeline_cluster::policy::{ACCEPTED, NodeCount, PROGRAMMED, PolicyStatus};
use beeline_model::policy::{Matcher, Policy, PolicyKind, RedirectMode, Target};
use beeline_model::publish::NodeAddress;
use beeline_model::{Address, Family, Name};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::api::ApiResource;
use kube::core::GroupVersionKind;

const NO_NODES: &str =
    "no node matches nodeLabelSelector: label a node, or change the selector (kubectl get nodes --show-labels)";
const FAILING_ADVICE: &str = "run beeline policies there for details";
const PENDING_ADVICE: &str = "check that the agent runs there and may write its report (docs/controller.md)";
/// Longest message of a condition, in characters.
const MAX_MESSAGE_CHARS: usize = 1024;

fn plural(kind: PolicyKind) -> &'static str {
    match kind {
        PolicyKind::LocalRedirect => "localredirectpolicies",
        PolicyKind::Balancing => "balancingpolicies",
    }
}

pub fn resource(kind: PolicyKind) -> ApiResource {
    let kind_name = kind.to_string();
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk("beeline.dev", "v1alpha1", &kind_name), plural(kind))
}

impl ClusterState {
    /// The status that a policy should have, without transition times.
    pub fn wanted_status(&self, policy: &Policy) -> PolicyStatus {
        let evaluation = self.evaluate(policy);
        let rollout = self.rollout.rollout(policy);
        let (programmed, backends) = match evaluation {
            Ok(_) => (rollout.programmed, self.backends(policy)),
            Err(_) => (0, 0),
        };
        let conditions =
            vec![self.accepted_condition(policy, &evaluation), programmed_condition(policy, &evaluation, &rollout)];
        PolicyStatus {
            observed_generation: Some(policy.generation),
            conditions: Some(conditions),
            nodes: Some(NodeCount::new(number(programmed), number(rollout.wanted))),
            backends: Some(number(backends)),
            mode: Some(mode(policy).into()),
        }
    }

    /// The number of backends, as agents count them.
    fn backends(&self, policy: &Policy) -> usize {
        let families = self.frontend_families(policy);
        let Target::Pods { mode, .. } = &policy.target else {
            return self.publisher.backends(&policy.name, &families, |_, _| true);
        };
        self.publisher.backends(&policy.name, &families, |endpoint, family| match (mode, &endpoint.node) {
            (RedirectMode::PodEndpoint, _) => true,
            (RedirectMode::HostPort, Some(node)) => {
                let kinds = [NodeAddress::Internal, NodeAddress::External];
                kinds.into_iter().any(|kind| self.nodes.has_address(node, kind, family))
            }
            (RedirectMode::NodeProxy, Some(node)) => self.nodes.has_address(node, NodeAddress::Entry, family),
            (RedirectMode::HostPort | RedirectMode::NodeProxy, None) => false,
        })
    }

    fn frontend_families(&self, policy: &Policy) -> Vec<Family> {
        let addresses: &[Address] = match &policy.matcher {
            Matcher::Address { address, .. } => std::slice::from_ref(address),
            Matcher::Service { .. } => self.service_of(policy).map_or(&[], |service| &service.cluster_ips),
        };
        Family::BOTH.into_iter().filter(|family| addresses.iter().any(|a| a.family() == *family)).collect()
    }

    fn accepted_condition(&self, policy: &Policy, evaluation: &Evaluation) -> Condition {
        let (status, reason, mut message) = match evaluation {
            Ok(None) => (true, "Accepted", String::new()),
            Ok(Some(finding)) => (true, finding.reason.as_str(), finding.message.clone()),
            Err(finding) => (false, finding.reason.as_str(), finding.message.clone()),
        };
        let mut skipped = self.publisher.skipped(&policy.name);
        if let (true, Some((pod, problem))) = (status, skipped.next()) {
            let others = skipped.count();
            let more = if others > 0 { format!(", and {others} more") } else { String::new() };
            let note = format!("pod {}/{} is left out: {}{more}", pod.namespace, pod.name, problem.message);
            message = if message.is_empty() { note } else { format!("{message}; {note}") };
        }
        condition(ACCEPTED, status, reason, message, policy.generation)
    }
}

fn programmed_condition(policy: &Policy, evaluation: &Evaluation, rollout: &Rollout) -> Condition {
    let missing = rollout.wanted - rollout.programmed;
    let (status, reason, message) = match evaluation {
        Err(_) => (false, "NotAccepted", String::new()),
        Ok(_) if rollout.wanted == 0 => (false, "NoNodes", NO_NODES.to_owned()),
        Ok(_) if missing == 0 => (true, "Programmed", String::new()),
        Ok(_) => {
            let (count, nodes) = (format!("{missing} of {} nodes", rollout.wanted), missing_nodes(rollout));
            // Failures are listed first, and new nodes last.
            match rollout.missing.first() {
                Some((_, MissingReason::Failing(_))) => {
                    (false, "Failing", format!("{count} have not programmed the policy: {nodes}; {FAILING_ADVICE}"))
                }
                Some((_, MissingReason::Awaited)) => {
                    (false, "Pending", format!("waiting for the reports of {count}: {nodes}"))
                }
                _ => (false, "Pending", format!("{count} have not reported the policy: {nodes}; {PENDING_ADVICE}")),
            }
        }
    };
    condition(PROGRAMMED, status, reason, message, policy.generation)
}

fn missing_nodes(rollout: &Rollout) -> String {
    let describe = |(node, reason): &(Name, MissingReason)| match reason {
        MissingReason::Failing(reason) => format!("{node} ({reason})"),
        MissingReason::Unnamed(count) => format!("{node} (unknown: {count} further policies fail there)"),
        MissingReason::Pending | MissingReason::Awaited => node.to_string(),
    };
    let named: Vec<String> = rollout.missing.iter().map(describe).collect();
    let more = if rollout.wanted - rollout.programmed > named.len() { ", ..." } else { "" };
    format!("{}{more}", named.join(", "))
}

fn condition(kind: &str, status: bool, reason: &str, mut message: String, generation: i64) -> Condition {
    if let Some((end, _)) = message.char_indices().nth(MAX_MESSAGE_CHARS) {
        message.truncate(end);
    }
    Condition {
        type_: kind.into(),
        status: if status { "True" } else { "False" }.into(),
        reason: reason.into(),
        message,
        observed_generation: Some(generation),
        last_transition_time: Time(jiff::Timestamp::UNIX_EPOCH),
    }
}

fn number(count: usize) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}

fn mode(policy: &Policy) -> &'static str {
    match &policy.target {
        Target::LocalPods { .. } => "local",
        Target::Addresses { .. } => "addresses",
        Target::Pods { mode, .. } => mode.as_str(),
    }
}

/// Compares everything but the transition times.
pub fn is_same(a: &PolicyStatus, b: &PolicyStatus) -> bool {
    let without_times = |status: &PolicyStatus| {
        let mut status = status.clone();
        for condition in status.conditions.iter_mut().flatten() {
            condition.last_transition_time = Time(jiff::Timestamp::UNIX_EPOCH);
        }
        status
    };
    without_times(a) == without_times(b)
}

/// Compares the statuses and reasons of the conditions, not the messages and counts.
pub fn has_same_conditions(a: &PolicyStatus, b: &PolicyStatus) -> bool {
    let conditions = |status: &PolicyStatus| -> Vec<(String, String, String)> {
        let all = status.conditions.iter().flatten();
        all.map(|c| (c.type_.clone(), c.status.clone(), c.reason.clone())).collect()
    };
    conditions(a) == conditions(b) && a.observed_generation == b.observed_generation
}

/// Sets the transition times. A condition keeps its time while its status does not change.
pub fn with_transition_times(mut wanted: PolicyStatus, before: Option<&PolicyStatus>) -> PolicyStatus {
    let now = Time(jiff::Timestamp::now());
    for condition in wanted.conditions.iter_mut().flatten() {
        let old = before.and_then(|status| status.conditions.as_ref());
        let old = old.and_then(|all| all.iter().find(|c| c.type_ == condition.type_ && c.status == condition.status));
        condition.last_transition_time = old.map_or_else(|| now.clone(), |old| old.last_transition_time.clone());
    }
    wanted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_has_a_length_limit() {
        let truncated = condition(ACCEPTED, true, "Accepted", "ü".repeat(2000), 1);
        assert_eq!(truncated.message.chars().count(), MAX_MESSAGE_CHARS);
    }

    #[test]
    fn a_condition_keeps_its_transition_time_while_its_status_is_the_same() {
        let status = |accepted: bool, reason: &str| PolicyStatus {
            conditions: Some(vec![condition(ACCEPTED, accepted, reason, String::new(), 1)]),
            ..PolicyStatus::default()
        };
        let first = with_transition_times(status(true, "Accepted"), None);
        let time = |status: &PolicyStatus| status.conditions.as_ref().unwrap()[0].last_transition_time.clone();
        let second = with_transition_times(status(true, "Overridden"), Some(&first));
        assert_eq!(time(&first), time(&second));
        assert!(is_same(&first, &status(true, "Accepted")) && !has_same_conditions(&first, &second));
        let refused = with_transition_times(status(false, "Conflict"), Some(&first));
        assert_ne!(time(&refused), Time(jiff::Timestamp::UNIX_EPOCH));
    }
}
