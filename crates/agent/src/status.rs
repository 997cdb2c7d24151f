//! Conversions of the agent's state into the types of `beeline_api`, which the command line prints.

use crate::health::timestamp;
use crate::source::ClusterSource;
use crate::sources::Sources;
use beeline_api::{ClusterStatus, PolicyCounts, RefusalStatus, SourceStatus};
use beeline_model::plan::policy::PolicyApplicability;
use beeline_model::planner::policy_state::PolicyState;
use beeline_model::refusal::Refusal;

/// `None` if there are several sources.
pub fn only_source(sources: &Sources) -> Option<SourceStatus> {
    let mut all = sources.iter();
    let source = all.next().filter(|_| all.next().is_none())?;
    Some(SourceStatus {
        kind: source.kind.to_owned(),
        name: source.name.clone(),
        synced: source.readiness.is_synced(),
        error: source.error.clone(),
    })
}

/// Without snapshot, traffic and reachability, which the source does not know.
pub fn cluster_status(source: &ClusterSource, services: usize, refusals: usize) -> ClusterStatus {
    let rules = &source.rules;
    let (ranges, ranges_from) = service_ranges(source);
    ClusterStatus {
        name: rules.name.to_string(),
        kind: source.kind.to_owned(),
        server: source.name.clone(),
        synced: source.readiness.is_synced(),
        since: source.synced_since.map(timestamp),
        snapshot_time: source.readiness.snapshot_time().map(timestamp),
        error: source.error.clone(),
        objects: source.object_count(),
        services,
        ranges,
        ranges_from: ranges_from.to_owned(),
        pod_access: rules.pod_access,
        view: rules.view.as_ref().map(ToString::to_string),
        refusals,
        snapshot: None,
        bytes: None,
        reach: Vec::new(),
    }
}

/// The cluster's service ranges, and where they come from.
fn service_ranges(source: &ClusterSource) -> (Vec<String>, &'static str) {
    let read: Vec<String> = source.ranges.values().flat_map(|ranges| ranges.iter().map(ToString::to_string)).collect();
    match &source.rules.service_ranges {
        Some(ranges) => (ranges.iter().map(ToString::to_string).collect(), "configuration"),
        None if read.is_empty() => (read, "unknown"),
        None if source.readiness.snapshot_time().is_some() => (read, "snapshot"),
        None => (read, "ServiceCIDR"),
    }
}

/// A refusal of the planner names its cluster in the subject.
pub fn refusal_status(refusal: &Refusal, sources: &Sources) -> RefusalStatus {
    let is_source = |name: &&str| sources.iter().any(|source| *source.rules.name == **name);
    RefusalStatus::new(refusal, refusal.subject.cluster().filter(is_source).map(str::to_owned))
}

pub fn policy_counts(states: &[PolicyState]) -> PolicyCounts {
    let count = |matches: fn(&PolicyState) -> bool| states.iter().filter(|state| matches(state)).count();
    PolicyCounts {
        total: states.len(),
        active: count(|state| state.refused.is_none() && state.applicability == PolicyApplicability::ThisNode),
        refused: count(|state| state.refused.is_some()),
        waiting: count(|state| state.awaits_controller),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::{ClusterSettings, SourceSettings};
    use beeline_model::ServiceName;
    use beeline_model::cluster::ClusterRules;
    use beeline_model::policy::{PolicyKind, PolicyName};
    use beeline_model::refusal::{RefusalReason, RefusalSubject};
    use beeline_model::rules::HostRole;

    #[test]
    fn a_refusal_of_the_planner_is_attributed_to_its_cluster() {
        let source = SourceSettings::Folder { path: "/nowhere".into(), service_filter: Default::default() };
        let zone = beeline_dns::Zone::new("green", "cluster.local").unwrap();
        let green = ClusterSettings { rules: ClusterRules::named("green"), source, zone };
        let sources = Sources::new(&[green], HostRole::Outside);
        let cluster = |subject: &RefusalSubject| {
            let refusal = Refusal::new(subject.clone(), RefusalReason::AddressConflict, "");
            refusal_status(&refusal, &sources).cluster
        };
        let policy = PolicyName {
            kind: PolicyKind::Balancing,
            cluster: "green".into(),
            namespace: "shop".into(),
            name: "web".into(),
        };
        let service = |cluster: &str| RefusalSubject::from(&ServiceName::new(cluster, "shop", "web"));
        for subject in [RefusalSubject::Cluster("green".into()), service("green"), (&policy).into()] {
            assert_eq!(cluster(&subject).as_deref(), Some("green"), "{subject}");
        }
        let cgroup = RefusalSubject::Cgroup("/sys/fs/cgroup/a:b".into());
        for subject in [service("local"), RefusalSubject::Configuration, cgroup, RefusalSubject::Cluster("red".into())]
        {
            assert_eq!(cluster(&subject), None, "{subject}");
        }
    }
}
