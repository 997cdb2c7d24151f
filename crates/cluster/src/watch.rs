//! When to look at the folder again. inotify says that something happened; a slow poll catches what it cannot say (a
//! folder replaced by another, a file system without inotify). Either way the same refresh decides what changed.
//!
//! A file that is being written is left alone until it is closed: a truncated manifest is often valid YAML that says
//! less than it should, and `kubectl get -o yaml > web.yaml` leaves it empty for as long as kubectl thinks.

use crate::files::{Files, FolderError};
use crate::folder::Batch;
use beeline_model::Name;
use beeline_model::fact::{Fact, Refusal};
use notify::event::{AccessKind, AccessMode, EventKind, ModifyKind};
use notify::{RecommendedWatcher, RecursiveMode, Watcher};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use tokio::sync::mpsc::{Sender, UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::{Duration, Instant, timeout_at};

/// Changes that follow each other this closely are one.
const QUIET: Duration = Duration::from_millis(10);
/// But under a storm of them nobody waits longer than this.
const PATIENCE: Duration = Duration::from_millis(40);
/// How long a writer may pause before its file is taken as it is.
const WRITER: Duration = Duration::from_secs(1);
/// The slow poll; slower still where one look takes long, so that it never costs more than one part in a hundred.
const POLL: Duration = Duration::from_secs(1);
const POLL_SHARE: u32 = 100;
/// While the folder is not there.
const SEARCH: Duration = Duration::from_millis(200);

pub(crate) async fn watch(mut files: Files, batches: Sender<Batch>) {
    let (said, mut events) = unbounded_channel();
    let mut ear = Ear::new(files.path(), said);
    let mut voice = Voice::default();
    let mut pending = Pending::default();
    loop {
        // First listen, then look: what changes in between is heard.
        ear.arm();
        let start = Instant::now();
        let (touched, writing) = pending.take();
        let looked = tokio::task::spawn_blocking(move || {
            let facts = files.refresh(&touched, &writing);
            (files, facts)
        });
        let facts;
        (files, facts) = match looked.await {
            Ok(looked) => looked,
            Err(bad) if bad.is_panic() => std::panic::resume_unwind(bad.into_panic()),
            // The runtime itself ends.
            Err(_) => return,
        };
        let idle = if facts.is_err() { SEARCH } else { POLL.max(start.elapsed() * POLL_SHARE) };
        if let Some(batch) = voice.batch(facts, files.refusals(), ear.refusal(), files.is_whole())
            && batches.send(batch).await.is_err()
        {
            return;
        }
        tokio::select! {
            () = pending.wait(&mut events, idle) => {}
            () = batches.closed() => return,
        }
    }
}

/// What was said last, so that nothing is said twice.
#[derive(Default)]
struct Voice {
    spoken: bool,
    synced: bool,
    refusals: Vec<Refusal>,
    error: Option<String>,
}

impl Voice {
    fn batch(
        &mut self,
        facts: Result<Vec<Fact>, FolderError>,
        mut refusals: Vec<Refusal>,
        deaf: Option<Refusal>,
        whole: bool,
    ) -> Option<Batch> {
        let error = facts.as_ref().err().map(ToString::to_string);
        refusals.extend(deaf);
        let facts = facts.unwrap_or_default();
        let first = !self.spoken || !self.synced && error.is_none();
        if !first && facts.is_empty() && refusals == self.refusals && error == self.error {
            return None;
        }
        self.synced |= error.is_none();
        (self.spoken, self.refusals, self.error) = (true, refusals.clone(), error.clone());
        let whole = whole && error.is_none();
        Some(Batch { facts, refusals: refusals.into(), synced: self.synced, whole, error, ..Batch::default() })
    }
}

#[derive(Debug)]
enum Heard {
    /// Written to, and still open.
    Writing(Vec<Name>),
    /// Closed, renamed, removed, or something else about the folder.
    Done(Vec<Name>),
}

#[derive(Default)]
struct Pending {
    touched: BTreeSet<Name>,
    writing: BTreeMap<Name, Instant>,
    /// The first and the last event that is not yet acted on.
    span: Option<(Instant, Instant)>,
}

impl Pending {
    fn take(&mut self) -> (BTreeSet<Name>, BTreeSet<Name>) {
        self.span = None;
        (std::mem::take(&mut self.touched), self.writing.keys().cloned().collect())
    }

    /// Until it is time to look again.
    async fn wait(&mut self, events: &mut UnboundedReceiver<Heard>, idle: Duration) {
        let poll = Instant::now() + idle;
        loop {
            let wake = self.due().map_or(poll, |due| due.min(poll));
            match timeout_at(wake, events.recv()).await {
                Ok(Some(heard)) => self.note(heard, Instant::now()),
                Ok(None) => return tokio::time::sleep_until(wake).await,
                Err(_) => return self.expire(Instant::now()),
            }
        }
    }

    fn due(&self) -> Option<Instant> {
        let settled = self.span.map(|(first, last)| (last + QUIET).min(first + PATIENCE));
        let expired = self.writing.values().min().map(|last| *last + WRITER);
        settled.into_iter().chain(expired).min()
    }

    fn note(&mut self, heard: Heard, now: Instant) {
        match heard {
            Heard::Writing(names) => self.writing.extend(names.into_iter().map(|name| (name, now))),
            Heard::Done(names) => {
                self.writing.retain(|name, _| !names.contains(name));
                self.touched.extend(names);
                self.span = Some((self.span.map_or(now, |(first, _)| first), now));
            }
        }
    }

    fn expire(&mut self, now: Instant) {
        let (expired, writing) =
            std::mem::take(&mut self.writing).into_iter().partition(|(_, last)| *last + WRITER <= now);
        let expired: BTreeMap<Name, Instant> = expired;
        self.touched.extend(expired.into_keys());
        self.writing = writing;
    }
}

/// The inotify watch. It is on the folder that stood there when it was set, so it is set anew before every look: that
/// costs next to nothing, and no inode number has to be trusted (they are used again at once).
struct Ear {
    path: PathBuf,
    watcher: notify::Result<RecommendedWatcher>,
    deaf: Option<String>,
}

impl Ear {
    fn new(path: &Path, said: UnboundedSender<Heard>) -> Ear {
        let hear = move |event: notify::Result<notify::Event>| {
            if let Some(heard) = event.ok().and_then(understand) {
                // Nobody listens only when the watch has ended.
                let _ = said.send(heard);
            }
        };
        Ear { path: path.to_owned(), watcher: notify::recommended_watcher(hear), deaf: None }
    }

    fn arm(&mut self) {
        let armed = match &mut self.watcher {
            Ok(watcher) => watcher.watch(&self.path, RecursiveMode::NonRecursive),
            Err(bad) => Err(notify::Error::generic(&bad.to_string())),
        };
        // A folder that is not there is another complaint.
        self.deaf = armed.err().map(|bad| bad.to_string()).filter(|_| self.path.exists());
    }

    fn refusal(&self) -> Option<Refusal> {
        let why = self.deaf.as_ref()?;
        Some(Refusal {
            subject: format!("folder {}", self.path.display()),
            reason: "noInotify",
            message: format!(
                "changes are found by polling only: {why}; see fs.inotify.max_user_watches and _instances"
            ),
        })
    }
}

/// `None`: says nothing about contents. Opening is such an event, and our own reading causes it.
fn understand(event: notify::Event) -> Option<Heard> {
    let names = event.paths.iter().filter_map(|path| path.file_name()?.to_str().map(Name::from)).collect();
    match event.kind {
        EventKind::Modify(ModifyKind::Data(_)) => Some(Heard::Writing(names)),
        EventKind::Access(AccessKind::Close(AccessMode::Write)) => Some(Heard::Done(names)),
        EventKind::Access(_) => None,
        _ => Some(Heard::Done(names)),
    }
}
