//! Tracks the cgroups of pods that LocalRedirectPolicies select (members). Such a pod joins its policy's set only once its
//! cgroup is known: otherwise its own dials would be redirected to itself.
//!
//! The planner knows which pods are selected. The tracker keeps the cgroups that were found, and whether a new scan of the
//! cgroups is needed.

use beeline_datapath::pod::PodCgroup;
use beeline_model::change::{Change, ObjectKey};
use beeline_model::object::{Object, Pod};
use beeline_model::planner::Planner;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Path, PathBuf};

/// The cgroup of a member was found (`Some`) or is gone (`None`).
#[derive(Debug, PartialEq, Eq)]
pub struct MemberUpdate {
    pub uid: Box<str>,
    pub cgroup: Option<(u64, PathBuf)>,
}

#[derive(Debug, Default)]
pub struct MemberTracker {
    /// The cgroups in use, by the pod's UID.
    found: HashMap<Box<str>, (u64, PathBuf)>,
    /// Why a cgroup that was found cannot be used, by the pod's UID.
    failed: BTreeMap<Box<str>, String>,
    /// The set of members changed since the last scan.
    changed: bool,
    /// Some member has no cgroup yet.
    incomplete: bool,
}

impl MemberTracker {
    /// Must be called before the planner applies the change, because it compares with the planner's state. Most changes of
    /// pods, such as readiness, change no membership.
    pub fn apply(&mut self, change: &Change, planner: &Planner) {
        let member = |pod: Option<&Pod>| pod.filter(|pod| planner.needs_cgroup(pod)).map(|pod| pod.uid.clone());
        self.changed |= match change {
            Change::Upsert(Object::Pod(pod)) => member(planner.pod(&pod.name)) != member(Some(pod)),
            Change::Delete(ObjectKey::Pod(name)) => member(planner.pod(name)).is_some(),
            Change::Upsert(Object::Policy(policy)) => planner.selector_of(&policy.name) != policy.local_selector(),
            Change::Delete(ObjectKey::Policy(name)) => planner.selector_of(name).is_some(),
            _ => false,
        };
    }

    /// Whether a scan is needed at once.
    pub fn is_changed(&self) -> bool {
        self.changed
    }

    /// Whether scans have to be repeated.
    pub fn is_incomplete(&self) -> bool {
        self.incomplete
    }

    /// Requests a new scan, because the kubelet may have recreated cgroups.
    pub fn mark_changed(&mut self) {
        self.changed = true;
    }

    /// Whether a scan can have any effect.
    pub fn needs_scan(&self, members: &HashSet<Box<str>>) -> bool {
        !members.is_empty() || !self.found.is_empty()
    }

    /// Compares the result of a scan with the cgroups in use.
    pub fn update(&mut self, members: &HashSet<Box<str>>, scan: &[PodCgroup]) -> Vec<MemberUpdate> {
        self.changed = false;
        let found = scan.iter().filter(|pod| members.contains(&*pod.uid));
        let found: HashMap<Box<str>, (u64, PathBuf)> =
            found.map(|pod| (pod.uid.as_str().into(), (pod.id, pod.path.clone()))).collect();
        self.incomplete = found.len() < members.len();
        self.failed.retain(|uid, _| found.contains_key(uid));
        let gone = self.found.keys().filter(|uid| !found.contains_key(*uid)).cloned();
        let mut updates: Vec<MemberUpdate> = gone.map(|uid| MemberUpdate { uid, cgroup: None }).collect();
        let new = found.iter().filter(|(uid, cgroup)| self.found.get(*uid) != Some(cgroup));
        updates.extend(new.map(|(uid, cgroup)| MemberUpdate { uid: uid.clone(), cgroup: Some(cgroup.clone()) }));
        self.found = found;
        updates
    }

    /// The cgroup that was found cannot be used. The next scan reports it again. Returns whether the error is new.
    pub fn record_failure(&mut self, uid: &str, error: String) -> bool {
        self.found.remove(uid);
        self.incomplete = true;
        self.failed.insert(uid.into(), error.clone()) != Some(error)
    }

    pub fn record_success(&mut self, uid: &str) {
        self.failed.remove(uid);
    }

    /// The paths of all cgroups in use.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.found.values().map(|(_, path)| path.as_path())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use beeline_model::object::PodName;
    use beeline_model::policy::{Matcher, Policy, PolicyKind, PolicyName, Target};
    use beeline_model::rules::Rules;
    use beeline_model::selector::{LabelOperator, Labels, Requirement, Selector};

    const UID: &str = "0c9a3a3e-5b1f-4c3d-9a55-6f0e3f1d2b11";

    fn pod(namespace: &str, uid: &str, app: &str) -> Pod {
        Pod {
            name: PodName { cluster: "local".into(), namespace: namespace.into(), name: "cache".into() },
            uid: uid.into(),
            node: Some("n1".into()),
            addresses: ["10.244.1.5".parse::<std::net::IpAddr>().unwrap().into()].into(),
            containers: [].into(),
            exclusion: Default::default(),
            view: None,
            labels: Labels::from([("app".into(), app.into())]),
            ready: true,
            ports: [].into(),
        }
    }

    fn policy() -> Policy {
        let operator = LabelOperator::In(["cache".into()].into());
        let selector = Selector([Requirement { key: "app".into(), operator }].into());
        let [cluster, namespace, name] = ["local", "dns", "cache"].map(Into::into);
        Policy {
            name: PolicyName { kind: PolicyKind::LocalRedirect, cluster, namespace, name },
            uid: "u".into(),
            created: 0,
            generation: 1,
            matcher: Matcher::Service { name: "kube-dns".into(), ports: None },
            target: Target::LocalPods { selector, ports: [].into() },
            nodes: None,
            out_cluster: true,
            limit: None,
        }
    }

    fn cgroup(uid: &str, id: u64) -> PodCgroup {
        PodCgroup { uid: uid.into(), path: PathBuf::from(format!("/kubepods/pod{uid}")), id, descendants: Vec::new() }
    }

    struct Fixture {
        members: MemberTracker,
        planner: Planner,
    }

    impl Fixture {
        fn new() -> Fixture {
            Fixture { members: MemberTracker::default(), planner: Planner::new(Rules::for_node("n1")) }
        }

        /// Whether the change alters the set of members.
        fn changes_members(&mut self, change: impl Into<Change>) -> bool {
            let change = change.into();
            self.members.changed = false;
            self.members.apply(&change, &self.planner);
            self.planner.apply(change);
            self.members.changed
        }
    }

    #[test]
    fn only_a_change_of_the_members_needs_a_scan() {
        let mut fixture = Fixture::new();
        assert!(!fixture.changes_members(Object::Pod(pod("dns", UID, "cache"))), "there is no policy");
        assert!(fixture.changes_members(Object::Policy(policy())));
        assert!(
            !fixture.changes_members(Object::Policy(Policy { generation: 2, ..policy() })),
            "another part of the policy"
        );
        assert!(!fixture.changes_members(Object::Pod(Pod { ready: false, ..pod("dns", UID, "cache") })));
        assert!(fixture.changes_members(Object::Pod(pod("dns", UID, "web"))), "not selected any more");
        assert!(!fixture.changes_members(Object::Pod(Pod { ready: false, ..pod("dns", UID, "web") })));
        assert!(fixture.changes_members(Object::Pod(pod("dns", UID, "cache"))));
        assert!(fixture.changes_members(Object::Pod(pod("dns", "another", "cache"))), "recreated under the same name");
        assert!(
            fixture.changes_members(Object::Pod(Pod { node: Some("n2".into()), ..pod("dns", "another", "cache") }))
        );
        assert!(
            !fixture.changes_members(Change::Delete(ObjectKey::Pod(pod("dns", "another", "cache").name))),
            "it is not on this node any more"
        );
        assert!(fixture.changes_members(Change::Delete(ObjectKey::Policy(policy().name))));
    }

    #[test]
    fn only_pods_that_a_policy_selects_need_a_cgroup() {
        for (namespace, uid, app, needs) in
            [("dns", UID, "cache", 1), ("other", UID, "cache", 0), ("dns", UID, "web", 0), ("dns", "", "cache", 0)]
        {
            let mut fixture = Fixture::new();
            fixture.changes_members(Object::Policy(policy()));
            fixture.changes_members(Object::Pod(pod(namespace, uid, app)));
            assert_eq!(fixture.planner.pods_needing_cgroup().count(), needs, "{namespace} {uid:?} {app}");
        }
    }

    #[test]
    fn a_cgroup_is_reported_once_and_again_when_it_is_gone() {
        let mut members = MemberTracker::default();
        let wanted = HashSet::from([UID.into()]);
        let mut update = |found: Vec<PodCgroup>| (members.update(&wanted, &found), members.incomplete);
        assert_eq!(update(vec![]), (vec![], true), "the kubelet has not created the cgroup yet");
        let expected = |cgroup| vec![MemberUpdate { uid: UID.into(), cgroup }];
        let at = |id| Some((id, cgroup(UID, id).path));
        assert_eq!(update(vec![cgroup(UID, 7), cgroup("other", 8)]), (expected(at(7)), false));
        assert_eq!(update(vec![cgroup(UID, 7)]), (vec![], false));
        assert_eq!(update(vec![cgroup(UID, 9)]), (expected(at(9)), false), "recreated");
        assert_eq!(update(vec![]), (expected(None), true));
        assert_eq!(members.update(&HashSet::new(), &[cgroup(UID, 9)]), vec![]);
        assert!(!members.incomplete);
    }

    #[test]
    fn an_unusable_cgroup_is_reported_again_by_the_next_scan() {
        let mut members = MemberTracker::default();
        let wanted = HashSet::from([UID.into()]);
        assert_eq!(members.update(&wanted, &[cgroup(UID, 7)]).len(), 1);
        assert!(members.record_failure(UID, "too deep".into()) && members.is_incomplete());
        assert_eq!(members.update(&wanted, &[cgroup(UID, 7)]).len(), 1, "reported again");
        assert!(!members.record_failure(UID, "too deep".into()), "not new");
        assert_eq!(members.update(&wanted, &[cgroup(UID, 7)]).len(), 1);
        members.record_success(UID);
        assert_eq!((members.update(&wanted, &[cgroup(UID, 7)]).len(), members.paths().count()), (0, 1));
        assert!(members.record_failure(UID, "too deep".into()), "it was resolved before");
    }
}
