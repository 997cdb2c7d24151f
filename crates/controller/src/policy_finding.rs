//! What is wrong with a policy: the reason and message of its `Accepted` condition.

use beeline_model::refusal::{Refusal, RefusalReason};
use std::fmt;

/// The reason of a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FindingReason {
    AddressNotAllowed,
    AddressTaken,
    /// An addressEndpoint is a ClusterIP or a virtual address.
    BackendNotAllowed,
    /// The policy contradicts itself. The CRD's schema refuses such a policy first.
    Invalid,
    Conflict,
    Overridden,
    PartialConflict,
    PortNotFound,
    /// The ports of the Service and of the backend do not fit each other.
    PortsNotPaired,
    ServiceNotFound,
}

impl FindingReason {
    pub fn as_str(self) -> &'static str {
        match self {
            FindingReason::AddressNotAllowed => "AddressNotAllowed",
            FindingReason::AddressTaken => "AddressTaken",
            FindingReason::BackendNotAllowed => "BackendNotAllowed",
            FindingReason::Invalid => "Invalid",
            FindingReason::Conflict => "Conflict",
            FindingReason::Overridden => "Overridden",
            FindingReason::PartialConflict => "PartialConflict",
            FindingReason::PortNotFound => "PortNotFound",
            FindingReason::PortsNotPaired => "PortsNotPaired",
            FindingReason::ServiceNotFound => "ServiceNotFound",
        }
    }
}

/// Why a policy is not accepted, or what limits an accepted policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyFinding {
    pub reason: FindingReason,
    pub message: String,
}

impl PolicyFinding {
    pub fn new(reason: FindingReason, message: impl Into<String>) -> PolicyFinding {
        PolicyFinding { reason, message: message.into() }
    }
}

/// The refusal of an agent, as the status shows it.
impl From<Refusal> for PolicyFinding {
    fn from(refusal: Refusal) -> PolicyFinding {
        let reason = match refusal.reason {
            RefusalReason::ServiceNotFound => FindingReason::ServiceNotFound,
            RefusalReason::PortNotFound => FindingReason::PortNotFound,
            RefusalReason::BadPorts => FindingReason::PortsNotPaired,
            _ => FindingReason::Invalid,
        };
        PolicyFinding::new(reason, refusal.message)
    }
}

impl fmt::Display for PolicyFinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// `Err` if the policy is not accepted. `Ok(Some)` if it is accepted, but other policies take some of its ports.
pub type Evaluation = Result<Option<PolicyFinding>, PolicyFinding>;
