//! The pods of this node and their cgroups. Pods come from the source; their cgroups are found by scanning the cgroup tree
//! for the kubelet's names. They count only below the kubelet's own root, which is the first directory where pods of this
//! node are found: other users may create cgroups with the same names elsewhere. One scan serves all uses: members of
//! policies, rules of pods (exclusion and view), and the identity of a process by its cgroup. Only the main loop uses this,
//! so that it needs no lock.

use crate::member::{MemberTracker, MemberUpdate};
use crate::pod_rules::{ExclusionCause, ExclusionRules, PodRules};
use beeline_api::ExcludedPodCounts;
use beeline_datapath::pod::{KubeletRoot, PodCgroup, kubelet_roots};
use beeline_datapath::pod_address::PodAddresses;
use beeline_model::change::{Change, ObjectKey};
use beeline_model::object::{Object, Pod, PodName};
use beeline_model::planner::Planner;
use beeline_model::{Address, Name};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The shortest time between two scans for the same reason. A scan takes a few milliseconds, some pods wait long for
/// their cgroup, and an unknown cgroup often belongs to no pod.
pub const SCAN_INTERVAL: Duration = Duration::from_millis(500);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodIdentity {
    pub namespace: String,
    pub pod: String,
    pub container: Option<String>,
}

/// A pod's addresses and the cgroup by which the kernel finds them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodAddress {
    pub cgroup: u64,
    pub path: PathBuf,
    pub addresses: PodAddresses,
}

/// The result of the last scan.
#[derive(Debug, Default)]
struct Scan {
    roots: Vec<KubeletRoot>,
    /// The pods below the kubelet's root.
    pods: Vec<PodCgroup>,
    /// Every cgroup of a pod: the pod's UID, and the id of the container.
    cgroups: HashMap<u64, (String, Option<String>)>,
    at: Option<Instant>,
}

#[derive(Debug)]
pub struct PodCgroups {
    root: PathBuf,
    /// The directory below which the kubelet creates the cgroups of pods. `None` until the cgroup of a known pod is found.
    kubelet_root: Option<PathBuf>,
    node_name: Name,
    pods: HashMap<PodName, Pod>,
    by_uid: HashMap<Box<str>, PodName>,
    /// Several pods with hostNetwork have the same address.
    by_address: HashMap<Address, BTreeSet<PodName>>,
    scan: Scan,
    members: MemberTracker,
    exclusion: ExclusionRules,
    /// The rules of pods, for the pods whose cgroup was found.
    rules: Vec<(PathBuf, PodRules)>,
    /// A pod with rules was added, changed or removed, or has no cgroup yet.
    rules_changed: bool,
    /// `rules` was recomputed, and is not in the kernel yet.
    rules_unapplied: bool,
    /// The addresses of a pod changed, or a pod with addresses has no cgroup yet.
    addresses_changed: bool,
}

impl PodCgroups {
    /// For pods whose cgroup is at or below `root`.
    pub fn new(root: &Path, node_name: Name, exclusion: ExclusionRules) -> PodCgroups {
        PodCgroups {
            root: root.to_owned(),
            kubelet_root: None,
            node_name,
            pods: HashMap::new(),
            by_uid: HashMap::new(),
            by_address: HashMap::new(),
            scan: Scan::default(),
            members: MemberTracker::default(),
            exclusion,
            rules: Vec::new(),
            rules_changed: false,
            rules_unapplied: false,
            addresses_changed: true,
        }
    }

    /// Must be called before the planner applies the change.
    pub fn apply(&mut self, change: &Change, planner: &Planner) {
        self.members.apply(change, planner);
        self.rules_changed |= self.exclusion.apply(change);
        match change {
            // Without a controller the pods of other nodes are delivered, too.
            Change::Upsert(Object::Pod(pod)) if pod.node.as_ref().is_some_and(|node| *node != self.node_name) => {
                self.remove(&pod.name);
            }
            Change::Upsert(Object::Pod(pod)) => self.insert(pod.clone()),
            Change::Delete(ObjectKey::Pod(name)) => self.remove(name),
            _ => {}
        }
    }

    fn insert(&mut self, pod: Pod) {
        let (rules, uid) = (self.exclusion.rules(&pod), pod.uid.clone());
        let old = self.pods.remove(&pod.name);
        old.iter().for_each(|old| self.unindex(old));
        self.by_uid.insert(uid.clone(), pod.name.clone());
        for address in &pod.addresses {
            self.by_address.entry(*address).or_default().insert(pod.name.clone());
        }
        let name = pod.name.clone();
        self.pods.insert(name.clone(), pod);
        let old_rules = old.as_ref().map(|old| self.exclusion.rules(old)).unwrap_or_default();
        let new = &self.pods[&name];
        self.addresses_changed |= old.as_ref().is_none_or(|old| old.uid != uid || old.addresses != new.addresses);
        let recreated = old.is_some_and(|old| old.uid != uid);
        self.rules_changed |= rules != old_rules || !rules.is_empty() && recreated;
        if self.kubelet_root.is_none() {
            self.select_root();
        }
    }

    fn remove(&mut self, name: &PodName) {
        let Some(old) = self.pods.remove(name) else { return };
        self.unindex(&old);
        self.addresses_changed = true;
        self.rules_changed |= !self.exclusion.rules(&old).is_empty();
    }

    fn unindex(&mut self, pod: &Pod) {
        self.by_uid.remove(&pod.uid);
        for address in &pod.addresses {
            if let Some(pods) = self.by_address.get_mut(address) {
                pods.remove(&pod.name);
                if pods.is_empty() {
                    self.by_address.remove(address);
                }
            }
        }
    }

    /// Scans the cgroups if members or rules need it. Returns the changes of members' cgroups.
    pub fn update(&mut self, planner: &Planner, now: Instant) -> Vec<MemberUpdate> {
        let scanned_recently = self.scan.at.is_some_and(|at| now < at + SCAN_INTERVAL);
        let members_due = self.members.is_changed() || self.members.is_incomplete() && !scanned_recently;
        if !members_due && !self.rules_changed {
            return Vec::new();
        }
        let members: HashSet<Box<str>> = planner.pods_needing_cgroup().map(|pod| pod.uid.clone()).collect();
        let has_rules = self.pods.values().any(|pod| !self.exclusion.rules(pod).is_empty());
        if has_rules || self.members.needs_scan(&members) {
            self.rescan(now);
        }
        if self.rules_changed {
            self.update_rules();
        }
        self.members.update(&members, &self.scan.pods)
    }

    /// Sets the rules of all pods whose cgroup was found. A pod without a cgroup is searched for again at the next call:
    /// the kubelet creates the cgroup before the first process, and the rule has to be there by then.
    fn update_rules(&mut self) {
        let paths: HashMap<&str, &Path> = self.scan.pods.iter().map(|pod| (&*pod.uid, &*pod.path)).collect();
        let with_rules = self.pods.values().map(|pod| (&*pod.uid, self.exclusion.rules(pod)));
        let with_rules: Vec<(&str, PodRules)> = with_rules.filter(|(_, rules)| !rules.is_empty()).collect();
        let count = with_rules.len();
        let found = with_rules.into_iter().filter_map(|(uid, rules)| Some((paths.get(uid)?.to_path_buf(), rules)));
        self.rules = found.collect();
        self.rules_unapplied = true;
        self.rules_changed = self.rules.len() < count;
    }

    /// The addresses of all pods whose cgroup was found, if they may have changed since the last call.
    pub fn changed_addresses(&mut self, now: Instant) -> Option<Vec<PodAddress>> {
        let scanned_recently = self.scan.at.is_some_and(|at| now < at + SCAN_INTERVAL);
        if !self.addresses_changed || scanned_recently {
            return None;
        }
        self.rescan(now);
        let cgroups: HashMap<&str, &PodCgroup> = self.scan.pods.iter().map(|pod| (&*pod.uid, pod)).collect();
        let with_address: Vec<&Pod> = self.pods.values().filter(|pod| !pod.addresses.is_empty()).collect();
        let found = with_address.iter().filter_map(|pod| {
            let PodCgroup { id, path, .. } = cgroups.get(&*pod.uid)?;
            Some(PodAddress { cgroup: *id, path: path.clone(), addresses: PodAddresses::of(&pod.addresses) })
        });
        let found: Vec<PodAddress> = found.collect();
        self.addresses_changed = found.len() < with_address.len();
        Some(found)
    }

    /// Requests the addresses of all pods again, because they could not be written.
    pub fn mark_addresses_changed(&mut self) {
        self.addresses_changed = true;
    }

    fn rescan(&mut self, now: Instant) {
        self.set_scan(kubelet_roots(&self.root), now);
    }

    /// Scans if the kubelet's root is not known, for the status.
    pub fn find_kubelet_root(&mut self, now: Instant) {
        let scanned_recently = self.scan.at.is_some_and(|at| now < at + SCAN_INTERVAL);
        if self.kubelet_root.is_none() && !self.pods.is_empty() && !scanned_recently {
            self.rescan(now);
        }
    }

    /// Sets the result of a scan that another thread made.
    pub fn set_scan(&mut self, roots: Vec<KubeletRoot>, now: Instant) {
        (self.scan.roots, self.scan.at) = (roots, Some(now));
        self.select_root();
    }

    /// Uses the pods below the kubelet's root only. The root stays the same for as long as it has pods of this node.
    fn select_root(&mut self) {
        let has_pods = |root: &&KubeletRoot| root.pods.iter().any(|pod| self.by_uid.contains_key(pod.uid.as_str()));
        let is_current = |root: &&KubeletRoot| Some(&root.path) == self.kubelet_root.as_ref();
        let mut with_pods = self.scan.roots.iter().filter(has_pods);
        let current = with_pods.clone().find(is_current);
        let selected = current.or_else(|| with_pods.next()).or_else(|| self.scan.roots.iter().find(is_current));
        let pods = selected.map(|root| root.pods.clone()).unwrap_or_default();
        let path = selected.map(|root| root.path.clone());
        if let Some(path) = path.filter(|path| self.kubelet_root.as_ref() != Some(path)) {
            tracing::info!(path = %path.display(), "found the cgroup below which the kubelet creates pods");
            self.kubelet_root = Some(path);
        }
        self.scan.cgroups.clear();
        for pod in &pods {
            self.scan.cgroups.insert(pod.id, (pod.uid.clone(), None));
            let descendants = pod.descendants.iter().map(|(id, container)| (*id, (pod.uid.clone(), container.clone())));
            self.scan.cgroups.extend(descendants);
        }
        self.scan.pods = pods;
    }

    /// The kubelet's root, where it was found.
    pub fn kubelet_root(&self) -> Option<&Path> {
        self.kubelet_root.as_deref()
    }

    /// Requests a scan for members, because the kubelet may have recreated cgroups.
    pub fn mark_changed(&mut self) {
        self.members.mark_changed();
    }

    /// Whether the rules in the kernel may be outdated, or some pod with rules has no cgroup yet.
    pub fn are_rules_outdated(&self) -> bool {
        self.rules_changed || self.rules_unapplied
    }

    pub fn mark_rules_applied(&mut self) {
        self.rules_unapplied = false;
    }

    pub fn members(&mut self) -> &mut MemberTracker {
        &mut self.members
    }

    pub fn member_paths(&self) -> impl Iterator<Item = &Path> {
        self.members.paths()
    }

    /// The paths of all pod cgroups, as of the last scan.
    pub fn scanned_paths(&self) -> impl Iterator<Item = &Path> {
        self.scan.pods.iter().map(|pod| &*pod.path)
    }

    /// The rules of pods, with the paths of their cgroups.
    pub fn rules(&self) -> &[(PathBuf, PodRules)] {
        &self.rules
    }

    /// Why this pod is excluded; `None` means that it is served.
    pub fn exclusion_cause(&self, pod: &Pod) -> Option<ExclusionCause> {
        self.exclusion.cause(pod)
    }

    pub fn excluded_pods(&self) -> ExcludedPodCounts {
        self.exclusion.counts(self.pods.values())
    }

    /// The pod of a process by its cgroup, as of the last scan.
    pub fn identify(&self, cgroup: u64) -> Option<PodIdentity> {
        let (uid, container) = self.scan.cgroups.get(&cgroup)?;
        let pod = self.pods.get(self.by_uid.get(uid.as_str())?)?;
        let name = |id: &String| pod.containers.iter().find(|c| *c.id == **id).map(|c| c.name.to_string());
        Some(PodIdentity {
            namespace: pod.name.namespace.to_string(),
            pod: pod.name.name.to_string(),
            container: container.as_ref().and_then(name),
        })
    }

    /// The pod of this node with this address, if there is exactly one.
    pub fn pod_at(&self, address: Address) -> Option<&PodName> {
        let pods = self.by_address.get(&address)?;
        pods.first().filter(|_| pods.len() == 1)
    }

    /// The paths of the cgroups of these pods, by UID, from a new scan.
    pub fn find_paths(&mut self, uids: &[&str], now: Instant) -> HashMap<String, PathBuf> {
        if uids.is_empty() {
            return HashMap::new();
        }
        self.rescan(now);
        let found = self.scan.pods.iter().filter(|pod| uids.contains(&&*pod.uid));
        found.map(|pod| (pod.uid.clone(), pod.path.clone())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use beeline_model::object::Container;
    use beeline_model::rules::Rules;
    use beeline_model::selector::Labels;

    const UID: &str = "0c9a3a3e-5b1f-4c3d-9a55-6f0e3f1d2b11";
    const CONTAINER: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

    fn pod(name: &str, node: &str, view: Option<&str>) -> Pod {
        Pod {
            name: PodName { cluster: "local".into(), namespace: "default".into(), name: name.into() },
            uid: UID.into(),
            node: Some(node.into()),
            addresses: ["10.244.1.5".parse::<std::net::IpAddr>().unwrap().into()].into(),
            containers: [Container { name: "main".into(), id: CONTAINER.into() }].into(),
            exclusion: Default::default(),
            view: view.map(Into::into),
            labels: Labels::new(),
            ready: true,
            ports: [].into(),
        }
    }

    fn cgroup_id(path: &Path) -> u64 {
        use std::os::unix::fs::MetadataExt;
        path.metadata().unwrap().ino()
    }

    #[test]
    fn rules_are_in_effect_once_the_cgroup_exists_and_until_the_pod_is_deleted() {
        let root = tempfile::tempdir().unwrap();
        let planner = Planner::new(Rules::for_node("n1"));
        let mut pods = PodCgroups::new(root.path(), "n1".into(), ExclusionRules::new(true));
        let now = Instant::now();
        pods.apply(&Object::Pod(pod("other", "n2", Some("blue"))).into(), &planner);
        pods.update(&planner, now);
        assert!(pods.rules().is_empty() && !pods.rules_changed, "the pod runs on another node");
        pods.apply(&Object::Pod(pod("web", "n1", Some("blue"))).into(), &planner);
        pods.update(&planner, now);
        assert!(pods.rules().is_empty() && pods.rules_changed, "the cgroup does not exist yet");
        let path = root.path().join(format!("kubepods/pod{UID}"));
        std::fs::create_dir_all(&path).unwrap();
        pods.update(&planner, now);
        let rules = PodRules { excluded: false, view: Some("blue".into()) };
        assert_eq!((pods.rules(), pods.rules_changed), (&[(path, rules)][..], false));
        pods.apply(&Change::Delete(ObjectKey::Pod(pod("web", "n1", None).name)), &planner);
        pods.update(&planner, now);
        assert!(pods.rules().is_empty());
    }

    #[test]
    fn a_process_is_identified_by_its_cgroup() {
        let root = tempfile::tempdir().unwrap();
        let planner = Planner::new(Rules::for_node("n1"));
        let mut pods = PodCgroups::new(root.path(), "n1".into(), ExclusionRules::new(true));
        let path = root.path().join(format!("kubepods/pod{UID}/{CONTAINER}"));
        std::fs::create_dir_all(&path).unwrap();
        pods.apply(&Object::Pod(pod("web", "n1", None)).into(), &planner);
        assert_eq!(pods.identify(cgroup_id(&path)), None, "not scanned yet");
        pods.set_scan(kubelet_roots(root.path()), Instant::now());
        let identity = pods.identify(cgroup_id(&path)).unwrap();
        let PodIdentity { namespace, pod, container } = &identity;
        assert_eq!((&**namespace, &**pod, container.as_deref()), ("default", "web", Some("main")));
        let other = root.path().join("kubepods/pod11111111-5b1f-4c3d-9a55-6f0e3f1d2b11");
        std::fs::create_dir_all(&other).unwrap();
        pods.set_scan(kubelet_roots(root.path()), Instant::now());
        assert_eq!(pods.identify(cgroup_id(&other)), None, "the pod is not known");
    }

    /// A host user has a delegated cgroup and creates the names of a pod of this node in it.
    #[test]
    fn a_cgroup_with_the_name_of_a_pod_counts_only_below_the_kubelets_root() {
        let root = tempfile::tempdir().unwrap();
        let planner = Planner::new(Rules::for_node("n1"));
        let mut pods = PodCgroups::new(root.path(), "n1".into(), ExclusionRules::new(true));
        pods.apply(&Object::Pod(pod("web", "n1", Some("blue"))).into(), &planner);
        let create = |path: String| {
            let path = root.path().join(path);
            std::fs::create_dir_all(&path).unwrap();
            path
        };
        let forged = create(format!("user.slice/pod{UID}"));
        pods.update(&planner, Instant::now());
        assert_eq!((pods.kubelet_root(), pods.rules(), pods.identify(cgroup_id(&forged))), (None, &[][..], None));
        let own = create(format!("kubepods/burstable/pod{UID}"));
        let deeper = create(format!("system.slice/app/kubepods/pod{UID}"));
        pods.update(&planner, Instant::now());
        assert_eq!(pods.kubelet_root(), Some(root.path()));
        assert_eq!(pods.rules().iter().map(|(path, _)| path).collect::<Vec<_>>(), [&own]);
        assert!(pods.identify(cgroup_id(&own)).is_some() && pods.identify(cgroup_id(&forged)).is_none());
        // The pod's own cgroup is gone: the root stays the same while it exists.
        std::fs::remove_dir(&own).unwrap();
        let other = create(format!("kubepods/pod{}", UID.replace("0c9a", "1111")));
        pods.apply(
            &Object::Pod(Pod { uid: UID.replace("0c9a", "1111").into(), ..pod("db", "n1", None) }).into(),
            &planner,
        );
        pods.set_scan(kubelet_roots(root.path()), Instant::now());
        assert_eq!(pods.kubelet_root(), Some(root.path()));
        assert!(pods.identify(cgroup_id(&other)).is_some() && pods.identify(cgroup_id(&deeper)).is_none());
    }

    #[test]
    fn a_pod_that_becomes_known_after_the_scan_is_identified() {
        let root = tempfile::tempdir().unwrap();
        let planner = Planner::new(Rules::for_node("n1"));
        let mut pods = PodCgroups::new(root.path(), "n1".into(), ExclusionRules::new(true));
        let path = root.path().join(format!("kubepods/pod{UID}"));
        std::fs::create_dir_all(&path).unwrap();
        pods.set_scan(kubelet_roots(root.path()), Instant::now());
        pods.apply(&Object::Pod(pod("web", "n1", None)).into(), &planner);
        assert!(pods.identify(cgroup_id(&path)).is_some());
    }

    #[test]
    fn addresses_are_reported_once_the_cgroup_exists_and_when_they_change() {
        let root = tempfile::tempdir().unwrap();
        let planner = Planner::new(Rules::for_node("n1"));
        let mut pods = PodCgroups::new(root.path(), "n1".into(), ExclusionRules::new(true));
        let mut now = Instant::now();
        let mut later = || {
            now += SCAN_INTERVAL;
            now
        };
        assert_eq!(pods.changed_addresses(later()), Some(vec![]), "rows of an earlier agent may be stale");
        assert_eq!(pods.changed_addresses(later()), None);
        pods.apply(&Object::Pod(pod("web", "n1", None)).into(), &planner);
        assert_eq!(pods.changed_addresses(later()), Some(vec![]), "the cgroup does not exist yet");
        let path = root.path().join(format!("kubepods/pod{UID}"));
        std::fs::create_dir_all(&path).unwrap();
        let addresses = PodAddresses::of(&pod("web", "n1", None).addresses);
        let expected = PodAddress { cgroup: cgroup_id(&path), path, addresses };
        assert_eq!(pods.changed_addresses(later()), Some(vec![expected]));
        pods.apply(&Object::Pod(Pod { ready: false, ..pod("web", "n1", None) }).into(), &planner);
        assert_eq!(pods.changed_addresses(later()), None, "the addresses are the same");
        pods.apply(&Object::Pod(Pod { addresses: [].into(), ..pod("web", "n1", None) }).into(), &planner);
        assert_eq!(pods.changed_addresses(later()), Some(vec![]), "the pod has ended");
    }

    #[test]
    fn an_address_that_several_pods_have_identifies_none() {
        let planner = Planner::new(Rules::for_node("n1"));
        let mut pods = PodCgroups::new(Path::new("/nowhere"), "n1".into(), ExclusionRules::new(true));
        let address = pod("a", "n1", None).addresses[0];
        pods.apply(&Object::Pod(pod("a", "n1", None)).into(), &planner);
        assert_eq!(pods.pod_at(address), Some(&pod("a", "n1", None).name));
        pods.apply(&Object::Pod(Pod { uid: "another".into(), ..pod("b", "n1", None) }).into(), &planner);
        assert_eq!(pods.pod_at(address), None);
        pods.apply(&Change::Delete(ObjectKey::Pod(pod("a", "n1", None).name)), &planner);
        assert_eq!(pods.pod_at(address), Some(&pod("b", "n1", None).name));
    }
}
