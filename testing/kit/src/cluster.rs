//! The running cluster: starts and stops it, and runs commands in it. The command line and the integration tests use
//! it.
//!
//! ```no_run
//! # fn main() -> anyhow::Result<()> {
//! let config = kit::ClusterConfig { nodes: 3, proxy: None, zones: false, beeline: None, addon: true };
//! let cluster = kit::TestCluster::up(&config)?;
//! cluster.kubectl(&["get", "nodes"])?;
//! cluster.node("n1".parse()?, &["curl", "http://10.97.0.1:443"])?;
//! cluster.down()?;
//! # Ok(()) }
//! ```

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::{
    address_plan::{HostId, NodeId},
    agent,
    cache::Cache,
    certificate,
    cgroup::CgroupTree,
    chart,
    component::{self, Component},
    control_plane, host, image_store, kubeconfig, manifest,
    namespace::Location,
    network, node,
    progress::{report, timed},
    proxy::{self, ProxyMode},
    state::{self, SavedConfig},
    subprocess,
    wait::{self, Timeout},
};

/// An image that every node has, with agnhost, curl, dig and a shell.
pub const CLIENT_IMAGE: &str = "registry.k8s.io/e2e-test-images/agnhost:2.59";

/// Options of `kit up`.
#[derive(Clone, Debug)]
pub struct ClusterConfig {
    pub nodes: u8,
    pub proxy: Option<ProxyMode>,
    pub zones: bool,
    /// None starts a cluster without Beeline.
    pub beeline: Option<BeelineInstall>,
    /// Whether to start cluster DNS and load-balancer addresses.
    pub addon: bool,
}

/// How Beeline is installed in a new cluster.
#[derive(Clone, Debug)]
pub struct BeelineInstall {
    pub binary: PathBuf,
    /// Install the chart instead of starting an agent process on every node.
    pub chart: bool,
}

/// A running cluster.
#[derive(Debug)]
pub struct TestCluster {
    pub cache: Cache,
    pub config: SavedConfig,
}

impl TestCluster {
    /// Starts a cluster. A failed start leaves everything in place for inspection; `down` removes it.
    pub fn up(config: &ClusterConfig) -> Result<TestCluster> {
        let cache = Cache::open()?;
        cache.require_built()?;
        ensure!(rustix::process::geteuid().is_root(), "namespaces and cgroups need root: run with sudo");
        let exists =
            CgroupTree::find()?.exists() || !network::namespaces().is_empty() || state::path("cluster.json").exists();
        ensure!(!exists, "a cluster is running, or was not removed completely: run `kit down` first");
        let _lock = state::lock()?;
        let saved = SavedConfig { nodes: config.nodes, zones: config.zones, proxy: config.proxy };
        let cluster = TestCluster { cache, config: saved };
        if config.beeline.as_ref().is_some_and(|beeline| beeline.chart) {
            chart::require_helm(&cluster)?;
        }
        cluster.start(config).context("the cluster did not start; `kit down` removes what was started")?;
        Ok(cluster)
    }

    /// The cluster that runs on this machine.
    pub fn find() -> Result<TestCluster> {
        Ok(TestCluster { cache: Cache::open()?, config: SavedConfig::load()? })
    }

    pub fn nodes(&self) -> Vec<NodeId> {
        self.config.nodes().expect("the number of nodes was checked by `up`")
    }

    fn start(&self, config: &ClusterConfig) -> Result<()> {
        let nodes = self.config.nodes()?;
        remove_logs(&self.cache)?;
        state::make()?;
        self.config.save()?;
        timed("certificates", || kubeconfig::make(&certificate::make(&state::path("pki"))?, &nodes))?;
        timed("network", || network::make(&nodes))?;
        self.control_plane("etcd")?.start()?;
        self.control_plane("kube-apiserver")?.start()?;
        timed("nodes", || for_each(&nodes, |node| self.prepare_node(node)))?;
        timed("API server", || self.wait_for_api())?;
        self.control_plane("kube-controller-manager")?.start()?;
        self.control_plane("kube-scheduler")?.start()?;
        self.apply(&manifest::list(&nodes, &self.config))?;
        self.apply_text(manifest::HOST_ROLE)?;
        for_each(&nodes, |node| node::kubelet(node, &self.cache)?.start())?;
        if let Some(mode) = config.proxy {
            timed("kube-proxy", || for_each(&nodes, |node| proxy::start(node, mode, &self.cache)))?;
        }
        if config.addon {
            self.control_plane("addon")?.start()?;
        }
        timed("nodes ready", || self.wait_for_nodes())?;
        match &config.beeline {
            Some(beeline) => timed("Beeline", || self.install_beeline(beeline, config.proxy.is_some())),
            None => Ok(()),
        }
    }

    fn install_beeline(&self, beeline: &BeelineInstall, beside_proxy: bool) -> Result<()> {
        if beeline.chart {
            chart::import_image(self, &beeline.binary)?;
            return chart::install(self, &chart::values(beside_proxy)?);
        }
        chart::define_policies(self)?;
        for_each(&self.nodes(), |node| start_agent(node, &beeline.binary, beside_proxy))
    }

    fn prepare_node(&self, node: NodeId) -> Result<()> {
        node::make(node, &self.cache)?;
        let containerd = node::containerd(node, &self.cache)?;
        containerd.start()?;
        node::wait_for_containerd(node, &containerd)
    }

    pub fn control_plane(&self, name: &str) -> Result<Component> {
        control_plane::component(name, &self.cache)
    }

    /// A component by its title, such as `etcd` or `n1/kubelet`.
    pub fn component(&self, title: &str) -> Result<Component> {
        let Some((node, name)) = title.split_once('/') else { return self.control_plane(title) };
        if node == "control" {
            return self.control_plane(name);
        }
        let node: NodeId = node.parse()?;
        ensure!(self.nodes().contains(&node), "this cluster has no node {node}");
        match name {
            "containerd" => node::containerd(node, &self.cache),
            "kubelet" => node::kubelet(node, &self.cache),
            "kube-proxy" => proxy::component(node, &self.cache),
            agent::NAME => agent::component(node),
            _ => bail!("a node has no component {name:?}: it has containerd, kubelet, kube-proxy and {}", agent::NAME),
        }
    }

    /// Starts a component. For the API server, waits until it is ready.
    pub fn start_component(&self, title: &str) -> Result<()> {
        let component = self.component(title)?;
        component.start()?;
        match component.name.as_str() {
            "kube-apiserver" => self.wait_for_api(),
            _ => Ok(()),
        }
    }

    pub fn restart_component(&self, title: &str) -> Result<()> {
        self.component(title)?.stop()?;
        self.start_component(title)
    }

    /// Titles of all components, running or not.
    pub fn components(&self) -> Vec<String> {
        let control_plane = control_plane::COMPONENTS.iter().map(|name| (*name).to_owned());
        let names = ["containerd", "kubelet", "kube-proxy", agent::NAME];
        let of_nodes = self.nodes().into_iter().flat_map(|node| names.map(|name| format!("{node}/{name}")));
        control_plane.chain(of_nodes).collect()
    }

    pub fn wait_for_api(&self) -> Result<()> {
        let (etcd, api) = (self.control_plane("etcd")?, self.control_plane("kube-apiserver")?);
        wait::until(Timeout::new("the API server", 90, api.log()), || {
            etcd.require_running()?;
            api.require_running()?;
            Ok(self.kubectl(&["get", "--raw=/readyz", "--request-timeout=2s"]).ok().map(drop))
        })
    }

    fn wait_for_nodes(&self) -> Result<()> {
        let kubelets: Vec<Component> =
            self.nodes().into_iter().map(|node| node::kubelet(node, &self.cache)).collect::<Result<_>>()?;
        for (node, kubelet) in self.nodes().into_iter().zip(&kubelets) {
            wait::until(Timeout::new(format!("node {node} to become ready"), 90, kubelet.log()), || {
                kubelets.iter().try_for_each(Component::require_running)?;
                Ok(self.is_ready(node)?.then_some(()))
            })?;
        }
        Ok(())
    }

    fn is_ready(&self, node: NodeId) -> Result<bool> {
        let query = "-o=jsonpath={.status.conditions[?(@.type==\"Ready\")].status}";
        Ok(self.kubectl(&["get", "node", &node.name(), query])? == "True")
    }

    pub fn kubeconfig(&self, user: &str) -> PathBuf {
        state::kubeconfig(user)
    }

    /// Runs kubectl as administrator and returns its output.
    pub fn kubectl(&self, arguments: &[&str]) -> Result<String> {
        subprocess::run(self.kubectl_command()?.args(arguments))
    }

    pub fn apply(&self, objects: &Value) -> Result<()> {
        self.apply_text(&objects.to_string())
    }

    pub fn apply_text(&self, text: &str) -> Result<()> {
        let arguments = ["apply", "--server-side", "-f", "-"];
        subprocess::run_with_input(self.kubectl_command()?.args(arguments), text.as_bytes()).map(drop)
    }

    /// kubectl with an administrator's kubeconfig, passed by environment because plugins accept no option before their
    /// name.
    pub fn kubectl_command(&self) -> Result<Command> {
        let mut command = self.command(Location::ControlPlane)?;
        command.arg(self.cache.program("kubectl")).env("KUBECONFIG", state::kubeconfig("admin"));
        Ok(command)
    }

    /// Runs a program inside a node and returns its output.
    pub fn node(&self, node: NodeId, arguments: &[&str]) -> Result<String> {
        subprocess::run(self.command(Location::Node(node))?.args(arguments))
    }

    /// Runs a program on a host outside the cluster and returns its output.
    pub fn host(&self, host: HostId, arguments: &[&str]) -> Result<String> {
        subprocess::run(self.command(Location::Host(host))?.args(arguments))
    }

    /// A command prefix that runs a program in a location. The caller adds the program and its arguments.
    pub fn command(&self, location: Location) -> Result<Command> {
        let mut command = Command::new(component::program()?);
        match location {
            Location::ControlPlane => command.arg("control"),
            Location::Node(node) => command.args(["node", &node.name()]),
            Location::Host(host) => command.args(["host", &host.name()]),
        };
        command.arg("--");
        Ok(command)
    }

    /// Builds an image with this program and other files, and imports it into every node.
    pub fn add_image(&self, name: &str, binary: &Path, with: &[String]) -> Result<()> {
        let archive = timed("image", || image_store::make_image(&self.cache, name, binary, with))?;
        for node in self.nodes() {
            timed(&format!("import into {node}"), || node::import(node, &archive, &self.cache))?;
        }
        report(format!("{name} is on every node; use it with imagePullPolicy: Never"));
        Ok(())
    }

    pub fn set_proxy(&mut self, mode: Option<ProxyMode>) -> Result<()> {
        for_each(&self.nodes(), |node| match mode {
            Some(mode) => proxy::start(node, mode, &self.cache),
            None => proxy::stop(node, &self.cache),
        })?;
        self.config.proxy = mode;
        self.config.save()
    }

    pub fn down(self) -> Result<()> {
        down()
    }
}

/// Stops and removes everything of a cluster. Succeeds if there is none.
pub fn down() -> Result<()> {
    ensure!(rustix::process::geteuid().is_root(), "namespaces and cgroups need root: run with sudo");
    let _lock = state::lock()?;
    CgroupTree::find()?.remove()?;
    network::remove()?;
    host::remove_pins();
    remove_state()
}

/// Starts an agent. Beside a kube-proxy it uses other ports.
fn start_agent(node: NodeId, binary: &Path, beside_proxy: bool) -> Result<()> {
    let extra: &[String] = if beside_proxy { &["--beside-kube-proxy".to_owned()] } else { &[] };
    agent::start(node, binary, extra)?;
    agent::wait_until_ready(node, beside_proxy)
}

/// Retries, because the kernel removes a node's mounts only after the node's last process has been reaped.
fn remove_state() -> Result<()> {
    let timeout = Timeout { what: format!("removal of {}", state::ROOT), limit: Duration::from_secs(20), log: None };
    let mut last = None;
    let removed = wait::until(timeout, || match state::remove() {
        Ok(()) => Ok(Some(())),
        Err(error) => {
            last = Some(error);
            Ok(None)
        }
    });
    removed.map_err(|error| last.map_or(error, |last| last))
}

fn remove_logs(cache: &Cache) -> Result<()> {
    let dir = cache.path("log");
    fs::create_dir_all(&dir)?;
    for entry in fs::read_dir(&dir)?.flatten() {
        if !entry.file_name().to_string_lossy().starts_with("build-") {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// Runs `work` for all nodes in parallel, and returns the first error.
fn for_each(nodes: &[NodeId], work: impl Fn(NodeId) -> Result<()> + Sync) -> Result<()> {
    let work = &work;
    let results: Vec<Result<()>> = thread::scope(|scope| {
        let threads: Vec<_> = nodes.iter().map(|node| (*node, scope.spawn(move || work(*node)))).collect();
        let join = |(node, thread): (NodeId, thread::ScopedJoinHandle<Result<()>>)| {
            thread.join().expect("no thread panics").with_context(|| format!("node {node}"))
        };
        threads.into_iter().map(join).collect()
    });
    results.into_iter().collect()
}

/// Prints commands that work in the new cluster.
pub fn print_usage(cluster: &TestCluster, beeline: Option<&BeelineInstall>) {
    let kit = component::program().map(|path| path.display().to_string()).unwrap_or_else(|_| "kit".into());
    let (image, logs) = (CLIENT_IMAGE, cluster.cache.path("log"));
    report("the cluster is up. Try it:\n");
    println!("alias kit={kit}");
    println!("kit kubectl create deployment web --image={image} --replicas=2 -- /agnhost netexec --http-port=8080");
    println!("kit kubectl expose deployment web --port=80 --target-port=8080");
    println!("kit kubectl wait --for=condition=Available --timeout=60s deployment/web");
    println!("kit kubectl run client --rm -i --restart=Never --image={image} --command -- curl -s http://web/hostname");
    match beeline {
        Some(beeline) if beeline.chart => println!("kit kubectl beeline --node n1 services"),
        Some(_) => println!("kit node 1 -- beeline services"),
        None => {}
    }
    println!();
    report("kit node 1 -- ip addr        runs a command inside node n1");
    report("kit host add h1              adds a host outside that joins the cluster");
    report("kit status                   lists the components");
    report("kit down                     stops and removes the cluster");
    report(format!("logs: {}", logs.display()));
}
