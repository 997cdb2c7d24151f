//! Golden cases: a behaviour is a folder that anyone can read. `cluster.yaml` (the objects), `node.yaml` (where we stand,
//! and dials), optionally `step.yaml` (what the objects become), and `plan.txt`, what must come of it. The same cases run
//! in memory, on a map that fails, and in the real kernel. `BLESS=1` writes plan.txt anew: read it before you commit it.

use beeline_cluster::{Claim, Convert, Format, Snapshot, parse};
use beeline_datapath::{Config, Door, Program, cgroup};
use beeline_model::address::parse_ip;
use beeline_model::bucket::Buckets;
use beeline_model::diff::reconcile;
use beeline_model::event::{Action, Reason};
use beeline_model::fact::{AddressType, PodName, Refusal};
use beeline_model::name::LOCAL_CLUSTER;
use beeline_model::op::{Faulty, MapError, Maps, Memory, Op};
use beeline_model::plan::policy::Standing;
use beeline_model::planner::state::{Holder, PolicyState};
use beeline_model::planner::{Delta, Planner};
use beeline_model::policy::{PolicyKind, PolicyName};
use beeline_model::publish::{LeftOut, Publisher, Unknown};
use beeline_model::reach::{Found, Group, Reach};
use beeline_model::resolve::{Dial, Verdict, resolve, resolve_with};
use beeline_model::row::{BackendId, FrontendKey, Kind, Rows, SET_NONE, SetId, SetRow, Sizes};
use beeline_model::rules::{EmptyLocal, ExternalIps, LocalPolicy, NodePortAddress, Rules, StandPoint};
use beeline_model::stand::order::{Order, Ranges};
use beeline_model::stand::{ClusterRules, Pods};
use beeline_model::table::Tables;
use beeline_model::{Address, Name, PortName};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Node {
    node: String,
    addresses: Vec<String>,
    #[serde(default)]
    local_policy: Option<String>,
    #[serde(default)]
    empty_local: Option<String>,
    #[serde(default)]
    node_port_addresses: Option<Vec<String>>,
    #[serde(default, rename = "externalIPs")]
    external_ips: Option<Vec<String>>,
    #[serde(default)]
    service_proxy_name: Option<String>,
    #[serde(default)]
    virtual_ranges: Option<Vec<String>>,
    /// `node`, `outside` or `edge`.
    #[serde(default)]
    stand: Option<String>,
    #[serde(default)]
    outlook: Outlook,
    /// What becomes of that with the step.
    #[serde(default)]
    step: Option<Outlook>,
    /// Pods (`namespace/name`) whose cgroup is not found.
    #[serde(default)]
    without_cgroup: Vec<String>,
    /// `ADDRESS:PORT/PROTOCOL [host] [from ADDRESS] [in NAMESPACE/POD] [view NAME] [after N]`; N dials before it at the
    /// same instant.
    #[serde(default)]
    dials: Vec<String>,
}

/// What is known of clusters and of the way to their pods.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
struct Outlook {
    /// In order. The objects of the first are in `cluster.yaml`, of another in `cluster-NAME.yaml`.
    clusters: Vec<Cluster>,
    /// `[CLUSTER] NODE PREFIX direct|node`; the node may be `-`.
    reach: Vec<String>,
    routed: Vec<String>,
    views: Vec<String>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Cluster {
    name: String,
    #[serde(default)]
    pods: Pods,
    #[serde(default)]
    direct: Vec<String>,
    #[serde(default)]
    node_address_types: Option<Vec<String>>,
    #[serde(default)]
    zone: Option<String>,
    #[serde(default)]
    service_ranges: Option<Vec<String>>,
    #[serde(default)]
    view: Option<String>,
}

impl Cluster {
    fn rules(&self, stand: StandPoint) -> ClusterRules {
        let nets = |texts: &[String]| texts.iter().map(|text| text.parse().unwrap()).collect();
        let mut rules = ClusterRules::standing(&self.name, stand);
        let kind = |word: &String| match word.as_str() {
            "InternalIP" => AddressType::Internal,
            "ExternalIP" => AddressType::External,
            other => panic!("{other}"),
        };
        if let Some(types) = &self.node_address_types {
            rules.node_address_types = types.iter().map(kind).collect();
        }
        rules.pods = self.pods;
        rules.direct = nets(&self.direct);
        rules.zone = self.zone.as_deref().map(Name::from);
        rules.service_ranges = self.service_ranges.as_deref().map(nets);
        rules.view = self.view.as_deref().map(Name::from);
        rules
    }
}

impl Outlook {
    fn clusters(&self, stand: StandPoint) -> Vec<ClusterRules> {
        self.clusters.iter().map(|cluster| cluster.rules(stand)).collect()
    }

    fn reach(&self) -> Reach {
        let group = |text: &String| {
            let words: Vec<&str> = text.split(' ').collect();
            let (cluster, rest) = if words.len() == 4 { (words[0], &words[1..]) } else { (LOCAL_CLUSTER, &words[..]) };
            let [node, prefix, found] = *rest else { panic!("{text}") };
            let node = Some(node).filter(|node| *node != "-").map(Name::from);
            let found = if found == "direct" { Found::Direct } else { Found::Node };
            (Group { cluster: cluster.into(), node, prefix: prefix.parse().unwrap() }, found)
        };
        let routed = self.routed.iter().map(|net| net.parse().unwrap()).collect();
        Reach { found: self.reach.iter().map(group).collect(), routed, ..Reach::default() }
    }

    fn views(&self) -> BTreeSet<Name> {
        self.views.iter().map(|name| Name::from(name.as_str())).collect()
    }

    /// As if every view were in use: their numbers do not depend on it.
    fn numbers(&self, stand: StandPoint) -> Order {
        let clusters = self.clusters(stand);
        let all = clusters.iter().map(|cluster| cluster.name.clone()).collect();
        Order::new(stand, &clusters, &Ranges::new(), &all)
    }
}

struct Case {
    name: String,
    dir: PathBuf,
    rules: Rules,
    dials: Vec<(String, Dial, usize)>,
    without_cgroup: Vec<String>,
    /// The objects, and what they become.
    states: Vec<Snapshot>,
    outlooks: Vec<Outlook>,
    /// For the names of views and clusters, state by state.
    orders: Vec<Order>,
}

const SIZES: fn() -> Sizes = || Sizes::for_services(64);

fn cases() -> Vec<Case> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../cases");
    let mut dirs: Vec<PathBuf> =
        std::fs::read_dir(root).unwrap().map(|e| e.unwrap().path()).filter(|p| p.is_dir()).collect();
    dirs.sort();
    let all: Vec<Case> = dirs.into_iter().map(Case::load).collect();
    all.iter().for_each(|case| assert!(!case.dials.is_empty(), "{} dials nothing", case.name));
    all
}

impl Case {
    fn load(dir: PathBuf) -> Case {
        let name = dir.file_name().unwrap().to_string_lossy().into_owned();
        let read = |file: &str| std::fs::read(dir.join(file)).ok();
        let node = String::from_utf8(read("node.yaml").expect("node.yaml")).unwrap();
        let node: Node = serde_saphyr::from_str(&node).unwrap_or_else(|e| panic!("{name}/node.yaml: {e}"));
        let objects = |cluster: &str, bytes: Vec<u8>| {
            let claim = Claim { proxy_name: node.service_proxy_name.clone(), names: false };
            parse(&bytes, Format::Yaml, &mut Convert::new(cluster, claim))
        };
        let rules = rules(&node);
        let mut outlooks = vec![node.outlook.clone()];
        outlooks.extend(node.step.clone().or(read("step.yaml").map(|_| node.outlook.clone())));
        let mut states: Vec<Snapshot> = Vec::new();
        for (outlook, file) in outlooks.iter().zip(["cluster", "step"]) {
            let mut state = Snapshot::default();
            let first = Cluster::first(&outlook.clusters);
            for (i, cluster) in first.iter().enumerate() {
                let suffix = if i == 0 { String::new() } else { format!("-{cluster}") };
                let same = || read(&format!("cluster{suffix}.yaml"));
                let bytes = read(&format!("{file}{suffix}.yaml")).or_else(same);
                bytes.into_iter().for_each(|bytes| merge(&mut state, objects(cluster, bytes)));
            }
            states.push(state);
        }
        let orders: Vec<Order> = outlooks.iter().map(|outlook| outlook.numbers(rules.stand_point)).collect();
        let dials = node.dials.iter().map(|text| dial(text, &orders[0])).collect();
        Case { name, rules, dials, without_cgroup: node.without_cgroup, states, outlooks, orders, dir }
    }
}

impl Cluster {
    fn first(all: &[Cluster]) -> Vec<String> {
        match all {
            [] => vec![LOCAL_CLUSTER.to_owned()],
            all => all.iter().map(|cluster| cluster.name.clone()).collect(),
        }
    }
}

/// Names say the cluster, so nothing of one is in the way of another's.
fn merge(state: &mut Snapshot, other: Snapshot) {
    state.refusals.extend(other.refusals.clone());
    other.into_facts().into_iter().for_each(|fact| state.apply(fact));
}

fn rules(node: &Node) -> Rules {
    let mut rules = Rules::for_node(&node.node);
    rules.own_addresses = node.addresses.iter().map(|a| Address::from(parse_ip(a).unwrap())).collect();
    if node.local_policy.as_deref() == Some("strict") {
        rules.local_policy = LocalPolicy::Strict;
    }
    if node.empty_local.as_deref() == Some("drop") {
        rules.empty_local = EmptyLocal::Drop;
    }
    let word = |w: &String| match w.as_str() {
        "primary" => NodePortAddress::Primary,
        "localhost" => NodePortAddress::Localhost,
        "all" => NodePortAddress::All,
        range => NodePortAddress::Range(range.parse().unwrap()),
    };
    if let Some(words) = &node.node_port_addresses {
        rules.node_port_addresses = words.iter().map(word).collect();
    }
    match node.external_ips.as_deref() {
        None => {}
        Some([off]) if off == "off" => rules.external_ips = ExternalIps::Off,
        Some(ranges) => rules.external_ips = ExternalIps::Within(ranges.iter().map(|r| r.parse().unwrap()).collect()),
    }
    if let Some(ranges) = &node.virtual_ranges {
        rules.virtual_ranges = ranges.iter().map(|range| range.parse().unwrap()).collect();
    }
    rules.stand_point = match node.stand.as_deref() {
        None | Some("node") => StandPoint::Node,
        Some("outside") => StandPoint::Outside,
        Some("edge") => StandPoint::Edge,
        Some(other) => panic!("stand: {other}"),
    };
    rules
}

/// Any number will do, if it is the pod's.
fn cgroup_of(pod: &str) -> u64 {
    pod.bytes().fold(7, |id: u64, byte| id.wrapping_mul(31).wrapping_add(u64::from(byte)))
}

fn dial(text: &str, order: &Order) -> (String, Dial, usize) {
    let mut before = 0;
    let mut words = text.split(' ');
    let (target, protocol) = words.next().unwrap().rsplit_once('/').unwrap();
    let (address, port) = target.rsplit_once(':').unwrap();
    let address = parse_ip(address.trim_matches(['[', ']'])).unwrap();
    let mut dial = Dial::to(Address::from(address), port.parse().unwrap(), protocol.parse().unwrap());
    while let Some(word) = words.next() {
        match word {
            "host" => dial.host = true,
            "from" => dial.source = Some(Address::from(parse_ip(words.next().unwrap()).unwrap())),
            "in" => dial.cgroups = vec![cgroup_of(words.next().unwrap())],
            "view" => dial.view = order.view(words.next().unwrap()).expect("a cluster's view"),
            "after" => before = words.next().unwrap().parse().unwrap(),
            other => panic!("{text}: {other}"),
        }
    }
    (text.to_owned(), dial, before)
}

/// What the last of several dials at one instant gets.
fn decide(rows: &Rows, dial: &Dial, before: usize, empty_local: EmptyLocal) -> Verdict {
    let (mut buckets, dial) = (Buckets::default(), Dial { now: 1, ..dial.clone() });
    (0..before).for_each(|_| drop(resolve_with(rows, &dial, empty_local, &mut buckets)));
    resolve_with(rows, &dial, empty_local, &mut buckets)
}

/// A planner that has been brought from one state of the objects to the next, with the delta of the last step.
fn deltas(case: &Case) -> Vec<(Delta, Vec<String>)> {
    let mut planner = Planner::new(case.rules.clone());
    // As an agent does that has no controller.
    let mut publisher = Publisher::new(Unknown::Plain);
    let mut old = Snapshot::default();
    let mut all = Vec::new();
    let gone = Snapshot::default();
    for (i, state) in case.states.iter().chain([&gone]).enumerate() {
        set_outlook(case, i, &mut planner);
        for fact in beeline_cluster::diff(&old, state) {
            publisher.apply(&fact);
            planner.apply(fact);
        }
        publisher.take().into_iter().for_each(|fact| _ = planner.apply(fact));
        find_cgroups(case, state, &mut planner);
        let delta = if i == 0 { planner.take_all() } else { planner.take() };
        let mut refusals = state.refusals.clone();
        refusals.extend(planner.refusals());
        let mut said = refused(&refusals);
        said.extend(planner.policies().iter().map(policy));
        said.extend(left_out(state, &publisher));
        all.push((delta, said));
        old = state.clone();
    }
    all
}

/// At the end all is as it was, but for the objects.
fn set_outlook(case: &Case, step: usize, planner: &mut Planner) {
    let Some(outlook) = case.outlooks.get(step) else { return };
    let clusters = outlook.clusters(case.rules.stand_point);
    let left = planner.rules().clusters.iter().map(|cluster| cluster.name.clone());
    let left: Vec<Name> = left.filter(|name| !clusters.iter().any(|cluster| cluster.name == *name)).collect();
    planner.set_clusters(clusters);
    left.iter().for_each(|name| _ = planner.forget(name));
    planner.set_reach(outlook.reach());
    planner.set_views(outlook.views());
}

/// The kubelet names a pod's cgroup by its uid.
fn find_cgroups(case: &Case, state: &Snapshot, planner: &mut Planner) {
    for pod in state.pods.values().filter(|pod| !pod.uid.is_empty()) {
        let name = format!("{}/{}", pod.name.namespace, pod.name.name);
        if !case.without_cgroup.contains(&name) {
            planner.set_cgroup(&pod.uid, Some(cgroup_of(&name)));
        }
    }
}

// ---- what a plan looks like ----

fn refused(refusals: &[Refusal]) -> Vec<String> {
    let mut said: Vec<String> =
        refusals.iter().map(|r| format!("refused {} {}: {}\n", r.subject, r.reason, r.message)).collect();
    said.sort();
    said
}

fn policy(state: &PolicyState) -> String {
    let standing = match (&state.refused, state.standing) {
        (Some(refusal), _) => format!("not accepted ({})", refusal.reason),
        (None, Standing::Here) => format!("accepted, {} backends", state.backends),
        (None, Standing::OtherNodes) => "accepted, for other nodes".into(),
        (None, Standing::InsideOnly) => "accepted, not outside".into(),
    };
    let mut text = format!("policy {} is {standing}", state.name);
    for frontend in &state.frontends {
        text += &match &frontend.holder {
            Holder::Itself => format!("; first at {}", frontend.dialled),
            Holder::Older(other) => format!("; {} is {other}'s, which is older", frontend.dialled),
            Holder::Before(other) => format!("; after {other} at {}", frontend.dialled),
            Holder::Elsewhere(other) => format!("; {} is {}'s", frontend.dialled, other.subject()),
        };
    }
    text + "\n"
}

fn left_out(state: &Snapshot, publisher: &Publisher) -> Vec<String> {
    let of = |policy: &PolicyName| {
        let pods = publisher.left_out(policy);
        let line = |(pod, why): (&PodName, &LeftOut)| {
            format!("left out of {policy}: pod {}/{}: {} ({})\n", pod.namespace, pod.name, why.message, why.reason)
        };
        pods.map(line).collect::<Vec<_>>()
    };
    state.policies.values().filter(|p| p.name.kind == PolicyKind::Balancing).flat_map(|p| of(&p.name)).collect()
}

fn backends(rows: &Rows, ids: &[BackendId]) -> Vec<String> {
    let mut all: Vec<_> = ids.iter().filter_map(|id| rows.backends.get(*id)).map(|b| (b.address, b.port)).collect();
    all.sort();
    all.dedup();
    all.iter().map(|(a, p)| std::net::SocketAddr::new(a.ip(), *p).to_string()).collect()
}

/// How often each stands in its set, where that is not once.
fn weighed(rows: &Rows, ids: &[BackendId]) -> Vec<String> {
    let mut counts: BTreeMap<(Address, u16), usize> = BTreeMap::new();
    let rows = ids.iter().filter_map(|id| rows.backends.get(*id));
    rows.for_each(|b| *counts.entry((b.address, b.port)).or_default() += 1);
    let text = |((a, p), count): (&(Address, u16), &usize)| {
        let times = if *count == 1 { String::new() } else { format!(" x{count}") };
        format!("{}{times}", std::net::SocketAddr::new(a.ip(), *p))
    };
    counts.iter().map(text).collect()
}

fn kind(kind: Kind) -> &'static str {
    match kind {
        Kind::ClusterIp => "clusterIP",
        Kind::LoadBalancer => "loadBalancer",
        Kind::ExternalIp => "externalIP",
        Kind::Virtual => "virtual",
        Kind::NodePort => "nodePort",
    }
}

fn frontends(case: &Case, rows: &Rows) -> String {
    let mut lines = Vec::new();
    for (key, row) in rows.frontends.iter().filter(|(key, _)| key.protocol.is_some()) {
        let sets: Vec<String> = chain(rows, row.set).map(|set| describe_set(case, rows, set)).collect();
        let (dialled, below) = (dialled(case, key), sets.join(", then "));
        lines.push(((key.view != 0, *key), format!("{dialled} {} {below}\n", kind(row.kind))));
    }
    lines.sort();
    lines.into_iter().map(|(_, line)| line).collect()
}

/// With the name of the view, or of the cluster whose NodePort it is, instead of a number.
fn dialled(case: &Case, key: &FrontendKey) -> String {
    let plain = format!("{:?}", FrontendKey { view: 0, ..*key });
    match key.view {
        0 => plain,
        number if key.is_node_port_row() => format!("{plain} of cluster {}", cluster_called(case, number)),
        number => {
            let name = case.orders.iter().find_map(|order| order.view_name(number));
            format!("{plain} in view {}", name.expect("a view's number"))
        }
    }
}

fn cluster_called(case: &Case, number: u32) -> &str {
    let numbered = |outlook: &&beeline_model::stand::order::Outlook| u32::from(outlook.number) == number;
    let mut all = case.orders.iter().flat_map(|order| order.outlooks());
    all.find(numbered).map_or("?", |outlook| &outlook.rules.name)
}

/// A set, and those that are asked after it.
fn chain(rows: &Rows, first: SetId) -> impl Iterator<Item = &SetRow> {
    std::iter::successors(rows.sets.get(first), |set| rows.sets.get(set.header.next))
}

fn describe_set(case: &Case, rows: &Rows, set: &SetRow) -> String {
    let owner = PortName::from_text(&rows.names[set.owner].text).expect("a name");
    let affinity = if set.header.affinity > 0 { format!(" affinity {}", set.header.affinity) } else { String::new() };
    let limit = rows.buckets.get(&set.header.policy).filter(|_| set.header.limited);
    let limit = limit.map_or(String::new(), |l| format!(" limit {}/s burst {}", l.connects_per_second, l.burst));
    let members = if case.rules.stand_point == StandPoint::Node && case.outlooks[0].clusters.is_empty() {
        backends(rows, rows.members(set))
    } else {
        weighed(rows, rows.members(set))
    };
    let becomes = if members.is_empty() { "nothing".to_owned() } else { members.join(" ") };
    let last = members.is_empty() && set.header.next == SET_NONE;
    let empty = if last { format!(" ({:?})", set.when_empty()).to_lowercase() } else { String::new() };
    format!("{owner} -> {becomes}{empty}{affinity}{limit}")
}

fn verdict(rows: &Rows, verdict: &Verdict) -> String {
    match (verdict.action, verdict.reason) {
        (Action::Resolved, _) => backends(rows, &verdict.backends).join(" "),
        (Action::Refused, reason) => format!("refused: {reason:?}"),
        (Action::Untouched, Reason::None) => "untouched".into(),
        (Action::Untouched, reason) => format!("untouched: {reason:?}"),
    }
}

fn describe(case: &Case, rows: &Rows, said: &[String]) -> String {
    let mut text = frontends(case, rows);
    text.extend(rows.nodes.iter().map(|(a, n)| {
        let word = |is: bool, word: &'static str| if is { word } else { "" };
        let words = [word(n.own, " own"), word(n.loopback, " host only"), word(n.alone, " alone")].concat();
        let whose = match n.cluster {
            0 => String::new(),
            number => format!(" of cluster {}", cluster_called(case, number.into())),
        };
        format!("node {a}{words}{whose}\n")
    }));
    for (name, dial, before) in &case.dials {
        let decided = decide(rows, dial, *before, case.rules.empty_local);
        text += &format!("dial {name} => {}\n", verdict(rows, &decided));
    }
    text.extend(said.iter().map(String::as_str));
    text
}

// ---- in memory, against plan.txt ----

/// Whoever dials a frontend, not only those that the case lists, gets what its line in plan.txt says.
fn check_frontends(case: &Case, rows: &Rows) {
    for (key, row) in rows.frontends.iter().filter(|(key, _)| !key.is_node_port_row()) {
        let Some((protocol, set)) = key.protocol.zip(rows.sets.get(row.set)) else { continue };
        let source = rows.sources_of(set.owner).find(|net| net.addr().is_ipv4() == key.address.ip().is_ipv4());
        let source = source.map(|net| Address::from(net.addr()));
        let dial = Dial { source, view: key.view, ..Dial::to(key.address, key.port, protocol) };
        let verdict = resolve(rows, &dial, case.rules.empty_local);
        let mut asked = chain(rows, row.set).map(|set| backends(rows, rows.members(set)));
        let wanted = asked.find(|members| !members.is_empty()).unwrap_or_default();
        assert_eq!(backends(rows, &verdict.backends), wanted, "{} {key:?}", case.name);
        assert_eq!(verdict.action == Action::Resolved, !wanted.is_empty(), "{} {key:?}", case.name);
    }
}

/// All objects are gone: what stays is our own node, and ranges, which only ever widen.
fn check_empty(case: &Case, tables: &mut Tables, memory: &mut Memory) {
    let rows = tables.rows().clone();
    let left =
        Rows { ranges_v4: [0; 4], ranges_v6: [0; 4], slots: Vec::new(), nodes: Default::default(), ..rows.clone() };
    assert_eq!(left, Rows::default(), "{}: rows stay", case.name);
    assert!(rows.nodes.values().all(|node| node.own), "{}: {:?}", case.name, rows.nodes);
    tables.recycle(memory).unwrap();
    assert_eq!(tables.quarantined(), 0, "{}", case.name);
    tables.audit(SIZES()).unwrap_or_else(|problem| panic!("{}: {problem}", case.name));
}

#[test]
fn plans_are_what_they_were_blessed_to_be() {
    let (mut wrong, mut dials) = (Vec::new(), 0);
    let all = cases();
    assert!(all.len() >= 60, "only {} cases", all.len());
    for case in &all {
        let (mut tables, mut memory) = (Tables::new(SIZES()), Memory::new(SIZES()));
        let mut text = String::new();
        let steps = deltas(case);
        for (i, (delta, said)) in steps.iter().enumerate() {
            let outcome = reconcile(&mut tables, &mut memory, delta, i == 0);
            assert!(outcome.is_clean(), "{}: {outcome:?}", case.name);
            // Rows that nothing leads to stay as they are until their id is used again.
            let mut live = memory.rows.clone();
            live.sets.retain(|id, _| tables.rows().sets.contains(id));
            assert!(tables.matches(&live), "{}: the mirror differs", case.name);
            tables.audit(SIZES()).unwrap_or_else(|problem| panic!("{}: {problem}", case.name));
            check_frontends(case, &memory.rows);
            if i + 1 == steps.len() {
                break;
            }
            text += if i == 0 { "" } else { "\nafter the step:\n" };
            text += &describe(case, &memory.rows, said);
            dials += case.dials.len();
        }
        check_empty(case, &mut tables, &mut memory);
        let path = case.dir.join("plan.txt");
        if std::env::var_os("BLESS").is_some() {
            std::fs::write(&path, &text).unwrap();
        }
        let blessed = std::fs::read_to_string(&path).unwrap_or_default();
        if blessed != text {
            wrong.push(format!("{}:\n{}", case.name, differences(&blessed, &text)));
        }
    }
    println!("{} cases, {dials} dials", all.len());
    assert!(
        wrong.is_empty(),
        "{} of {} cases differ (BLESS=1 writes them anew)\n{}",
        wrong.len(),
        all.len(),
        wrong.join("\n")
    );
}

fn differences(blessed: &str, now: &str) -> String {
    let missing = |from: &str, other: &str, sign: &str| -> String {
        from.lines().filter(|line| !other.lines().any(|l| l == *line)).map(|line| format!("{sign} {line}\n")).collect()
    };
    let lines = missing(blessed, now, "-") + &missing(now, blessed, "+");
    if lines.is_empty() { "the same lines in another order\n".into() } else { lines }
}

/// A rule without a case, or a case without a rule, would go unseen.
#[test]
fn every_case_stands_beside_its_rule() {
    let readme = include_str!("../../../cases/README.md");
    let cells = readme.lines().filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |")?.rsplit_once(" | "));
    let listed: BTreeSet<&str> =
        cells.flat_map(|(_, cases)| cases.split(", ")).filter(|c| !c.starts_with('(') && *c != "cases").collect();
    let all = cases();
    let have: BTreeSet<&str> = all.iter().map(|case| case.name.as_str()).collect();
    assert_eq!(listed, have);
}

#[test]
fn a_restart_from_the_dump_writes_nothing() {
    for case in cases() {
        let (mut tables, mut memory) = (Tables::new(SIZES()), Memory::new(SIZES()));
        let delta = &deltas(&case)[0].0;
        reconcile(&mut tables, &mut memory, delta, true);
        let mut again = Tables::restore(memory.dump().unwrap(), SIZES());
        let outcome = reconcile(&mut again, &mut memory, delta, true);
        assert_eq!((outcome.ops, outcome.is_clean()), (0, true), "{}", case.name);
    }
}

// ---- on a map that fails ----

type Answer = (Action, Reason, BTreeSet<String>);

fn answers(case: &Case, rows: &Rows) -> Vec<Answer> {
    let ask = |dial: &Dial, before: usize| {
        let v = decide(rows, dial, before, case.rules.empty_local);
        (v.action, v.reason, backends(rows, &v.backends).into_iter().collect())
    };
    case.dials.iter().map(|(_, dial, before)| ask(dial, *before)).collect()
}

/// Writes reach the memory map and every dial of the case is made after each of them.
struct Watched<'a> {
    case: &'a Case,
    memory: Memory,
    allowed: [Vec<Answer>; 2],
    /// Whoever stood below a policy: where its Service's write failed, they serve when the policy has nobody any more.
    below: Vec<BTreeSet<String>>,
    looks: usize,
}

fn below(case: &Case, rows: &Rows) -> Vec<BTreeSet<String>> {
    let chain = |dial: &Dial, before: usize| {
        let verdict = decide(rows, dial, before, case.rules.empty_local);
        let next = |id: SetId| rows.sets.get(id).map(|set| set.header.next).filter(|next| *next != SET_NONE);
        let sets = std::iter::successors(verdict.path.last().and_then(|id| next(*id)), |id| next(*id)).take(3);
        let members = sets.filter_map(|id| rows.sets.get(id)).flat_map(|set| rows.members(set).to_vec());
        backends(rows, &members.collect::<Vec<_>>()).into_iter().collect()
    };
    case.dials.iter().map(|(_, dial, before)| chain(dial, *before)).collect()
}

impl Maps for Watched<'_> {
    fn write(&mut self, op: &Op) -> Result<(), MapError> {
        self.memory.write(op)?;
        for (i, (action, reason, backends)) in answers(self.case, &self.memory.rows).into_iter().enumerate() {
            let [old, new] = [&self.allowed[0][i], &self.allowed[1][i]];
            let said = [old, new].iter().any(|a| (a.0, a.1) == (action, reason));
            let known = [&old.2, &new.2, &self.below[i]];
            let reached = backends.iter().all(|b| known.iter().any(|all| all.contains(b)));
            let dial = &self.case.dials[i].0;
            assert!(
                said && reached,
                "{} {dial}: {action:?} {reason:?} {backends:?} after {op:?}\nold {old:?}\nnew {new:?}",
                self.case.name
            );
            self.looks += 1;
        }
        Ok(())
    }

    fn dump(&self) -> Result<Rows, MapError> {
        self.memory.dump()
    }

    fn grace(&mut self) -> Result<(), MapError> {
        Ok(())
    }

    fn sizes(&self) -> Sizes {
        self.memory.sizes
    }
}

/// Runs all steps of a case on a map that fails as told, trying again until all is written; returns writes and looks.
fn run_faulty(case: &Case, fails: impl FnMut(u64) -> bool + Send + Clone + 'static) -> (u64, usize) {
    let steps = deltas(case);
    let (mut clean_tables, mut clean) = (Tables::new(SIZES()), Memory::new(SIZES()));
    let mut tables = Tables::new(SIZES());
    let allowed = [answers(case, &clean.rows), Vec::new()];
    let below_old = below(case, &clean.rows);
    let watched = Watched { case, memory: Memory::new(SIZES()), allowed, below: below_old, looks: 0 };
    let mut faulty = Faulty::new(watched, fails);
    for (i, (delta, _)) in steps.iter().enumerate() {
        reconcile(&mut clean_tables, &mut clean, delta, i == 0);
        faulty.inner.allowed[1] = answers(case, &clean.rows);
        let mut tries = 0;
        while !reconcile(&mut tables, &mut faulty, delta, i == 0).is_clean() {
            tries += 1;
            assert!(tries < 200, "{}: never done", case.name);
        }
        assert_eq!(answers(case, &faulty.inner.memory.rows), faulty.inner.allowed[1], "{}", case.name);
        assert_eq!(frontends(case, &faulty.inner.memory.rows), frontends(case, &clean.rows), "{}", case.name);
        faulty.inner.allowed[0] = faulty.inner.allowed[1].clone();
        faulty.inner.below = below(case, &clean.rows);
    }
    (faulty.writes, faulty.inner.looks)
}

#[test]
fn a_write_that_fails_leaves_the_old_verdict_or_the_new_one() {
    let (mut runs, mut looks) = (0, 0);
    for case in cases() {
        let (writes, seen) = run_faulty(&case, |_| false);
        looks += seen;
        for k in 1..=writes {
            looks += run_faulty(&case, move |n| n == k).1;
            runs += 1;
        }
        for seed in 1..=20u64 {
            let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            looks += run_faulty(&case, move |_| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                state % 10 == 0
            })
            .1;
            runs += 1;
        }
    }
    println!("{runs} runs with failures, {looks} dials between writes, 0 of them neither old nor new");
}

// ---- in the kernel ----

struct Ground {
    cgroup: PathBuf,
    pins: PathBuf,
}

impl Ground {
    fn new(tag: &str) -> Ground {
        let name = format!("beeline-cases-{}-{tag}", std::process::id());
        let cgroup = cgroup::root().expect("cgroup2: run `make setup`").join(&name);
        std::fs::create_dir(&cgroup).expect("root, and a cgroup2 that can be written");
        Ground { cgroup, pins: Path::new("/sys/fs/bpf").join(name) }
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        let _ = beeline_datapath::program::cleanup(&self.pins);
        let _ = std::fs::remove_dir(&self.cgroup);
    }
}

fn ask_kernel(case: &Case, rows: &Rows, door: &Door, clock: &mut u64) -> usize {
    let mut asked = 0;
    for (text, dial, before) in &case.dials {
        let twin = decide(rows, dial, *before, case.rules.empty_local);
        let mut met = BTreeSet::new();
        for i in 0..64u32 {
            // Long after the one before: every bucket is full again.
            *clock += 1_000_000_000_000;
            let ask = || door.ask(dial, i.wrapping_mul(0x0800_0000).wrapping_add(i), u64::from(i) + 1, *clock).unwrap();
            (0..*before).for_each(|_| {
                ask();
            });
            let answer = ask();
            assert_eq!((answer.action, answer.reason), (twin.action, twin.reason), "{} {text}", case.name);
            met.extend(answer.chosen.map(|(a, p)| std::net::SocketAddr::new(a.ip(), p).to_string()));
            asked += 1;
        }
        let wanted: BTreeSet<String> = backends(rows, &twin.backends).into_iter().collect();
        assert!(
            met.is_subset(&wanted) && met.is_empty() == wanted.is_empty(),
            "{} {text}: {met:?} of {wanted:?}",
            case.name
        );
        if wanted.len() <= 8 {
            assert_eq!(met, wanted, "{} {text}: a backend is never picked", case.name);
        }
    }
    asked
}

#[test]
fn the_kernel_decides_as_planned() {
    let mut asked = 0;
    for empty_local in [EmptyLocal::Refuse, EmptyLocal::Drop] {
        let ground = Ground::new(if empty_local == EmptyLocal::Drop { "drop" } else { "refuse" });
        let config =
            Config { pin_dir: ground.pins.clone(), cgroup: ground.cgroup.clone(), sizes: SIZES(), empty_local };
        let program = Program::open(config).unwrap();
        let (mut kernel, door) = (program.kernel().unwrap(), program.door().unwrap());
        let mut clock = 0;
        let mut tables = Tables::new(SIZES());
        for case in cases().iter().filter(|c| c.rules.empty_local == empty_local) {
            for (delta, _) in deltas(case) {
                let outcome = reconcile(&mut tables, &mut kernel, &delta, true);
                assert!(outcome.is_clean(), "{}: {outcome:?}", case.name);
                let rows = kernel.dump().unwrap();
                assert!(tables.matches(&rows), "{}: the kernel holds something else", case.name);
                asked += ask_kernel(case, &rows, &door, &mut clock);
            }
            tables.recycle(&mut kernel).unwrap();
        }
    }
    println!("{asked} dials asked of the kernel");
    assert!(asked > 5000);
}
