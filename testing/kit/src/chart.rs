//! Installs Beeline in the cluster by its Helm chart, as a user does.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::{
    address_plan::{self, NAME},
    cgroup::CgroupTree,
    cluster::TestCluster,
    manifest,
    namespace::Location,
    state, subprocess,
};

pub const RELEASE: &str = "beeline";
pub const NAMESPACE: &str = "kube-system";
const IMAGE: &str = "ghcr.io/beeline-dev/beeline";

/// Directory of the source tree from which the kit was built.
pub fn source_dir() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// Values that the chart needs in the kit. `cgroup` is each node's own cgroup: without it the agents would attach to
/// the machine's root cgroup, which [`crate::manifest`] refuses.
pub fn values(beside_kube_proxy: bool) -> Result<Value> {
    let cgroups = CgroupTree::find()?.path("").display().to_string();
    Ok(json!({
        "image": {"pullPolicy": "Never"},
        "besideKubeProxy": beside_kube_proxy,
        "apiServers": [address_plan::api_url()],
        "cgroup": format!("{}/$(BEELINE_NODE_NAME)", cgroups.trim_end_matches('/')),
    }))
}

/// Imports an image with this program into every node, under the name that the chart uses.
pub fn import_image(cluster: &TestCluster, binary: &Path) -> Result<()> {
    let detach_wait = source_dir().join("deploy/detach-wait");
    let with = format!("{}=usr/share/beeline/detach-wait", detach_wait.display());
    cluster.add_image(&format!("{IMAGE}:{}", env!("CARGO_PKG_VERSION")), binary, &[with])
}

/// Installs the chart and waits until all pods are ready.
pub fn install(cluster: &TestCluster, values: &Value) -> Result<()> {
    let (chart, file) = (source_dir().join("deploy/chart"), state::path("chart-values.json"));
    state::write(&file, serde_json::to_vec_pretty(values)?)?;
    let (chart, file) = (chart.display().to_string(), file.display().to_string());
    let arguments = ["install", RELEASE, &chart, "-n", NAMESPACE, "-f", &file, "--wait", "--timeout", "180s"];
    helm(cluster, &arguments).map(drop)
}

/// Creates the policies' CRDs, marked so that a later installation of the chart adopts them.
pub fn define_policies(cluster: &TestCluster) -> Result<()> {
    manifest::CRDS.iter().try_for_each(|definition| cluster.apply_text(definition))?;
    let [first, second] = ["localredirectpolicies", "balancingpolicies"].map(|kind| format!("crd/{kind}.beeline.dev"));
    let release = format!("meta.helm.sh/release-name={RELEASE}");
    let namespace = format!("meta.helm.sh/release-namespace={NAMESPACE}");
    cluster.kubectl(&["label", "--overwrite", &first, &second, "app.kubernetes.io/managed-by=Helm"])?;
    cluster.kubectl(&["annotate", "--overwrite", &first, &second, &release, &namespace])?;
    cluster.kubectl(&["wait", "--for=condition=Established", "--timeout=60s", &first, &second]).map(drop)
}

pub fn uninstall(cluster: &TestCluster) -> Result<()> {
    helm(cluster, &["uninstall", RELEASE, "-n", NAMESPACE, "--wait", "--timeout", "180s"]).map(drop)
}

fn helm(cluster: &TestCluster, arguments: &[&str]) -> Result<String> {
    let program = require_helm(cluster)?;
    let mut command = cluster.command(Location::ControlPlane)?;
    command.arg(program).arg("--kubeconfig").arg(cluster.kubeconfig("admin")).args(arguments);
    subprocess::run(&mut command).with_context(|| format!("helm {} {RELEASE} in {NAME}", arguments[0]))
}

/// Path of Helm, or an error that says how to build it.
pub fn require_helm(cluster: &TestCluster) -> Result<PathBuf> {
    let program = cluster.cache.program("helm");
    ensure!(program.exists(), "{} is missing: run `kit build --helm`", program.display());
    Ok(program)
}
