//! Cgroups of the cluster: `beeline-kit/control/COMPONENT`, `beeline-kit/n1/COMPONENT` and the node's pods beside them.
//!
//! The cgroups are also the only record of what runs. There are no pid files that could be stale, and one write kills
//! all processes, also after a crash.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};

use crate::{
    address_plan::{NAME, NodeId},
    wait::{self, Timeout},
};

/// Controllers that a kubelet requires on a machine with cgroup2 only.
const CONTROLLERS: [&str; 4] = ["cpu", "cpuset", "memory", "pids"];

/// Cgroup hierarchies of this machine: cgroup2, and the cgroup1 hierarchies of a hybrid machine.
#[derive(Clone, Debug)]
pub struct CgroupTree {
    unified: PathBuf,
    cgroup1: Vec<PathBuf>,
}

impl CgroupTree {
    pub fn find() -> Result<CgroupTree> {
        let mounts = fs::read_to_string("/proc/self/mounts").context("cannot read /proc/self/mounts")?;
        parse(&mounts).context("no cgroup2 is mounted: run scripts/setup.sh run")
    }

    /// Whether the machine has cgroup2 only, so that kubelet and runc use it for all controllers.
    pub fn is_unified(&self) -> bool {
        self.cgroup1.is_empty()
    }

    /// Path of `n1` or `n1/kubelet` in cgroup2.
    pub fn path(&self, below: &str) -> PathBuf {
        self.unified.join(NAME).join(below)
    }

    pub fn exists(&self) -> bool {
        self.path("").exists()
    }

    /// Creates the cgroups in which a node's kubelet creates its pods.
    pub fn make_node(&self, node: NodeId) -> Result<()> {
        fs::create_dir_all(self.path(&node.name()))?;
        if self.is_unified() {
            return self.enable_controllers(node);
        }
        for hierarchy in &self.cgroup1 {
            make_cgroup1(hierarchy, node)
                .with_context(|| format!("cannot create cgroups of {node} in {}", hierarchy.display()))?;
        }
        Ok(())
    }

    /// Enables the controllers on each level. In cgroup2 a controller is available only where all levels above enable
    /// it. The machine's root is not changed.
    fn enable_controllers(&self, node: NodeId) -> Result<()> {
        for level in [self.path(""), self.path(&node.name())] {
            let text = fs::read_to_string(level.join("cgroup.controllers"))?;
            let available: Vec<&str> = text.split_whitespace().collect();
            if let Some(missing) = CONTROLLERS.iter().find(|name| !available.contains(name)) {
                let root = self.unified.join("cgroup.subtree_control");
                bail!("a kubelet needs the cgroup controller {missing}: run `echo +{missing} > {}`", root.display());
            }
            let enabled: Vec<String> = available.iter().map(|name| format!("+{name}")).collect();
            fs::write(level.join("cgroup.subtree_control"), enabled.join(" "))
                .with_context(|| format!("cannot enable controllers below {}", level.display()))?;
        }
        Ok(())
    }

    /// Moves this process into a component's cgroup, so that its children start there.
    pub fn join(&self, component: &str) -> Result<()> {
        let path = self.path(component);
        fs::create_dir_all(&path).with_context(|| format!("cannot create cgroup {}", path.display()))?;
        fs::write(path.join("cgroup.procs"), process::id().to_string())
            .with_context(|| format!("cannot move into cgroup {}", path.display()))
    }

    /// Processes of a component with this program name. Others in its cgroup, such as container shims, are left out.
    pub fn pids(&self, component: &str, program: &str) -> Vec<Pid> {
        let text = fs::read_to_string(self.path(component).join("cgroup.procs")).unwrap_or_default();
        let pids = text.lines().filter_map(|line| Pid::from_raw(line.parse().ok()?));
        pids.filter(|pid| has_program(*pid, program)).collect()
    }

    /// Kills all processes in a subtree and removes it. Succeeds if the subtree does not exist.
    pub fn remove_subtree(&self, below: &str) -> Result<()> {
        let path = self.path(below);
        let timeout =
            Timeout { what: format!("the processes of {below} to end"), limit: Duration::from_secs(30), log: None };
        wait::until(timeout, || {
            let _ = fs::write(path.join("cgroup.kill"), "1"); // Usually the cgroup does not exist.
            Ok(prune(&path).then_some(()))
        })
    }

    /// Kills all processes of the cluster and removes its cgroups in all hierarchies.
    pub fn remove(&self) -> Result<()> {
        let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        if own.contains(&format!("/{NAME}/")) {
            bail!("`kit down` runs inside the cluster itself: run it from another shell");
        }
        let timeout =
            Timeout { what: "the cluster's processes to end".into(), limit: Duration::from_secs(60), log: None };
        wait::until(timeout, || Ok(self.try_remove()?.then_some(())))
    }

    fn try_remove(&self) -> Result<bool> {
        let root = self.path("");
        match fs::write(root.join("cgroup.kill"), "1") {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("cannot kill the processes below {}", root.display()));
            }
            _ => {}
        }
        let roots = self.cgroup1.iter().map(|hierarchy| hierarchy.join(NAME)).chain([root]);
        Ok(roots.map(|root| prune(&root)).filter(|removed| !removed).count() == 0)
    }
}

/// Whether the process runs this program. The kernel keeps at most 15 bytes of a program's name.
fn has_program(pid: Pid, program: &str) -> bool {
    let known = fs::read_to_string(format!("/proc/{}/comm", pid.as_raw_pid())).unwrap_or_default();
    !program.is_empty() && known.trim_end() == &program[..program.len().min(15)]
}

pub fn signal(pids: &[Pid], signal: Signal) {
    for pid in pids {
        let _ = kill_process(*pid, signal); // The process may have ended by itself.
    }
}

fn parse(mounts: &str) -> Option<CgroupTree> {
    let of = |kind: &str| {
        let fields = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
        let mine = fields.filter(|fields| fields.get(2) == Some(&kind)).map(|fields| PathBuf::from(fields[1]));
        mine.collect::<Vec<_>>()
    };
    Some(CgroupTree { unified: of("cgroup2").into_iter().next()?, cgroup1: of("cgroup") })
}

/// Creates the node's cgroup in a cgroup1 hierarchy. A new cpuset refuses processes until it has CPUs and memory nodes.
fn make_cgroup1(hierarchy: &Path, node: NodeId) -> Result<()> {
    for path in [hierarchy.join(NAME), hierarchy.join(NAME).join(node.name())] {
        fs::create_dir_all(&path)?;
        for file in ["cpuset.cpus", "cpuset.mems"].iter().filter(|file| hierarchy.join(file).exists()) {
            fs::write(path.join(file), fs::read(hierarchy.join(file))?)?;
        }
    }
    Ok(())
}

/// Removes a tree of cgroups, leaves first. Returns false while the kernel refuses because a process has not ended yet.
fn prune(path: &Path) -> bool {
    let Ok(entries) = fs::read_dir(path) else { return !path.exists() };
    let dirs = entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    for entry in dirs {
        prune(&entry.path());
    }
    fs::remove_dir(path).is_ok() || !path.exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hybrid_and_unified_machines_are_recognised() {
        let hybrid = "tmpfs /sys/fs/cgroup tmpfs rw 0 0\ncgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\n\
                      cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n";
        let tree = parse(hybrid).unwrap();
        assert!(!tree.is_unified());
        assert_eq!(tree.path("n1/kubelet"), Path::new("/sys/fs/cgroup/unified/beeline-kit/n1/kubelet"));
        assert!(parse("cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n").unwrap().is_unified());
        assert!(parse("tmpfs /sys/fs/cgroup tmpfs rw 0 0\n").is_none());
    }
}
