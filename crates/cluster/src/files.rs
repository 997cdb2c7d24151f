//! The files of a folder: which of them changed, what they say now, what therefore differs. Synchronous; the watcher
//! decides when.

use crate::convert::{Claim, Convert};
use crate::index::{Change, Holding, Index};
use crate::manifest::{self, Format, Reading};
use crate::object::Identity;
use beeline_model::Name;
use beeline_model::fact::{Fact, Refusal};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, Metadata};
use std::io::{self, BufReader, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

#[derive(Debug, thiserror::Error)]
#[error("cannot read the manifest folder {}: {source}; create it, or name another (--manifests, `folder` of a cluster)", path.display())]
pub struct FolderError {
    path: PathBuf,
    source: io::Error,
}

/// Equal: the file has not been written since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    place: (u64, u64),
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Stamp {
    fn of(meta: &Metadata) -> Stamp {
        Stamp {
            place: (meta.dev(), meta.ino()),
            size: meta.size(),
            modified: (meta.mtime(), meta.mtime_nsec()),
            changed: (meta.ctime(), meta.ctime_nsec()),
        }
    }
}

struct Known {
    stamp: Stamp,
    claimed: Box<[Identity]>,
    refusals: Vec<Refusal>,
    broken: bool,
}

/// What a file that is there says, but for its objects.
struct News {
    stamp: Stamp,
    refusals: Vec<Refusal>,
    broken: bool,
}

pub(crate) struct Files {
    path: PathBuf,
    convert: Convert,
    index: Index,
    known: BTreeMap<Name, Known>,
}

impl Files {
    pub(crate) fn new(path: PathBuf, cluster: &str, claim: Claim) -> Files {
        let index = Index::new(cluster.into());
        Files { path, convert: Convert::new(cluster, claim), index, known: BTreeMap::new() }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn refusals(&self) -> Vec<Refusal> {
        let mut refusals: Vec<Refusal> = self.known.values().flat_map(|known| known.refusals.iter().cloned()).collect();
        refusals.extend(self.index.refusals());
        refusals
    }

    /// Every file could be read to its end.
    pub(crate) fn is_whole(&self) -> bool {
        self.known.values().all(|known| !known.broken)
    }

    /// Reads what changed. `touched`: files that have been written even if they look the same (twice within one tick
    /// of the file system's clock). `writing`: files that somebody is writing just now, so left as they are.
    pub(crate) fn refresh(
        &mut self,
        touched: &BTreeSet<Name>,
        writing: &BTreeSet<Name>,
    ) -> Result<Vec<Fact>, FolderError> {
        let listing = list(&self.path).map_err(|source| FolderError { path: self.path.clone(), source })?;
        let stale = self.stale(&listing, touched, writing);
        if stale.is_empty() {
            return Ok(Vec::new());
        }
        let read = stale.into_iter().map(|name| self.read(name, &listing)).collect::<Vec<_>>();
        let (changes, news): (Vec<Change>, Vec<_>) = read.into_iter().unzip();
        let (facts, holdings) = self.index.apply(changes);
        for (holding, news) in holdings.into_iter().zip(news) {
            self.remember(holding, news);
        }
        self.convert.trim(self.index.len());
        Ok(facts)
    }

    fn stale(
        &self,
        listing: &BTreeMap<Name, Stamp>,
        touched: &BTreeSet<Name>,
        writing: &BTreeSet<Name>,
    ) -> BTreeSet<Name> {
        let changed = |name: &Name| {
            let known = self.known.get(name).map(|known| &known.stamp);
            known != listing.get(name) || known.is_some() && touched.contains(name)
        };
        let names = listing.keys().chain(self.known.keys());
        let mut stale: BTreeSet<Name> =
            names.filter(|name| changed(name) && !writing.contains(*name)).cloned().collect();
        // Whoever loses a claim must be read beside who may win it, and may lose others by that.
        let mut open: Vec<Name> = stale.iter().cloned().collect();
        while let Some(known) = open.pop().map(|name| self.known.get(&name)) {
            let rivals = known.iter().flat_map(|known| self.index.rivals(&known.claimed));
            open.extend(rivals.filter(|rival| stale.insert(Name::clone(rival))).cloned());
        }
        stale
    }

    /// What the file says now, and what to remember of it (nothing if it is gone).
    fn read(&mut self, name: Name, listing: &BTreeMap<Name, Stamp>) -> (Change, Option<News>) {
        let old = self.known.get_mut(&name).map(|known| std::mem::take(&mut known.claimed)).unwrap_or_default();
        let found = listing.get(&name).map(|stamp| (*stamp, self.open(&name)));
        let (reading, news) = match found {
            None => (Reading::default(), None),
            Some((_, Err(bad))) if bad.kind() == ErrorKind::NotFound => (Reading::default(), None),
            Some((stamp, Err(bad))) => (unreadable(&name, &bad), Some(stamp)),
            // Somebody has cut it off and may not have written it again yet.
            Some((_, Ok((stamp, _)))) if stamp.size == 0 && !old.is_empty() => (empty(&name), Some(stamp)),
            Some((_, Ok((stamp, file)))) => {
                let reading = manifest::read(&name, format_of(&name), BufReader::new(file), &mut self.convert);
                (reading, Some(stamp))
            }
        };
        let Reading { objects, refusals, broken } = reading;
        (Change { file: name, old, objects, keep: broken }, news.map(|stamp| News { stamp, refusals, broken }))
    }

    fn open(&self, name: &Name) -> io::Result<(Stamp, File)> {
        let file = File::open(self.path.join(&**name))?;
        Ok((Stamp::of(&file.metadata()?), file))
    }

    fn remember(&mut self, holding: Holding, news: Option<News>) {
        let Holding { file, claimed, kept } = holding;
        let Some(News { stamp, mut refusals, broken }) = news else {
            self.known.remove(&file);
            return;
        };
        if kept > 0 {
            let message = format!("{kept} objects that it gave before stay as they were until it can be read whole");
            refusals.push(Refusal { subject: format!("file {file}"), reason: "kept", message });
        }
        self.known.insert(file, Known { stamp, claimed, refusals, broken });
    }
}

fn unreadable(name: &str, bad: &io::Error) -> Reading {
    broken(name, "unreadable", format!("cannot be opened: {bad}"))
}

fn empty(name: &str) -> Reading {
    broken(name, "empty", "is empty; to take its objects back, remove the file".into())
}

fn broken(name: &str, reason: &'static str, message: String) -> Reading {
    let refusal = Refusal { subject: format!("file {name}"), reason, message };
    Reading { refusals: vec![refusal], broken: true, ..Reading::default() }
}

/// The manifests of the folder, not of folders in it, as `kubectl apply -f DIR` takes them. Hidden files are editors'
/// and, in a mounted ConfigMap, the old generation.
fn list(path: &Path) -> io::Result<BTreeMap<Name, Stamp>> {
    let mut listing = BTreeMap::new();
    for entry in std::fs::read_dir(path)? {
        let name = entry?.file_name();
        let Some(name) = name.to_str().filter(|name| is_manifest(name)) else { continue };
        // Follows links; one that leads nowhere is no file.
        match std::fs::metadata(path.join(name)) {
            Ok(meta) if meta.is_file() => drop(listing.insert(Name::from(name), Stamp::of(&meta))),
            _ => continue,
        }
    }
    Ok(listing)
}

fn is_manifest(name: &str) -> bool {
    !name.starts_with('.') && [".yaml", ".yml", ".json"].iter().any(|end| name.ends_with(end))
}

fn format_of(name: &str) -> Format {
    if name.ends_with(".json") { Format::Json } else { Format::Yaml }
}
