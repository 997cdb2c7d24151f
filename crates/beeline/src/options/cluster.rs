//! The role of this host and the clusters that it serves: one that the options describe, or a list in the configuration
//! file.

use super::Options;
use super::value::{AddressTypeArg, PodAccessArg};
use anyhow::{Context, anyhow, bail, ensure};
use beeline_agent::{ClusterList, ClusterSettings, ReloadableFile, SourceSettings};
use beeline_cluster::Access;
use beeline_model::Name;
use beeline_model::cluster::ClusterRules;
use beeline_model::name::LOCAL_CLUSTER;
use beeline_model::rules::HostRole;
use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

/// One entry of `clusters` in the configuration file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ClusterOptions {
    pub name: String,
    pub kubeconfig: Option<PathBuf>,
    pub context: Option<String>,
    pub api_servers: Vec<String>,
    /// The directory of `token` and `ca.crt` for `apiServers`.
    pub service_account_dir: Option<PathBuf>,
    pub manifests: Option<PathBuf>,
    pub edge_cache: Option<String>,
    pub pod_access: Option<PodAccessArg>,
    #[serde(rename = "directPodCIDRs")]
    pub direct_pod_cidrs: Option<Vec<String>>,
    pub node_address_types: Option<Vec<AddressTypeArg>>,
    pub zone: Option<String>,
    #[serde(rename = "serviceCIDRs")]
    pub service_cidrs: Option<Vec<String>>,
    pub view: Option<String>,
    pub dns_domain: Option<String>,
}

impl Options {
    pub fn host_role(&self) -> HostRole {
        self.host_role.map_or(HostRole::Node, Into::into)
    }

    pub(super) fn all_clusters_are_folders(&self) -> bool {
        !self.clusters.is_empty() && self.clusters.iter().all(|cluster| cluster.manifests.is_some())
    }

    fn is_node_of_one_cluster(&self) -> bool {
        self.host_role() == HostRole::Node && self.clusters.is_empty()
    }

    /// Empty on a Node with one cluster, which needs no rules per cluster.
    pub(super) fn cluster_rules(&self) -> anyhow::Result<Vec<ClusterRules>> {
        if self.is_node_of_one_cluster() {
            return Ok(Vec::new());
        }
        Ok(self.cluster_list()?.clusters.into_iter().map(|cluster| cluster.rules).collect())
    }

    pub fn cluster_list(&self) -> anyhow::Result<ClusterList> {
        let role = self.host_role();
        if self.is_node_of_one_cluster() {
            self.check_node()?;
            let (source, zone) = (self.source()?, self.zone(LOCAL_CLUSTER, None)?);
            let clusters = vec![ClusterSettings { rules: ClusterRules::named(LOCAL_CLUSTER), source, zone }];
            return Ok(ClusterList { clusters, view_cgroups: Vec::new() });
        }
        if self.clear_startup_taint && role != HostRole::Node {
            bail!("--clear-startup-taint needs --host-role node: other hosts have no Node whose taint they may remove");
        }
        let clusters = if self.clusters.is_empty() { vec![self.only_cluster(role)?] } else { self.listed(role)? };
        let view_cgroups = self.view_cgroups(&clusters)?;
        Ok(ClusterList { clusters, view_cgroups })
    }

    fn check_node(&self) -> anyhow::Result<()> {
        let given = [
            ("--pod-access", self.pod_access.is_some()),
            ("--direct-pod-cidrs", self.direct_pod_cidrs.is_some()),
            ("--node-address-types", self.node_address_types.is_some()),
            ("--zone", self.zone.is_some()),
            ("--service-cidrs", self.service_cidrs.is_some()),
            ("--edge-cache", self.edge_cache.is_some()),
            ("--probe-interval", self.probe_interval.is_some()),
            ("views", !self.views.is_empty()),
        ];
        match given.into_iter().find(|(_, is)| *is) {
            Some((option, _)) => bail!("{option} needs --host-role outside or edge"),
            None => Ok(()),
        }
    }

    /// The one cluster that the options describe.
    fn only_cluster(&self, role: HostRole) -> anyhow::Result<ClusterSettings> {
        ensure!(self.views.is_empty(), "views: they need a list of `clusters`, and the configuration file has none");
        let entry = ClusterOptions {
            name: LOCAL_CLUSTER.into(),
            pod_access: self.pod_access,
            direct_pod_cidrs: self.direct_pod_cidrs.clone(),
            node_address_types: self.node_address_types.clone(),
            zone: self.zone.clone(),
            service_cidrs: self.service_cidrs.clone(),
            ..ClusterOptions::default()
        };
        let zone = self.zone(LOCAL_CLUSTER, None)?;
        Ok(ClusterSettings { rules: entry.rules(role)?, source: self.source()?, zone })
    }

    /// The clusters of the list. This host can be a Node of the first one only; to the others it is outside.
    fn listed(&self, role: HostRole) -> anyhow::Result<Vec<ClusterSettings>> {
        let per_cluster = [
            ("--manifests", self.manifests.is_some()),
            ("--kubeconfig", self.kubeconfig.is_some()),
            ("--api-server", !self.api_server.is_empty()),
            ("--edge-cache", self.edge_cache.is_some()),
            ("--pod-access", self.pod_access.is_some()),
            ("--direct-pod-cidrs", self.direct_pod_cidrs.is_some()),
            ("--node-address-types", self.node_address_types.is_some()),
            ("--zone", self.zone.is_some()),
            ("--service-cidrs", self.service_cidrs.is_some()),
        ];
        if let Some((option, _)) = per_cluster.into_iter().find(|(_, is)| *is) {
            bail!("{option} cannot be combined with `clusters`: set it in the entry of each cluster");
        }
        let settings = |(at, entry): (usize, &ClusterOptions)| {
            let role = if at == 0 { role } else { HostRole::Outside };
            entry.settings(self, role).with_context(|| match entry.name.as_str() {
                "" => "clusters".to_owned(),
                name => format!("cluster {name}"),
            })
        };
        let clusters = self.clusters.iter().enumerate().map(settings).collect::<anyhow::Result<Vec<_>>>()?;
        check_names(&clusters)?;
        check_ranges(&clusters)?;
        Ok(clusters)
    }

    fn view_cgroups(&self, clusters: &[ClusterSettings]) -> anyhow::Result<Vec<(PathBuf, Name)>> {
        let known: BTreeSet<&str> = clusters.iter().filter_map(|cluster| cluster.rules.view.as_deref()).collect();
        let check = |(path, view): (&PathBuf, &String)| {
            let shown = path.display();
            ensure!(
                path.is_absolute(),
                "views: {shown}: expected the path of a cgroup, such as /sys/fs/cgroup/b.slice"
            );
            let names = || known.iter().copied().collect::<Vec<_>>().join(", ");
            ensure!(
                known.contains(&**view),
                "views: {shown}: no cluster has the view {view}; the views are: {}",
                names()
            );
            Ok((path.clone(), view.as_str().into()))
        };
        self.views.iter().map(check).collect()
    }

    /// How the agent reads the file again when it changes. Only `clusters` and `views` take effect without a restart.
    pub(super) fn reload(&self) -> Option<ReloadableFile> {
        let path = self.config.clone().filter(|_| !self.clusters.is_empty())?;
        let (command_line, text) = (self.command_line.clone()?, self.text.clone()?);
        let without_clusters = |options: &Options| Options {
            clusters: Vec::new(),
            views: Default::default(),
            text: None,
            ..options.clone()
        };
        let before = without_clusters(self);
        let read = move || {
            let options = Options::clone(&command_line).load()?;
            ensure!(
                !options.clusters.is_empty(),
                "clusters: the list is empty; to stop serving, stop the agent and run `beeline cleanup`"
            );
            let list = options.cluster_list()?;
            if without_clusters(&options) != before {
                tracing::warn!("options other than `clusters` and `views` changed; restart the agent to apply them");
            }
            Ok(list)
        };
        Some(ReloadableFile { path, text, read: Arc::new(read) })
    }
}

impl ClusterOptions {
    fn settings(&self, options: &Options, role: HostRole) -> anyhow::Result<ClusterSettings> {
        let source = self.source(options, role)?;
        let zone = options.zone(&self.name, self.dns_domain.as_deref())?;
        Ok(ClusterSettings { rules: self.rules(role)?, source, zone })
    }

    fn rules(&self, role: HostRole) -> anyhow::Result<ClusterRules> {
        check_name("name", &self.name)?;
        self.view.as_deref().map_or(Ok(()), |view| check_name("view", view))?;
        let mut rules = ClusterRules::for_role(&self.name, role);
        rules.pod_access = self.pod_access.map_or_else(Default::default, Into::into);
        rules.direct = cidrs("directPodCIDRs", self.direct_pod_cidrs.as_deref().unwrap_or_default())?;
        if let Some(types) = self.node_address_types.as_deref() {
            ensure!(
                !types.is_empty(),
                "nodeAddressTypes: expected InternalIP, ExternalIP, or both in order of preference"
            );
            rules.node_address_types = types.iter().copied().map(Into::into).collect();
        }
        rules.zone = self.zone.as_deref().map(Name::from);
        let given = self.service_cidrs.as_deref();
        rules.service_ranges = given.map(|texts| cidrs("serviceCIDRs", texts)).transpose()?;
        if rules.service_ranges.as_ref().is_some_and(Vec::is_empty) {
            bail!("serviceCIDRs: the list is empty; give a CIDR, or omit the key to read the ServiceCIDR objects");
        }
        rules.view = self.view.as_deref().map(Name::from);
        Ok(rules)
    }

    fn source(&self, options: &Options, role: HostRole) -> anyhow::Result<SourceSettings> {
        let edge = self.edge_cache.is_some();
        let given = [self.kubeconfig.is_some(), !self.api_servers.is_empty(), self.manifests.is_some(), edge];
        match given.into_iter().filter(|is| *is).count() {
            1 => {}
            0 => bail!("no source of objects: give kubeconfig, apiServers, manifests or edgeCache"),
            _ => bail!("kubeconfig, apiServers, manifests and edgeCache exclude each other: give one of them"),
        }
        ensure!(self.context.is_none() || self.kubeconfig.is_some(), "context needs kubeconfig");
        ensure!(self.service_account_dir.is_none() || given[1], "serviceAccountDir needs apiServers");
        ensure!(!edge || options.host_role() == HostRole::Edge, "edgeCache needs --host-role edge");
        if edge {
            return options.edge(self.edge_cache.as_deref(), &self.name);
        }
        if let Some(path) = self.manifests.clone() {
            return Ok(SourceSettings::Folder { path, service_filter: options.service_filter() });
        }
        Ok(SourceSettings::Server(Box::new(options.server(self.access()?, &self.name, role)?)))
    }

    fn access(&self) -> anyhow::Result<Access> {
        if let Some(path) = self.kubeconfig.clone() {
            return Ok(Access::Kubeconfig { path, context: self.context.clone() });
        }
        let access = Access::in_cluster(&self.api_servers).context("apiServers")?;
        Ok(match (access, self.service_account_dir.clone()) {
            (Access::InCluster { servers, .. }, Some(account)) => Access::InCluster { servers, account },
            (access, _) => access,
        })
    }
}

/// The name is also that of a directory below `--state-dir`.
fn check_name(key: &str, name: &str) -> anyhow::Result<()> {
    let allowed = name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
    let valid = allowed && (1..=63).contains(&name.len()) && !name.starts_with('-') && !name.ends_with('-');
    ensure!(valid, "{key} {name:?}: expected a-z, 0-9 and '-', at most 63 characters");
    Ok(())
}

fn cidrs(key: &str, texts: &[String]) -> anyhow::Result<Vec<IpNet>> {
    let parse = |text: &String| {
        let cidr: Result<IpNet, _> = text.parse();
        cidr.map(|cidr| cidr.trunc()).map_err(|_| anyhow!("{key} {text}: expected a CIDR such as 10.43.0.0/16"))
    };
    texts.iter().map(parse).collect()
}

fn check_names(clusters: &[ClusterSettings]) -> anyhow::Result<()> {
    let (mut names, mut views) = (BTreeSet::new(), BTreeSet::new());
    for rules in clusters.iter().map(|cluster| &cluster.rules) {
        let name = &rules.name;
        ensure!(
            **name != *LOCAL_CLUSTER,
            "cluster {name}: this name is reserved for a Node's own cluster; use another"
        );
        ensure!(names.insert(name), "cluster {name} is listed twice: names must be unique");
        if let Some(view) = &rules.view {
            ensure!(
                views.insert(view),
                "cluster {name}: the view {view} belongs to another cluster; views must be unique"
            );
        }
    }
    Ok(())
}

/// An address belongs to the first cluster whose range contains it. A later cluster with an overlapping range can be
/// reached only through a view, so an overlap without a view is a mistake.
fn check_ranges(clusters: &[ClusterSettings]) -> anyhow::Result<()> {
    for (at, later) in clusters.iter().map(|cluster| &cluster.rules).enumerate() {
        let own = later.service_ranges.iter().flatten();
        for (range, earlier) in own.flat_map(|range| clusters[..at].iter().map(move |one| (range, &one.rules))) {
            let taken = earlier.service_ranges.iter().flatten().find(|taken| overlaps(taken, range));
            if let Some(taken) = taken.filter(|_| later.view.is_none()) {
                bail!(
                    "cluster {}: serviceCIDRs {range} overlaps {taken} of the earlier cluster {}, so its services could \
                     not be reached; give it a `view`, or correct the range",
                    later.name,
                    earlier.name
                );
            }
        }
    }
    Ok(())
}

fn overlaps(one: &IpNet, other: &IpNet) -> bool {
    one.contains(other) || other.contains(one)
}

#[cfg(test)]
mod tests {
    use super::*;
    use beeline_cluster::PodScope;
    use beeline_model::cluster::PodAccess;
    use beeline_model::object::AddressType;

    fn options(text: &str) -> Options {
        Options::parse(text).unwrap()
    }

    fn error(text: &str) -> String {
        format!("{:#}", Options::parse(text).and_then(|options| options.cluster_list()).unwrap_err())
    }

    const TWO: &str = "
host-role: outside
clusters:
- { name: blue, kubeconfig: /etc/blue, serviceCIDRs: [10.43.0.0/16], directPodCIDRs: [10.42.0.0/16], podAccess: node, zone: a }
- { name: green, apiServers: ['https://192.0.2.1:6443'], serviceAccountDir: /etc/green, nodeAddressTypes: [ExternalIP], view: green }
views: { /sys/fs/cgroup/green.slice: green }
";

    #[test]
    fn clusters_keep_the_order_of_the_file() {
        let list = options(TWO).cluster_list().unwrap();
        let [blue, green] = &list.clusters[..] else { panic!("{list:?}") };
        assert_eq!((&*blue.rules.name, blue.rules.pod_access, blue.rules.direct.len()), ("blue", PodAccess::Node, 1));
        assert_eq!((blue.rules.zone.as_deref(), blue.rules.view.as_deref()), (Some("a"), None));
        assert_eq!((&*green.rules.name, green.rules.pod_access), ("green", PodAccess::Auto));
        assert_eq!(green.rules.node_address_types, [AddressType::External]);
        let SourceSettings::Server(server) = &green.source else { panic!("{green:?}") };
        assert!(server.verify_cluster && !server.post_events && server.node.is_empty());
        assert_eq!(server.pods, PodScope::None);
        assert_eq!(list.view_cgroups, [("/sys/fs/cgroup/green.slice".into(), "green".into())]);
        assert_eq!(options(TWO).rules().unwrap().clusters.len(), 2);
    }

    #[test]
    fn an_error_in_the_list_names_the_cluster_and_the_next_step() {
        let listed = |entries: &str| error(&format!("host-role: outside\nclusters:\n{entries}"));
        let blue = "- { name: blue, manifests: /b, serviceCIDRs: [10.43.0.0/16] }\n";
        assert!(listed(&format!("{blue}{blue}")).contains("blue is listed twice"));
        let overlap = listed(&format!("{blue}- {{ name: green, manifests: /g, serviceCIDRs: [10.43.128.0/17] }}"));
        for part in ["green", "blue", "give it a `view`"] {
            assert!(overlap.contains(part), "{overlap}");
        }
        let text = format!(
            "host-role: outside\ncgroup: /c\ndns-address: 127.0.0.1:53\ndns-view: ['green=127.0.0.2:53']\nclusters:\n{blue}\
             - {{ name: green, manifests: /g, serviceCIDRs: [10.43.128.0/17] }}"
        );
        let first = options(&text).settings().unwrap_err().to_string();
        assert!(
            first.contains("give it a `view`"),
            "an error in the list comes before those that follow from it: {first}"
        );
        let with_view = format!("{blue}- {{ name: green, manifests: /g, serviceCIDRs: [10.43.0.0/16], view: green }}");
        let with_view = options(&format!("host-role: outside\nclusters:\n{with_view}"));
        assert!(with_view.cluster_list().is_ok(), "every K3s uses that range");
        assert!(listed("- { name: blue }").contains("cluster blue: no source of objects"));
        assert!(listed("- { manifests: /b }").contains("name \"\""));
        assert!(listed("- { name: local, manifests: /b }").contains("use another"));
        assert!(listed("- { name: ../x, manifests: /b }").contains("a-z"));
        assert!(listed("- { name: b, manifests: /b, kubeconfig: /c }").contains("exclude each other"));
        let access = listed("- { name: b, manifests: /b, podAccess: maybe }");
        assert!(access.contains("podAccess") && access.contains("maybe") && access.contains("direct"), "{access}");
        assert!(listed("- { name: b, manifests: /b, serviceCIDRs: [10.0.0.0] }").contains("serviceCIDRs 10.0.0.0"));
        let types = listed("- { name: b, manifests: /b, nodeAddressTypes: [Hostname] }");
        assert!(types.contains("nodeAddressTypes") && types.contains("ExternalIP"), "{types}");
        let views = "- { name: b, manifests: /b, view: v }\nviews: { /x: other }";
        assert!(listed(views).contains("no cluster has the view other; the views are: v"));
        assert!(error("node-name: n1\nmanifests: /m\nviews: { /x: y }").contains("--host-role outside"));
        let two_sources = "host-role: outside\nkubeconfig: /k\nclusters: [{ name: b, manifests: /b }]";
        assert!(error(two_sources).contains("--kubeconfig"));
        assert!(error("node-name: n1\nmanifests: /m\npod-access: direct").contains("--host-role outside"));
        assert!(error("clusters: [{ name: b, manifest: /b }]").contains("did you mean `manifests`?"));
    }

    #[test]
    fn a_node_belongs_to_the_first_cluster_and_is_outside_the_others() {
        let text =
            "node-name: n1\nclusters:\n- { name: home, kubeconfig: /h }\n- { name: far, kubeconfig: /f, view: far }";
        let servers: Vec<_> = options(text).cluster_list().unwrap().clusters.into_iter().map(|c| c.source).collect();
        let [SourceSettings::Server(home), SourceSettings::Server(far)] = &servers[..] else { panic!("{servers:?}") };
        assert_eq!((home.node.as_str(), home.pods, home.post_events), ("n1", PodScope::Own, true));
        assert_eq!((far.node.as_str(), far.pods, far.post_events), ("", PodScope::None, false));
        assert!(home.verify_cluster && far.verify_cluster);
        assert_eq!(options(text).rules().unwrap().clusters.len(), 2);
    }

    #[test]
    fn one_cluster_outside_needs_no_list() {
        let text = "host-role: outside\nkubeconfig: /k\npod-access: direct\ndirect-pod-cidrs: [10.42.0.0/16]\n\
                    node-name: ignored";
        let rules = options(text).rules().unwrap();
        assert_eq!((rules.host_role, &*rules.node_name, rules.clusters.len()), (HostRole::Outside, "", 1));
        assert_eq!((&*rules.clusters[0].name, rules.clusters[0].pod_access), (LOCAL_CLUSTER, PodAccess::Direct));
        let edge = options("host-role: edge\nkubeconfig: /k\nnode-name: e1").rules().unwrap();
        assert_eq!(edge.clusters[0].node_address_types, [AddressType::External, AddressType::Internal]);
        assert!(options("host-role: edge\nkubeconfig: /k").rules().unwrap_err().to_string().contains("--node-name"));
        assert!(options("manifests: /m\nnode-name: n1").rules().unwrap().clusters.is_empty());
    }
}
