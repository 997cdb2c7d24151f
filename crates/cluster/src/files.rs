//! The files of a folder: which of them changed, what they contain now, and the resulting changes of objects. This
//! module is synchronous; `folder_watcher` decides when to look at the folder.

use crate::convert::{Converter, ServiceFilter};
use crate::manifest::{self, FileContents, ManifestFormat};
use crate::manifest_index::{FileKeys, FileUpdate, ManifestIndex};
use crate::refusals::RefusalTracker;
use crate::source_key::SourceKey;
use beeline_model::Name;
use beeline_model::change::Change;
use beeline_model::refusal::{FileRef, Refusal, RefusalReason};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, Metadata};
use std::io::{self, BufReader, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

#[derive(Debug, thiserror::Error)]
#[error("cannot read the manifest folder {}: {source}; create it, or name another one (--manifests, `manifests` of a cluster)", path.display())]
pub struct FolderError {
    path: PathBuf,
    source: io::Error,
}

/// Two equal stamps mean that the file was not written in between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileStamp {
    inode: (u64, u64),
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl FileStamp {
    fn of(meta: &Metadata) -> FileStamp {
        FileStamp {
            inode: (meta.dev(), meta.ino()),
            size: meta.size(),
            modified: (meta.mtime(), meta.mtime_nsec()),
            changed: (meta.ctime(), meta.ctime_nsec()),
        }
    }
}

/// A file that has been read.
struct KnownFile {
    stamp: FileStamp,
    keys: Box<[SourceKey]>,
    is_incomplete: bool,
}

/// What was read of a file that exists, apart from its objects.
struct ReadFile {
    stamp: FileStamp,
    refusals: Vec<Refusal>,
    is_incomplete: bool,
}

pub(crate) struct ManifestFiles {
    path: PathBuf,
    converter: Converter,
    index: ManifestIndex,
    known: BTreeMap<Name, KnownFile>,
    refusals: RefusalTracker<Name>,
}

impl ManifestFiles {
    pub(crate) fn new(path: PathBuf, cluster: &str, filter: ServiceFilter) -> ManifestFiles {
        ManifestFiles {
            path,
            converter: Converter::new(cluster, filter),
            index: ManifestIndex::default(),
            known: BTreeMap::new(),
            refusals: RefusalTracker::default(),
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn refusals(&self) -> Vec<Refusal> {
        self.refusals.iter().cloned().chain(self.index.refusals()).collect()
    }

    /// Whether every file was read completely.
    pub(crate) fn is_complete(&self) -> bool {
        self.known.values().all(|known| !known.is_incomplete)
    }

    /// Reads the files that changed. `touched` files are read even if their stamp is the same, because a file may be
    /// written twice within one tick of the file system's clock. `writing` files are open for writing and left as they
    /// are.
    pub(crate) fn refresh(
        &mut self,
        touched: &BTreeSet<Name>,
        writing: &BTreeSet<Name>,
    ) -> Result<Vec<Change>, FolderError> {
        let listing = list(&self.path).map_err(|source| FolderError { path: self.path.clone(), source })?;
        let changed = self.changed_files(&listing, touched, writing);
        if changed.is_empty() {
            return Ok(Vec::new());
        }
        let read = changed.into_iter().map(|name| self.read(name, &listing)).collect::<Vec<_>>();
        let (updates, files): (Vec<FileUpdate>, Vec<_>) = read.into_iter().unzip();
        let (changes, keys) = self.index.apply(updates);
        for (keys, file) in keys.into_iter().zip(files) {
            self.store(keys, file);
        }
        self.converter.trim(self.index.len());
        Ok(changes)
    }

    fn changed_files(
        &self,
        listing: &BTreeMap<Name, FileStamp>,
        touched: &BTreeSet<Name>,
        writing: &BTreeSet<Name>,
    ) -> BTreeSet<Name> {
        let is_changed = |name: &Name| {
            let known = self.known.get(name).map(|known| &known.stamp);
            known != listing.get(name) || known.is_some() && touched.contains(name)
        };
        let names = listing.keys().chain(self.known.keys());
        let mut changed: BTreeSet<Name> =
            names.filter(|name| is_changed(name) && !writing.contains(*name)).cloned().collect();
        // A file that shares an object with a changed file must be read too, and so must the files that share other
        // objects with that file.
        let mut open: Vec<Name> = changed.iter().cloned().collect();
        while let Some(known) = open.pop().map(|name| self.known.get(&name)) {
            let sharing = known.iter().flat_map(|known| self.index.files_with_same_objects(&known.keys));
            open.extend(sharing.filter(|other| changed.insert(Name::clone(other))).cloned());
        }
        changed
    }

    /// The update of the file, and `None` instead of a `ReadFile` if the file was removed.
    fn read(&mut self, name: Name, listing: &BTreeMap<Name, FileStamp>) -> (FileUpdate, Option<ReadFile>) {
        let previous = self.known.get_mut(&name).map(|known| std::mem::take(&mut known.keys)).unwrap_or_default();
        let found = listing.get(&name).map(|stamp| (*stamp, self.open(&name)));
        let (contents, stamp) = match found {
            None => (FileContents::default(), None),
            Some((_, Err(error))) if error.kind() == ErrorKind::NotFound => (FileContents::default(), None),
            Some((stamp, Err(error))) => {
                let message = format!("cannot be opened: {error}");
                (unusable(&name, RefusalReason::Unreadable, message), Some(stamp))
            }
            // The file may have been truncated by a program that has not written the new content yet.
            Some((_, Ok((stamp, _)))) if stamp.size == 0 && !previous.is_empty() => {
                let message = "is empty; remove the file to delete its objects".into();
                (unusable(&name, RefusalReason::Empty, message), Some(stamp))
            }
            Some((_, Ok((stamp, file)))) => {
                let contents = manifest::read(&name, format_of(&name), BufReader::new(file), &mut self.converter);
                (contents, Some(stamp))
            }
        };
        let FileContents { objects, refusals, is_incomplete } = contents;
        let update = FileUpdate { file: name, previous, objects, keep_missing: is_incomplete };
        (update, stamp.map(|stamp| ReadFile { stamp, refusals, is_incomplete }))
    }

    fn open(&self, name: &Name) -> io::Result<(FileStamp, File)> {
        let file = File::open(self.path.join(&**name))?;
        Ok((FileStamp::of(&file.metadata()?), file))
    }

    fn store(&mut self, keys: FileKeys, read: Option<ReadFile>) {
        let FileKeys { file, keys, kept } = keys;
        let Some(ReadFile { stamp, mut refusals, is_incomplete }) = read else {
            self.known.remove(&file);
            self.refusals.clear(&file);
            return;
        };
        if kept > 0 {
            let message =
                format!("{kept} objects that it defined before stay in effect until it can be read completely");
            refusals.push(Refusal::new(whole_file(&file), RefusalReason::Kept, message));
        }
        self.refusals.set(&file, refusals);
        self.known.insert(file, KnownFile { stamp, keys, is_incomplete });
    }
}

fn whole_file(name: &str) -> FileRef {
    FileRef { name: name.into(), document: None, item: None }
}

fn unusable(name: &str, reason: RefusalReason, message: String) -> FileContents {
    let refusals = vec![Refusal::new(whole_file(name), reason, message)];
    FileContents { refusals, is_incomplete: true, ..FileContents::default() }
}

/// The manifests in the folder, without subfolders, as `kubectl apply -f DIR` reads them. Hidden files are temporary
/// files of editors and, in a mounted ConfigMap, the previous generation.
fn list(path: &Path) -> io::Result<BTreeMap<Name, FileStamp>> {
    let mut listing = BTreeMap::new();
    for entry in std::fs::read_dir(path)? {
        let name = entry?.file_name();
        let Some(name) = name.to_str().filter(|name| is_manifest(name)) else { continue };
        // This follows symbolic links. A dangling link is not a file.
        match std::fs::metadata(path.join(name)) {
            Ok(meta) if meta.is_file() => drop(listing.insert(Name::from(name), FileStamp::of(&meta))),
            _ => continue,
        }
    }
    Ok(listing)
}

fn is_manifest(name: &str) -> bool {
    !name.starts_with('.') && [".yaml", ".yml", ".json"].iter().any(|end| name.ends_with(end))
}

fn format_of(name: &str) -> ManifestFormat {
    if name.ends_with(".json") { ManifestFormat::Json } else { ManifestFormat::Yaml }
}
