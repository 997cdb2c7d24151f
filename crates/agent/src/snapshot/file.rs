//! Two generations of a cluster's facts on disk: `NAME.facts` and, from the write before, `NAME.facts.before`. A file is
//! written beside them and takes its place by rename when it is on the disk as a whole: whatever happens in between, one
//! of the two is complete.
//!
//! ```text
//! beeline-snapshot 1 <sha256 of all that follows, and of the version>
//! {"cluster":"far","uid":"...","bootId":"...","uptime":812,"time":1789000000}
//! {"service":{...}}            one fact a line
//! ```

use super::clock::Moment;
use super::flaw::Flaw;
use beeline_model::fact::{Fact, NamedService, Published};
use beeline_model::{Address, Name};
use ring::digest::{Context, SHA256};
use rustix::fs::{Mode, OFlags};
use serde::{Deserialize, Serialize};
use std::fs::{DirBuilder, File};
use std::io::{self, BufWriter, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

pub const VERSION: u32 = 1;
const MAGIC: &str = "beeline-snapshot";
/// Of a hundred thousand services with a handful of endpoints each it is about a third.
pub const LARGEST: u64 = 256 << 20;

/// Where the snapshots of one cluster are.
#[derive(Clone, Debug)]
pub struct Place {
    pub dir: PathBuf,
    pub cluster: Name,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    pub cluster: Name,
    /// Of the cluster's namespace kube-system: the name is only what the configuration calls it.
    pub uid: Box<str>,
    #[serde(flatten)]
    pub at: Moment,
}

/// What was read.
#[derive(Debug)]
pub struct Recalled {
    pub header: Header,
    pub facts: Vec<Fact>,
    pub age: Duration,
    pub path: PathBuf,
}

/// The first generation that can be used, and what was wrong with those before it.
#[derive(Debug, Default)]
pub struct Loaded {
    pub recalled: Option<Recalled>,
    pub flaws: Vec<(PathBuf, Flaw)>,
}

/// What a snapshot must be to be used.
#[derive(Clone, Debug)]
pub struct Terms<'a> {
    pub now: Moment,
    /// `None`: as long as it takes.
    pub max_age: Option<Duration>,
    /// Known from the credentials or from the cluster itself. `None`: nobody knows, and any snapshot may be another's.
    pub uid: Option<&'a str>,
}

impl Place {
    pub fn path(&self) -> PathBuf {
        self.dir.join(format!("{}.facts", self.cluster))
    }

    pub fn path_before(&self) -> PathBuf {
        self.dir.join(format!("{}.facts.before", self.cluster))
    }

    fn path_new(&self) -> PathBuf {
        self.dir.join(format!("{}.facts.new", self.cluster))
    }

    /// Removes what there is, also of a write that was cut short. What it was.
    pub fn forget(&self) -> io::Result<Vec<PathBuf>> {
        let mut gone = Vec::new();
        for path in [self.path_new(), self.path(), self.path_before()] {
            match std::fs::remove_file(&path) {
                Ok(()) => gone.push(path),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(gone)
    }

    pub fn load(&self, terms: &Terms<'_>) -> Loaded {
        let mut loaded = Loaded::default();
        for path in [self.path(), self.path_before()] {
            match self.read(&path, terms) {
                Ok(recalled) => {
                    loaded.recalled = Some(recalled);
                    break;
                }
                Err(flaw) => loaded.flaws.push((path, flaw)),
            }
        }
        loaded
    }

    fn read(&self, path: &Path, terms: &Terms<'_>) -> Result<Recalled, Flaw> {
        let text = slurp(path)?;
        let (header, body) = open(&text)?;
        if header.cluster != self.cluster {
            return Err(Flaw::Cluster(header.cluster.to_string()));
        }
        match terms.uid {
            Some(uid) if *uid == *header.uid => {}
            Some(expected) => return Err(Flaw::ForeignUid { found: header.uid.into(), expected: expected.into() }),
            None => return Err(Flaw::NoUid { found: header.uid.into() }),
        }
        let age = terms.now.since(&header.at);
        if let Some(most) = terms.max_age.filter(|most| age > *most) {
            return Err(Flaw::TooOld { age, most });
        }
        // Two lines stand before the first fact.
        let lines = body.lines().enumerate().map(|(i, line)| (i + 3, line));
        let facts = lines.map(|(line, text)| fact(text, &self.cluster).map_err(|why| Flaw::Fact { line, why }));
        Ok(Recalled { facts: facts.collect::<Result<_, _>>()?, header, age, path: path.to_owned() })
    }

    /// How many bytes it has become.
    pub fn write(&self, header: &Header, facts: impl Iterator<Item = Fact>) -> io::Result<u64> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.dir)?;
        let new = self.path_new();
        let written = fill(&new, header, facts).inspect_err(|_| drop(std::fs::remove_file(&new)))?;
        match std::fs::rename(self.path(), self.path_before()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        std::fs::rename(&new, self.path())?;
        File::open(&self.dir)?.sync_all()?;
        Ok(written)
    }
}

/// Hashes what goes by, and knows when it is too much.
struct Seal<W> {
    to: W,
    sum: Context,
    bytes: u64,
}

impl<W: Write> Write for Seal<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.to.write(bytes)?;
        self.sum.update(&bytes[..written]);
        self.bytes += written as u64;
        if self.bytes > LARGEST {
            let why = format!("more than {} MiB of facts are not kept", LARGEST >> 20);
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, why));
        }
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

fn begin() -> Context {
    let mut sum = Context::new(&SHA256);
    sum.update(format!("{MAGIC} {VERSION}\n").as_bytes());
    sum
}

fn hex(sum: Context) -> String {
    sum.finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn fill(path: &Path, header: &Header, facts: impl Iterator<Item = Fact>) -> io::Result<u64> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR)?);
    let mut to = BufWriter::new(file);
    // The checksum takes its place when it is known.
    writeln!(to, "{MAGIC} {VERSION} {:064}", 0)?;
    let mut seal = Seal { to, sum: begin(), bytes: 0 };
    serde_json::to_writer(&mut seal, header)?;
    seal.write_all(b"\n")?;
    for fact in facts {
        serde_json::to_writer(&mut seal, &fact)?;
        seal.write_all(b"\n")?;
    }
    let mut file = seal.to.into_inner().map_err(io::IntoInnerError::into_error)?;
    file.rewind()?;
    write!(file, "{MAGIC} {VERSION} {}", hex(seal.sum))?;
    file.sync_all()?;
    Ok(seal.bytes)
}

fn slurp(path: &Path) -> Result<String, Flaw> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(file) => File::from(file),
        Err(rustix::io::Errno::NOENT) => return Err(Flaw::Missing),
        Err(rustix::io::Errno::LOOP) => return Err(Flaw::NoFile),
        Err(error) => return Err(Flaw::Unreadable(error.into())),
    };
    let meta = file.metadata().map_err(Flaw::Unreadable)?;
    if !meta.is_file() {
        return Err(Flaw::NoFile);
    }
    // Whoever may write it may name any address as a service's.
    if meta.uid() != rustix::process::geteuid().as_raw() || meta.mode() & 0o022 != 0 {
        return Err(Flaw::Exposed { owner: meta.uid(), mode: meta.mode() & 0o7777 });
    }
    if meta.len() > LARGEST {
        return Err(Flaw::TooLarge(meta.len()));
    }
    let mut bytes = Vec::with_capacity(meta.len() as usize);
    file.take(LARGEST + 1).read_to_end(&mut bytes).map_err(Flaw::Unreadable)?;
    String::from_utf8(bytes).map_err(|_| Flaw::Checksum)
}

/// The header and the facts' lines, if nothing was changed.
fn open(text: &str) -> Result<(Header, &str), Flaw> {
    let (first, rest) = text.split_once('\n').unwrap_or((text, ""));
    let sum = first.strip_prefix(&format!("{MAGIC} {VERSION} "));
    let sum = sum.ok_or_else(|| Flaw::Version(first.chars().take(40).collect()))?;
    let mut held = begin();
    held.update(rest.as_bytes());
    if hex(held) != sum {
        return Err(Flaw::Checksum);
    }
    let (header, body) = rest.split_once('\n').unwrap_or((rest, ""));
    Ok((serde_json::from_str(header).map_err(|why| Flaw::Header(why.to_string()))?, body))
}

/// One fact of this cluster. Who can write the file can make the checksum, too: what no source would ever say is not
/// believed.
fn fact(text: &str, cluster: &Name) -> Result<Fact, String> {
    let fact: Fact = serde_json::from_str(text).map_err(|why| why.to_string())?;
    let of: &str = match &fact {
        Fact::Service(service) => service.name.cluster(),
        Fact::NamedService(named) => named.name.cluster(),
        Fact::Slice(slice) | Fact::NamedSlice(slice) if *slice.name.cluster == **cluster => slice.service.cluster(),
        Fact::Slice(slice) | Fact::NamedSlice(slice) => &slice.name.cluster,
        Fact::Node(node) => &node.cluster,
        Fact::Pod(pod) => &pod.name.cluster,
        Fact::Namespace(namespace) => &namespace.cluster,
        Fact::Policy(policy) => &policy.name.cluster,
        Fact::PolicySlice(slice) => &slice.name.cluster,
        Fact::ServiceRange { cluster, .. } => cluster,
        _ => return Err("a snapshot says what is there, not what is gone".into()),
    };
    if of != &**cluster {
        return Err(format!("it is about cluster {of:?}"));
    }
    if let Some(address) = addresses(&fact).into_iter().find(|address| address.is_any() || address.is_loopback()) {
        return Err(format!("{address} is nobody's service address"));
    }
    Ok(fact)
}

/// That a Service says are its own.
fn addresses(fact: &Fact) -> Vec<Address> {
    match fact {
        Fact::Service(service) => {
            let all = service.cluster_ips.iter().chain(&service.load_balancer_ips).chain(&service.external_ips);
            all.copied().collect()
        }
        Fact::NamedService(NamedService { published: Published::Addresses(addresses), .. }) => addresses.to_vec(),
        _ => Vec::new(),
    }
}
