//! The client of `explain --from`: a process, a cgroup or a pod, and what its cgroups mean for its dials.

use super::Agent;
use crate::live_tables::LiveTables;
use anyhow::{Context, anyhow, bail};
use beeline_api::{AgentClient, PodLocation};
use beeline_datapath::cgroup;
use beeline_datapath::packet::PodRangeTable;
use beeline_model::Address;
use beeline_model::resolve::Dial;
use beeline_model::resolve_packet::{PacketOrigin, SourceRules};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// Where the client is, before the tables are read.
#[derive(Debug)]
pub struct ClientLocation {
    cgroup: PathBuf,
    /// In the host's network namespace.
    host: bool,
    text: String,
    /// Why the pod of the client is excluded, if it is known.
    exclusion: Option<String>,
}

#[derive(Debug, Default)]
pub struct ExplainClient {
    pub host: bool,
    /// The ids of the client's cgroup and of those above it.
    pub cgroups: Vec<u64>,
    pub view: u32,
    /// Why the dials of this client are left unchanged.
    pub excluded: Option<String>,
    /// `None`: `--from` was not given.
    pub text: Option<String>,
    /// The client is the sender of a packet, and not a process of this host.
    pub packet: Option<PacketClient>,
}

/// The sender of a packet that arrives at this node.
#[derive(Clone, Copy, Debug)]
pub struct PacketClient {
    pub source: Address,
    pub origin: PacketOrigin,
    pub rules: SourceRules,
}

/// `from`: a process id, a directory, or a pod's NAME or NAMESPACE/NAME.
pub fn locate(from: &str, agent: &AgentClient) -> anyhow::Result<ClientLocation> {
    if let Ok(pid) = from.parse() {
        return locate_process(pid);
    }
    if from.starts_with(['/', '.']) {
        return Ok(ClientLocation {
            cgroup: from.into(),
            host: false,
            text: format!("cgroup {from}"),
            exclusion: None,
        });
    }
    locate_pod(from, agent)
}

fn locate_process(pid: u32) -> anyhow::Result<ClientLocation> {
    let own = network_namespace(pid)?;
    let host = is_host_namespace(&own);
    let place = if host { "in the host's network namespace" } else { "in its own network namespace" };
    let text = format!("process {pid}, {place}");
    Ok(ClientLocation { cgroup: cgroup::of_process(pid)?, host, text, exclusion: None })
}

fn network_namespace(pid: u32) -> anyhow::Result<PathBuf> {
    std::fs::read_link(format!("/proc/{pid}/ns/net")).map_err(|error| match error.kind() {
        ErrorKind::PermissionDenied => {
            anyhow!(
                "--from {pid}: permission denied: reading the network namespace of process {pid} needs root and \
                 CAP_SYS_PTRACE"
            )
        }
        ErrorKind::NotFound => anyhow!("--from {pid}: there is no process {pid}"),
        _ => anyhow!("--from {pid}: cannot read the network namespace of process {pid}: {error}"),
    })
}

/// Process 1 may be out of sight, as in a container. Then this command itself is taken to run on the host's network, as it
/// does in the agent's pod.
fn is_host_namespace(namespace: &Path) -> bool {
    network_namespace(1).or_else(|_| network_namespace(std::process::id())).is_ok_and(|host| host == namespace)
}

fn locate_pod(name: &str, agent: &AgentClient) -> anyhow::Result<ClientLocation> {
    let pods =
        agent.pods(name).with_context(|| format!("--from {name}: only the agent knows the pods of this node"))?;
    let pod = match &pods[..] {
        [] => {
            bail!("--from {name}: this node has no pod {name}; give a process id, a cgroup directory or a pod's name")
        }
        [pod] => pod,
        several => {
            let names: Vec<String> = several.iter().map(|pod| format!("{}/{}", pod.namespace, pod.name)).collect();
            bail!("--from {name}: several pods have this name: {}", names.join(", "))
        }
    };
    let PodLocation { namespace, name, cgroup, exclusion } = pod;
    let cgroup = cgroup.clone().ok_or_else(|| {
        anyhow!("--from {namespace}/{name}: its cgroup is not found below the agent's --cgroup: is the pod running?")
    })?;
    let host = is_in_host_namespace(&cgroup);
    Ok(ClientLocation { cgroup, host, text: format!("pod {namespace}/{name}"), exclusion: exclusion.clone() })
}

/// A pod with hostNetwork: decided by one of its processes.
fn is_in_host_namespace(cgroup: &Path) -> bool {
    let process = first_process(cgroup);
    process.is_some_and(|pid| network_namespace(pid).is_ok_and(|own| is_host_namespace(&own)))
}

fn first_process(cgroup: &Path) -> Option<u32> {
    let own = std::fs::read_to_string(cgroup.join("cgroup.procs")).ok()?;
    let below = || {
        let children = std::fs::read_dir(cgroup).into_iter().flatten().flatten();
        children.filter(|entry| entry.path().is_dir()).find_map(|entry| first_process(&entry.path()))
    };
    own.lines().find_map(|line| line.parse().ok().filter(|pid| *pid != 0)).or_else(below)
}

impl ExplainClient {
    /// A process on the host that no rule applies to.
    pub fn host() -> ExplainClient {
        ExplainClient { host: true, ..ExplainClient::default() }
    }

    /// The sender of packets with this source address. `rules` and the pod ranges are those of the live tables.
    pub fn packet(source: Address, tables: &LiveTables) -> anyhow::Result<ExplainClient> {
        let is_pod = PodRangeTable::new(&tables.maps)?.contains(source)?;
        let (detects_pods, masquerades_all) = tables.control()?.packet_flags();
        let origin = if is_pod { PacketOrigin::Pod } else { PacketOrigin::Outside };
        let place = if is_pod { "of a pod" } else { "from outside the cluster" };
        let rules = SourceRules { detects_pods, masquerades_all };
        let packet = Some(PacketClient { source, origin, rules });
        Ok(ExplainClient { text: Some(format!("packet {place}, source {source}")), packet, ..ExplainClient::default() })
    }

    pub fn new(location: ClientLocation, tables: &LiveTables, agent: &Agent) -> anyhow::Result<ExplainClient> {
        let ClientLocation { cgroup: path, host, text, exclusion } = location;
        cgroup::id(&path).with_context(|| format!("--from {}", path.display()))?;
        let cgroups: Vec<u64> = path.ancestors().filter_map(|p| cgroup::id(p).ok()).collect();
        let rules = tables.control()?.rules();
        // From the client's cgroup upwards: the nearest rule decides the view.
        let found: Vec<_> = cgroups.iter().filter_map(|id| rules.get(id)).copied().collect();
        let excluded = found.iter().any(|rule| rule.excluded).then(|| {
            exclusion.unwrap_or_else(|| {
                "the client is in an excluded cgroup (--exclude-cgroup, its pod's annotation or sidecar, the label of its \
                 namespace, or an annotation with an unknown view: see `beeline status`)"
                    .to_owned()
            })
        });
        let served = agent.status.as_ref().ok().map(|status| PathBuf::from(&status.kernel.cgroup));
        // Compared by id: a container may see the same cgroup at another path.
        let not_served = served.filter(|served| cgroup::id(served).is_ok_and(|id| !cgroups.contains(&id)));
        let not_served = not_served
            .map(|served| format!("the client is not below {}, the cgroup that the agent serves", served.display()));
        let view = found.first().map_or(0, |rule| rule.view);
        Ok(ExplainClient { host, cgroups, view, excluded: not_served.or(excluded), text: Some(text), packet: None })
    }

    pub fn dial(&self, destination: &Dial) -> Dial {
        let source = self.packet.map(|packet| packet.source).or(destination.source);
        Dial { host: self.host, cgroups: self.cgroups.clone(), view: self.view, source, ..destination.clone() }
    }
}
