//! All that the controller knows of the cluster, and what follows from it: plain synchronous state behind one lock. Tasks
//! around it feed it and ask it what there is to write.

use crate::census::Census;
use crate::claim::{Claims, Target};
use crate::queue::{Lane, Queue};
use crate::said::Said;
use crate::settings::{Overlap, Settings};
use crate::spot::{Spot, Spots};
use beeline_model::fact::{Fact, Node, Service, SliceName};
use beeline_model::name::LOCAL_CLUSTER;
use beeline_model::policy::{Policy, PolicyName, PolicySlice};
use beeline_model::publish::{NodePublisher, NodeSlice, Publisher, Unknown};
use beeline_model::{Address, Name, OwnerName};
use ipnet::IpNet;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

/// Facts that are taken in one go: whoever else waits for the lock waits no longer than for these.
const CHUNK: usize = 256;
/// A slice is written at most this often; a first change at once.
const REST: Duration = Duration::from_secs(1);

pub struct World {
    pub(crate) virtual_ranges: Vec<IpNet>,
    pub(crate) overlap: Overlap,
    settled: bool,
    whole: bool,
    /// Everything has been listed once.
    pub synced: bool,
    pub error: Option<String>,
    /// Facts that are not taken yet: slices, policies and namespaces must be known before pods.
    early: VecDeque<Fact>,
    pub(crate) policies: BTreeMap<PolicyName, Policy>,
    pub(crate) services: HashMap<OwnerName, Service>,
    pub(crate) spots: Spots,
    pub(crate) claims: Claims,
    /// Where verdicts may be others since the last batch.
    touched: HashSet<Spot>,
    passed_on: HashSet<Target>,
    /// Whose addresses in the virtual ranges are: `Service a/b`, `Node n`, `Pod a/b`.
    pub(crate) taken: HashMap<Address, BTreeSet<String>>,
    takers: HashMap<String, Vec<Address>>,
    pub(crate) publisher: Publisher,
    nodes: NodePublisher,
    /// What should be, and what is, as far as we have heard.
    wanted: BTreeMap<SliceName, PolicySlice>,
    existing: BTreeMap<SliceName, PolicySlice>,
    /// The names of those that should be, should their policy be accepted.
    owned: HashMap<PolicyName, BTreeSet<SliceName>>,
    /// Whether anybody writes: who does not keeps no list of what to write, and looks at everything when it begins.
    leads: bool,
    slices: Queue<SliceName>,
    nodes_dirty: BTreeSet<Name>,
    pub census: Census,
    pub(crate) status_dirty: BTreeSet<PolicyName>,
    pub said: Said,
}

/// What there is to do for a slice.
#[derive(Debug)]
pub enum Next {
    /// As it should be; `None`: to be deleted.
    Write(SliceName, Option<Box<PolicySlice>>),
    /// One that is as it should be; there may be more.
    Same,
    Nothing,
}

impl World {
    pub fn new(settings: &Settings) -> World {
        World {
            virtual_ranges: settings.virtual_ranges.clone(),
            overlap: settings.overlap,
            settled: false,
            whole: false,
            synced: false,
            error: None,
            early: VecDeque::new(),
            policies: BTreeMap::new(),
            services: HashMap::new(),
            spots: Spots::default(),
            claims: Claims::default(),
            touched: HashSet::new(),
            passed_on: HashSet::new(),
            taken: HashMap::new(),
            takers: HashMap::new(),
            publisher: Publisher::new(Unknown::Waits),
            nodes: NodePublisher::default(),
            wanted: BTreeMap::new(),
            existing: BTreeMap::new(),
            owned: HashMap::new(),
            leads: false,
            slices: Queue::default(),
            nodes_dirty: BTreeSet::new(),
            census: Census::default(),
            status_dirty: BTreeSet::new(),
            said: Said::default(),
        }
    }

    /// What an earlier run published of nodes: told first.
    pub fn adopt_nodes(&mut self, slices: &[NodeSlice]) {
        slices.iter().for_each(|slice| self.nodes.adopt(slice));
    }

    /// `settled`: every kind has been listed, or cannot be. `whole`: all of them have; before that nothing may be written:
    /// half of the pods, taken for all of them, would empty what is published.
    pub fn take(&mut self, facts: Vec<Fact>, settled: bool, whole: bool) {
        self.settled |= settled;
        self.whole |= whole;
        self.early.extend(facts);
        if self.settled {
            self.early.make_contiguous().sort_by_key(rank);
        }
    }

    /// Takes in some of it, and says whether there is more: the lock is given to others in between.
    pub fn advance(&mut self) -> bool {
        if !self.settled {
            return false;
        }
        for _ in 0..CHUNK {
            let Some(fact) = self.early.pop_front() else { break };
            self.apply(fact);
        }
        if !self.early.is_empty() {
            return true;
        }
        self.follow();
        self.synced |= self.whole;
        false
    }

    /// Nothing may be written from half of a batch.
    pub fn is_current(&self) -> bool {
        self.synced && self.early.is_empty()
    }

    fn apply(&mut self, fact: Fact) {
        self.note_addresses(&fact);
        self.census.apply(&fact);
        self.publisher.apply(&fact);
        self.nodes.apply(&fact);
        match fact {
            Fact::Policy(policy) => self.put_policy(policy),
            Fact::PolicyGone(name) => self.remove_policy(&name),
            Fact::Service(service) => {
                let name = service.name.clone();
                self.services.insert(name.clone(), service);
                self.change_service(name);
            }
            Fact::ServiceGone(name) => {
                self.services.remove(&name);
                self.change_service(name);
            }
            Fact::PolicySlice(slice) => self.put_existing(slice),
            Fact::PolicySliceGone(name) => {
                self.existing.remove(&name);
                self.compare(&name);
            }
            _ => {}
        }
    }

    fn put_existing(&mut self, slice: PolicySlice) {
        let name = slice.name.clone();
        self.publisher.adopt(&slice);
        self.existing.insert(name.clone(), slice);
        self.compare(&name);
    }

    fn compare(&mut self, name: &SliceName) {
        let wanted = self.should_be(name);
        if wanted != self.existing.get(name) {
            let lane = lane(wanted.is_some());
            self.put_slice(name.clone(), lane);
        }
    }

    /// Only of a policy that is accepted: of others nobody asks, and whoever may write policies could fill the cluster.
    fn should_be(&self, name: &SliceName) -> Option<&PolicySlice> {
        let slice = self.wanted.get(name)?;
        let policy = self.policies.get(&slice.policy)?;
        self.judge(policy).is_ok().then_some(slice)
    }

    fn put_policy(&mut self, policy: Policy) {
        let before = self.policies.get(&policy.name);
        if before == Some(&policy) {
            return;
        }
        if !before.is_some_and(|before| before.matcher == policy.matcher && before.created == policy.created) {
            self.remove_policy(&policy.name);
            self.spots.insert(&policy);
        }
        self.change(&policy.name);
        let name = policy.name.clone();
        self.policies.insert(name.clone(), policy);
        self.claim(&name);
    }

    /// What it means there may be another thing now, and so may be who holds what.
    fn claim(&mut self, name: &PolicyName) {
        let Some(policy) = self.policies.get(name) else { return };
        let service = match Spot::of(policy) {
            Spot::Service(owner) => self.services.get(&owner),
            Spot::Address(_) => None,
        };
        self.passed_on.extend(self.claims.set(policy, service));
    }

    fn change_service(&mut self, name: OwnerName) {
        let spot = Spot::Service(name);
        let names: Vec<PolicyName> = self.spots.members(&spot).cloned().collect();
        names.iter().for_each(|name| self.claim(name));
        self.touch(spot);
    }

    fn remove_policy(&mut self, name: &PolicyName) {
        let Some(policy) = self.policies.remove(name) else { return };
        self.spots.remove(&policy);
        self.passed_on.extend(self.claims.remove(name));
        self.change(name);
    }

    /// What is said of the policies there may be another thing now.
    fn touch(&mut self, spot: Spot) {
        self.touched.insert(spot);
    }

    /// What is said of a policy, and whether it is published, may be another thing now.
    fn change(&mut self, name: &PolicyName) {
        if !self.leads {
            return;
        }
        self.status_dirty.insert(name.clone());
        for slice in self.owned.get(name).into_iter().flatten() {
            self.slices.put(slice.clone(), Lane::First);
        }
    }

    fn put_slice(&mut self, name: SliceName, lane: Lane) {
        if self.leads {
            self.slices.put(name, lane);
        }
    }

    pub fn mark_status(&mut self, name: PolicyName) {
        if self.leads {
            self.status_dirty.insert(name);
        }
    }

    fn note_addresses(&mut self, fact: &Fact) {
        let (subject, addresses): (String, Vec<Address>) = match fact {
            // ClusterIPs only: whoever may write a Service could else take a virtual address from all who use it. It goes
            // before the others (`beeline_model::claim`).
            Fact::Service(it) => (format!("Service {}", it.name), it.cluster_ips.to_vec()),
            Fact::ServiceGone(name) => (format!("Service {name}"), Vec::new()),
            Fact::Node(it) => (format!("Node {}", it.name), node_addresses(it)),
            Fact::NodeGone { name, .. } => (format!("Node {name}"), Vec::new()),
            Fact::Pod(it) => (format!("Pod {}/{}", it.name.namespace, it.name.name), it.addresses.to_vec()),
            Fact::PodGone(name) => (format!("Pod {}/{}", name.namespace, name.name), Vec::new()),
            _ => return,
        };
        // Nothing else could be a virtual address, and a hundred thousand pods are many.
        let inside = |address: &Address| self.virtual_ranges.iter().any(|net| net.contains(&address.ip()));
        let addresses: Vec<Address> = addresses.into_iter().filter(inside).collect();
        self.set_taken(subject, addresses);
    }

    fn set_taken(&mut self, subject: String, addresses: Vec<Address>) {
        for old in self.takers.remove(&subject).unwrap_or_default() {
            if let Some(owners) = self.taken.get_mut(&old) {
                owners.remove(&subject);
                if owners.is_empty() {
                    self.taken.remove(&old);
                }
            }
            self.touch(Spot::Address(old));
        }
        for new in &addresses {
            self.taken.entry(*new).or_default().insert(subject.clone());
            self.touch(Spot::Address(*new));
        }
        if !addresses.is_empty() {
            self.takers.insert(subject, addresses);
        }
    }

    /// What is to be written because of what came in.
    fn follow(&mut self) {
        if self.leads {
            self.status_dirty.extend(self.publisher.dirty().cloned());
        }
        for fact in self.publisher.take() {
            match fact {
                Fact::PolicySlice(slice) => self.want(slice),
                Fact::PolicySliceGone(name) => self.unwant(&name),
                _ => {}
            }
        }
        let (touched, passed_on) = (std::mem::take(&mut self.touched), std::mem::take(&mut self.passed_on));
        let names = touched.iter().flat_map(|spot| self.spots.members(spot));
        let names = names.chain(passed_on.iter().flat_map(|target| self.claims.members(target)));
        let names: HashSet<PolicyName> = names.cloned().collect();
        names.iter().for_each(|name| self.change(name));
        let changed = self.nodes.take_changed();
        if self.leads {
            self.nodes_dirty.extend(changed);
        }
    }

    fn want(&mut self, slice: PolicySlice) {
        let name = slice.name.clone();
        self.owned.entry(slice.policy.clone()).or_default().insert(name.clone());
        self.wanted.insert(name.clone(), slice);
        self.put_slice(name, Lane::First);
    }

    fn unwant(&mut self, name: &SliceName) {
        if let Some(slice) = self.wanted.remove(name)
            && let Some(names) = self.owned.get_mut(&slice.policy)
        {
            names.remove(name);
            if names.is_empty() {
                self.owned.remove(&slice.policy);
            }
        }
        self.put_slice(name.clone(), Lane::Then);
    }

    /// From now on nobody here writes.
    pub fn follow_another(&mut self) {
        self.leads = false;
        self.slices = Queue::default();
        self.nodes_dirty.clear();
        self.status_dirty.clear();
    }

    /// Whoever begins to write looks at everything.
    pub fn lead(&mut self) {
        self.leads = true;
        let names = self.wanted.keys().chain(self.existing.keys());
        names.for_each(|name| self.slices.put(name.clone(), Lane::First));
        self.nodes_dirty.extend(self.nodes.slices().map(|slice| slice.name));
        self.mark_statuses();
    }

    pub fn mark_statuses(&mut self) {
        self.status_dirty.extend(self.policies.keys().cloned());
    }

    /// One slice that may have to be written: new ones in the first lane, so that a pod that moves between slices is never
    /// in none.
    pub fn next_slice(&mut self, from: Lane, now: Instant) -> Next {
        if !self.is_current() {
            return Next::Nothing;
        }
        let Some(name) = self.slices.take(from, now) else { return Next::Nothing };
        let wanted = self.should_be(&name);
        if wanted == self.existing.get(&name) {
            self.slices.skip(&name);
            return Next::Same;
        }
        if wanted.is_none() && from == Lane::First {
            self.slices.give_back(name, Lane::Then);
            return Next::Same;
        }
        let wanted = wanted.cloned().map(Box::new);
        Next::Write(name, wanted)
    }

    /// Whose slice it is, where we know nothing of that policy.
    pub fn unknown_owner(&self, name: &SliceName) -> Option<(PolicyName, Box<str>)> {
        let slice = self.existing.get(name)?;
        let known = self.policies.get(&slice.policy).is_some_and(|policy| policy.uid == slice.uid);
        (!known).then(|| (slice.policy.clone(), slice.uid.clone()))
    }

    /// It was not tried.
    pub fn return_slice(&mut self, name: SliceName, put: bool) {
        self.slices.give_back(name, lane(put));
    }

    /// It could not be written: again later, and nobody else waits for it.
    pub fn retry_slice(&mut self, name: SliceName, put: bool, longest: Duration) {
        self.slices.fail(name, lane(put), Instant::now(), longest);
    }

    /// There is no use in trying.
    pub fn drop_slice(&mut self, name: &SliceName) {
        self.slices.skip(name);
    }

    /// The watch tells the same a little later; until then nothing is written twice.
    pub fn wrote_slice(&mut self, name: SliceName, slice: Option<PolicySlice>) {
        match slice {
            Some(slice) => drop(self.existing.insert(name.clone(), slice)),
            None => drop(self.existing.remove(&name)),
        }
        self.compare(&name);
        self.slices.done(name, Instant::now() + REST);
    }

    pub fn take_nodes(&mut self) -> BTreeSet<Name> {
        std::mem::take(&mut self.nodes_dirty)
    }

    pub fn mark_node_slice(&mut self, name: Name) {
        self.nodes_dirty.insert(name);
    }

    pub fn node_slice(&self, name: &str) -> Option<NodeSlice> {
        self.nodes.slice_named(name)
    }

    pub fn policy(&self, name: &PolicyName) -> Option<&Policy> {
        self.policies.get(name)
    }

    pub fn counts(&self) -> Counts {
        let (waiting, failing_slices) = self.slices.len();
        Counts {
            policies: self.policies.len(),
            slices: self.wanted.len(),
            nodes: self.census.size(),
            unwritten_slices: waiting + self.nodes_dirty.len(),
            failing_slices,
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub policies: usize,
    pub slices: usize,
    pub nodes: usize,
    pub unwritten_slices: usize,
    pub failing_slices: usize,
}

fn lane(put: bool) -> Lane {
    if put { Lane::First } else { Lane::Then }
}

fn node_addresses(node: &Node) -> Vec<Address> {
    node.addresses.iter().map(|(_, address)| *address).chain(node.entry.iter().copied()).collect()
}

/// What is published already, then who chooses, then who is chosen. Facts about one thing keep their order.
fn rank(fact: &Fact) -> u8 {
    match fact {
        Fact::PolicySlice(_) | Fact::PolicySliceGone(_) => 0,
        Fact::Policy(_) | Fact::PolicyGone(_) => 1,
        Fact::Namespace(_) | Fact::NamespaceGone { .. } => 2,
        Fact::Pod(_) | Fact::PodGone(_) => 4,
        _ => 3,
    }
}

/// The cluster's name in the names of what it is told.
pub const CLUSTER: &str = LOCAL_CLUSTER;

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::judge::tests::policy;
    use beeline_cluster::Access;
    use beeline_model::fact::{Pod, PodName, ServicePort};
    use beeline_model::name::Protocol;
    use beeline_model::policy::{Matcher, PolicyKind};
    use beeline_model::selector::Labels;

    fn settings() -> Settings {
        Settings {
            access: Access::Kubeconfig { path: "none".into(), context: None },
            namespace: "kube-system".into(),
            report_namespace: "beeline-reports".into(),
            identity: "test".into(),
            virtual_ranges: beeline_model::virtual_address::default_ranges(),
            overlap: Overlap::Refuse,
            webhook: ([127, 0, 0, 1], 0).into(),
            webhook_names: Vec::new(),
            configuration: String::new(),
            secret: String::new(),
            certificate_life: Duration::from_secs(60),
            lease: String::new(),
            lease_duration: Duration::from_secs(60),
            health: None,
            drain: Duration::ZERO,
        }
    }

    pub fn address(ip: &str) -> Address {
        Address::from(ip.parse::<std::net::IpAddr>().unwrap())
    }

    /// Twenty ports, from 80.
    fn web() -> Service {
        let port =
            |port: u16| ServicePort { name: port.to_string().into(), protocol: Protocol::Tcp, port, node_port: 0 };
        Service {
            name: OwnerName::new("local", "default", "web"),
            created: 0,
            cluster_ips: [address("10.96.0.1")].into(),
            load_balancer_ips: [].into(),
            external_ips: [].into(),
            source_ranges: [].into(),
            has_node_ports: false,
            internal: beeline_model::fact::Policy::Cluster,
            external: beeline_model::fact::Policy::Cluster,
            affinity: None,
            health_check_node_port: 0,
            ports: (80..100).map(port).collect(),
        }
    }

    fn pod(name: &str, ip: &str) -> Fact {
        Fact::Pod(Pod {
            name: PodName { cluster: "local".into(), namespace: "default".into(), name: name.into() },
            uid: name.into(),
            node: Some("n".into()),
            addresses: [address(ip)].into(),
            containers: [].into(),
            untouched: false,
            view: None,
            labels: Labels::new(),
            ready: true,
            ports: [].into(),
        })
    }

    fn tell(world: &mut World, facts: Vec<Fact>) {
        world.take(facts, true, true);
        while world.advance() {}
    }

    /// With the Service default/web.
    pub fn world(facts: Vec<Fact>) -> World {
        let mut world = World::new(&settings());
        world.lead();
        tell(&mut world, [vec![Fact::Service(web())], facts].concat());
        world
    }

    fn next(world: &mut World, lane: Lane, now: Instant) -> Option<(SliceName, Option<PolicySlice>)> {
        loop {
            match world.next_slice(lane, now) {
                Next::Write(name, slice) => return Some((name, slice.map(|slice| *slice))),
                Next::Same => {}
                Next::Nothing => return None,
            }
        }
    }

    #[test]
    fn only_what_is_accepted_is_published() {
        let balancing = |name: &str, created| Fact::Policy(policy(PolicyKind::Balancing, name, created, Some(&[80])));
        let facts = vec![balancing("first", 1), balancing("second", 2), pod("a", "10.0.0.1")];
        let (mut world, now) = (world(facts), Instant::now());
        let (name, slice) = next(&mut world, Lane::First, now).expect("the first is published");
        assert_eq!(&*slice.as_ref().unwrap().policy.name, "first");
        world.wrote_slice(name.clone(), slice);
        assert!(next(&mut world, Lane::First, now).is_none() && next(&mut world, Lane::Then, now).is_none());
        tell(&mut world, vec![Fact::ServiceGone(web().name)]);
        let later = Instant::now() + 2 * REST;
        assert!(next(&mut world, Lane::First, later).is_none());
        assert_eq!(next(&mut world, Lane::Then, later), Some((name.clone(), None)));
        world.wrote_slice(name.clone(), None);
        tell(&mut world, vec![Fact::Service(web()), Fact::PolicyGone(first())]);
        let (_, slice) = next(&mut world, Lane::First, later + 2 * REST).expect("the second has no other before it");
        assert_eq!(&*slice.unwrap().policy.name, "second");
    }

    fn first() -> PolicyName {
        policy(PolicyKind::Balancing, "first", 1, None).name
    }

    #[test]
    fn many_pods_are_one_write_a_second() {
        let (mut world, now) =
            (world(vec![Fact::Policy(policy(PolicyKind::Balancing, "first", 1, None))]), Instant::now());
        tell(&mut world, vec![pod("a", "10.0.0.1")]);
        let (name, slice) = next(&mut world, Lane::First, now).expect("at once");
        world.wrote_slice(name.clone(), slice);
        for n in 2..20 {
            tell(&mut world, vec![pod(&format!("p{n}"), &format!("10.0.0.{n}"))]);
            assert_eq!(next(&mut world, Lane::First, now), None);
        }
        let (again, slice) = next(&mut world, Lane::First, Instant::now() + REST).expect("a second later");
        assert_eq!((again, slice.unwrap().endpoints.len()), (name, 19));
    }

    #[test]
    fn one_more_of_many_at_a_port_concerns_nobody_else() {
        let balancing = |n: i64| Fact::Policy(policy(PolicyKind::Balancing, &format!("p{n}"), n, Some(&[80])));
        let mut world = world((10..3000).map(balancing).collect());
        assert_eq!(std::mem::take(&mut world.status_dirty).len(), 2990);
        tell(&mut world, vec![balancing(3000)]);
        assert_eq!(std::mem::take(&mut world.status_dirty).len(), 1);
        tell(&mut world, vec![balancing(3000)]);
        assert_eq!(std::mem::take(&mut world.status_dirty).len(), 0, "nothing new");
        tell(&mut world, vec![balancing(1)]);
        assert_eq!(std::mem::take(&mut world.status_dirty).len(), 2992, "who is before them is another one");
    }

    #[test]
    fn only_a_cluster_ip_takes_a_virtual_address() {
        let mut virtual_one = policy(PolicyKind::Balancing, "v", 1, Some(&[80]));
        let at = address("169.254.0.90");
        let Matcher::Service { ports: Some(ports), .. } = virtual_one.matcher else { panic!() };
        virtual_one.matcher = Matcher::Address { address: at, ports };
        let mut world = world(vec![Fact::Policy(virtual_one.clone())]);
        let thief = |cluster_ips: &[Address]| Service {
            name: OwnerName::new("local", "default", "thief"),
            cluster_ips: cluster_ips.into(),
            load_balancer_ips: [at].into(),
            external_ips: [at].into(),
            ..web()
        };
        tell(&mut world, vec![Fact::Service(thief(&[]))]);
        assert_eq!(world.judge(&virtual_one), Ok(None));
        tell(&mut world, vec![Fact::Service(thief(&[at]))]);
        assert_eq!(world.judge(&virtual_one).unwrap_err().reason, "AddressTaken");
    }

    #[test]
    fn who_does_not_write_keeps_no_list_of_what_to_write() {
        let mut world = world(Vec::new());
        world.follow_another();
        for n in 0..100 {
            let one = policy(PolicyKind::Balancing, &format!("p{n}"), n, None);
            tell(&mut world, vec![Fact::Policy(one.clone()), pod("a", "10.0.0.1")]);
            world.mark_status(one.name.clone());
            tell(&mut world, vec![Fact::PolicyGone(one.name)]);
        }
        assert_eq!((world.slices.len(), world.status_dirty.len(), world.nodes_dirty.len()), ((0, 0), 0, 0));
        tell(&mut world, vec![Fact::Policy(policy(PolicyKind::Balancing, "last", 1, None))]);
        world.lead();
        assert!(next(&mut world, Lane::First, Instant::now()).is_some() && world.status_dirty.len() == 1);
    }
}
