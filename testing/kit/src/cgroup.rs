//! The cgroups of the cluster: `beeline-kit/control/PART`, `beeline-kit/n1/PART` and, beside them, the node's pods.
//!
//! They are also the only record of what runs. No pid file can be stale, and one write ends everything there is, also
//! after a crash half-way.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};

use crate::{
    plan::{NAME, Node},
    wait::{self, Patience},
};

/// Those without which a kubelet does not start on a machine with cgroup2 alone.
const CONTROLLERS: [&str; 4] = ["cpu", "cpuset", "memory", "pids"];

/// The hierarchies of this machine: cgroup2, and on a hybrid machine those of the older controllers.
#[derive(Clone, Debug)]
pub struct Tree {
    unified: PathBuf,
    older: Vec<PathBuf>,
}

impl Tree {
    pub fn find() -> Result<Tree> {
        let mounts = fs::read_to_string("/proc/self/mounts").context("read /proc/self/mounts")?;
        parse(&mounts).context("no cgroup2 is mounted: run scripts/setup.sh run")
    }

    /// Whether cgroup2 has the controllers too, and kubelet and runc use nothing else.
    pub fn is_unified(&self) -> bool {
        self.older.is_empty()
    }

    /// `n1` or `n1/kubelet`, in cgroup2.
    pub fn path(&self, below: &str) -> PathBuf {
        self.unified.join(NAME).join(below)
    }

    pub fn exists(&self) -> bool {
        self.path("").exists()
    }

    /// The cgroups into which a node's kubelet puts its pods.
    pub fn make_node(&self, node: Node) -> Result<()> {
        fs::create_dir_all(self.path(&node.name()))?;
        if self.is_unified() {
            return self.pass_controllers(node);
        }
        for hierarchy in &self.older {
            make_older(hierarchy, node)
                .with_context(|| format!("make cgroups of {node} in {}", hierarchy.display()))?;
        }
        Ok(())
    }

    /// In cgroup2 a controller is there only where all levels above pass it on. The machine's root is left as it is.
    fn pass_controllers(&self, node: Node) -> Result<()> {
        for level in [self.path(""), self.path(&node.name())] {
            let there = fs::read_to_string(level.join("cgroup.controllers"))?;
            let there: Vec<&str> = there.split_whitespace().collect();
            if let Some(lacking) = CONTROLLERS.iter().find(|name| !there.contains(name)) {
                let root = self.unified.join("cgroup.subtree_control");
                bail!("a kubelet needs the cgroup controller {lacking}: echo +{lacking} > {}", root.display());
            }
            let passed: Vec<String> = there.iter().map(|name| format!("+{name}")).collect();
            fs::write(level.join("cgroup.subtree_control"), passed.join(" "))
                .with_context(|| format!("pass controllers on below {}", level.display()))?;
        }
        Ok(())
    }

    /// Moves this process into a part's cgroup; what it starts is there from the first instruction.
    pub fn join(&self, part: &str) -> Result<()> {
        let path = self.path(part);
        fs::create_dir_all(&path).with_context(|| format!("make cgroup {}", path.display()))?;
        fs::write(path.join("cgroup.procs"), process::id().to_string())
            .with_context(|| format!("move into cgroup {}", path.display()))
    }

    /// Processes of a part, without those that a program of another name left there (a container's shim, nsenter).
    pub fn pids(&self, part: &str, program: &str) -> Vec<Pid> {
        let text = fs::read_to_string(self.path(part).join("cgroup.procs")).unwrap_or_default();
        let pids = text.lines().filter_map(|line| Pid::from_raw(line.parse().ok()?));
        pids.filter(|pid| runs(*pid, program)).collect()
    }

    /// Ends all that runs below a part of the tree, and removes that part. Fine if it is not there.
    pub fn end(&self, below: &str) -> Result<()> {
        let path = self.path(below);
        let patience = Patience { what: format!("the end of {below}"), limit: Duration::from_secs(30), log: None };
        wait::until(patience, || {
            let _ = fs::write(path.join("cgroup.kill"), "1"); // Not there, as a rule.
            Ok(prune(&path).then_some(()))
        })
    }

    /// Ends all that runs below and removes the cgroups, in all hierarchies.
    pub fn remove(&self) -> Result<()> {
        let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        if own.contains(&format!("/{NAME}/")) {
            bail!("this kit runs inside its own cluster: run it from another shell");
        }
        let patience =
            Patience { what: "the end of the cluster's processes".into(), limit: Duration::from_secs(60), log: None };
        wait::until(patience, || Ok(self.try_remove()?.then_some(())))
    }

    fn try_remove(&self) -> Result<bool> {
        let root = self.path("");
        match fs::write(root.join("cgroup.kill"), "1") {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("end the processes below {}", root.display()));
            }
            _ => {}
        }
        let roots = self.older.iter().map(|hierarchy| hierarchy.join(NAME)).chain([root]);
        Ok(roots.map(|root| prune(&root)).filter(|gone| !gone).count() == 0)
    }
}

/// The name that the kernel keeps of a program has at most 15 bytes.
fn runs(pid: Pid, program: &str) -> bool {
    let known = fs::read_to_string(format!("/proc/{}/comm", pid.as_raw_pid())).unwrap_or_default();
    !program.is_empty() && known.trim_end() == &program[..program.len().min(15)]
}

pub fn signal(pids: &[Pid], signal: Signal) {
    for pid in pids {
        let _ = kill_process(*pid, signal); // It may have ended by itself.
    }
}

fn parse(mounts: &str) -> Option<Tree> {
    let of = |kind: &str| {
        let fields = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
        let mine = fields.filter(|fields| fields.get(2) == Some(&kind)).map(|fields| PathBuf::from(fields[1]));
        mine.collect::<Vec<_>>()
    };
    Some(Tree { unified: of("cgroup2").into_iter().next()?, older: of("cgroup") })
}

/// A new cpuset is empty, and refuses processes, until it is given what its parent has.
fn make_older(hierarchy: &Path, node: Node) -> Result<()> {
    for path in [hierarchy.join(NAME), hierarchy.join(NAME).join(node.name())] {
        fs::create_dir_all(&path)?;
        for file in ["cpuset.cpus", "cpuset.mems"].iter().filter(|file| hierarchy.join(file).exists()) {
            fs::write(path.join(file), fs::read(hierarchy.join(file))?)?;
        }
    }
    Ok(())
}

/// Removes a tree of cgroups, leaves first; false while the kernel refuses, because a process has not gone yet.
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
    fn knows_hybrid_and_unified_machines() {
        let hybrid = "tmpfs /sys/fs/cgroup tmpfs rw 0 0\ncgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\n\
                      cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n";
        let tree = parse(hybrid).unwrap();
        assert!(!tree.is_unified());
        assert_eq!(tree.path("n1/kubelet"), Path::new("/sys/fs/cgroup/unified/beeline-kit/n1/kubelet"));
        assert!(parse("cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n").unwrap().is_unified());
        assert!(parse("tmpfs /sys/fs/cgroup tmpfs rw 0 0\n").is_none());
    }
}
