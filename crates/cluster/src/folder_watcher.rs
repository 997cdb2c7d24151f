//! Decides when to look at the folder again. inotify reports changes. A slow poll finds what inotify does not report: a
//! folder that was replaced by another one, or a file system without inotify. In both cases the same refresh decides
//! what changed.
//!
//! A file that is being written is not read until it is closed. A truncated manifest is often valid YAML with fewer
//! objects, and `kubectl get -o yaml > web.yaml` leaves the file empty until kubectl has its answer.

use crate::files::{FolderError, ManifestFiles};
use crate::folder::ChangeBatch;
use beeline_model::Name;
use beeline_model::change::Change;
use beeline_model::refusal::{Refusal, RefusalReason, RefusalSubject};
use notify::event::{AccessKind, AccessMode, EventKind, ModifyKind};
use notify::{RecommendedWatcher, RecursiveMode, Watcher};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use tokio::sync::mpsc::{Sender, UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::{Duration, Instant, timeout_at};

/// Events that follow each other within this time are handled together.
const DEBOUNCE: Duration = Duration::from_millis(10);
/// Events are handled after this time at the latest, even if more of them arrive.
const MAX_DEBOUNCE: Duration = Duration::from_millis(40);
/// A file that is still open after this time without a write is read as it is.
const WRITER_TIMEOUT: Duration = Duration::from_secs(1);
/// The interval of the slow poll. It is longer if a refresh takes long, so that polling uses at most one hundredth of
/// the time.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
const POLL_SHARE: u32 = 100;
/// The poll interval while the folder does not exist.
const MISSING_POLL_INTERVAL: Duration = Duration::from_millis(200);

pub(crate) async fn watch(mut files: ManifestFiles, batches: Sender<ChangeBatch>) {
    let (event_sender, mut events) = unbounded_channel();
    let mut inotify = InotifyWatch::new(files.path(), event_sender);
    let mut last_sent = LastSent::default();
    let mut pending = PendingEvents::default();
    loop {
        // The watch is set before the folder is read, so that a change in between is reported.
        inotify.rearm();
        let start = Instant::now();
        let (touched, writing) = pending.take();
        let refreshed = tokio::task::spawn_blocking(move || {
            let changes = files.refresh(&touched, &writing);
            (files, changes)
        });
        let changes;
        (files, changes) = match refreshed.await {
            Ok(refreshed) => refreshed,
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            // The runtime shuts down.
            Err(_) => return,
        };
        let idle =
            if changes.is_err() { MISSING_POLL_INTERVAL } else { POLL_INTERVAL.max(start.elapsed() * POLL_SHARE) };
        if let Some(batch) = last_sent.next_batch(changes, files.refusals(), inotify.refusal(), files.is_complete())
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

/// The state of the last batch, so that nothing is sent twice.
#[derive(Default)]
struct LastSent {
    any: bool,
    synced: bool,
    refusals: Vec<Refusal>,
    error: Option<String>,
}

impl LastSent {
    fn next_batch(
        &mut self,
        changes: Result<Vec<Change>, FolderError>,
        mut refusals: Vec<Refusal>,
        no_inotify: Option<Refusal>,
        is_complete: bool,
    ) -> Option<ChangeBatch> {
        let error = changes.as_ref().err().map(ToString::to_string);
        refusals.extend(no_inotify);
        let changes = changes.unwrap_or_default();
        let is_first = !self.any || !self.synced && error.is_none();
        if !is_first && changes.is_empty() && refusals == self.refusals && error == self.error {
            return None;
        }
        self.synced |= error.is_none();
        (self.any, self.refusals, self.error) = (true, refusals.clone(), error.clone());
        let complete = is_complete && error.is_none();
        let refusals = refusals.into();
        Some(ChangeBatch { changes, refusals, synced: self.synced, complete, error, ..ChangeBatch::default() })
    }
}

#[derive(Debug)]
enum FileEvent {
    /// The files were written and are still open.
    Writing(Vec<Name>),
    /// The files were closed, renamed or removed, or the folder itself changed.
    Done(Vec<Name>),
}

#[derive(Default)]
struct PendingEvents {
    touched: BTreeSet<Name>,
    /// Files that are open for writing, with the time of the last write.
    writing: BTreeMap<Name, Instant>,
    /// The times of the first and the last event that is not handled yet.
    span: Option<(Instant, Instant)>,
}

impl PendingEvents {
    fn take(&mut self) -> (BTreeSet<Name>, BTreeSet<Name>) {
        self.span = None;
        (std::mem::take(&mut self.touched), self.writing.keys().cloned().collect())
    }

    /// Waits until the folder must be read again.
    async fn wait(&mut self, events: &mut UnboundedReceiver<FileEvent>, idle: Duration) {
        let poll = Instant::now() + idle;
        loop {
            let wake = self.due().map_or(poll, |due| due.min(poll));
            match timeout_at(wake, events.recv()).await {
                Ok(Some(event)) => self.add(event, Instant::now()),
                Ok(None) => return tokio::time::sleep_until(wake).await,
                Err(_) => return self.expire_writers(Instant::now()),
            }
        }
    }

    fn due(&self) -> Option<Instant> {
        let debounced = self.span.map(|(first, last)| (last + DEBOUNCE).min(first + MAX_DEBOUNCE));
        let expired = self.writing.values().min().map(|last| *last + WRITER_TIMEOUT);
        debounced.into_iter().chain(expired).min()
    }

    fn add(&mut self, event: FileEvent, now: Instant) {
        match event {
            FileEvent::Writing(names) => self.writing.extend(names.into_iter().map(|name| (name, now))),
            FileEvent::Done(names) => {
                self.writing.retain(|name, _| !names.contains(name));
                self.touched.extend(names);
                self.span = Some((self.span.map_or(now, |(first, _)| first), now));
            }
        }
    }

    fn expire_writers(&mut self, now: Instant) {
        let (expired, writing) =
            std::mem::take(&mut self.writing).into_iter().partition(|(_, last)| *last + WRITER_TIMEOUT <= now);
        let expired: BTreeMap<Name, Instant> = expired;
        self.touched.extend(expired.into_keys());
        self.writing = writing;
    }
}

/// The inotify watch. It watches the inode that the path led to when it was set, so it is set again before every
/// refresh. That costs little, and inode numbers, which are reused at once, need not be compared.
struct InotifyWatch {
    path: PathBuf,
    watcher: notify::Result<RecommendedWatcher>,
    error: Option<String>,
}

impl InotifyWatch {
    fn new(path: &Path, events: UnboundedSender<FileEvent>) -> InotifyWatch {
        let handler = move |event: notify::Result<notify::Event>| {
            if let Some(event) = event.ok().and_then(file_event) {
                // Sending fails only after the watch has ended.
                let _ = events.send(event);
            }
        };
        InotifyWatch { path: path.to_owned(), watcher: notify::recommended_watcher(handler), error: None }
    }

    fn rearm(&mut self) {
        let armed = match &mut self.watcher {
            Ok(watcher) => watcher.watch(&self.path, RecursiveMode::NonRecursive),
            Err(error) => Err(notify::Error::generic(&error.to_string())),
        };
        // The refresh reports a folder that does not exist.
        self.error = armed.err().map(|error| error.to_string()).filter(|_| self.path.exists());
    }

    fn refusal(&self) -> Option<Refusal> {
        let why = self.error.as_ref()?;
        let message =
            format!("changes are found by polling only: {why}; see fs.inotify.max_user_watches and _instances");
        Some(Refusal::new(RefusalSubject::Folder(self.path.clone()), RefusalReason::NoInotify, message))
    }
}

/// `None` for an event that changes no content. Opening a file is such an event, and reading the folder causes it.
fn file_event(event: notify::Event) -> Option<FileEvent> {
    let names = event.paths.iter().filter_map(|path| path.file_name()?.to_str().map(Name::from)).collect();
    match event.kind {
        EventKind::Modify(ModifyKind::Data(_)) => Some(FileEvent::Writing(names)),
        EventKind::Access(AccessKind::Close(AccessMode::Write)) => Some(FileEvent::Done(names)),
        EventKind::Access(_) => None,
        _ => Some(FileEvent::Done(names)),
    }
}
