//! Pods that LocalRedirectPolicies select, and their cgroups. Such a pod joins its policy's set only once its cgroup is
//! known, or it would be sent to itself; so they are looked for as soon as source and kubelet have told of both.
//!
//! Who is selected is the planner's knowledge, and asked there: this remembers what was found, and whether to look again.

use beeline_datapath::pod::{PodCgroup, pods_below};
use beeline_model::fact::{Fact, Pod};
use beeline_model::planner::Planner;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Path, PathBuf};

/// What became known, or is no longer so.
#[derive(Debug, PartialEq, Eq)]
pub struct News {
    pub uid: Box<str>,
    pub cgroup: Option<(u64, PathBuf)>,
}

#[derive(Debug, Default)]
pub struct Members {
    /// By UID.
    known: HashMap<Box<str>, (u64, PathBuf)>,
    /// Found, and not to be had: why, by UID.
    failed: BTreeMap<Box<str>, String>,
    /// Somebody is wanted now who was not, or no longer.
    stirred: bool,
    /// Some wanted pod has no cgroup yet.
    open: bool,
}

impl Members {
    /// To be asked before the planner takes the fact in: what it changes is told by what was there. Most that happens to
    /// pods, such as becoming ready, changes nothing here.
    pub fn apply(&mut self, fact: &Fact, planner: &Planner) {
        let wanted = |pod: Option<&Pod>| pod.filter(|pod| planner.needs_cgroup(pod)).map(|pod| pod.uid.clone());
        self.stirred |= match fact {
            Fact::Pod(pod) => wanted(planner.pod(&pod.name)) != wanted(Some(pod)),
            Fact::PodGone(name) => wanted(planner.pod(name)).is_some(),
            Fact::Policy(policy) => planner.selector_of(&policy.name) != policy.local_selector(),
            Fact::PolicyGone(name) => planner.selector_of(name).is_some(),
            _ => false,
        };
    }

    /// Look now.
    pub fn is_stirred(&self) -> bool {
        self.stirred
    }

    /// Look now and then.
    pub fn is_open(&self) -> bool {
        self.open
    }

    /// Everything is asked again: a kubelet may have made its cgroups anew.
    pub fn doubt(&mut self) {
        self.stirred = true;
    }

    /// Looks at the cgroups below `root`, if anybody is wanted.
    pub fn look(&mut self, root: &Path, planner: &Planner) -> Vec<News> {
        self.stirred = false;
        let wanted: HashSet<Box<str>> = planner.pods_with_need().map(|pod| pod.uid.clone()).collect();
        if wanted.is_empty() && self.known.is_empty() {
            self.open = false;
            return Vec::new();
        }
        let found = if wanted.is_empty() { Vec::new() } else { pods_below(root) };
        self.compare(&wanted, found)
    }

    fn compare(&mut self, wanted: &HashSet<Box<str>>, found: Vec<PodCgroup>) -> Vec<News> {
        let found = found.into_iter().map(|pod| (pod.uid.into_boxed_str(), (pod.id, pod.path)));
        let found: HashMap<Box<str>, (u64, PathBuf)> = found.filter(|(uid, _)| wanted.contains(uid)).collect();
        self.open = found.len() < wanted.len();
        self.failed.retain(|uid, _| found.contains_key(uid));
        let gone = self.known.keys().filter(|uid| !found.contains_key(*uid)).cloned();
        let mut news: Vec<News> = gone.map(|uid| News { uid, cgroup: None }).collect();
        let new = found.iter().filter(|(uid, at)| self.known.get(*uid) != Some(at));
        news.extend(new.map(|(uid, at)| News { uid: uid.clone(), cgroup: Some(at.clone()) }));
        self.known = found;
        news
    }

    /// What was found could not be used: it is found again at the next look. Says whether that is new.
    pub fn fail(&mut self, uid: &str, why: String) -> bool {
        self.known.remove(uid);
        self.open = true;
        self.failed.insert(uid.into(), why.clone()) != Some(why)
    }

    pub fn succeed(&mut self, uid: &str) {
        self.failed.remove(uid);
    }

    /// Of all that are known now.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.known.values().map(|(_, path)| path.as_path())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use beeline_model::fact::PodName;
    use beeline_model::policy::{Matcher, Policy, PolicyKind, PolicyName, Target};
    use beeline_model::rules::Rules;
    use beeline_model::selector::{Demand, Labels, Requirement, Selector};

    const UID: &str = "0c9a3a3e-5b1f-4c3d-9a55-6f0e3f1d2b11";

    fn pod(namespace: &str, uid: &str, app: &str) -> Pod {
        Pod {
            name: PodName { cluster: "local".into(), namespace: namespace.into(), name: "cache".into() },
            uid: uid.into(),
            node: Some("n1".into()),
            addresses: ["10.244.1.5".parse::<std::net::IpAddr>().unwrap().into()].into(),
            containers: [].into(),
            untouched: false,
            view: None,
            labels: Labels::from([("app".into(), app.into())]),
            ready: true,
            ports: [].into(),
        }
    }

    fn policy() -> Policy {
        let demand = Demand::In(["cache".into()].into());
        let selector = Selector([Requirement { key: "app".into(), demand }].into());
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
        PodCgroup { uid: uid.into(), path: PathBuf::from(format!("/kubepods/pod{uid}")), id, inside: Vec::new() }
    }

    struct Scene {
        members: Members,
        planner: Planner,
    }

    impl Scene {
        fn new() -> Scene {
            Scene { members: Members::default(), planner: Planner::new(Rules::for_node("n1")) }
        }

        /// Whether it is a reason to look.
        fn stirs(&mut self, fact: Fact) -> bool {
            self.members.stirred = false;
            self.members.apply(&fact, &self.planner);
            self.planner.apply(fact);
            self.members.stirred
        }
    }

    #[test]
    fn only_a_change_of_who_is_selected_is_a_reason_to_look() {
        let mut scene = Scene::new();
        assert!(!scene.stirs(Fact::Pod(pod("dns", UID, "cache"))), "there is no policy");
        assert!(scene.stirs(Fact::Policy(policy())));
        assert!(!scene.stirs(Fact::Policy(Policy { generation: 2, ..policy() })), "another part of it");
        assert!(!scene.stirs(Fact::Pod(Pod { ready: false, ..pod("dns", UID, "cache") })));
        assert!(scene.stirs(Fact::Pod(pod("dns", UID, "web"))), "no longer");
        assert!(!scene.stirs(Fact::Pod(Pod { ready: false, ..pod("dns", UID, "web") })));
        assert!(scene.stirs(Fact::Pod(pod("dns", UID, "cache"))));
        assert!(scene.stirs(Fact::Pod(pod("dns", "another", "cache"))), "made anew under its name");
        assert!(scene.stirs(Fact::Pod(Pod { node: Some("n2".into()), ..pod("dns", "another", "cache") })));
        assert!(!scene.stirs(Fact::PodGone(pod("dns", "another", "cache").name)), "it was not here any more");
        assert!(scene.stirs(Fact::PolicyGone(policy().name)));
    }

    #[test]
    fn only_pods_that_a_policy_selects_are_looked_for() {
        for (namespace, uid, app, wanted) in
            [("dns", UID, "cache", 1), ("other", UID, "cache", 0), ("dns", UID, "web", 0), ("dns", "", "cache", 0)]
        {
            let mut scene = Scene::new();
            scene.stirs(Fact::Policy(policy()));
            scene.stirs(Fact::Pod(pod(namespace, uid, app)));
            assert_eq!(scene.planner.pods_with_need().count(), wanted, "{namespace} {uid:?} {app}");
        }
    }

    #[test]
    fn news_come_once_and_go_with_the_pod() {
        let mut members = Members::default();
        let wanted = HashSet::from([UID.into()]);
        let mut compare = |found: Vec<PodCgroup>| (members.compare(&wanted, found), members.open);
        assert_eq!(compare(vec![]), (vec![], true), "the kubelet has not made it yet");
        let news = |cgroup| vec![News { uid: UID.into(), cgroup }];
        let at = |id| Some((id, cgroup(UID, id).path));
        assert_eq!(compare(vec![cgroup(UID, 7), cgroup("other", 8)]), (news(at(7)), false));
        assert_eq!(compare(vec![cgroup(UID, 7)]), (vec![], false));
        assert_eq!(compare(vec![cgroup(UID, 9)]), (news(at(9)), false), "made anew");
        assert_eq!(compare(vec![]), (news(None), true));
        assert_eq!(members.compare(&HashSet::new(), vec![cgroup(UID, 9)]), vec![]);
        assert!(!members.open);
    }

    #[test]
    fn what_could_not_be_used_is_tried_again() {
        let mut members = Members::default();
        let wanted = HashSet::from([UID.into()]);
        assert_eq!(members.compare(&wanted, vec![cgroup(UID, 7)]).len(), 1);
        assert!(members.fail(UID, "too deep".into()) && members.is_open());
        assert_eq!(members.compare(&wanted, vec![cgroup(UID, 7)]).len(), 1, "found again");
        assert!(!members.fail(UID, "too deep".into()), "said once");
        assert_eq!(members.compare(&wanted, vec![cgroup(UID, 7)]).len(), 1);
        members.succeed(UID);
        assert_eq!((members.compare(&wanted, vec![cgroup(UID, 7)]).len(), members.paths().count()), (0, 1));
        assert!(members.fail(UID, "too deep".into()), "it had gone");
    }
}
