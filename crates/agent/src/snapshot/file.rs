//! The snapshot files of one cluster: `NAME.snapshot` and, from the write before, `NAME.snapshot.previous`. A new file is
//! written under a temporary name and renamed when it is completely on disk, so that one of the two is always complete.
//!
//! ```text
//! beeline-snapshot 1 <sha256 of the version and of everything that follows>
//! {"cluster":"far","uid":"...","bootId":"...","uptime":812,"time":1789000000}
//! {"Service":{...}}            one object per line
//! ```

use super::clock::ClockReading;
use super::error::SnapshotError;
use beeline_model::Name;
use beeline_model::object::Object;
use ring::digest::{Context, SHA256};
use rustix::fs::{Mode, OFlags};
use serde::{Deserialize, Serialize};
use std::fs::{DirBuilder, File};
use std::io::{self, BufWriter, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

pub const VERSION: u32 = 1;
pub(super) const MAGIC: &str = "beeline-snapshot";
/// A cluster of 100,000 Services with a few endpoints each needs about a third of this.
pub const MAX_SNAPSHOT_BYTES: u64 = 256 << 20;

/// The location of one cluster's snapshots.
#[derive(Clone, Debug)]
pub struct SnapshotFiles {
    pub dir: PathBuf,
    pub cluster: Name,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotHeader {
    pub cluster: Name,
    /// The UID of the namespace kube-system. It identifies the cluster; the name only comes from the configuration.
    pub uid: Box<str>,
    #[serde(flatten)]
    pub at: ClockReading,
}

#[derive(Debug)]
pub struct LoadedSnapshot {
    pub header: SnapshotHeader,
    pub objects: Vec<Object>,
    pub age: Duration,
    pub path: PathBuf,
}

/// The newest usable snapshot, and why newer files were not used.
#[derive(Debug, Default)]
pub struct LoadResult {
    pub snapshot: Option<LoadedSnapshot>,
    pub errors: Vec<(PathBuf, SnapshotError)>,
}

/// The conditions under which a snapshot is used.
#[derive(Clone, Debug)]
pub struct LoadRequirements<'a> {
    pub now: ClockReading,
    /// `None` means any age.
    pub max_age: Option<Duration>,
    /// The UID of the cluster. `None` means that it is not known; then no snapshot is used, because it may be another
    /// cluster's.
    pub uid: Option<&'a str>,
}

impl SnapshotFiles {
    pub fn path(&self) -> PathBuf {
        self.dir.join(format!("{}.snapshot", self.cluster))
    }

    pub fn previous_path(&self) -> PathBuf {
        self.dir.join(format!("{}.snapshot.previous", self.cluster))
    }

    fn temporary_path(&self) -> PathBuf {
        self.dir.join(format!("{}.snapshot.new", self.cluster))
    }

    /// Removes all files, also the one of an interrupted write. Returns the removed paths.
    pub fn remove(&self) -> io::Result<Vec<PathBuf>> {
        let mut removed = Vec::new();
        for path in [self.temporary_path(), self.path(), self.previous_path()] {
            match std::fs::remove_file(&path) {
                Ok(()) => removed.push(path),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(removed)
    }

    pub fn load(&self, requirements: &LoadRequirements<'_>) -> LoadResult {
        let mut result = LoadResult::default();
        for path in [self.path(), self.previous_path()] {
            match self.read(&path, requirements) {
                Ok(snapshot) => {
                    result.snapshot = Some(snapshot);
                    break;
                }
                Err(error) => result.errors.push((path, error)),
            }
        }
        result
    }

    fn read(&self, path: &Path, requirements: &LoadRequirements<'_>) -> Result<LoadedSnapshot, SnapshotError> {
        let (header, objects, age) = self.parse(&read_file(path)?, requirements)?;
        Ok(LoadedSnapshot { objects, header, age, path: path.to_owned() })
    }

    /// Parses the contents of a file.
    pub(super) fn parse(
        &self,
        text: &str,
        requirements: &LoadRequirements<'_>,
    ) -> Result<(SnapshotHeader, Vec<Object>, Duration), SnapshotError> {
        let (header, body) = verify(text)?;
        if header.cluster != self.cluster {
            return Err(SnapshotError::Cluster(header.cluster.to_string()));
        }
        let found = || String::from(&*header.uid);
        match requirements.uid {
            Some(uid) if *uid == *header.uid => {}
            Some(expected) => return Err(SnapshotError::OtherUid { found: found(), expected: expected.into() }),
            None => return Err(SnapshotError::UnknownUid { found: found() }),
        }
        let age = requirements.now.since(&header.at);
        if let Some(max) = requirements.max_age.filter(|max| age > *max) {
            return Err(SnapshotError::TooOld { age, max });
        }
        // The first object is in line 3.
        let lines = body.lines().enumerate().map(|(i, line)| (i + 3, line));
        let parse = |(line, text)| object(text, &self.cluster).map_err(|error| SnapshotError::Object { line, error });
        let objects = lines.map(parse).collect::<Result<_, _>>()?;
        Ok((header, objects, age))
    }

    /// Returns the size in bytes.
    pub fn write(&self, header: &SnapshotHeader, objects: impl Iterator<Item = Object>) -> io::Result<u64> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.dir)?;
        let new = self.temporary_path();
        let written = write_file(&new, header, objects).inspect_err(|_| drop(std::fs::remove_file(&new)))?;
        match std::fs::rename(self.path(), self.previous_path()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        std::fs::rename(&new, self.path())?;
        File::open(&self.dir)?.sync_all()?;
        Ok(written)
    }
}

/// Computes the checksum of everything that is written, and fails above the maximum size.
struct ChecksumWriter<W> {
    inner: W,
    checksum: Context,
    bytes: u64,
}

impl<W: Write> Write for ChecksumWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(bytes)?;
        self.checksum.update(&bytes[..written]);
        self.bytes += written as u64;
        if self.bytes > MAX_SNAPSHOT_BYTES {
            let message = format!("the snapshot is larger than {} MiB", MAX_SNAPSHOT_BYTES >> 20);
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, message));
        }
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

pub(super) fn new_checksum() -> Context {
    let mut checksum = Context::new(&SHA256);
    checksum.update(format!("{MAGIC} {VERSION}\n").as_bytes());
    checksum
}

pub(super) fn hex(checksum: Context) -> String {
    checksum.finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn write_file(path: &Path, header: &SnapshotHeader, objects: impl Iterator<Item = Object>) -> io::Result<u64> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR)?);
    let mut inner = BufWriter::new(file);
    // A placeholder, overwritten when the checksum is known.
    writeln!(inner, "{MAGIC} {VERSION} {:064}", 0)?;
    let mut writer = ChecksumWriter { inner, checksum: new_checksum(), bytes: 0 };
    serde_json::to_writer(&mut writer, header)?;
    writer.write_all(b"\n")?;
    for object in objects {
        serde_json::to_writer(&mut writer, &object)?;
        writer.write_all(b"\n")?;
    }
    let mut file = writer.inner.into_inner().map_err(io::IntoInnerError::into_error)?;
    file.rewind()?;
    write!(file, "{MAGIC} {VERSION} {}", hex(writer.checksum))?;
    file.sync_all()?;
    Ok(writer.bytes)
}

fn read_file(path: &Path) -> Result<String, SnapshotError> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(file) => File::from(file),
        Err(rustix::io::Errno::NOENT) => return Err(SnapshotError::Missing),
        Err(rustix::io::Errno::LOOP) => return Err(SnapshotError::NotAFile),
        Err(error) => return Err(SnapshotError::Unreadable(error.into())),
    };
    let meta = file.metadata().map_err(SnapshotError::Unreadable)?;
    if !meta.is_file() {
        return Err(SnapshotError::NotAFile);
    }
    // A user who can write the file can redirect any address.
    if meta.uid() != rustix::process::geteuid().as_raw() || meta.mode() & 0o022 != 0 {
        return Err(SnapshotError::Exposed { owner: meta.uid(), mode: meta.mode() & 0o7777 });
    }
    if meta.len() > MAX_SNAPSHOT_BYTES {
        return Err(SnapshotError::TooLarge(meta.len()));
    }
    let mut bytes = Vec::with_capacity(meta.len() as usize);
    file.take(MAX_SNAPSHOT_BYTES + 1).read_to_end(&mut bytes).map_err(SnapshotError::Unreadable)?;
    String::from_utf8(bytes).map_err(|_| SnapshotError::Checksum)
}

/// Checks version and checksum. Returns the header and the lines of the objects.
fn verify(text: &str) -> Result<(SnapshotHeader, &str), SnapshotError> {
    let (first, rest) = text.split_once('\n').unwrap_or((text, ""));
    let stored = first.strip_prefix(&format!("{MAGIC} {VERSION} "));
    let stored = stored.ok_or_else(|| SnapshotError::Version(first.chars().take(40).collect()))?;
    let mut checksum = new_checksum();
    checksum.update(rest.as_bytes());
    if hex(checksum) != stored {
        return Err(SnapshotError::Checksum);
    }
    let (header, body) = rest.split_once('\n').unwrap_or((rest, ""));
    let header = serde_json::from_str(header).map_err(|error| SnapshotError::Header(error.to_string()))?;
    Ok((header, body))
}

/// Parses one object of this cluster. A user who can write the file can also compute the checksum, so objects that no
/// source would deliver are rejected.
pub(super) fn object(text: &str, cluster: &Name) -> Result<Object, String> {
    let object: Object = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let found = match &object {
        Object::Slice(slice) | Object::NamedSlice(slice) if object.cluster() == &**cluster => slice.service.cluster(),
        _ => object.cluster(),
    };
    if found != &**cluster {
        return Err(format!("the object belongs to cluster {found:?}"));
    }
    beeline_cluster::check_object(&object)?;
    Ok(object)
}
