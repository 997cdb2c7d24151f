//! Who is measured: Beeline, and kube-proxy in two modes, each with its own defaults.

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
    process::Process,
    site::Site,
    world::{CLUSTER, NODE},
};
use crate::ground;

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

    /// Between two changes. kube-proxy lets a second pass between two syncs: each of its changes finds it at rest.
    pub fn rest(self) -> Duration {
        match self {
            Self::Beeline => Duration::from_millis(50),
            Self::Nftables | Self::Iptables => Duration::from_millis(1_200),
        }
    }
}

/// What the contenders' programs need on disk.
pub struct Stable {
    cache: Cache,
    beeline: PathBuf,
    kubeconfig: PathBuf,
    directory: PathBuf,
    logs: PathBuf,
    pins: PathBuf,
}

impl Stable {
    pub fn new(cache: Cache, kubeconfig: PathBuf, directory: &Path, logs: &Path) -> Result<Self> {
        let beeline = std::env::current_exe()?.with_file_name("beeline");
        ensure!(beeline.exists(), "{} is missing: cargo build --workspace --release", beeline.display());
        let legacy = directory.join("legacy");
        fs::create_dir_all(&legacy)?;
        // kube-proxy calls `iptables`; which kind that is, is the machine's choice and not ours to change.
        let multi = find("xtables-legacy-multi")?;
        for name in ["iptables", "ip6tables"]
            .iter()
            .flat_map(|name| ["", "-save", "-restore"].map(|end| format!("{name}{end}")))
        {
            std::os::unix::fs::symlink(&multi, legacy.join(name))?;
        }
        let pins = ground::pins("cluster")?;
        Ok(Self { cache, beeline, kubeconfig, directory: directory.into(), logs: logs.into(), pins })
    }

    /// On the node, cold.
    pub fn start(&self, who: Contender, site: &Site) -> Result<Process> {
        let words = match who {
            Contender::Beeline => self.beeline(site),
            Contender::Nftables | Contender::Iptables => self.proxy(who)?,
        };
        let path = std::env::var("PATH").unwrap_or_default();
        let settings = [
            ("PATH", format!("{}:{path}:/usr/sbin:/sbin", self.directory.join("legacy").display())),
            ("XTABLES_LOCKFILE", self.directory.join("xtables.lock").display().to_string()),
        ];
        let log = self.logs.join(format!("{}.log", who.mode()));
        Process::start(who.name(), &site.cgroup("node/agent"), site.node()?, &words, &settings, &log)
    }

    /// Its part of the kernel that does not go with the node's network namespace.
    pub fn clean(&self) -> Result<()> {
        cleanup(&self.pins)?;
        ensure!(!self.pins.exists(), "{} is still there", self.pins.display());
        Ok(())
    }

    fn beeline(&self, site: &Site) -> Vec<String> {
        vec![
            self.beeline.display().to_string(),
            "agent".into(),
            format!("--node-name={NODE}"),
            format!("--kubeconfig={}", self.kubeconfig.display()),
            format!("--cgroup={}", site.cgroup("node").display()),
            format!("--pin-dir={}", self.pins.display()),
            format!("--socket={}", self.directory.join("agent.sock").display()),
        ]
    }

    fn proxy(&self, who: Contender) -> Result<Vec<String>> {
        let file = self.directory.join(format!("{}.json", who.mode()));
        let settings = json!({
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "mode": who.mode(),
            "hostnameOverride": NODE,
            "clientConnection": {"kubeconfig": self.kubeconfig},
            "clusterCIDR": CLUSTER,
            // The size of the connection table belongs to the machine.
            "conntrack": {"maxPerCore": 0, "min": 0},
        });
        fs::write(&file, settings.to_string()).with_context(|| format!("write {}", file.display()))?;
        let program = self.cache.program("kube-proxy");
        ensure!(program.exists(), "{} is missing: run `kit build`", program.display());
        Ok(vec![program.display().to_string(), format!("--config={}", file.display())])
    }
}

impl Drop for Stable {
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
