//! The measured programs: Beeline, and kube-proxy in two modes, each with its defaults.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use beeline_datapath::program::cleanup;
use clap::ValueEnum;
use kit::cache::Cache;
use serde_json::json;

use super::{
    network::BenchNetwork,
    objects::{CLUSTER, NODE},
    process::BenchProcess,
};
use crate::isolation;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Contender {
    Beeline,
    /// kube-proxy in nftables mode
    Nftables,
    /// kube-proxy in iptables mode, with the legacy tables
    Iptables,
}

impl Contender {
    pub const ALL: [Contender; 3] = [Contender::Beeline, Contender::Nftables, Contender::Iptables];

    pub fn name(self) -> &'static str {
        match self {
            Self::Beeline => "Beeline",
            Self::Nftables => "kube-proxy nftables",
            Self::Iptables => "kube-proxy iptables",
        }
    }

    fn mode(self) -> &'static str {
        match self {
            Self::Beeline => "beeline",
            Self::Nftables => "nftables",
            Self::Iptables => "iptables",
        }
    }

    /// Pause between two changes. kube-proxy syncs at most once a second; with the pause it is idle at each change.
    pub fn pause(self) -> Duration {
        match self {
            Self::Beeline => Duration::from_millis(50),
            Self::Nftables | Self::Iptables => Duration::from_millis(1_200),
        }
    }
}

/// Files that the contenders need.
pub struct ContenderFiles {
    cache: Cache,
    beeline: PathBuf,
    kubeconfig: PathBuf,
    directory: PathBuf,
    logs: PathBuf,
    pins: PathBuf,
}

impl ContenderFiles {
    pub fn new(cache: Cache, kubeconfig: PathBuf, directory: &Path, logs: &Path) -> Result<Self> {
        let beeline = std::env::current_exe()?.with_file_name("beeline");
        ensure!(beeline.exists(), "{} is missing: cargo build --workspace --release", beeline.display());
        let legacy = directory.join("legacy");
        fs::create_dir_all(&legacy)?;
        // kube-proxy runs `iptables`, and the bench must not change which variant the machine uses.
        let multi = find("xtables-legacy-multi")?;
        for name in ["iptables", "ip6tables"]
            .iter()
            .flat_map(|name| ["", "-save", "-restore"].map(|end| format!("{name}{end}")))
        {
            std::os::unix::fs::symlink(&multi, legacy.join(name))?;
        }
        let pins = isolation::pin_dir("cluster")?;
        Ok(Self { cache, beeline, kubeconfig, directory: directory.into(), logs: logs.into(), pins })
    }

    /// Starts a contender on the node.
    pub fn start(&self, contender: Contender, network: &BenchNetwork) -> Result<BenchProcess> {
        let words = match contender {
            Contender::Beeline => self.beeline(network),
            Contender::Nftables | Contender::Iptables => self.proxy(contender)?,
        };
        let path = std::env::var("PATH").unwrap_or_default();
        let settings = [
            ("PATH", format!("{}:{path}:/usr/sbin:/sbin", self.directory.join("legacy").display())),
            ("XTABLES_LOCKFILE", self.directory.join("xtables.lock").display().to_string()),
        ];
        let log = self.logs.join(format!("{}.log", contender.mode()));
        BenchProcess::start(contender.name(), &network.cgroup("node/agent"), network.node()?, &words, &settings, &log)
    }

    /// Removes Beeline's pins, which are not removed with the node's network namespace.
    pub fn clean(&self) -> Result<()> {
        cleanup(&self.pins)?;
        ensure!(!self.pins.exists(), "{} still exists", self.pins.display());
        Ok(())
    }

    fn beeline(&self, network: &BenchNetwork) -> Vec<String> {
        vec![
            self.beeline.display().to_string(),
            "agent".into(),
            format!("--node-name={NODE}"),
            format!("--kubeconfig={}", self.kubeconfig.display()),
            format!("--cgroup={}", network.cgroup("node").display()),
            format!("--pin-dir={}", self.pins.display()),
            format!("--socket={}", self.directory.join("agent.sock").display()),
        ]
    }

    fn proxy(&self, contender: Contender) -> Result<Vec<String>> {
        let file = self.directory.join(format!("{}.json", contender.mode()));
        let settings = json!({
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "mode": contender.mode(),
            "hostnameOverride": NODE,
            "clientConnection": {"kubeconfig": self.kubeconfig},
            "clusterCIDR": CLUSTER,
            // The size of the conntrack table belongs to the machine.
            "conntrack": {"maxPerCore": 0, "min": 0},
        });
        fs::write(&file, settings.to_string()).with_context(|| format!("cannot write {}", file.display()))?;
        let program = self.cache.program("kube-proxy");
        ensure!(program.exists(), "{} is missing: run `kit build`", program.display());
        Ok(vec![program.display().to_string(), format!("--config={}", file.display())])
    }
}

impl Drop for ContenderFiles {
    fn drop(&mut self) {
        if let Err(error) = self.clean() {
            eprintln!("{error:#}");
        }
    }
}

fn find(program: &str) -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let places = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    let found = places.map(|dir| dir.join(program)).find(|path| path.exists());
    found.with_context(|| format!("no {program}: is iptables installed?"))
}
