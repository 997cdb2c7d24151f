//! The unit of the agent: the package's, or one that `join` writes; and whoever runs it.

use crate::options::Options;
use anyhow::{Context, bail};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

pub const UNIT: &str = include_str!("../../../deploy/systemd/beeline.service");
const NAME: &str = "beeline.service";
const PACKAGED: [&str; 2] = ["usr/lib/systemd/system", "lib/systemd/system"];
const OWN: &str = "etc/systemd/system";
/// Where the package has the program.
const BINARY: &str = "/usr/bin/beeline";

/// The first line of what we wrote. postinst knows it, too.
const MARK: &str = "# Written by `beeline join`; `beeline leave` removes it.\n";
/// What the unit lets the agent write to, of what options may name.
const WRITABLE: [&str; 2] = ["/var/lib/beeline", "/run/beeline"];

pub struct Systemd<'a> {
    pub root: &'a Path,
}

impl Systemd<'_> {
    pub fn is_running(&self) -> bool {
        self.root == Path::new("/") && Path::new("/run/systemd/system").is_dir()
    }

    /// Whether the unit can be made, before anything is.
    pub fn check(&self) -> anyhow::Result<()> {
        if self.packaged().is_none() {
            self.binary()?;
        }
        Ok(())
    }

    fn packaged(&self) -> Option<PathBuf> {
        PACKAGED.iter().map(|dir| self.root.join(dir).join(NAME)).find(|path| path.exists())
    }

    /// The package's unit if there is one, or an administrator's, else ours; and what it must be let do besides. Where they
    /// are.
    pub fn install(&self, options: &Options) -> anyhow::Result<Vec<PathBuf>> {
        let unit = self.install_unit()?;
        let paths = self.install_paths(options)?;
        Ok(std::iter::once(unit).chain(paths).collect())
    }

    fn install_unit(&self) -> anyhow::Result<PathBuf> {
        let path = self.own();
        if path.exists() && !is_ours(&path) {
            return Ok(path);
        }
        if let Some(packaged) = self.packaged() {
            // One of before the package would hide it, and start another program.
            remove(&path)?;
            return Ok(packaged);
        }
        let text = UNIT.replace(BINARY, &self.binary()?.display().to_string());
        write(&path, &text)?;
        Ok(path)
    }

    /// The unit lets the agent write to its usual folders alone.
    fn install_paths(&self, options: &Options) -> anyhow::Result<Option<PathBuf>> {
        let (path, paths) = (self.paths(), unusual(options));
        if paths.is_empty() {
            remove(&path)?;
            return Ok(None);
        }
        for dir in &paths {
            let dir = self.root.join(dir.strip_prefix("/").unwrap_or(dir));
            std::fs::create_dir_all(&dir).with_context(|| dir.display().to_string())?;
        }
        let lines: String = paths.iter().map(|dir| format!("ReadWritePaths={}\n", quoted(dir))).collect();
        write(&path, &format!("[Service]\n{lines}"))?;
        Ok(Some(path))
    }

    fn own(&self) -> PathBuf {
        self.root.join(OWN).join(NAME)
    }

    fn paths(&self) -> PathBuf {
        self.root.join(OWN).join(format!("{NAME}.d")).join("paths.conf")
    }

    /// The program that the unit starts: this one, unless the files are for another root.
    fn binary(&self) -> anyhow::Result<PathBuf> {
        if self.root != Path::new("/") {
            return Ok(BINARY.into());
        }
        let path = std::env::current_exe().context("where this program is")?;
        if ["/home", "/root", "/tmp", "/var/tmp", "/run/user"].iter().any(|hidden| path.starts_with(hidden)) {
            bail!("{} is where a service cannot see it: put beeline into /usr/local/bin first", path.display());
        }
        Ok(path)
    }

    /// One that runs already reads its list of clusters by itself.
    pub fn start(&self) -> anyhow::Result<()> {
        systemctl(&["daemon-reload"])?;
        systemctl(&["enable", "--now", NAME])
    }

    /// Stopped for good; what we wrote goes, the package's unit stays. Where it was.
    pub fn remove(&self) -> anyhow::Result<Vec<PathBuf>> {
        // One that is gone was stopped before it went.
        if self.is_running() && self.has_unit() {
            systemctl(&["disable", "--now", NAME])?;
        }
        let mut gone = Vec::new();
        for path in [self.own(), self.paths()] {
            gone.extend(remove(&path)?.then_some(path));
        }
        let _ = self.paths().parent().map(std::fs::remove_dir);
        if self.is_running() && !gone.is_empty() {
            systemctl(&["daemon-reload"])?;
        }
        Ok(gone)
    }

    /// Whether there is one at all: systemctl takes it ill to be asked to stop one that is not.
    fn has_unit(&self) -> bool {
        self.own().exists() || self.packaged().is_some() || systemctl(&["cat", NAME]).is_ok()
    }

    /// Where systemd-resolved runs.
    pub fn reread_names(&self) -> anyhow::Result<()> {
        if !self.is_running() {
            return Ok(());
        }
        systemctl(&["try-reload-or-restart", "systemd-resolved.service"])
    }
}

/// Folders that the agent writes to and the unit does not know of.
fn unusual(options: &Options) -> BTreeSet<PathBuf> {
    let socket = options.socket().parent().map(Path::to_owned);
    let all = [Some(options.state_dir()), options.snapshot_dir(), socket].into_iter().flatten();
    all.filter(|dir| dir.is_absolute() && !WRITABLE.iter().any(|usual| dir.starts_with(usual))).collect()
}

/// As systemd reads a path in a list; `-`: one that is gone is no reason not to start.
fn quoted(dir: &Path) -> String {
    let text = dir.display().to_string().replace('\\', "\\\\").replace('"', "\\\"").replace('%', "%%");
    format!("\"-{text}\"")
}

fn is_ours(path: &Path) -> bool {
    std::fs::read_to_string(path).is_ok_and(|text| text.starts_with(MARK))
}

fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    let what = || path.display().to_string();
    path.parent().map_or(Ok(()), std::fs::create_dir_all).with_context(what)?;
    beeline_join::write(path, format!("{MARK}{text}").as_bytes(), 0o644).with_context(what)
}

/// Whether there was one of ours; an administrator's stays.
fn remove(path: &Path) -> anyhow::Result<bool> {
    if !is_ours(path) {
        return Ok(false);
    }
    std::fs::remove_file(path).with_context(|| path.display().to_string())?;
    Ok(true)
}

fn systemctl(args: &[&str]) -> anyhow::Result<()> {
    let output = Command::new("systemctl").args(args).output().context("systemctl")?;
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
    fn an_earlier_unit_of_ours_does_not_hide_the_packages() {
        let root = tempfile::tempdir().unwrap();
        let systemd = Systemd { root: root.path() };
        let own = systemd.own();
        assert_eq!(systemd.install(&options("")).unwrap(), std::slice::from_ref(&own));
        assert!(read(&own).starts_with(MARK) && read(&own).contains("ExecStart=/usr/bin/beeline agent"));
        let packaged = root.path().join(PACKAGED[0]).join(NAME);
        std::fs::create_dir_all(packaged.parent().unwrap()).unwrap();
        std::fs::write(&packaged, UNIT).unwrap();
        assert_eq!(systemd.install(&options("")).unwrap(), std::slice::from_ref(&packaged));
        assert!(!own.exists());
        // As `systemctl edit --full` leaves it.
        std::fs::write(&own, UNIT).unwrap();
        assert_eq!(systemd.install(&options("")).unwrap(), std::slice::from_ref(&own));
        assert_eq!(systemd.remove().unwrap(), Vec::<PathBuf>::new(), "an administrator's stays");
        assert!(own.exists() && packaged.exists());
    }

    #[test]
    fn folders_elsewhere_are_opened_to_the_unit() {
        let root = tempfile::tempdir().unwrap();
        let systemd = Systemd { root: root.path() };
        let paths = systemd.paths();
        let elsewhere = options("state-dir: /data/my bees\nsnapshot-dir: /data/facts\nsocket: /run/beeline/s\n");
        assert_eq!(systemd.install(&elsewhere).unwrap(), [systemd.own(), paths.clone()]);
        let text = "[Service]\nReadWritePaths=\"-/data/facts\"\nReadWritePaths=\"-/data/my bees\"\n";
        assert_eq!(read(&paths), format!("{MARK}{text}"));
        assert!(root.path().join("data/facts").is_dir(), "what is not there cannot be opened");
        assert_eq!(systemd.install(&options("snapshot-dir: 'off'")).unwrap(), [systemd.own()]);
        assert!(!paths.exists(), "as usual again");
        systemd.install(&elsewhere).unwrap();
        assert_eq!(systemd.remove().unwrap(), [systemd.own(), paths.clone()]);
        assert!(!paths.parent().unwrap().exists());
        assert_eq!(systemd.remove().unwrap(), Vec::<PathBuf>::new(), "a second time nothing is left to do");
    }
}
