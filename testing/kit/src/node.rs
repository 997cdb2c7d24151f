//! A node: its init process, containerd and kubelet, with the settings that let several nodes share a machine.

use std::{
    fs::{self, File},
    os::unix::net::UnixStream,
    path::Path,
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use crate::{
    address_plan::{CONTROL, DNS, DOMAIN, NAME, NodeId},
    cache::Cache,
    cgroup::CgroupTree,
    component::{self, Component},
    namespace::Location,
    network::namespace_file,
    state, subprocess,
    wait::{self, Timeout},
};

const SOCKET: &str = "/run/containerd/containerd.sock";
pub const PAUSE_IMAGE: &str = "registry.k8s.io/pause:3.10.1";
/// Component name of a node's init process.
const INIT: &str = "init";
const CNI: &str = "cni/10-kit.conflist";

/// The pid of the node's init process in the machine's pid namespace, through which other processes enter the node.
pub fn init_process(node: NodeId) -> Result<i32> {
    let text = fs::read_to_string(state::node(node, "init.pid")).unwrap_or_default();
    let pid: i32 = text.trim().parse().ok().with_context(|| format!("node {node} is not running: see `kit status`"))?;
    let alive =
        CgroupTree::find()?.pids(&format!("{node}/{INIT}"), "kit").iter().any(|known| known.as_raw_pid() == pid);
    ensure!(alive, "the init process of node {node} has ended: run `kit down`, then `kit up`");
    Ok(pid)
}

/// Creates the node's files and namespaces. containerd and kubelet are started later, as components.
pub fn make(node: NodeId, cache: &Cache) -> Result<()> {
    CgroupTree::find()?.make_node(node)?;
    copy_image_store(node, cache)?;
    let json = |value: Value| serde_json::to_vec_pretty(&value);
    state::write(&state::node(node, CNI), json(routed_cni(node))?)?;
    state::write(&state::node(node, "kubelet.json"), json(kubelet_settings(node))?)?;
    state::write(&state::node(node, "resolv.conf"), format!("nameserver {DNS}\n"))?;
    let settings = containerd_settings(cache, &state::node(node, "containerd"), "/run/containerd", Some(node));
    state::write(&state::node(node, "containerd.toml"), settings)?;
    start_init(node, cache)
}

/// Copies containerd's files from the cache. Files that are never changed in place are hard links; containerd's
/// databases are copied.
fn copy_image_store(node: NodeId, cache: &Cache) -> Result<()> {
    let to = state::node(node, "containerd");
    fs::create_dir_all(state::node(node, ""))?;
    if copy("-al", &cache.store(), &to).is_err() {
        let _ = fs::remove_dir_all(&to); // The cache is on another file system, so hard links are impossible.
        copy("-a", &cache.store(), &to)?;
    }
    for table in ["io.containerd.metadata.v1.bolt/meta.db", "io.containerd.snapshotter.v1.overlayfs/metadata.db"] {
        fs::remove_file(to.join(table)).with_context(|| format!("{}: run `kit build`", to.join(table).display()))?;
        fs::copy(cache.store().join(table), to.join(table))?;
    }
    Ok(())
}

/// Runs `cp`, which ends when the kit is killed, so that `kit down` does not race with it.
fn copy(how: &str, from: &Path, to: &Path) -> Result<()> {
    subprocess::run(Command::new("setpriv").args(["--pdeathsig", "KILL", "--", "cp", how]).arg(from).arg(to)).map(drop)
}

fn start_init(node: NodeId, cache: &Cache) -> Result<()> {
    let path = cache.log(&format!("{node}-init"));
    let log = File::create(&path).with_context(|| format!("cannot open {}", path.display()))?;
    let mut child = Command::new(component::program()?)
        .args(["init", &node.name()])
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()
        .context("cannot start the init process")?;
    let timeout = Timeout::new(format!("init process of {node}"), 20, path.clone());
    wait::until(timeout, || match child.try_wait()? {
        Some(status) => bail!("the init process of {node} ended ({status}): read {}", path.display()),
        None => Ok(init_process(node).ok().map(drop)),
    })
}

/// Replaces this process by `unshare`, which runs this program again as the init process in new namespaces.
pub fn exec_init(node: NodeId) -> Result<()> {
    use std::os::unix::process::CommandExt;
    CgroupTree::find()?.join(&format!("{node}/{INIT}"))?;
    rustix::process::setsid().context("cannot start a session")?;
    let network = format!("--net={}", namespace_file(&node.namespace()).display());
    let mut command = Command::new("nsenter");
    command.args([&network, "--", "unshare", "-m", "-u", "-i", "-p", "--fork", "--kill-child", "--"]);
    command.arg(component::program()?).args(["init", "--inside", &node.name()]);
    Err(command.exec()).context("cannot run nsenter and unshare (package util-linux)")
}

pub fn containerd(node: NodeId, cache: &Cache) -> Result<Component> {
    let program = cache.debian("usr/bin/containerd").display().to_string();
    let settings = state::node(node, "containerd.toml").display().to_string();
    Component::new(Location::Node(node), "containerd", vec![program, "--config".into(), settings])
}

/// Waits until containerd accepts connections. A kubelet that finds no containerd exits.
pub fn wait_for_containerd(node: NodeId, containerd: &Component) -> Result<()> {
    let socket = format!("/proc/{}/root{SOCKET}", init_process(node)?);
    wait::until(Timeout::new(format!("containerd of {node}"), 30, containerd.log()), || {
        containerd.require_running()?;
        Ok(UnixStream::connect(Path::new(&socket)).ok().map(drop))
    })
}

pub fn kubelet(node: NodeId, cache: &Cache) -> Result<Component> {
    let addresses = node.addresses().map(|address| address.to_string()).join(",");
    let arguments = vec![
        cache.program("kubelet").display().to_string(),
        format!("--config={}", state::node(node, "kubelet.json").display()),
        format!("--kubeconfig={}", state::kubeconfig(&node.name()).display()),
        format!("--hostname-override={node}"),
        format!("--node-ip={addresses}"),
        "--v=2".into(),
    ];
    Component::new(Location::Node(node), "kubelet", arguments)
}

fn kubelet_settings(node: NodeId) -> Value {
    json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "cgroupDriver": "cgroupfs",
        // Without a root of its own, each kubelet would treat the other nodes' pods as orphans and remove them.
        "cgroupRoot": format!("/{NAME}/{node}"),
        "failCgroupV1": false,
        "enforceNodeAllocatable": ["none"],
        "authentication": {
            "anonymous": {"enabled": false},
            "webhook": {"enabled": true},
            "x509": {"clientCAFile": state::path("pki/ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "clusterDNS": [DNS],
        "clusterDomain": DOMAIN,
        "resolvConf": state::node(node, "resolv.conf"),
        "containerRuntimeEndpoint": format!("unix://{SOCKET}"),
        "failSwapOn": false,
        "serializeImagePulls": false,
        // The disk is shared with the machine: no image may be removed and no pod evicted because other programs fill
        // it.
        "imageGCHighThresholdPercent": 100,
        "evictionHard": {
            "nodefs.available": "0%", "nodefs.inodesFree": "0%", "imagefs.available": "0%", "memory.available": "50Mi",
        },
    })
}

/// CNI configuration with the node's own pod range. Address leases are kept in the node's /run.
fn routed_cni(node: NodeId) -> Value {
    let ranges: Vec<Value> = node.pods().iter().map(|range| json!([{"subnet": range}])).collect();
    let ipam = json!({
        "type": "host-local",
        "dataDir": "/run/cni",
        "ranges": ranges,
        "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}],
    });
    json!({
        "cniVersion": "0.4.0",
        "name": "kit",
        "plugins": [
            {"type": "ptp", "mtu": 1500, "ipMasq": false, "ipam": ipam},
            {"type": "portmap", "capabilities": {"portMappings": true}},
        ],
    })
}

/// Pods created on this node from now on get macvlan interfaces on the nodes' network, so every host on that network
/// reaches them without a route. The node itself does not reach them, as with every macvlan.
pub fn set_macvlan(node: NodeId) -> Result<()> {
    write_cni(node, &macvlan_cni(node))
}

/// Pods created from now on are routed through the node again.
pub fn set_routed(node: NodeId) -> Result<()> {
    write_cni(node, &routed_cni(node))
}

/// Writes in place: containerd reloads the folder when a file in it is written, but not when one is renamed into it.
fn write_cni(node: NodeId, settings: &Value) -> Result<()> {
    state::write(&state::node(node, CNI), serde_json::to_vec_pretty(settings)?)
}

fn macvlan_cni(node: NodeId) -> Value {
    let ranges: Vec<Value> = node.macvlan_ranges().into_iter().zip(CONTROL).map(|((subnet, [start, end]), gateway)| {
        json!([{"subnet": subnet, "rangeStart": start, "rangeEnd": end, "gateway": gateway}])
    }).collect();
    let ipam = json!({
        "type": "host-local",
        "dataDir": "/run/cni-macvlan",
        "ranges": ranges,
        "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}],
    });
    json!({
        "cniVersion": "0.4.0",
        "name": "kit-macvlan",
        "plugins": [{"type": "macvlan", "master": "eth0", "mode": "bridge", "ipam": ipam}],
    })
}

/// containerd's configuration. `node` is None while the image store is built.
pub fn containerd_settings(cache: &Cache, root: &Path, state: &str, node: Option<NodeId>) -> String {
    let configuration = node.map(|node| state::node(node, "cni")).unwrap_or_default();
    format!(
        r#"version = 2
root = "{root}"
state = "{state}"
[grpc]
  address = "{state}/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE_IMAGE}"
  # Where root lacks CAP_SYS_RESOURCE, runc may not lower oom_score_adj, and ends with a broken pipe.
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{plugins}"
    conf_dir = "{configuration}"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
        BinaryName = "{runc}"
"#,
        root = root.display(),
        plugins = cache.debian("usr/lib/cni").display(),
        configuration = configuration.display(),
        runc = cache.debian("usr/sbin/runc").display(),
    )
}

/// Imports an archive of images into a running node.
pub fn import(node: NodeId, archive: &Path, cache: &Cache) -> Result<()> {
    let mut command = Command::new(component::program()?);
    command.args(["node", &node.name(), "--"]).arg(cache.debian("usr/bin/ctr"));
    command.args(["-n", "k8s.io", "images", "import", "-"]).stdin(File::open(archive)?);
    let output = command.output().context("cannot run ctr")?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "import {} into {node}: {}", archive.display(), stderr.trim());
    Ok(())
}
