//! Reads a case from its directory.

use super::*;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Node {
    node: String,
    addresses: Vec<String>,
    #[serde(default)]
    local_traffic_policy: Option<String>,
    #[serde(default)]
    no_local_endpoint_action: Option<String>,
    #[serde(default)]
    node_port_addresses: Option<Vec<String>>,
    #[serde(default, rename = "externalIPs")]
    external_ips: Option<Vec<String>>,
    #[serde(default)]
    service_proxy_name: Option<String>,
    #[serde(default)]
    virtual_address_cidrs: Option<Vec<String>>,
    /// `node`, `outside` or `edge`.
    #[serde(default)]
    host_role: Option<String>,
    #[serde(default)]
    context: CaseContext,
    /// The context after the step.
    #[serde(default)]
    step: Option<CaseContext>,
    /// Pods (`namespace/name`) whose cgroup is not found.
    #[serde(default)]
    without_cgroup: Vec<String>,
    /// `ADDRESS:PORT/PROTOCOL [host] [from ADDRESS] [in NAMESPACE/POD] [view NAME] [after N]`, where N is the number of
    /// equal dials before it at the same instant.
    #[serde(default)]
    dials: Vec<String>,
}

/// The clusters of a case, and how their pods are reached.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct CaseContext {
    /// In order of precedence. The objects of the first are in `cluster.yaml`, of another in `cluster-NAME.yaml`.
    pub clusters: Vec<Cluster>,
    /// `[CLUSTER] NODE PREFIX direct|node`; the node may be `-`.
    pub reach: Vec<String>,
    pub routed: Vec<String>,
    pub views: Vec<String>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Cluster {
    name: String,
    #[serde(default)]
    pods: PodAccess,
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
    fn rules(&self, host_role: HostRole) -> ClusterRules {
        let nets = |texts: &[String]| texts.iter().map(|text| text.parse().unwrap()).collect();
        let mut rules = ClusterRules::for_role(&self.name, host_role);
        let kind = |word: &String| match word.as_str() {
            "InternalIP" => AddressType::Internal,
            "ExternalIP" => AddressType::External,
            other => panic!("{other}"),
        };
        if let Some(types) = &self.node_address_types {
            rules.node_address_types = types.iter().map(kind).collect();
        }
        rules.pod_access = self.pods;
        rules.direct = nets(&self.direct);
        rules.zone = self.zone.as_deref().map(Name::from);
        rules.service_ranges = self.service_ranges.as_deref().map(nets);
        rules.view = self.view.as_deref().map(Name::from);
        rules
    }
}

impl CaseContext {
    pub fn clusters(&self, host_role: HostRole) -> Vec<ClusterRules> {
        self.clusters.iter().map(|cluster| cluster.rules(host_role)).collect()
    }

    pub fn reach(&self) -> Reach {
        let group = |text: &String| {
            let words: Vec<&str> = text.split(' ').collect();
            let (cluster, rest) = if words.len() == 4 { (words[0], &words[1..]) } else { (LOCAL_CLUSTER, &words[..]) };
            let [node, prefix, found] = *rest else { panic!("{text}") };
            let node = Some(node).filter(|node| *node != "-").map(Name::from);
            let found = if found == "direct" { Reachability::Direct } else { Reachability::Node };
            (PodGroup { cluster: cluster.into(), node, prefix: prefix.parse().unwrap() }, found)
        };
        let routed = self.routed.iter().map(|net| net.parse().unwrap()).collect();
        Reach { found: self.reach.iter().map(group).collect(), routed, ..Reach::default() }
    }

    pub fn views(&self) -> BTreeSet<Name> {
        self.views.iter().map(|name| Name::from(name.as_str())).collect()
    }

    /// The order with the numbers of all clusters and views, which do not depend on the views in use.
    fn order(&self, host_role: HostRole) -> ClusterOrder {
        let clusters = self.clusters(host_role);
        let all = clusters.iter().map(|cluster| cluster.name.clone()).collect();
        ClusterOrder::new(host_role, &clusters, &Ranges::new(), &all)
    }
}

pub struct Case {
    pub name: String,
    pub dir: PathBuf,
    pub rules: Rules,
    pub dials: Vec<(String, Dial, usize)>,
    pub without_cgroup: Vec<String>,
    /// The objects, and the objects after the step.
    pub states: Vec<Snapshot>,
    pub contexts: Vec<CaseContext>,
    /// The names of views and clusters, for each state.
    pub orders: Vec<ClusterOrder>,
}

pub const SIZES: fn() -> Sizes = || Sizes::for_services(64);

pub fn cases() -> Vec<Case> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../cases");
    let mut dirs: Vec<PathBuf> =
        std::fs::read_dir(root).unwrap().map(|e| e.unwrap().path()).filter(|p| p.is_dir()).collect();
    dirs.sort();
    let all: Vec<Case> = dirs.into_iter().map(Case::load).collect();
    all.iter().for_each(|case| assert!(!case.dials.is_empty(), "{} has no dials", case.name));
    all
}

impl Case {
    fn load(dir: PathBuf) -> Case {
        let name = dir.file_name().unwrap().to_string_lossy().into_owned();
        let read = |file: &str| std::fs::read(dir.join(file)).ok();
        let node = String::from_utf8(read("node.yaml").expect("node.yaml")).unwrap();
        let node: Node = serde_saphyr::from_str(&node).unwrap_or_else(|e| panic!("{name}/node.yaml: {e}"));
        let objects = |cluster: &str, bytes: Vec<u8>| {
            let filter = ServiceFilter { proxy_name: node.service_proxy_name.clone(), dns_names: false };
            parse_manifests(&bytes, ManifestFormat::Yaml, &mut Converter::new(cluster, filter))
        };
        let rules = rules(&node);
        let mut contexts = vec![node.context.clone()];
        contexts.extend(node.step.clone().or(read("step.yaml").map(|_| node.context.clone())));
        let mut states: Vec<Snapshot> = Vec::new();
        for (context, file) in contexts.iter().zip(["cluster", "step"]) {
            let mut state = Snapshot::default();
            let names = Cluster::names(&context.clusters);
            for (i, cluster) in names.iter().enumerate() {
                let suffix = if i == 0 { String::new() } else { format!("-{cluster}") };
                let unchanged = || read(&format!("cluster{suffix}.yaml"));
                let bytes = read(&format!("{file}{suffix}.yaml")).or_else(unchanged);
                bytes.into_iter().for_each(|bytes| merge(&mut state, objects(cluster, bytes)));
            }
            states.push(state);
        }
        let orders: Vec<ClusterOrder> = contexts.iter().map(|context| context.order(rules.host_role)).collect();
        let dials = node.dials.iter().map(|text| dial(text, &orders[0])).collect();
        Case { name, rules, dials, without_cgroup: node.without_cgroup, states, contexts, orders, dir }
    }
}

impl Cluster {
    fn names(all: &[Cluster]) -> Vec<String> {
        match all {
            [] => vec![LOCAL_CLUSTER.to_owned()],
            all => all.iter().map(|cluster| cluster.name.clone()).collect(),
        }
    }
}

/// Adds the objects of another cluster. Names include the cluster, so they never collide.
fn merge(state: &mut Snapshot, other: Snapshot) {
    state.refusals.extend(other.refusals.clone());
    other.into_changes().into_iter().for_each(|change| state.apply(change));
}

fn rules(node: &Node) -> Rules {
    let mut rules = Rules::for_node(&node.node);
    rules.own_addresses = node.addresses.iter().map(|a| Address::from(parse_ip(a).unwrap())).collect();
    if node.local_traffic_policy.as_deref() == Some("strict") {
        rules.local_traffic_policy = LocalTrafficPolicy::Strict;
    }
    if node.no_local_endpoint_action.as_deref() == Some("drop") {
        rules.no_local_endpoint_action = NoLocalEndpointAction::Drop;
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
        Some([on]) if on == "on" => rules.external_ips = ExternalIps::On,
        Some(ranges) => rules.external_ips = ExternalIps::Within(ranges.iter().map(|r| r.parse().unwrap()).collect()),
    }
    if let Some(ranges) = &node.virtual_address_cidrs {
        rules.virtual_address_cidrs = ranges.iter().map(|range| range.parse().unwrap()).collect();
    }
    rules.host_role = match node.host_role.as_deref() {
        None | Some("node") => HostRole::Node,
        Some("outside") => HostRole::Outside,
        Some("edge") => HostRole::Edge,
        Some(other) => panic!("host-role: {other}"),
    };
    rules
}

/// A cgroup id for a pod. Any number that is unique to the pod will do.
pub fn cgroup_of(pod: &str) -> u64 {
    pod.bytes().fold(7, |id: u64, byte| id.wrapping_mul(31).wrapping_add(u64::from(byte)))
}

fn dial(text: &str, order: &ClusterOrder) -> (String, Dial, usize) {
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
            "view" => dial.view = order.view(words.next().unwrap()).expect("the view of a cluster"),
            "after" => before = words.next().unwrap().parse().unwrap(),
            other => panic!("{text}: {other}"),
        }
    }
    (text.to_owned(), dial, before)
}
