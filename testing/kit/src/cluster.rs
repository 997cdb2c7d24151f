//! The whole: up, down, and the ways in. Integration tests use it as the command line does.
//!
//! ```no_run
//! # fn main() -> anyhow::Result<()> {
//! let cluster = kit::Cluster::up(&kit::Wish { nodes: 3, proxy: None, zones: false, agent: None, addon: true })?;
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
    agent,
    cache::Cache,
    call, certificate,
    cgroup::Tree,
    control, host, kubeconfig, manifest,
    namespace::Place,
    network, node,
    part::{self, Part},
    plan::{Host, Node},
    progress::{quick, say},
    proxy::{self, Mode},
    state::{self, Shape},
    store,
    wait::{self, Patience},
};

/// What is asked of `up`.
#[derive(Clone, Debug)]
pub struct Wish {
    pub nodes: u8,
    pub proxy: Option<Mode>,
    pub zones: bool,
    /// The program of Beeline to run on every node.
    pub agent: Option<PathBuf>,
    /// Cluster DNS and load-balancer addresses.
    pub addon: bool,
}

/// A cluster that is up.
#[derive(Debug)]
pub struct Cluster {
    pub cache: Cache,
    pub shape: Shape,
}

impl Cluster {
    /// Leaves what it made where it fails, to be looked at; `down` removes it.
    pub fn up(wish: &Wish) -> Result<Cluster> {
        let cache = Cache::open()?;
        cache.require_built()?;
        ensure!(rustix::process::geteuid().is_root(), "namespaces and cgroups need root: run with sudo");
        let left = Tree::find()?.exists() || !network::namespaces().is_empty() || state::path("cluster.json").exists();
        ensure!(!left, "a cluster is up, or was not taken down: `kit down` first");
        let _lock = state::lock()?;
        let shape = Shape { nodes: wish.nodes, zones: wish.zones, proxy: wish.proxy };
        let cluster = Cluster { cache, shape };
        cluster.start(wish).context("the cluster did not come up (`kit down` removes what is there of it)")?;
        Ok(cluster)
    }

    /// The one that runs on this machine.
    pub fn find() -> Result<Cluster> {
        Ok(Cluster { cache: Cache::open()?, shape: Shape::load()? })
    }

    pub fn nodes(&self) -> Vec<Node> {
        self.shape.nodes().expect("checked when the cluster was made")
    }

    fn start(&self, wish: &Wish) -> Result<()> {
        let nodes = self.shape.nodes()?;
        empty_logs(&self.cache)?;
        state::make()?;
        self.shape.save()?;
        quick("certificates", || kubeconfig::make(&certificate::make(&state::path("pki"))?, &nodes))?;
        quick("network", || network::make(&nodes))?;
        self.control("etcd")?.start()?;
        self.control("kube-apiserver")?.start()?;
        quick("nodes", || each(&nodes, |node| self.prepare_node(node)))?;
        quick("API server", || self.wait_for_api())?;
        self.control("kube-controller-manager")?.start()?;
        self.control("kube-scheduler")?.start()?;
        self.apply(&manifest::list(&nodes, &self.shape))?;
        self.apply_text(manifest::HOST_ROLE)?;
        each(&nodes, |node| node::kubelet(node, &self.cache)?.start())?;
        if let Some(mode) = wish.proxy {
            quick("kube-proxy", || each(&nodes, |node| proxy::start(node, mode, &self.cache)))?;
        }
        if wish.addon {
            self.control("addon")?.start()?;
        }
        quick("nodes ready", || self.wait_for_nodes())?;
        if let Some(binary) = &wish.agent {
            quick("Beeline", || each(&nodes, |node| start_agent(node, binary, wish.proxy.is_some())))?;
        }
        Ok(())
    }

    fn prepare_node(&self, node: Node) -> Result<()> {
        node::make(node, &self.cache)?;
        let containerd = node::containerd(node, &self.cache)?;
        containerd.start()?;
        node::wait_for_containerd(node, &containerd)
    }

    pub fn control(&self, name: &str) -> Result<Part> {
        control::part(name, &self.cache)
    }

    /// By its title: `etcd`, `n1/kubelet`.
    pub fn part(&self, title: &str) -> Result<Part> {
        let Some((node, name)) = title.split_once('/') else { return self.control(title) };
        if node == "control" {
            return self.control(name);
        }
        let node: Node = node.parse()?;
        ensure!(self.nodes().contains(&node), "this cluster has no node {node}");
        match name {
            "containerd" => node::containerd(node, &self.cache),
            "kubelet" => node::kubelet(node, &self.cache),
            "kube-proxy" => proxy::part(node, &self.cache),
            agent::NAME => agent::part(node),
            _ => bail!("a node has no part {name:?}: it has containerd, kubelet, kube-proxy and {}", agent::NAME),
        }
    }

    /// Starts a part; the API server also answers when this returns.
    pub fn start_part(&self, title: &str) -> Result<()> {
        let part = self.part(title)?;
        part.start()?;
        match part.name.as_str() {
            "kube-apiserver" => self.wait_for_api(),
            _ => Ok(()),
        }
    }

    pub fn restart_part(&self, title: &str) -> Result<()> {
        self.part(title)?.stop()?;
        self.start_part(title)
    }

    /// Titles of all parts that there can be.
    pub fn parts(&self) -> Vec<String> {
        let control = control::PARTS.iter().map(|name| (*name).to_owned());
        let names = ["containerd", "kubelet", "kube-proxy", agent::NAME];
        let of_nodes = self.nodes().into_iter().flat_map(|node| names.map(|name| format!("{node}/{name}")));
        control.chain(of_nodes).collect()
    }

    pub fn wait_for_api(&self) -> Result<()> {
        let (etcd, api) = (self.control("etcd")?, self.control("kube-apiserver")?);
        wait::until(Patience::new("the API server", 90, api.log()), || {
            etcd.require_running()?;
            api.require_running()?;
            Ok(self.kubectl(&["get", "--raw=/readyz", "--request-timeout=2s"]).ok().map(drop))
        })
    }

    fn wait_for_nodes(&self) -> Result<()> {
        let kubelets: Vec<Part> =
            self.nodes().into_iter().map(|n| node::kubelet(n, &self.cache)).collect::<Result<_>>()?;
        for (node, kubelet) in self.nodes().into_iter().zip(&kubelets) {
            wait::until(Patience::new(format!("node {node}"), 90, kubelet.log()), || {
                kubelets.iter().try_for_each(Part::require_running)?;
                Ok(self.is_ready(node)?.then_some(()))
            })?;
        }
        Ok(())
    }

    fn is_ready(&self, node: Node) -> Result<bool> {
        let query = "-o=jsonpath={.status.conditions[?(@.type==\"Ready\")].status}";
        Ok(self.kubectl(&["get", "node", &node.name(), query])? == "True")
    }

    pub fn kubeconfig(&self, user: &str) -> PathBuf {
        state::kubeconfig(user)
    }

    /// As administrator; gives what it printed.
    pub fn kubectl(&self, words: &[&str]) -> Result<String> {
        call::run(self.kubectl_command()?.args(words))
    }

    pub fn apply(&self, objects: &Value) -> Result<()> {
        self.apply_text(&objects.to_string())
    }

    fn apply_text(&self, text: &str) -> Result<()> {
        let words = ["apply", "--server-side", "-f", "-"];
        call::run_with_input(self.kubectl_command()?.args(words), text.as_bytes()).map(drop)
    }

    pub fn kubectl_command(&self) -> Result<Command> {
        let mut command = self.command(Place::Control)?;
        command.arg(self.cache.program("kubectl")).arg("--kubeconfig").arg(state::kubeconfig("admin"));
        Ok(command)
    }

    /// Runs a program inside a node; gives what it printed.
    pub fn node(&self, node: Node, words: &[&str]) -> Result<String> {
        call::run(self.command(Place::Node(node))?.args(words))
    }

    /// The same on a host outside the cluster.
    pub fn host(&self, host: Host, words: &[&str]) -> Result<String> {
        call::run(self.command(Place::Host(host))?.args(words))
    }

    /// To which a program and its arguments are added.
    pub fn command(&self, place: Place) -> Result<Command> {
        let mut command = Command::new(part::program()?);
        match place {
            Place::Control => command.arg("control"),
            Place::Node(node) => command.args(["node", &node.name()]),
            Place::Host(host) => command.args(["host", &host.name()]),
        };
        command.arg("--");
        Ok(command)
    }

    /// An image with this program, and others beside it, on every node.
    pub fn add_image(&self, name: &str, binary: &Path, with: &[String]) -> Result<()> {
        let archive = quick("image", || store::make_image(&self.cache, name, binary, with))?;
        for node in self.nodes() {
            quick(&format!("import into {node}"), || node::import(node, &archive, &self.cache))?;
        }
        say(format!("{name} is on every node; use it with imagePullPolicy: Never"));
        Ok(())
    }

    pub fn set_proxy(&mut self, mode: Option<Mode>) -> Result<()> {
        each(&self.nodes(), |node| match mode {
            Some(mode) => proxy::start(node, mode, &self.cache),
            None => proxy::stop(node, &self.cache),
        })?;
        self.shape.proxy = mode;
        self.shape.save()
    }

    pub fn down(self) -> Result<()> {
        down()
    }
}

/// Ends and removes all there is of a cluster, whole or not. Fine if there is nothing.
pub fn down() -> Result<()> {
    ensure!(rustix::process::geteuid().is_root(), "namespaces and cgroups need root: run with sudo");
    let _lock = state::lock()?;
    Tree::find()?.remove()?;
    network::remove()?;
    host::remove_pins();
    remove_state()
}

/// Next to a kube-proxy it takes other ports.
fn start_agent(node: Node, binary: &Path, beside_proxy: bool) -> Result<()> {
    let extra: &[String] = if beside_proxy { &["--beside-kube-proxy".to_owned()] } else { &[] };
    agent::start(node, binary, extra)?;
    agent::wait_until_ready(node, beside_proxy)
}

/// The mounts of a node go when the kernel has buried its last process, a moment after that process is gone.
fn remove_state() -> Result<()> {
    let patience = Patience { what: format!("removal of {}", state::ROOT), limit: Duration::from_secs(20), log: None };
    let mut last = None;
    let done = wait::until(patience, || match state::remove() {
        Ok(()) => Ok(Some(())),
        Err(error) => {
            last = Some(error);
            Ok(None)
        }
    });
    done.map_err(|error| last.map_or(error, |last| last))
}

fn empty_logs(cache: &Cache) -> Result<()> {
    let dir = cache.path("log");
    fs::create_dir_all(&dir)?;
    for entry in fs::read_dir(&dir)?.flatten() {
        if !entry.file_name().to_string_lossy().starts_with("build-") {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// The same for all nodes at once; the first error counts.
fn each(nodes: &[Node], work: impl Fn(Node) -> Result<()> + Sync) -> Result<()> {
    let work = &work;
    let results: Vec<Result<()>> = thread::scope(|scope| {
        let threads: Vec<_> = nodes.iter().map(|node| (*node, scope.spawn(move || work(*node)))).collect();
        let join = |(node, thread): (Node, thread::ScopedJoinHandle<Result<()>>)| {
            thread.join().expect("no thread panics").with_context(|| format!("node {node}"))
        };
        threads.into_iter().map(join).collect()
    });
    results.into_iter().collect()
}

/// How to use what is up now.
pub fn explain(cluster: &Cluster) {
    let kit = part::program().map(|path| path.display().to_string()).unwrap_or_else(|_| "kit".into());
    say("up. How to use it:");
    say(format!("  {kit} kubectl get pods -A         kubectl as administrator"));
    say(format!("  {kit} node 1 -- ip addr           a command inside node n1"));
    say(format!("  {kit} control -- curl -s URL      a command outside the nodes"));
    say(format!("  {kit} status                      what runs"));
    say(format!("  {kit} down                        ends and removes all of it"));
    say(format!("logs: {}", cluster.cache.path("log").display()));
}
