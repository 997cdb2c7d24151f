//! A node: its first process, containerd and kubelet, each with the settings that let several of them share a machine.

use std::{
    fs::{self, File},
    os::unix::net::UnixStream,
    path::Path,
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use crate::{
    cache::Cache,
    call,
    cgroup::Tree,
    namespace::Place,
    network::namespace_file,
    part::{self, Part},
    plan::{CONTROL, DNS, DOMAIN, NAME, Node},
    state,
    wait::{self, Patience},
};

const SOCKET: &str = "/run/containerd/containerd.sock";
pub const PAUSE_IMAGE: &str = "registry.k8s.io/pause:3.10.1";
/// The part under which a node's first process runs.
const FIRST: &str = "first";
const CNI: &str = "cni/10-kit.conflist";

/// The pid of the node's first process, as the machine sees it; it leads into all namespaces of the node.
pub fn first_process(node: Node) -> Result<i32> {
    let text = fs::read_to_string(state::node(node, "first.pid")).unwrap_or_default();
    let pid: i32 = text.trim().parse().ok().with_context(|| format!("node {node} is not up (`kit status`)"))?;
    let alive = Tree::find()?.pids(&format!("{node}/{FIRST}"), "kit").iter().any(|known| known.as_raw_pid() == pid);
    ensure!(alive, "the first process of node {node} has ended: `kit down`, then `kit up`");
    Ok(pid)
}

/// Makes the node's files and namespaces. Containerd and kubelet come later, as parts.
pub fn make(node: Node, cache: &Cache) -> Result<()> {
    Tree::find()?.make_node(node)?;
    copy_store(node, cache)?;
    let json = |value: Value| serde_json::to_vec_pretty(&value);
    state::write(&state::node(node, CNI), json(cni(node))?)?;
    state::write(&state::node(node, "kubelet.json"), json(kubelet_settings(node))?)?;
    state::write(&state::node(node, "resolv.conf"), format!("nameserver {DNS}\n"))?;
    let settings = containerd_settings(cache, &state::node(node, "containerd"), "/run/containerd", Some(node));
    state::write(&state::node(node, "containerd.toml"), settings)?;
    start_first(node, cache)
}

/// Files that are never changed in place are shared with the cache by hard links; containerd's tables are copied.
fn copy_store(node: Node, cache: &Cache) -> Result<()> {
    let to = state::node(node, "containerd");
    fs::create_dir_all(state::node(node, ""))?;
    if copy("-al", &cache.store(), &to).is_err() {
        let _ = fs::remove_dir_all(&to); // Another file system: no links from one to the other.
        copy("-a", &cache.store(), &to)?;
    }
    for table in ["io.containerd.metadata.v1.bolt/meta.db", "io.containerd.snapshotter.v1.overlayfs/metadata.db"] {
        fs::remove_file(to.join(table)).with_context(|| format!("{}: run `kit build`", to.join(table).display()))?;
        fs::copy(cache.store().join(table), to.join(table))?;
    }
    Ok(())
}

/// Ends with the kit, if that is killed: `down` removes what `cp` writes.
fn copy(how: &str, from: &Path, to: &Path) -> Result<()> {
    call::run(Command::new("setpriv").args(["--pdeathsig", "KILL", "--", "cp", how]).arg(from).arg(to)).map(drop)
}

fn start_first(node: Node, cache: &Cache) -> Result<()> {
    let path = cache.log(&format!("{node}-first"));
    let log = File::create(&path).with_context(|| format!("open {}", path.display()))?;
    let mut child = Command::new(part::program()?)
        .args(["first", &node.name()])
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()
        .context("start the first process")?;
    let patience = Patience::new(format!("first process of {node}"), 20, path.clone());
    wait::until(patience, || match child.try_wait()? {
        Some(status) => bail!("the first process of {node} ended ({status}): read {}", path.display()),
        None => Ok(first_process(node).ok().map(drop)),
    })
}

/// Becomes `unshare`, which starts this program again as first process in namespaces of its own.
pub fn exec_first(node: Node) -> Result<()> {
    use std::os::unix::process::CommandExt;
    Tree::find()?.join(&format!("{node}/{FIRST}"))?;
    rustix::process::setsid().context("start a session")?;
    let network = format!("--net={}", namespace_file(&node.namespace()).display());
    let mut command = Command::new("nsenter");
    command.args([&network, "--", "unshare", "-m", "-u", "-i", "-p", "--fork", "--kill-child", "--"]);
    command.arg(part::program()?).args(["first", "--inside", &node.name()]);
    Err(command.exec()).context("run nsenter and unshare (package util-linux)")
}

pub fn containerd(node: Node, cache: &Cache) -> Result<Part> {
    let program = cache.debian("usr/bin/containerd").display().to_string();
    let settings = state::node(node, "containerd.toml").display().to_string();
    Part::new(Place::Node(node), "containerd", vec![program, "--config".into(), settings])
}

/// A kubelet ends when it finds no containerd, so this comes between the two.
pub fn wait_for_containerd(node: Node, containerd: &Part) -> Result<()> {
    let socket = format!("/proc/{}/root{SOCKET}", first_process(node)?);
    wait::until(Patience::new(format!("containerd of {node}"), 30, containerd.log()), || {
        containerd.require_running()?;
        Ok(UnixStream::connect(Path::new(&socket)).ok().map(drop))
    })
}

pub fn kubelet(node: Node, cache: &Cache) -> Result<Part> {
    let addresses = node.addresses().map(|address| address.to_string()).join(",");
    let words = vec![
        cache.program("kubelet").display().to_string(),
        format!("--config={}", state::node(node, "kubelet.json").display()),
        format!("--kubeconfig={}", state::kubeconfig(&node.name()).display()),
        format!("--hostname-override={node}"),
        format!("--node-ip={addresses}"),
        "--v=2".into(),
    ];
    Part::new(Place::Node(node), "kubelet", words)
}

fn kubelet_settings(node: Node) -> Value {
    json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "cgroupDriver": "cgroupfs",
        // Without a root of its own, each kubelet would take the other nodes' pods for leftovers and remove them.
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
        // The machine's disk is not the node's: no image may be thrown away, nobody evicted, because others fill it.
        "imageGCHighThresholdPercent": 100,
        "evictionHard": {
            "nodefs.available": "0%", "nodefs.inodesFree": "0%", "imagefs.available": "0%", "memory.available": "50Mi",
        },
    })
}

/// Addresses of pods come from the node's range, and their leases are forgotten with its /run.
fn cni(node: Node) -> Value {
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

/// Pods that are made on this node from now on stand on the nodes' own network, beside the nodes: whoever is on it reaches
/// them without a route. The node itself does not, as with every macvlan.
pub fn set_macvlan(node: Node) -> Result<()> {
    write_cni(node, &macvlan(node))
}

/// Pods from now on are again behind the node.
pub fn set_routed(node: Node) -> Result<()> {
    write_cni(node, &cni(node))
}

/// In place: containerd reads the folder again when a file in it is written, but not when one comes by a rename.
fn write_cni(node: Node, settings: &Value) -> Result<()> {
    state::write(&state::node(node, CNI), serde_json::to_vec_pretty(settings)?)
}

fn macvlan(node: Node) -> Value {
    let ranges: Vec<Value> = node.neighbours().into_iter().zip(CONTROL).map(|((subnet, [start, end]), gateway)| {
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

/// Also used without a node, to fill the store.
pub fn containerd_settings(cache: &Cache, root: &Path, state: &str, node: Option<Node>) -> String {
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
pub fn import(node: Node, archive: &Path, cache: &Cache) -> Result<()> {
    let mut command = Command::new(part::program()?);
    command.args(["node", &node.name(), "--"]).arg(cache.debian("usr/bin/ctr"));
    command.args(["-n", "k8s.io", "images", "import", "-"]).stdin(File::open(archive)?);
    let output = command.output().context("run ctr")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "import {} into {node}: {}", archive.display(), said.trim());
    Ok(())
}
