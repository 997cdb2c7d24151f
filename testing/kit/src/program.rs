//! Programs built from Go modules. Their versions are pinned by the go.mod and go.sum files of this crate.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result};

use crate::{
    cache::{BuildStamp, Cache},
    progress::{report, step},
    subprocess,
    toolchain::{self, GoVersion},
};

/// A Go module of this crate that requires the programs to build at a pinned version.
pub struct GoModule {
    name: &'static str,
    pub requires: &'static str,
    pub definition: &'static str,
    sums: &'static str,
}

pub const KUBERNETES: GoModule = GoModule {
    name: "kubernetes",
    requires: "k8s.io/kubernetes",
    definition: include_str!("../go/kubernetes/go.mod"),
    sums: include_str!("../go/kubernetes/go.sum"),
};
pub const HELM: GoModule = GoModule {
    name: "helm",
    requires: "helm.sh/helm/v4",
    definition: include_str!("../go/helm/go.mod"),
    sums: include_str!("../go/helm/go.sum"),
};
pub const EDGE: GoModule = GoModule {
    name: "edge",
    requires: "github.com/kubeedge/kubeedge",
    definition: include_str!("../go/edge/go.mod"),
    sums: include_str!("../go/edge/go.sum"),
};

const CLUSTER: [&str; 8] = [
    "k8s.io/kubernetes/cmd/kube-apiserver",
    "k8s.io/kubernetes/cmd/kube-controller-manager",
    "k8s.io/kubernetes/cmd/kube-scheduler",
    "k8s.io/kubernetes/cmd/kubelet",
    "k8s.io/kubernetes/cmd/kubectl",
    "k8s.io/kubernetes/cmd/kube-proxy",
    "k8s.io/kubernetes/test/images/agnhost",
    "k8s.io/kubernetes/test/images/regression-issue-74839",
];
const EDGES: [&str; 2] = ["github.com/kubeedge/kubeedge/cloud/cmd/cloudcore", EDGECORE];
/// edgecore needs cgo, because its database is a C library.
const EDGECORE: &str = "github.com/kubeedge/kubeedge/edge/cmd/edgecore";
/// Files of KubeEdge's chart that are needed without the chart: path in the module, name in the cache.
const EDGE_FILES: [(&str, &str); 2] =
    [("build/crds", "crds"), ("manifests/charts/cloudcore/templates/rbac_cloudcore.yaml", "rbac_cloudcore.yaml")];
const TESTS: [&str; 2] = ["github.com/onsi/ginkgo/v2/ginkgo", "k8s.io/kubernetes/test/e2e"];

impl GoModule {
    /// The version that go.mod requires, such as v1.35.8.
    pub fn version(&self) -> &'static str {
        let arguments = self.definition.lines().map(|line| line.trim().trim_start_matches("require "));
        let version = arguments.filter_map(|line| line.strip_prefix(self.requires)?.strip_prefix(' ')).next();
        version.and_then(|rest| rest.split(' ').next()).expect("a test checks that go.mod names the required module")
    }

    /// Writes the module to the cache, because Go must not search the source tree.
    fn write(&self, cache: &Cache) -> Result<PathBuf> {
        let dir = cache.path("module").join(self.name);
        fs::create_dir_all(&dir)?;
        fs::write(dir.join("go.mod"), self.definition)?;
        fs::write(dir.join("go.sum"), self.sums)?;
        Ok(dir)
    }

    /// Directory of the required module's source in Go's module cache.
    fn source(&self, cache: &Cache) -> Result<PathBuf> {
        let go = toolchain::find(cache, GoVersion::required_by(self.definition)?)?;
        let mut list = Command::new(go);
        list.args(["list", "-mod=readonly", "-m", "-f", "{{.Dir}}", self.requires]);
        let found = subprocess::run(list.current_dir(self.write(cache)?).env("GOFLAGS", "").env("GOWORK", "off"))?;
        Ok(Path::new(found.trim()).to_owned())
    }

    /// Kubernetes' and KubeEdge's programs get their version from the linker.
    fn linker_options(&self) -> String {
        let version = self.version();
        let minor = version.split('.').nth(1).unwrap_or_default();
        let packages: &[&str] = match self.name {
            "edge" => &["github.com/kubeedge/kubeedge/pkg/version"],
            _ => &["k8s.io/component-base/version", "k8s.io/client-go/pkg/version"],
        };
        let variables = [("gitVersion", version), ("gitMajor", "1"), ("gitMinor", minor), ("gitTreeState", "clean")];
        let set = |package: &str| variables.map(|(name, value)| format!(" -X {package}.{name}={value}")).concat();
        format!("-s -w{}", packages.iter().map(|package| set(package)).collect::<String>())
    }

    fn build(&self, packages: &[&str], cache: &Cache) -> Result<()> {
        let input = format!("{}{}", self.definition, self.linker_options());
        let stamps = packages.iter().map(|package| BuildStamp::new(cache, name(package), &input));
        let stamps: Vec<BuildStamp> = stamps.collect::<Result<_>>()?;
        let missing =
            |(package, stamp): &(&&str, &BuildStamp)| !(stamp.is_current() && cache.program(name(package)).exists());
        let todo: Vec<_> = packages.iter().zip(&stamps).filter(missing).collect();
        if todo.is_empty() {
            report(format!("{} {}: all {} programs are already built", self.name, self.version(), packages.len()));
            return Ok(());
        }
        let go = toolchain::find(cache, GoVersion::required_by(self.definition)?)?;
        let dir = self.write(cache)?;
        for (index, (package, stamp)) in todo.iter().enumerate() {
            let what = format!("{} {} ({} of {})", name(package), self.version(), index + 1, todo.len());
            step(&what, || self.build_one(&go, &dir, package, cache))?;
            stamp.write()?;
        }
        Ok(())
    }

    fn build_one(&self, go: &Path, dir: &Path, package: &str, cache: &Cache) -> Result<()> {
        let mut command = Command::new("nice");
        command.args(["-n", "10"]).arg(go).current_dir(dir);
        match package.ends_with("/test/e2e") {
            true => command.args(["test", "-c"]),
            false => command.arg("build"),
        };
        let output = cache.program(name(package));
        command.args(["-trimpath", "-buildvcs=false", "-mod=readonly", "-ldflags", &self.linker_options(), "-o"]);
        command.arg(output).arg(package);
        // The standard library is compiled separately with and without cgo. One choice per module avoids compiling
        // everything twice.
        command.env("CGO_ENABLED", if self.name == "edge" { "1" } else { "0" });
        command.env("GOTOOLCHAIN", "local").env("GOFLAGS", "").env("GOWORK", "off");
        subprocess::run_logged(&mut command, &cache.log(&format!("build-{}", name(package))))
            .with_context(|| format!("cannot build {package}"))
    }
}

/// File name of a package's program.
fn name(package: &str) -> &str {
    match package {
        "k8s.io/kubernetes/test/e2e" => "e2e.test",
        package => package.rsplit('/').next().unwrap_or(package),
    }
}

pub fn build_cluster(cache: &Cache) -> Result<()> {
    KUBERNETES.build(&CLUSTER, cache)?;
    build_pause(cache)
}

/// Builds pause, the C program that keeps a pod's namespaces alive.
fn build_pause(cache: &Cache) -> Result<()> {
    let stamp = BuildStamp::new(cache, "pause", KUBERNETES.version())?;
    if stamp.is_current() && cache.program("pause").exists() {
        return Ok(());
    }
    let source = KUBERNETES.source(cache)?.join("build/pause/linux/pause.c");
    let mut compile = Command::new("gcc");
    compile.args(["-Os", "-static", "-DVERSION=kit", "-o"]).arg(cache.program("pause")).arg(source);
    step("pause", || subprocess::run(&mut compile))?;
    stamp.write()
}

pub fn build_tests(cache: &Cache) -> Result<()> {
    KUBERNETES.build(&TESTS, cache)
}

/// Builds KubeEdge's cloudcore and edgecore, and copies their CRDs and RBAC objects.
pub fn build_edge(cache: &Cache) -> Result<()> {
    EDGE.build(&EDGES, cache)?;
    let stamp = BuildStamp::new(cache, "edge", EDGE.version())?;
    if stamp.is_current() && cache.path("edge").exists() {
        return Ok(());
    }
    let (source, target) = (EDGE.source(cache)?, cache.fresh("edge")?);
    for (from, to) in EDGE_FILES {
        let mut copy = Command::new("cp");
        // The module's files are read-only.
        copy.args(["-r", "--no-preserve=mode"]).arg(source.join(from)).arg(target.join(to));
        subprocess::run(&mut copy).with_context(|| format!("KubeEdge's {from}"))?;
    }
    stamp.write()
}

pub fn build_helm(cache: &Cache) -> Result<()> {
    HELM.build(&["helm.sh/helm/v4/cmd/helm"], cache)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_staging_module_is_pinned_to_the_same_release() {
        let version = KUBERNETES.version();
        assert!(version.starts_with("v1."), "{version}");
        let staging = format!("v0.{}", version.trim_start_matches("v1."));
        let replaced = KUBERNETES.definition.lines().filter_map(|line| line.split_once(" => ")).collect::<Vec<_>>();
        assert!(replaced.len() > 25, "{replaced:?}");
        for (from, to) in replaced {
            assert!(to.ends_with(&staging), "{from} is replaced by {to}, and should be by {staging}");
        }
    }

    #[test]
    fn every_module_has_a_version_and_a_checksum() {
        for module in [KUBERNETES, HELM, EDGE] {
            let line = format!("{} {} h1:", module.requires, module.version());
            assert!(module.sums.contains(&line), "go.sum of {} lacks {line}", module.name);
        }
        let options = KUBERNETES.linker_options();
        assert!(options.contains("component-base/version.gitMinor=35"), "{options}");
        assert!(EDGE.linker_options().contains("kubeedge/pkg/version.gitVersion=v1.23.0"));
    }

    #[test]
    fn programs_have_upstreams_names() {
        assert_eq!(name("k8s.io/kubernetes/test/e2e"), "e2e.test");
        assert_eq!(name("k8s.io/kubernetes/cmd/kubelet"), "kubelet");
    }
}
