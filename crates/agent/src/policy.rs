//! What the agent says of policies: what became of each by the plan, and what could not be written of it.

use crate::state::State;
use crate::status::About;
use beeline_model::address::parse_ip;
use beeline_model::fact::Refusal;
use beeline_model::planner::state::PolicyState;
use beeline_model::{Address, OwnerName, PortName};
use serde::Serialize;

#[derive(Debug, Serialize)]
pub struct Told {
    #[serde(flatten)]
    state: PolicyState,
    /// A write failed, or there is no room: what was programmed before serves.
    failed: Option<Refusal>,
}

/// An address that is none is nobody's.
pub fn told(state: &State, about: &About) -> Vec<Told> {
    let planner = &state.planner;
    let owner = about.owner.as_deref().and_then(PortName::from_text).map(|port| port.service);
    let states = match (&about.name, &about.address) {
        (Some(name), _) => planner.policies_called(name),
        (None, Some(address)) => {
            let address = parse_ip(address).ok().map(Address::from);
            address.map(|address| planner.policies_about(address, owner.as_ref())).unwrap_or_default()
        }
        (None, None) => planner.policies(),
    };
    states.into_iter().map(|policy| tell(state, policy)).collect()
}

fn tell(state: &State, mut policy: PolicyState) -> Told {
    let failed = state.table_refusal(&OwnerName::of_policy(&policy.name)).cloned();
    policy.left_out.extend(state.left_out(&policy.name));
    Told { state: policy, failed }
}
