//! Where this host stands, and the clusters that it sees: one by options, or several by a list in the file.

use super::{Options, choice};
use anyhow::{Context, anyhow, bail, ensure};
use beeline_agent::{Cluster, Listing, Origin, Reload};
use beeline_cluster::Access;
use beeline_model::Name;
use beeline_model::fact::AddressType;
use beeline_model::name::LOCAL_CLUSTER;
use beeline_model::rules::StandPoint;
use beeline_model::stand::{ClusterRules, Pods};
use ipnet::IpNet;
use serde::Deserialize;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

/// One of the file's `clusters`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ClusterOptions {
    pub name: String,
    pub kubeconfig: Option<PathBuf>,
    pub context: Option<String>,
    pub api_servers: Vec<String>,
    /// Where the token and the authority for `apiServers` are.
    pub account: Option<PathBuf>,
    pub folder: Option<PathBuf>,
    /// Of KubeEdge, on this host.
    pub edge_cache: Option<String>,
    pub pods: Option<String>,
    #[serde(rename = "directCIDRs")]
    pub direct_cidrs: Option<Vec<String>>,
    pub node_address_types: Option<Vec<String>>,
    pub zone: Option<String>,
    #[serde(rename = "serviceCIDRs")]
    pub service_cidrs: Option<Vec<String>>,
    pub view: Option<String>,
    /// Of its names, where they are answered.
    pub domain: Option<String>,
}

impl Options {
    pub fn stand(&self) -> anyhow::Result<StandPoint> {
        let words = [("node", StandPoint::Node), ("outside", StandPoint::Outside), ("edge", StandPoint::Edge)];
        choice("--stand", self.stand.as_deref(), &words)
    }

    /// Nobody publishes into folders.
    pub(super) fn are_folders(&self) -> bool {
        !self.clusters.is_empty() && self.clusters.iter().all(|cluster| cluster.folder.is_some())
    }

    /// None where this is a Node of its one cluster: nothing need be said of that.
    pub(super) fn cluster_rules(&self) -> anyhow::Result<Vec<ClusterRules>> {
        if self.stand()? == StandPoint::Node && self.clusters.is_empty() {
            return Ok(Vec::new());
        }
        Ok(self.listing()?.clusters.into_iter().map(|cluster| cluster.rules).collect())
    }

    pub fn listing(&self) -> anyhow::Result<Listing> {
        let stand = self.stand()?;
        if stand == StandPoint::Node && self.clusters.is_empty() {
            self.check_node()?;
            let rules = ClusterRules::named(LOCAL_CLUSTER);
            return Ok(Listing {
                clusters: vec![Cluster { rules, origin: self.origin()?, zone: self.zone(LOCAL_CLUSTER, None)? }],
                views: Vec::new(),
            });
        }
        if self.clear_startup_taint && stand != StandPoint::Node {
            bail!("--clear-startup-taint is for --stand node: the taint of a Node that is not this host's to take");
        }
        let clusters = if self.clusters.is_empty() { vec![self.only(stand)?] } else { self.several(stand)? };
        let views = self.views(&clusters)?;
        Ok(Listing { clusters, views })
    }

    fn check_node(&self) -> anyhow::Result<()> {
        let given = [
            ("--pods", self.pods.is_some()),
            ("--direct-cidr", self.direct_cidr.is_some()),
            ("--node-address-types", self.node_address_types.is_some()),
            ("--zone", self.zone.is_some()),
            ("--service-cidrs", self.service_cidrs.is_some()),
            ("--edge-cache", self.edge_cache.is_some()),
            ("--probe-interval", self.probe_interval.is_some()),
            ("views", !self.views.is_empty()),
        ];
        match given.into_iter().find(|(_, is)| *is) {
            Some((option, _)) => bail!("{option} is for hosts that are no Node: add --stand outside (or edge)"),
            None => Ok(()),
        }
    }

    /// The one cluster of the options.
    fn only(&self, stand: StandPoint) -> anyhow::Result<Cluster> {
        ensure!(self.views.is_empty(), "views: they are of `clusters:`, and there is no such list");
        let said = ClusterOptions {
            name: LOCAL_CLUSTER.into(),
            pods: self.pods.clone(),
            direct_cidrs: self.direct_cidr.clone(),
            node_address_types: self.node_address_types.clone(),
            zone: self.zone.clone(),
            service_cidrs: self.service_cidrs.clone(),
            ..ClusterOptions::default()
        };
        Ok(Cluster { rules: said.rules(stand)?, origin: self.origin()?, zone: self.zone(LOCAL_CLUSTER, None)? })
    }

    fn several(&self, stand: StandPoint) -> anyhow::Result<Vec<Cluster>> {
        let elsewhere = [
            ("--manifests", self.manifests.is_some()),
            ("--kubeconfig", self.kubeconfig.is_some()),
            ("--api-server", !self.api_server.is_empty()),
            ("--edge-cache", self.edge_cache.is_some()),
            ("--pods", self.pods.is_some()),
            ("--direct-cidr", self.direct_cidr.is_some()),
            ("--node-address-types", self.node_address_types.is_some()),
            ("--zone", self.zone.is_some()),
            ("--service-cidrs", self.service_cidrs.is_some()),
        ];
        if let Some((option, _)) = elsewhere.into_iter().find(|(_, is)| *is) {
            bail!("{option} is for one cluster; with `clusters:` it stands there, for each of them");
        }
        let one = |(at, said): (usize, &ClusterOptions)| {
            // This host is a part of the first at most.
            let stand = if at == 0 { stand } else { StandPoint::Outside };
            let named = || if said.name.is_empty() { "clusters".to_owned() } else { format!("cluster {}", said.name) };
            let origin = said.origin(self, stand).with_context(named)?;
            let zone = self.zone(&said.name, said.domain.as_deref()).with_context(named)?;
            anyhow::Ok(Cluster { rules: said.rules(stand).with_context(named)?, origin, zone })
        };
        let clusters = self.clusters.iter().enumerate().map(one).collect::<anyhow::Result<Vec<_>>>()?;
        check_names(&clusters)?;
        check_ranges(&clusters)?;
        Ok(clusters)
    }

    fn views(&self, clusters: &[Cluster]) -> anyhow::Result<Vec<(PathBuf, Name)>> {
        let known: BTreeSet<&Name> = clusters.iter().filter_map(|cluster| cluster.rules.view.as_ref()).collect();
        let one = |(path, view): (&PathBuf, &String)| {
            ensure!(path.is_absolute(), "views: {}: a cgroup's path such as /sys/fs/cgroup/b.slice", path.display());
            let found = known.iter().find(|name| &****name == view.as_str());
            let names = || known.iter().map(|name| &***name).collect::<Vec<_>>().join(", ");
            let found = found.ok_or_else(|| {
                anyhow!("views: {}: no cluster has the view {view}; known are: {}", path.display(), names())
            })?;
            Ok((path.clone(), (*found).clone()))
        };
        self.views.iter().map(one).collect()
    }

    /// The list of clusters is read again when the file changes. What else changes there needs a restart, and says so.
    pub(super) fn reload(&self) -> Option<Reload> {
        let path = self.config.clone().filter(|_| !self.clusters.is_empty())?;
        let (typed, text) = (self.typed.clone()?, self.text.clone()?);
        let fixed = |options: &Options| Options {
            clusters: Vec::new(),
            views: Default::default(),
            text: None,
            ..options.clone()
        };
        let before = fixed(self);
        let read = move || {
            let options = Options::clone(&typed).load()?;
            ensure!(
                !options.clusters.is_empty(),
                "clusters: there is none any more; to serve nothing, stop the agent (`beeline cleanup` detaches)"
            );
            let listing = options.listing()?;
            if fixed(&options) != before {
                tracing::warn!(
                    "of the configuration only `clusters` and `views` change without a restart of the agent"
                );
            }
            Ok(listing)
        };
        Some(Reload { path, text, read: Arc::new(read) })
    }
}

impl ClusterOptions {
    fn rules(&self, stand: StandPoint) -> anyhow::Result<ClusterRules> {
        check_name("name", &self.name)?;
        self.view.as_deref().map_or(Ok(()), |view| check_name("view", view))?;
        let mut rules = ClusterRules::named(&self.name);
        let words = [("auto", Pods::Auto), ("direct", Pods::Direct), ("node", Pods::Node)];
        rules.pods = choice("pods", self.pods.as_deref(), &words)?;
        rules.direct = ranges("directCIDRs", self.direct_cidrs.as_deref().unwrap_or_default())?;
        rules.node_address_types = address_types(self.node_address_types.as_deref(), stand)?;
        rules.zone = self.zone.as_deref().map(Name::from);
        let given = self.service_cidrs.as_deref();
        rules.service_ranges = given.map(|texts| ranges("serviceCIDRs", texts)).transpose()?;
        if rules.service_ranges.as_ref().is_some_and(Vec::is_empty) {
            bail!("serviceCIDRs: name at least one range, or leave it out (then the cluster is asked)");
        }
        rules.view = self.view.as_deref().map(Name::from);
        Ok(rules)
    }

    fn origin(&self, options: &Options, stand: StandPoint) -> anyhow::Result<Origin> {
        let edge = self.edge_cache.is_some();
        let given = [self.kubeconfig.is_some(), !self.api_servers.is_empty(), self.folder.is_some(), edge];
        match given.into_iter().filter(|is| *is).count() {
            1 => {}
            0 => bail!("where are its objects? Give kubeconfig, apiServers, folder or edgeCache"),
            _ => bail!("kubeconfig, apiServers, folder and edgeCache are four sources: give one of them"),
        }
        ensure!(self.context.is_none() || self.kubeconfig.is_some(), "context needs kubeconfig");
        ensure!(self.account.is_none() || !self.api_servers.is_empty(), "account needs apiServers");
        ensure!(!edge || options.stand()? == StandPoint::Edge, "edgeCache is for --stand edge");
        if edge {
            return options.edge(self.edge_cache.as_deref(), &self.name);
        }
        if let Some(path) = self.folder.clone() {
            return Ok(Origin::Folder { path, claim: options.claim() });
        }
        Ok(Origin::Server(Box::new(options.server(self.access()?, &self.name, stand)?)))
    }

    fn access(&self) -> anyhow::Result<Access> {
        if let Some(path) = self.kubeconfig.clone() {
            return Ok(Access::Kubeconfig { path, context: self.context.clone() });
        }
        let access = Access::in_cluster(&self.api_servers).context("apiServers")?;
        Ok(match (access, self.account.clone()) {
            (Access::InCluster { servers, .. }, Some(account)) => Access::InCluster { servers, account },
            (access, _) => access,
        })
    }
}

/// It is shown everywhere, and a folder is called by it.
fn check_name(what: &str, name: &str) -> anyhow::Result<()> {
    let inner = name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
    let fits = inner && (1..=63).contains(&name.len()) && !name.starts_with('-') && !name.ends_with('-');
    ensure!(fits, "{what} {name:?}: a-z, 0-9 and '-', at most 63");
    Ok(())
}

fn ranges(what: &str, texts: &[String]) -> anyhow::Result<Vec<IpNet>> {
    let parse = |text: &String| {
        let range: Result<IpNet, _> = text.parse();
        range.map(|range| range.trunc()).map_err(|_| anyhow!("{what} {text}: CIDRs such as 10.43.0.0/16"))
    };
    texts.iter().map(parse).collect()
}

fn address_types(given: Option<&[String]>, stand: StandPoint) -> anyhow::Result<Vec<AddressType>> {
    let Some(given) = given else {
        let mut types = vec![AddressType::Internal, AddressType::External];
        if stand == StandPoint::Edge {
            types.reverse();
        }
        return Ok(types);
    };
    ensure!(
        !given.is_empty(),
        "nodeAddressTypes: InternalIP, ExternalIP, or both in the order in which they are tried"
    );
    let words = [("InternalIP", AddressType::Internal), ("ExternalIP", AddressType::External)];
    given.iter().map(|word| choice("nodeAddressTypes", Some(word), &words)).collect()
}

fn check_names(clusters: &[Cluster]) -> anyhow::Result<()> {
    let (mut names, mut views) = (BTreeSet::new(), BTreeSet::new());
    for rules in clusters.iter().map(|cluster| &cluster.rules) {
        let name = &rules.name;
        ensure!(**name != *LOCAL_CLUSTER, "cluster {name}: that name is for a Node's own cluster; choose another");
        ensure!(names.insert(name), "cluster {name} is there twice: give each a name of its own");
        if let Some(view) = &rules.view {
            ensure!(views.insert(view), "cluster {name}: the view {view} is another cluster's already; choose another");
        }
    }
    Ok(())
}

/// An address is the earlier cluster's. A later one that is covered can be reached in a view of its own; without one it is
/// a mistake.
fn check_ranges(clusters: &[Cluster]) -> anyhow::Result<()> {
    for (at, later) in clusters.iter().map(|cluster| &cluster.rules).enumerate() {
        let own = later.service_ranges.iter().flatten();
        for (range, earlier) in own.flat_map(|range| clusters[..at].iter().map(move |one| (range, &one.rules))) {
            let taken = earlier.service_ranges.iter().flatten().find(|taken| overlap(taken, range));
            if let Some(taken) = taken.filter(|_| later.view.is_none()) {
                bail!(
                    "cluster {}: serviceCIDRs {range} overlaps with {taken} of {}, which comes first: nothing there \
                     could be reached; give it a `view`, or correct the range",
                    later.name,
                    earlier.name
                );
            }
        }
    }
    Ok(())
}

fn overlap(one: &IpNet, other: &IpNet) -> bool {
    one.contains(other) || other.contains(one)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(text: &str) -> Options {
        serde_saphyr::from_str(text).unwrap()
    }

    fn refused(text: &str) -> String {
        format!("{:#}", options(text).listing().unwrap_err())
    }

    const TWO: &str = "
stand: outside
clusters:
- { name: blue, kubeconfig: /etc/blue, serviceCIDRs: [10.43.0.0/16], directCIDRs: [10.42.0.0/16], pods: node, zone: a }
- { name: green, apiServers: ['https://192.0.2.1:6443'], account: /etc/green, nodeAddressTypes: [ExternalIP], view: green }
views: { /sys/fs/cgroup/green.slice: green }
";

    #[test]
    fn clusters_stand_in_the_order_of_the_file() {
        let listing = options(TWO).listing().unwrap();
        let [blue, green] = &listing.clusters[..] else { panic!("{listing:?}") };
        assert_eq!((&*blue.rules.name, blue.rules.pods, blue.rules.direct.len()), ("blue", Pods::Node, 1));
        assert_eq!((blue.rules.zone.as_deref(), blue.rules.view.as_deref()), (Some("a"), None));
        assert_eq!((&*green.rules.name, green.rules.pods), ("green", Pods::Auto));
        assert_eq!(green.rules.node_address_types, [AddressType::External]);
        let Origin::Server(server) = &green.origin else { panic!("{green:?}") };
        assert!(
            server.ranges && !server.notices && server.node.is_empty() && server.pods == beeline_cluster::Pods::None
        );
        assert_eq!(listing.views, [("/sys/fs/cgroup/green.slice".into(), "green".into())]);
        assert_eq!(options(TWO).rules().unwrap().clusters.len(), 2);
    }

    #[test]
    fn a_list_that_cannot_be_meant_says_what_to_do() {
        let said = |entries: &str| refused(&format!("stand: outside\nclusters:\n{entries}"));
        let blue = "- { name: blue, folder: /b, serviceCIDRs: [10.43.0.0/16] }\n";
        assert!(said(&format!("{blue}{blue}")).contains("blue is there twice"));
        let covered = said(&format!("{blue}- {{ name: green, folder: /g, serviceCIDRs: [10.43.128.0/17] }}"));
        assert!(
            covered.contains("green") && covered.contains("blue") && covered.contains("give it a `view`"),
            "{covered}"
        );
        let seen = format!("{blue}- {{ name: green, folder: /g, serviceCIDRs: [10.43.0.0/16], view: green }}");
        assert!(options(&format!("stand: outside\nclusters:\n{seen}")).listing().is_ok(), "every K3s uses that range");
        assert!(said("- { name: blue }").contains("cluster blue: where are its objects?"));
        assert!(said("- { folder: /b }").contains("name \"\""));
        assert!(said("- { name: local, folder: /b }").contains("choose another"));
        assert!(said("- { name: ../x, folder: /b }").contains("a-z"));
        assert!(said("- { name: b, folder: /b, kubeconfig: /c }").contains("four sources"));
        assert!(said("- { name: b, folder: /b, pods: maybe }").contains("pods maybe: one of auto, direct, node"));
        assert!(said("- { name: b, folder: /b, serviceCIDRs: [10.0.0.0] }").contains("serviceCIDRs 10.0.0.0"));
        assert!(said("- { name: b, folder: /b, nodeAddressTypes: [Hostname] }").contains("InternalIP, ExternalIP"));
        let views = "- { name: b, folder: /b, view: v }\nviews: { /x: other }";
        assert!(said(views).contains("no cluster has the view other; known are: v"));
        assert!(refused("node-name: n1\nmanifests: /m\nviews: { /x: y }").contains("--stand outside"));
        assert!(
            refused("stand: outside\nkubeconfig: /k\nclusters: [{ name: b, folder: /b }]").contains("--kubeconfig")
        );
        assert!(refused("node-name: n1\nmanifests: /m\npods: direct").contains("--stand outside"));
        assert!(serde_saphyr::from_str::<Options>("clusters: [{ name: b, folders: /b }]").is_err());
    }

    #[test]
    fn a_node_is_of_the_first_cluster_and_outside_of_the_others() {
        let text =
            "node-name: n1\nclusters:\n- { name: home, kubeconfig: /h }\n- { name: far, kubeconfig: /f, view: far }";
        let servers: Vec<_> = options(text).listing().unwrap().clusters.into_iter().map(|c| c.origin).collect();
        let [Origin::Server(home), Origin::Server(far)] = &servers[..] else { panic!("{servers:?}") };
        assert_eq!((home.node.as_str(), home.pods, home.notices), ("n1", beeline_cluster::Pods::Own, true));
        assert_eq!((far.node.as_str(), far.pods, far.notices), ("", beeline_cluster::Pods::None, false));
        assert!(home.ranges && far.ranges);
        assert_eq!(options(text).rules().unwrap().clusters.len(), 2);
    }

    #[test]
    fn one_cluster_outside_needs_no_list() {
        let text = "stand: outside\nkubeconfig: /k\npods: direct\ndirect-cidr: [10.42.0.0/16]\nnode-name: ignored";
        let rules = options(text).rules().unwrap();
        assert_eq!((rules.stand_point, &*rules.node_name, rules.clusters.len()), (StandPoint::Outside, "", 1));
        assert_eq!((&*rules.clusters[0].name, rules.clusters[0].pods), (LOCAL_CLUSTER, Pods::Direct));
        let edge = options("stand: edge\nkubeconfig: /k\nnode-name: e1").rules().unwrap();
        assert_eq!(edge.clusters[0].node_address_types, [AddressType::External, AddressType::Internal]);
        assert!(options("stand: edge\nkubeconfig: /k").rules().unwrap_err().to_string().contains("--node-name"));
        assert!(options("manifests: /m\nnode-name: n1").rules().unwrap().clusters.is_empty(), "as it ever was");
    }
}
