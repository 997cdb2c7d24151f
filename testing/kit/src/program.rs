//! Programs built from Go modules. Which version of what is said by the go.mod and go.sum in this crate, alone.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result};

use crate::{
    cache::{Cache, Stamp},
    call,
    progress::{say, step},
    toolchain::{self, Version},
};

/// A module of ours that requires what we build, at a pinned version.
pub struct Module {
    name: &'static str,
    pub requires: &'static str,
    pub definition: &'static str,
    sums: &'static str,
}

pub const KUBERNETES: Module = Module {
    name: "kubernetes",
    requires: "k8s.io/kubernetes",
    definition: include_str!("../go/kubernetes/go.mod"),
    sums: include_str!("../go/kubernetes/go.sum"),
};
pub const HELM: Module = Module {
    name: "helm",
    requires: "helm.sh/helm/v4",
    definition: include_str!("../go/helm/go.mod"),
    sums: include_str!("../go/helm/go.sum"),
};
pub const EDGE: Module = Module {
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
/// Its database is a library in C.
const EDGECORE: &str = "github.com/kubeedge/kubeedge/edge/cmd/edgecore";
/// What KubeEdge's chart puts into a cluster and is of use without it, in the module and in the cache.
const EDGE_FILES: [(&str, &str); 2] =
    [("build/crds", "crds"), ("manifests/charts/cloudcore/templates/rbac_cloudcore.yaml", "rbac_cloudcore.yaml")];
const TESTS: [&str; 2] = ["github.com/onsi/ginkgo/v2/ginkgo", "k8s.io/kubernetes/test/e2e"];

impl Module {
    /// The version that go.mod requires, such as v1.35.8.
    pub fn version(&self) -> &'static str {
        let words = self.definition.lines().map(|line| line.trim().trim_start_matches("require "));
        let version = words.filter_map(|line| line.strip_prefix(self.requires)?.strip_prefix(' ')).next();
        version.and_then(|rest| rest.split(' ').next()).expect("go.mod names what it requires; a test sees to it")
    }

    /// Go wants a directory that it may look around in; the source tree is not it.
    fn write(&self, cache: &Cache) -> Result<PathBuf> {
        let dir = cache.path("module").join(self.name);
        fs::create_dir_all(&dir)?;
        fs::write(dir.join("go.mod"), self.definition)?;
        fs::write(dir.join("go.sum"), self.sums)?;
        Ok(dir)
    }

    /// Where Go keeps the source of what it requires.
    fn source(&self, cache: &Cache) -> Result<PathBuf> {
        let go = toolchain::find(cache, Version::wanted(self.definition)?)?;
        let mut list = Command::new(go);
        list.args(["list", "-mod=readonly", "-m", "-f", "{{.Dir}}", self.requires]);
        let found = call::run(list.current_dir(self.write(cache)?).env("GOFLAGS", "").env("GOWORK", "off"))?;
        Ok(Path::new(found.trim()).to_owned())
    }

    /// Kubernetes' programs learn their version from the linker, and KubeEdge's.
    fn linker_options(&self) -> String {
        let version = self.version();
        let minor = version.split('.').nth(1).unwrap_or_default();
        let packages: &[&str] = match self.name {
            "edge" => &["github.com/kubeedge/kubeedge/pkg/version"],
            _ => &["k8s.io/component-base/version", "k8s.io/client-go/pkg/version"],
        };
        let facts = [("gitVersion", version), ("gitMajor", "1"), ("gitMinor", minor), ("gitTreeState", "clean")];
        let set = |package: &str| facts.map(|(name, value)| format!(" -X {package}.{name}={value}")).concat();
        format!("-s -w{}", packages.iter().map(|package| set(package)).collect::<String>())
    }

    fn build(&self, packages: &[&str], cache: &Cache) -> Result<()> {
        let input = format!("{}{}", self.definition, self.linker_options());
        let stamps = packages.iter().map(|package| Stamp::new(cache, name(package), &input));
        let stamps: Vec<Stamp> = stamps.collect::<Result<_>>()?;
        let missing = |(package, stamp): &(&&str, &Stamp)| !(stamp.holds() && cache.program(name(package)).exists());
        let todo: Vec<_> = packages.iter().zip(&stamps).filter(missing).collect();
        if todo.is_empty() {
            say(format!("{} {}: all {} programs are there", self.name, self.version(), packages.len()));
            return Ok(());
        }
        let go = toolchain::find(cache, Version::wanted(self.definition)?)?;
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
        // Go knows two versions of the library under everything, with C and without: one choice a module, or it is
        // all compiled twice.
        command.env("CGO_ENABLED", if self.name == "edge" { "1" } else { "0" });
        command.env("GOTOOLCHAIN", "local").env("GOFLAGS", "").env("GOWORK", "off");
        call::run_logged(&mut command, &cache.log(&format!("build-{}", name(package))))
            .with_context(|| format!("build {package}"))
    }
}

/// What a package's program is called.
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

/// Kubernetes' only program in C: the process that holds a pod's namespaces.
fn build_pause(cache: &Cache) -> Result<()> {
    let stamp = Stamp::new(cache, "pause", KUBERNETES.version())?;
    if stamp.holds() && cache.program("pause").exists() {
        return Ok(());
    }
    let source = KUBERNETES.source(cache)?.join("build/pause/linux/pause.c");
    let mut compile = Command::new("gcc");
    compile.args(["-Os", "-static", "-DVERSION=kit", "-o"]).arg(cache.program("pause")).arg(source);
    step("pause", || call::run(&mut compile))?;
    stamp.write()
}

pub fn build_tests(cache: &Cache) -> Result<()> {
    KUBERNETES.build(&TESTS, cache)
}

/// Both halves of KubeEdge, and what a cluster needs to know of it.
pub fn build_edge(cache: &Cache) -> Result<()> {
    EDGE.build(&EDGES, cache)?;
    let stamp = Stamp::new(cache, "edge", EDGE.version())?;
    if stamp.holds() && cache.path("edge").exists() {
        return Ok(());
    }
    let (source, target) = (EDGE.source(cache)?, cache.fresh("edge")?);
    for (from, to) in EDGE_FILES {
        let mut copy = Command::new("cp");
        // The module's files are read-only.
        copy.args(["-r", "--no-preserve=mode"]).arg(source.join(from)).arg(target.join(to));
        call::run(&mut copy).with_context(|| format!("KubeEdge's {from}"))?;
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
    fn versions_and_sums_are_there() {
        for module in [KUBERNETES, HELM, EDGE] {
            let line = format!("{} {} h1:", module.requires, module.version());
            assert!(module.sums.contains(&line), "go.sum of {} lacks {line}", module.name);
        }
        let options = KUBERNETES.linker_options();
        assert!(options.contains("component-base/version.gitMinor=35"), "{options}");
        assert!(EDGE.linker_options().contains("kubeedge/pkg/version.gitVersion=v1.23.0"));
    }

    #[test]
    fn programs_are_named_as_upstream_names_them() {
        assert_eq!(name("k8s.io/kubernetes/test/e2e"), "e2e.test");
        assert_eq!(name("k8s.io/kubernetes/cmd/kubelet"), "kubelet");
    }
}
