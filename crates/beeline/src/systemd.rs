//! The systemd unit of the agent: that of the package, or one that `join` writes; and the calls of systemctl.

use crate::options::Options;
use anyhow::{Context, bail};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

pub const UNIT: &str = include_str!("../../../deploy/systemd/beeline.service");
const UNIT_NAME: &str = "beeline.service";
const PACKAGE_DIRS: [&str; 2] = ["usr/lib/systemd/system", "lib/systemd/system"];
const LOCAL_DIR: &str = "etc/systemd/system";
/// The path of the binary in the unit of the package.
const PACKAGE_BINARY: &str = "/usr/bin/beeline";

/// The first line of files that `join` writes. The package's postinst script looks for it too.
const MARKER: &str = "# Written by `beeline join`; `beeline leave` removes it.\n";
/// The directories that the unit makes writable for the agent, of those that options can change.
const WRITABLE: [&str; 2] = ["/var/lib/beeline", "/run/beeline"];

pub struct Systemd<'a> {
    pub root: &'a Path,
}

impl Systemd<'_> {
    pub fn is_running(&self) -> bool {
        self.root == Path::new("/") && Path::new("/run/systemd/system").is_dir()
    }

    /// Checks whether `install` can succeed, before anything is written.
    pub fn check(&self) -> anyhow::Result<()> {
        if self.package_unit().is_none() {
            self.binary()?;
        }
        Ok(())
    }

    fn package_unit(&self) -> Option<PathBuf> {
        PACKAGE_DIRS.iter().map(|dir| self.root.join(dir).join(UNIT_NAME)).find(|path| path.exists())
    }

    /// Uses the unit of the package or of an administrator if there is one, else writes one; adds a drop-in for
    /// writable directories if needed. Returns the paths of the files in use.
    pub fn install(&self, options: &Options) -> anyhow::Result<Vec<PathBuf>> {
        let unit = self.install_unit()?;
        let drop_in = self.install_drop_in(options)?;
        Ok(std::iter::once(unit).chain(drop_in).collect())
    }

    fn install_unit(&self) -> anyhow::Result<PathBuf> {
        let path = self.local_unit();
        if path.exists() && !is_generated(&path) {
            return Ok(path);
        }
        if let Some(package_unit) = self.package_unit() {
            // A unit from an earlier join would hide that of the package and start another binary.
            remove_generated(&path)?;
            return Ok(package_unit);
        }
        let text = UNIT.replace(PACKAGE_BINARY, &self.binary()?.display().to_string());
        write(&path, &text)?;
        Ok(path)
    }

    /// The unit allows writes to the default directories only.
    fn install_drop_in(&self, options: &Options) -> anyhow::Result<Option<PathBuf>> {
        let (path, dirs) = (self.drop_in(), other_writable_dirs(options));
        if dirs.is_empty() {
            remove_generated(&path)?;
            return Ok(None);
        }
        for dir in &dirs {
            let dir = self.root.join(dir.strip_prefix("/").unwrap_or(dir));
            std::fs::create_dir_all(&dir).with_context(|| dir.display().to_string())?;
        }
        let lines: String = dirs.iter().map(|dir| format!("ReadWritePaths={}\n", quote(dir))).collect();
        write(&path, &format!("[Service]\n{lines}"))?;
        Ok(Some(path))
    }

    fn local_unit(&self) -> PathBuf {
        self.root.join(LOCAL_DIR).join(UNIT_NAME)
    }

    fn drop_in(&self) -> PathBuf {
        self.root.join(LOCAL_DIR).join(format!("{UNIT_NAME}.d")).join("paths.conf")
    }

    /// The binary that the unit starts: this one, unless the files are for another root.
    fn binary(&self) -> anyhow::Result<PathBuf> {
        if self.root != Path::new("/") {
            return Ok(PACKAGE_BINARY.into());
        }
        let path = std::env::current_exe().context("cannot determine the path of this binary")?;
        if ["/home", "/root", "/tmp", "/var/tmp", "/run/user"].iter().any(|hidden| path.starts_with(hidden)) {
            bail!("{}: a service cannot access this path; copy beeline to /usr/local/bin first", path.display());
        }
        Ok(path)
    }

    /// A running agent is not restarted: it reads its list of clusters again by itself.
    pub fn start(&self) -> anyhow::Result<()> {
        systemctl(&["daemon-reload"])?;
        systemctl(&["enable", "--now", UNIT_NAME])
    }

    /// Stops and disables the agent and removes the files that `join` wrote; the unit of the package stays. Returns the
    /// removed paths.
    pub fn remove(&self) -> anyhow::Result<Vec<PathBuf>> {
        if self.is_running() && self.has_unit() {
            systemctl(&["disable", "--now", UNIT_NAME])?;
        }
        let mut removed = Vec::new();
        for path in [self.local_unit(), self.drop_in()] {
            removed.extend(remove_generated(&path)?.then_some(path));
        }
        let _ = self.drop_in().parent().map(std::fs::remove_dir);
        if self.is_running() && !removed.is_empty() {
            systemctl(&["daemon-reload"])?;
        }
        Ok(removed)
    }

    /// `systemctl disable` fails for a unit that does not exist, as after an earlier `leave`.
    fn has_unit(&self) -> bool {
        self.local_unit().exists() || self.package_unit().is_some() || systemctl(&["cat", UNIT_NAME]).is_ok()
    }

    /// Makes systemd-resolved, if it runs, read its drop-in files again.
    pub fn reload_resolved(&self) -> anyhow::Result<()> {
        if !self.is_running() {
            return Ok(());
        }
        systemctl(&["try-reload-or-restart", "systemd-resolved.service"])
    }
}

/// The directories that the agent writes to with these options and that the unit does not make writable.
fn other_writable_dirs(options: &Options) -> BTreeSet<PathBuf> {
    let socket = options.socket().parent().map(Path::to_owned);
    let all = [Some(options.state_dir()), options.snapshot_dir(), socket].into_iter().flatten();
    all.filter(|dir| dir.is_absolute() && !WRITABLE.iter().any(|default| dir.starts_with(default))).collect()
}

/// Quotes a path for a list in a unit. The `-` lets the unit start even if the path does not exist.
fn quote(dir: &Path) -> String {
    let text = dir.display().to_string().replace('\\', "\\\\").replace('"', "\\\"").replace('%', "%%");
    format!("\"-{text}\"")
}

fn is_generated(path: &Path) -> bool {
    std::fs::read_to_string(path).is_ok_and(|text| text.starts_with(MARKER))
}

fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    let context = || path.display().to_string();
    path.parent().map_or(Ok(()), std::fs::create_dir_all).with_context(context)?;
    beeline_join::write_atomic(path, format!("{MARKER}{text}").as_bytes(), 0o644).with_context(context)
}

/// Removes a file that `join` wrote, and returns whether there was one. A file of an administrator stays.
fn remove_generated(path: &Path) -> anyhow::Result<bool> {
    if !is_generated(path) {
        return Ok(false);
    }
    std::fs::remove_file(path).with_context(|| path.display().to_string())?;
    Ok(true)
}

fn systemctl(args: &[&str]) -> anyhow::Result<()> {
    let output = Command::new("systemctl").args(args).output().context("cannot run systemctl")?;
    if !output.status.success() {
        bail!("systemctl {}: {}", args.join(" "), String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(text: &str) -> Options {
        Options::parse(text).unwrap()
    }

    fn read(path: &Path) -> String {
        std::fs::read_to_string(path).unwrap()
    }

    #[test]
    fn the_unit_of_the_package_replaces_a_generated_unit() {
        let root = tempfile::tempdir().unwrap();
        let systemd = Systemd { root: root.path() };
        let local = systemd.local_unit();
        assert_eq!(systemd.install(&options("")).unwrap(), std::slice::from_ref(&local));
        assert!(read(&local).starts_with(MARKER) && read(&local).contains("ExecStart=/usr/bin/beeline agent"));
        let package_unit = root.path().join(PACKAGE_DIRS[0]).join(UNIT_NAME);
        std::fs::create_dir_all(package_unit.parent().unwrap()).unwrap();
        std::fs::write(&package_unit, UNIT).unwrap();
        assert_eq!(systemd.install(&options("")).unwrap(), std::slice::from_ref(&package_unit));
        assert!(!local.exists());
        // `systemctl edit --full` writes such a file.
        std::fs::write(&local, UNIT).unwrap();
        assert_eq!(systemd.install(&options("")).unwrap(), std::slice::from_ref(&local));
        assert_eq!(systemd.remove().unwrap(), Vec::<PathBuf>::new(), "the file of an administrator stays");
        assert!(local.exists() && package_unit.exists());
    }

    #[test]
    fn a_drop_in_makes_other_directories_writable() {
        let root = tempfile::tempdir().unwrap();
        let systemd = Systemd { root: root.path() };
        let drop_in = systemd.drop_in();
        let elsewhere = options("state-dir: /data/my bees\nsnapshot-dir: /data/snapshots\nsocket: /run/beeline/s\n");
        assert_eq!(systemd.install(&elsewhere).unwrap(), [systemd.local_unit(), drop_in.clone()]);
        let text = "[Service]\nReadWritePaths=\"-/data/my bees\"\nReadWritePaths=\"-/data/snapshots\"\n";
        assert_eq!(read(&drop_in), format!("{MARKER}{text}"));
        assert!(root.path().join("data/snapshots").is_dir(), "the directory must exist to be made writable");
        assert_eq!(systemd.install(&options("snapshot-dir: 'off'")).unwrap(), [systemd.local_unit()]);
        assert!(!drop_in.exists(), "the default directories need no drop-in");
        systemd.install(&elsewhere).unwrap();
        assert_eq!(systemd.remove().unwrap(), [systemd.local_unit(), drop_in.clone()]);
        assert!(!drop_in.parent().unwrap().exists());
        assert_eq!(systemd.remove().unwrap(), Vec::<PathBuf>::new(), "a second call removes nothing");
    }
}
