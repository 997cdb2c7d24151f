//! Pods that LocalRedirectPolicies select, and their cgroups. Such a pod joins its policy's set only once its cgroup is
//! known, or it would be sent to itself; so they are looked for as soon as source and kubelet have told of both.

use beeline_datapath::pod::{PodCgroup, pods_below};
use beeline_model::fact::{Fact, Pod, PodName};
use beeline_model::policy::{PolicyKind, PolicyName, Target};
use beeline_model::selector::Selector;
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
    pods: HashMap<PodName, Pod>,
    selectors: BTreeMap<PolicyName, Selector>,
    /// By UID.
    known: HashMap<Box<str>, u64>,
    /// Facts came that may change who is wanted.
    stirred: bool,
    /// Some wanted pod has no cgroup yet.
    open: bool,
}

impl Members {
    pub fn apply(&mut self, fact: &Fact) {
        let stirs = match fact {
            Fact::Pod(pod) => self.pods.insert(pod.name.clone(), pod.clone()).as_ref() != Some(pod),
            Fact::PodGone(name) => self.pods.remove(name).is_some(),
            Fact::Policy(policy) => match (&policy.name.kind, &policy.target) {
                (PolicyKind::LocalRedirect, Target::LocalPods { selector, .. }) => {
                    self.selectors.insert(policy.name.clone(), selector.clone()).as_ref() != Some(selector)
                }
                _ => false,
            },
            Fact::PolicyGone(name) => self.selectors.remove(name).is_some(),
            _ => false,
        };
        self.stirred |= stirs;
    }

    /// A look is worth while.
    pub fn is_open(&self) -> bool {
        self.stirred || self.open
    }

    /// Everything is asked again: a kubelet may have made its cgroups anew.
    pub fn doubt(&mut self) {
        self.stirred = true;
    }

    /// Looks at the cgroups below `root`, if anybody is wanted.
    pub fn look(&mut self, root: &Path) -> Vec<News> {
        self.stirred = false;
        let wanted = self.wanted();
        if wanted.is_empty() && self.known.is_empty() {
            self.open = false;
            return Vec::new();
        }
        let found = if wanted.is_empty() { Vec::new() } else { pods_below(root) };
        self.compare(&wanted, found)
    }

    /// A manifest written by hand has no UID, no kubelet and no cgroup. One that has ended has no address.
    fn wanted(&self) -> HashSet<Box<str>> {
        let is_wanted = |pod: &&Pod| !pod.uid.is_empty() && !pod.addresses.is_empty() && self.is_selected(pod);
        self.pods.values().filter(is_wanted).map(|pod| pod.uid.clone()).collect()
    }

    fn is_selected(&self, pod: &Pod) -> bool {
        let of = |policy: &PolicyName| policy.cluster == pod.name.cluster && policy.namespace == pod.name.namespace;
        self.selectors.iter().any(|(policy, selector)| of(policy) && selector.matches(&pod.labels))
    }

    fn compare(&mut self, wanted: &HashSet<Box<str>>, found: Vec<PodCgroup>) -> Vec<News> {
        let found = found.into_iter().map(|pod| (pod.uid.into_boxed_str(), (pod.id, pod.path)));
        let found: HashMap<Box<str>, (u64, PathBuf)> = found.filter(|(uid, _)| wanted.contains(uid)).collect();
        self.open = found.len() < wanted.len();
        let gone = self.known.keys().filter(|uid| !found.contains_key(*uid)).cloned();
        let mut news: Vec<News> = gone.map(|uid| News { uid, cgroup: None }).collect();
        let new = found.iter().filter(|(uid, (id, _))| self.known.get(*uid) != Some(id));
        news.extend(new.map(|(uid, at)| News { uid: uid.clone(), cgroup: Some(at.clone()) }));
        self.known = found.into_iter().map(|(uid, (id, _))| (uid, id)).collect();
        news
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use beeline_model::policy::{Matcher, Policy};
    use beeline_model::selector::{Demand, Labels, Requirement};

    const UID: &str = "0c9a3a3e-5b1f-4c3d-9a55-6f0e3f1d2b11";

    fn pod(namespace: &str, uid: &str, app: &str) -> Fact {
        Fact::Pod(Pod {
            name: PodName { cluster: "local".into(), namespace: namespace.into(), name: "cache".into() },
            uid: uid.into(),
            node: Some("n1".into()),
            addresses: ["10.244.1.5".parse::<std::net::IpAddr>().unwrap().into()].into(),
            containers: [].into(),
            untouched: false,
            labels: Labels::from([("app".into(), app.into())]),
            ready: true,
            ports: [].into(),
        })
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

    #[test]
    fn only_pods_that_a_policy_selects_are_looked_for() {
        let mut members = Members::default();
        members.apply(&pod("dns", UID, "cache"));
        assert!(members.wanted().is_empty(), "there is no policy");
        members.apply(&Fact::Policy(policy()));
        assert_eq!(members.wanted().len(), 1);
        for (namespace, uid, app) in [("other", UID, "cache"), ("dns", UID, "web"), ("dns", "", "cache")] {
            let mut members = Members::default();
            members.apply(&Fact::Policy(policy()));
            members.apply(&pod(namespace, uid, app));
            assert!(members.wanted().is_empty(), "{namespace} {uid:?} {app}");
        }
    }

    #[test]
    fn news_come_once_and_go_with_the_pod() {
        let mut members = Members::default();
        members.apply(&Fact::Policy(policy()));
        members.apply(&pod("dns", UID, "cache"));
        assert!(members.is_open());
        let wanted = members.wanted();
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
}
