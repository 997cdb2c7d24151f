//! A named network namespace (`bl<pid>-<n>-<what>`). The name allows `ip netns exec` into it while a test is paused.

use std::{
    fs::{self, File},
    os::{fd::AsFd, unix::fs::MetadataExt},
    path::Path,
    process::{Command, Stdio},
    thread,
};

use anyhow::{Context, Result, bail};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

const DIR: &str = "/run/netns";

/// Exists as long as the value lives. Sockets that are still open afterwards keep the namespace alive without its name.
#[derive(Debug)]
pub struct NetworkNamespace {
    name: String,
    file: File,
}

impl NetworkNamespace {
    pub(crate) fn create(name: String) -> Result<Self> {
        ip(None, &format!("netns add {name}\n"))?;
        let file = File::open(Path::new(DIR).join(&name)).inspect_err(|_| delete(&name))?;
        Ok(NetworkNamespace { name, file })
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// The inode of the namespace, as `lsns` shows it.
    pub fn inode(&self) -> Result<u64> {
        Ok(self.file.metadata()?.ino())
    }

    pub(crate) fn handle(&self) -> Result<File> {
        Ok(self.file.try_clone()?)
    }

    /// Runs `work` inside the namespace, in a thread of its own. Sockets created there stay in this namespace.
    pub fn run_in<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T> {
        let inside = || -> Result<T> {
            move_into_link_name_space(self.file.as_fd(), Some(LinkNameSpaceType::Network))
                .with_context(|| format!("cannot enter network namespace {}", self.name))?;
            Ok(work())
        };
        let done = thread::scope(|scope| scope.spawn(inside).join());
        done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    /// Writes settings below /proc/sys/net, which belong to the namespace of the thread that opens them.
    pub fn sysctl(&self, settings: &[(&str, &str)]) -> Result<()> {
        self.run_in(|| {
            for (name, value) in settings {
                let path = Path::new("/proc/sys/net").join(name);
                fs::write(&path, value).with_context(|| format!("cannot write {value} to {}", path.display()))?;
            }
            Ok(())
        })?
    }

    /// Runs `ip -batch` with these lines inside the namespace.
    pub fn ip(&self, lines: &str) -> Result<()> {
        ip(Some(&self.name), lines)
    }
}

impl Drop for NetworkNamespace {
    fn drop(&mut self) {
        delete(&self.name);
    }
}

fn delete(name: &str) {
    if let Err(error) = ip(None, &format!("netns del {name}\n")) {
        eprintln!("harness: network namespace {name} could not be removed: {error:#}");
    }
}

fn ip(namespace: Option<&str>, lines: &str) -> Result<()> {
    let mut command = Command::new("ip");
    command
        .args(namespace.iter().flat_map(|name| ["-n", name]))
        .args(["-batch", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().context("cannot run `ip` (package iproute2)")?;
    std::io::Write::write_all(&mut child.stdin.take().expect("piped"), lines.as_bytes())?;
    let output = child.wait_with_output()?;
    if !output.status.success() {
        bail!("ip -n {namespace:?}: {}\n{lines}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

/// Removes the namespaces of harness processes that were killed before they could clean up.
pub fn remove_stale() {
    for entry in fs::read_dir(DIR).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let owner = name.strip_prefix("bl").and_then(|rest| rest.split('-').next()?.parse::<u32>().ok());
        if owner.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            let _ = ip(None, &format!("netns del {name}\n")); // Another test may remove it at the same time.
        }
    }
}
