//! What is built once and kept: programs, packages, images. Nothing in here belongs to a running cluster, except that
//! its logs are written here, so that they can still be read when it is gone.

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
    /// `$BEELINE_CACHE/kit`, by default below ~/.cache/beeline as for the project's other tools.
    pub fn open() -> Result<Cache> {
        let base = env::var_os("BEELINE_CACHE").map(PathBuf::from);
        let base = base.or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".cache/beeline")));
        let root = base.context("neither BEELINE_CACHE nor HOME is set: export BEELINE_CACHE=DIR")?.join("kit");
        fs::create_dir_all(&root).with_context(|| format!("make {}", root.display()))?;
        Ok(Cache { root: root.canonicalize()? })
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    pub fn path(&self, below: &str) -> PathBuf {
        self.root.join(below)
    }

    /// A program built from Go modules.
    pub fn program(&self, name: &str) -> PathBuf {
        self.root.join("bin").join(name)
    }

    /// Debian packages for the nodes, unpacked here so that the machine itself gets no new daemon.
    pub fn debian(&self, below: &str) -> PathBuf {
        self.root.join("debian").join(below)
    }

    pub fn log(&self, name: &str) -> PathBuf {
        self.root.join("log").join(format!("{name}.log"))
    }

    /// Containerd's files with all images in them, from which each node starts.
    pub fn store(&self) -> PathBuf {
        self.root.join("store")
    }

    /// A new, empty directory in the cache.
    pub fn fresh(&self, below: &str) -> Result<PathBuf> {
        let path = self.path(below);
        if path.exists() {
            fs::remove_dir_all(&path).with_context(|| format!("remove {}", path.display()))?;
        }
        fs::create_dir_all(&path).with_context(|| format!("make {}", path.display()))?;
        Ok(path)
    }

    /// Where programs that run in the cluster find each other: ours, the unpacked packages', the machine's.
    pub fn search_path(&self) -> Result<std::ffi::OsString> {
        let own = env::current_exe().ok().and_then(|exe| Some(exe.parent()?.to_owned()));
        let cached = ["bin", "debian/usr/sbin", "debian/usr/bin", "debian/bin"].map(|dir| self.path(dir));
        let system = env::var_os("PATH").unwrap_or_default();
        let system = env::split_paths(&system).chain(["/usr/sbin".into(), "/sbin".into()]);
        Ok(env::join_paths(cached.into_iter().chain(own).chain(system))?)
    }

    pub fn require_built(&self) -> Result<()> {
        let needed = [self.program("kubelet"), self.program("kube-apiserver"), self.debian("usr/bin/containerd")];
        for path in needed.iter().chain([&self.store()]) {
            ensure!(path.exists(), "{} is missing: run `kit build` first", path.display());
        }
        Ok(())
    }
}

/// Says for which input a thing in the cache was made. Written after the thing, so that a broken build is built again.
pub struct Stamp {
    path: PathBuf,
    input: String,
}

impl Stamp {
    pub fn new(cache: &Cache, name: &str, input: &str) -> Result<Stamp> {
        let dir = cache.path("stamp");
        fs::create_dir_all(&dir)?;
        Ok(Stamp { path: dir.join(name), input: input.to_owned() })
    }

    pub fn holds(&self) -> bool {
        fs::read_to_string(&self.path).is_ok_and(|text| text == self.input)
    }

    pub fn write(&self) -> Result<()> {
        fs::write(&self.path, &self.input).with_context(|| format!("write {}", self.path.display()))
    }
}
