//! The source of the objects: a directory of manifests, an API server, or KubeEdge's edge cache.

use super::value::NodeSourceArg;
use super::{CONTROLLER_NAMESPACE, Options, REPORT_NAMESPACE};
#[cfg(feature = "outside")]
use anyhow::anyhow;
use anyhow::{Context, bail};
use beeline_agent::{ControllerMode, SourceSettings};
use beeline_cluster::{Access, ApiServerSource, NodeScope, PodScope, ServiceFilter, SourceRole};
#[cfg(feature = "outside")]
use beeline_cluster::{DEFAULT_EDGE_CACHE_URL, EdgeCacheSource, EdgeIntervals};
use beeline_model::name::LOCAL_CLUSTER;
use beeline_model::rules::HostRole;

impl Options {
    /// The source of the one cluster that the options describe.
    pub(super) fn source(&self) -> anyhow::Result<SourceSettings> {
        let given = [self.manifests.is_some(), self.kubeconfig.is_some(), !self.api_server.is_empty()];
        if given.into_iter().filter(|is| *is).count() > 1 {
            bail!("--manifests, --kubeconfig and --api-server exclude each other: give one of them");
        }
        if self.context.is_some() && self.kubeconfig.is_none() {
            bail!("--context needs --kubeconfig: it selects a context of that file");
        }
        if self.manifests.is_some() {
            return self.folder();
        }
        if self.host_role() == HostRole::Edge && !given[1] && !given[2] {
            return self.edge(self.edge_cache.as_deref(), LOCAL_CLUSTER);
        }
        if self.edge_cache.is_some() {
            bail!("--edge-cache needs --host-role edge, and excludes --kubeconfig and --api-server");
        }
        Ok(SourceSettings::Server(Box::new(self.server(self.access()?, LOCAL_CLUSTER, self.host_role())?)))
    }

    fn folder(&self) -> anyhow::Result<SourceSettings> {
        if self.clear_startup_taint || self.node_source.is_some() {
            bail!("--node-source and --clear-startup-taint need an API server, not --manifests");
        }
        if self.controller() == ControllerMode::Watch {
            bail!("--controller watch needs an API server; with --manifests use --controller none");
        }
        let path = self.manifests.clone().unwrap_or_default();
        Ok(SourceSettings::Folder { path, service_filter: self.service_filter() })
    }

    pub(super) fn service_filter(&self) -> ServiceFilter {
        ServiceFilter { proxy_name: self.service_proxy_name.clone(), dns_names: self.serves_dns() }
    }

    pub(super) fn server(&self, access: Access, cluster: &str, role: HostRole) -> anyhow::Result<ApiServerSource> {
        let no_controller = self.controller() == ControllerMode::None;
        let node_name = || self.node_name.clone().unwrap_or_default();
        Ok(ApiServerSource {
            access,
            cluster: cluster.into(),
            node: if role == HostRole::Outside { String::new() } else { node_name() },
            nodes: self.nodes(role)?,
            pods: match role {
                _ if no_controller => PodScope::All,
                HostRole::Outside => PodScope::None,
                HostRole::Node | HostRole::Edge => PodScope::Own,
            },
            service_filter: self.service_filter(),
            clear_taint: self.clear_startup_taint && role == HostRole::Node,
            idle_timeout: beeline_cluster::WATCH_IDLE_TIMEOUT,
            role: SourceRole::Agent,
            controller_namespace: self.controller_namespace.clone().unwrap_or_else(|| CONTROLLER_NAMESPACE.into()),
            report_namespace: self.report_namespace.clone().unwrap_or_else(|| REPORT_NAMESPACE.into()),
            reports: None,
            watch_service_cidrs: true,
            verify_cluster: role != HostRole::Node || !self.clusters.is_empty(),
            post_events: role == HostRole::Node,
            cluster_id_check: None,
        })
    }

    /// Hosts outside reach pods through other nodes, and what they must know of a node is in its Node object only.
    fn nodes(&self, role: HostRole) -> anyhow::Result<NodeScope> {
        match (role, self.node_source) {
            (HostRole::Node, None) => Ok(NodeScope::Controller),
            (HostRole::Outside | HostRole::Edge, None) => Ok(NodeScope::Watch),
            (HostRole::Outside | HostRole::Edge, Some(NodeSourceArg::Own)) => {
                bail!("--node-source own: hosts outside and at the edge need the other nodes; use watch or controller")
            }
            (_, Some(source)) => Ok(source.into()),
        }
    }

    /// Nothing publishes slices into a directory of manifests, so no controller is the default there.
    pub fn controller(&self) -> ControllerMode {
        let is_folder = self.manifests.is_some() || self.all_clusters_are_folders();
        let default = if is_folder { ControllerMode::None } else { ControllerMode::Watch };
        self.controller.map_or(default, Into::into)
    }

    fn access(&self) -> anyhow::Result<Access> {
        if let Some(path) = self.kubeconfig.clone() {
            return Ok(Access::Kubeconfig { path, context: self.context.clone() });
        }
        if self.api_server.is_empty() && std::env::var_os("KUBERNETES_SERVICE_HOST").is_none() {
            bail!(
                "no source of objects: give --manifests DIR or --kubeconfig FILE, or run in a pod (there with \
                 --api-server URL, so that the agent does not depend on the service address that it resolves itself)"
            );
        }
        Access::in_cluster(&self.api_server).context("--api-server")
    }

    #[cfg(not(feature = "outside"))]
    pub(super) fn edge(&self, _url: Option<&str>, _cluster: &str) -> anyhow::Result<SourceSettings> {
        Err(super::feature::left_out("--edge-cache"))
    }

    /// The edge cache at this URL, else at the address that KubeEdge uses by default.
    #[cfg(feature = "outside")]
    pub(super) fn edge(&self, url: Option<&str>, cluster: &str) -> anyhow::Result<SourceSettings> {
        let url = url.unwrap_or(DEFAULT_EDGE_CACHE_URL);
        let server = EdgeCacheSource::parse_url(url).ok_or_else(|| {
            anyhow!(
                "--edge-cache {url}: expected plain HTTP on a loopback address of this host, such as \
                 {DEFAULT_EDGE_CACHE_URL}"
            )
        })?;
        Ok(SourceSettings::Edge(Box::new(EdgeCacheSource {
            server,
            cluster: cluster.into(),
            node: self.node_name.clone().unwrap_or_default(),
            service_filter: self.service_filter(),
            intervals: EdgeIntervals::default(),
            traffic: Default::default(),
            cluster_id_check: None,
        })))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_edge_host_reads_its_own_cache_by_default() {
        let source = |text: &str| {
            let list = Options::parse(text).and_then(|options| options.cluster_list());
            match list.map(|list| list.clusters[0].source.clone()) {
                Ok(SourceSettings::Edge(edge)) => edge.server.to_string(),
                Ok(other) => format!("{other:?}"),
                Err(error) => format!("{error:#}"),
            }
        };
        assert_eq!(source("host-role: edge\nnode-name: e1"), "http://127.0.0.1:10550/");
        assert_eq!(source("host-role: edge\nnode-name: e1\nedge-cache: http://127.0.0.1:9"), "http://127.0.0.1:9/");
        assert!(source("host-role: edge\nnode-name: e1\nkubeconfig: /k").starts_with("Server"));
        for far in [
            "nonsense",
            "https://127.0.0.1:10550",
            "http://192.0.2.1:10550",
            "http://cache.example:10550",
            "http://[2001:db8::1]:1",
        ] {
            let error = source(&format!("host-role: edge\nnode-name: e1\nedge-cache: \"{far}\""));
            assert!(
                error.contains(&format!("--edge-cache {far}: expected plain HTTP on a loopback address")),
                "{error}"
            );
        }
        assert_eq!(source("host-role: edge\nnode-name: e1\nedge-cache: \"http://[::1]:9\""), "http://[::1]:9/");
        let outside = "host-role: outside\nkubeconfig: /k\nedge-cache: http://127.0.0.1:9";
        assert!(source(outside).contains("--host-role edge"));
        let listed = "host-role: edge\nnode-name: e1\nclusters: [{ name: far, edgeCache: 'http://127.0.0.1:9' }]";
        assert_eq!(source(listed), "http://127.0.0.1:9/");
    }
}
