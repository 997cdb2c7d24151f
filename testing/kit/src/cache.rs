//! Cache of programs, packages and images that are built once. It contains nothing of a running cluster except its
//! logs, which can be read after the cluster has been removed.

use std::{
    env, fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};

#[derive(Clone, Debug)]
pub struct Cache {
    root: PathBuf,
}

impl Cache {
    /// Opens `$BEELINE_CACHE/kit`; BEELINE_CACHE defaults to ~/.cache/beeline.
    pub fn open() -> Result<Cache> {
        let base = env::var_os("BEELINE_CACHE").map(PathBuf::from);
        let base = base.or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".cache/beeline")));
        let root = base.context("neither BEELINE_CACHE nor HOME is set: export BEELINE_CACHE=DIR")?.join("kit");
        fs::create_dir_all(&root).with_context(|| format!("cannot create {}", root.display()))?;
        Ok(Cache { root: root.canonicalize()? })
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    pub fn path(&self, below: &str) -> PathBuf {
        self.root.join(below)
    }

    /// Path of a program built from Go modules.
    pub fn program(&self, name: &str) -> PathBuf {
        self.root.join("bin").join(name)
    }

    /// Path in the unpacked Debian packages for the nodes. They are not installed on the machine.
    pub fn debian(&self, below: &str) -> PathBuf {
        self.root.join("debian").join(below)
    }

    pub fn log(&self, name: &str) -> PathBuf {
        self.root.join("log").join(format!("{name}.log"))
    }

    /// containerd's files with all images, from which each node starts.
    pub fn store(&self) -> PathBuf {
        self.root.join("store")
    }

    /// Creates an empty directory in the cache, and removes an existing one first.
    pub fn fresh(&self, below: &str) -> Result<PathBuf> {
        let path = self.path(below);
        if path.exists() {
            fs::remove_dir_all(&path).with_context(|| format!("cannot remove {}", path.display()))?;
        }
        fs::create_dir_all(&path).with_context(|| format!("cannot create {}", path.display()))?;
        Ok(path)
    }

    /// PATH of programs in the cluster: the cache, the unpacked packages, the kit's directory and the machine's PATH.
    pub fn search_path(&self) -> Result<std::ffi::OsString> {
        let own = env::current_exe().ok().and_then(|exe| Some(exe.parent()?.to_owned()));
        // kubectl finds the plugin deploy/kubectl-beeline there.
        let deploy = Some(crate::chart::source_dir().join("deploy"));
        let cached = ["bin", "debian/usr/sbin", "debian/usr/bin", "debian/bin"].map(|dir| self.path(dir));
        let system = env::var_os("PATH").unwrap_or_default();
        let system = env::split_paths(&system).chain(["/usr/sbin".into(), "/sbin".into()]);
        Ok(env::join_paths(cached.into_iter().chain(own).chain(deploy).chain(system))?)
    }

    pub fn require_built(&self) -> Result<()> {
        let needed = [self.program("kubelet"), self.program("kube-apiserver"), self.debian("usr/bin/containerd")];
        for path in needed.iter().chain([&self.store()]) {
            ensure!(path.exists(), "{} is missing: run `kit build` first", path.display());
        }
        Ok(())
    }
}

/// Records the input from which an item of the cache was built. It is written after the item, so that an interrupted
/// build is repeated.
pub struct BuildStamp {
    path: PathBuf,
    input: String,
}

impl BuildStamp {
    pub fn new(cache: &Cache, name: &str, input: &str) -> Result<BuildStamp> {
        let dir = cache.path("stamp");
        fs::create_dir_all(&dir)?;
        Ok(BuildStamp { path: dir.join(name), input: input.to_owned() })
    }

    pub fn is_current(&self) -> bool {
        fs::read_to_string(&self.path).is_ok_and(|text| text == self.input)
    }

    pub fn write(&self) -> Result<()> {
        fs::write(&self.path, &self.input).with_context(|| format!("cannot write {}", self.path.display()))
    }
}
