//! Answers the requests of the agent's socket from the agent's state, on the thread of the main loop.

use crate::agent::Agent;
use crate::explain::{explain, pending_addresses};
use beeline_api::{PodLocation, PolicyQuery, PolicyReport, Request, Response};
use beeline_model::object::Pod;
use beeline_model::planner::policy_state::PolicyState;
use beeline_model::{Address, PortName, ServiceName};
use std::time::Instant;

pub fn respond(agent: &mut Agent, request: &Request) -> Response {
    match request {
        Request::Status => {
            agent.pod_cgroups.find_kubelet_root(Instant::now());
            Response::Status(Box::new(agent.status()))
        }
        Request::Explain { owner } => {
            let owner = PortName::from_text(owner);
            Response::Explanation(owner.and_then(|owner| explain(&agent.reconciler.planner, &owner)))
        }
        Request::ExplainAddress { address } => {
            Response::PendingAddresses(pending_addresses(&agent.reconciler.planner, Address::from(*address)))
        }
        Request::Policies(query) => Response::Policies(policies(agent, query)),
        Request::Pods { name } => Response::Pods(pods(agent, name)),
        Request::CreateViewCgroup { view } => match agent.create_view_cgroup(view) {
            Ok(cgroup) => Response::Cgroup(cgroup),
            Err(error) => Response::Error(format!("{error:#}")),
        },
        // The socket's task, which knows the monitors, answers these itself.
        Request::SetEventLevel { .. } | Request::Monitor { .. } => {
            Response::Error("only the agent's socket answers this request".into())
        }
    }
}

fn policies(agent: &Agent, query: &PolicyQuery) -> Vec<PolicyReport> {
    let planner = &agent.reconciler.planner;
    let states = match (&query.name, query.address) {
        (Some(name), _) => planner.policies_named(name),
        (None, Some(address)) => {
            let service = query.owner.as_deref().and_then(PortName::from_text).map(|port| port.service);
            planner.policies_for(Address::from(address), service.as_ref())
        }
        (None, None) => planner.policies(),
    };
    let suspended: Vec<_> = agent.redirects.health.suspended().into_iter().map(|one| one.backend).collect();
    let report = |mut policy: PolicyState| {
        policy.left_out.extend(agent.reconciler.skipped_pods(&policy.name));
        let name = ServiceName::of_policy(&policy.name);
        let capacity_refusal = agent.reconciler.planner.capacity_refusal(&name);
        PolicyReport::new(&policy, agent.reconciler.retries.refusal(&name).or(capacity_refusal.as_ref()), &suspended)
    };
    states.into_iter().map(report).collect()
}

/// `name`: NAME or NAMESPACE/NAME.
fn pods(agent: &mut Agent, name: &str) -> Vec<PodLocation> {
    let is_named = |pod: &&Pod| match name.split_once('/') {
        Some((namespace, name)) => &*pod.name.namespace == namespace && &*pod.name.name == name,
        None => &*pod.name.name == name,
    };
    let found: Vec<&Pod> = agent.reconciler.planner.pods().filter(is_named).collect();
    let uids: Vec<&str> = found.iter().map(|pod| &*pod.uid).collect();
    let paths = agent.pod_cgroups.find_paths(&uids, Instant::now());
    let location = |pod: &Pod| PodLocation {
        namespace: pod.name.namespace.to_string(),
        name: pod.name.name.to_string(),
        cgroup: paths.get(&*pod.uid).cloned(),
        exclusion: agent.pod_cgroups.exclusion_cause(pod).map(|cause| cause.text().to_owned()),
    };
    found.into_iter().map(location).collect()
}
