//! The state of one policy on this node, as `beeline policies` shows it.

use crate::status::RefusalStatus;
use beeline_model::name::LOCAL_CLUSTER;
use beeline_model::plan::policy::PolicyApplicability;
use beeline_model::planner::policy_state::{FrontendHolder, FrontendState, PolicyState};
use beeline_model::policy::PolicyKind;
use beeline_model::refusal::Refusal;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PolicyReport {
    /// `LocalRedirectPolicy` or `BalancingPolicy`.
    pub kind: String,
    pub cluster: String,
    pub namespace: String,
    pub name: String,
    pub uid: String,
    pub generation: i64,
    /// `Service default/web`, or an address.
    pub target: String,
    /// The frontend ports that the policy names, such as `53/UDP`. `None`: all ports of the Service.
    pub ports: Option<Vec<String>>,
    /// Why the policy is not accepted. A refused policy has no frontends.
    pub refused: Option<RefusalStatus>,
    pub scope: PolicyScope,
    /// The controller publishes the policy's pods, and has not published any for this generation.
    pub awaits_controller: bool,
    pub frontends: Vec<PolicyFrontend>,
    /// Number of backends on this node: ready pods, or fixed addresses. `status.backends` of a BalancingPolicy is the same
    /// number; that of a LocalRedirectPolicy counts the pods of all nodes.
    pub backends: usize,
    /// Backends that are left out, and why.
    pub left_out: Vec<RefusalStatus>,
    /// Selected pods of this node whose cgroup is not found yet. They are not backends until it is.
    pub without_cgroup: Vec<String>,
    /// The last write to the kernel failed; the previous state stays in effect.
    pub failed: Option<RefusalStatus>,
    /// Backends of a LocalRedirectPolicy that refuse TCP connections. Dials use the next level.
    #[serde(default)]
    pub suspended: Vec<SocketAddr>,
}

impl PolicyReport {
    /// `failed`: why the last write of this policy failed. `suspended`: the suspended backends of all redirects.
    pub fn new(state: &PolicyState, failed: Option<&Refusal>, suspended: &[SocketAddr]) -> PolicyReport {
        let is_redirect = state.name.kind == PolicyKind::LocalRedirect;
        let is_own = |backend: &&SocketAddr| {
            is_redirect && state.frontends.iter().any(|frontend| frontend.backends.contains(backend))
        };
        let refusal = |refusal: &Refusal| RefusalStatus::new(refusal, None);
        PolicyReport {
            kind: state.name.kind.to_string(),
            cluster: state.name.cluster.to_string(),
            namespace: state.name.namespace.to_string(),
            name: state.name.name.to_string(),
            uid: state.uid.to_string(),
            generation: state.generation,
            target: state.target.clone(),
            ports: state.ports.clone(),
            refused: state.refused.as_ref().map(refusal),
            scope: match state.applicability {
                PolicyApplicability::ThisNode => PolicyScope::ThisNode,
                PolicyApplicability::OtherNodes => PolicyScope::OtherNodes,
                PolicyApplicability::InsideOnly => PolicyScope::InsideOnly,
            },
            awaits_controller: state.awaits_controller,
            frontends: state.frontends.iter().map(PolicyFrontend::new).collect(),
            backends: state.backends,
            left_out: state.left_out.iter().map(refusal).collect(),
            without_cgroup: state.without_cgroup.clone(),
            failed: failed.map(refusal),
            suspended: suspended.iter().filter(is_own).copied().collect(),
        }
    }

    /// `LocalRedirectPolicy default/web`; with the cluster where that is not the node's own.
    pub fn title(&self) -> String {
        let PolicyReport { kind, cluster, namespace, name, .. } = self;
        match cluster.as_str() {
            "" | LOCAL_CLUSTER => format!("{kind} {namespace}/{name}"),
            cluster => format!("{kind} {cluster}:{namespace}/{name}"),
        }
    }
}

/// Whether a policy applies to this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum PolicyScope {
    ThisNode,
    /// Its nodeLabelSelector selects other nodes.
    OtherNodes,
    /// `enableOutCluster: false`, and this host is outside the cluster.
    InsideOnly,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PolicyFrontend {
    /// ADDRESS:PORT/PROTOCOL.
    pub dialled: String,
    /// clusterIP or virtual.
    pub kind: beeline_model::row::FrontendKind,
    /// The name of the port.
    pub port: String,
    pub precedence: FrontendPrecedence,
    /// The policy or Service that is used when this policy has no backend for a dial.
    pub next: Option<String>,
    pub backends: Vec<SocketAddr>,
}

impl PolicyFrontend {
    fn new(frontend: &FrontendState) -> PolicyFrontend {
        PolicyFrontend {
            dialled: frontend.dialled.clone(),
            kind: frontend.kind,
            port: frontend.port.clone(),
            precedence: match &frontend.holder {
                FrontendHolder::ThisPolicy => FrontendPrecedence::First,
                FrontendHolder::OlderPolicy(other) => FrontendPrecedence::ShadowedBy(other.to_string()),
                FrontendHolder::HigherPolicy(other) => FrontendPrecedence::After(other.to_string()),
                FrontendHolder::OtherService(other) => FrontendPrecedence::AddressTakenBy(other.to_string()),
            },
            next: frontend.next.as_ref().map(ToString::to_string),
            backends: frontend.backends.clone(),
        }
    }
}

/// The place of a policy in the order in which the policies of a frontend are tried.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum FrontendPrecedence {
    First,
    /// A policy of another kind is tried first; this one is tried next.
    After(String),
    /// An older policy of the same kind has the frontend; this one is not used.
    ShadowedBy(String),
    /// The policy's Service lost the address to another one; the policy is not used.
    AddressTakenBy(String),
}
