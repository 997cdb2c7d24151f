//! The manifest directory of an agent under test.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};

/// A directory of manifest files that an agent follows (`--manifests`). Clones refer to the same directory.
#[derive(Clone, Debug)]
pub struct ManifestDir {
    path: PathBuf,
}

impl ManifestDir {
    /// Creates the directory. Its parent must be on the same file system and is used for temporary files.
    pub fn create(path: PathBuf) -> Result<Self> {
        fs::create_dir_all(&path).with_context(|| format!("cannot create {}", path.display()))?;
        Ok(ManifestDir { path })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn read(&self, file: &str) -> Result<String> {
        let path = self.path.join(file);
        fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
    }

    /// Replaces a manifest file atomically, as an editor does by a rename.
    pub fn write(&self, file: &str, text: impl AsRef<[u8]>) -> Result<()> {
        let temporary = self.path.with_file_name(format!("{file}.new"));
        fs::write(&temporary, text).with_context(|| format!("cannot write {}", temporary.display()))?;
        fs::rename(&temporary, self.path.join(file)).with_context(|| format!("cannot write {file}"))
    }

    pub fn remove(&self, file: &str) -> Result<()> {
        fs::remove_file(self.path.join(file)).with_context(|| format!("cannot remove {file}"))
    }
}
