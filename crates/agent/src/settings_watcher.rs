//! Watches the file with the cluster list and reads it again after a change.
//!
//! The file is polled instead of watched by inotify: polling also sees a file that is replaced through a symbolic link,
//! as Kubernetes does with a ConfigMap, on any file system. A change counts only once the content stayed the same for one
//! interval, so that a half-written file is not used.

use crate::settings::{ClusterList, ReloadableFile};
use anyhow::bail;
use std::time::Duration;

const POLL_INTERVAL: Duration = Duration::from_millis(400);
/// After this many failed reads in a row the file counts as removed. While a file is replaced it is missing for a moment.
const MAX_FAILED_READS: u32 = 10;

pub struct SettingsWatcher {
    file: ReloadableFile,
    /// The content that was used last.
    used: Option<Vec<u8>>,
    /// The content at the last poll.
    polled: Option<Vec<u8>>,
    /// Failed reads since the last successful one.
    failed_reads: u32,
}

impl SettingsWatcher {
    pub fn new(file: ReloadableFile) -> SettingsWatcher {
        let used = Some(file.text.as_bytes().to_owned());
        SettingsWatcher { file, polled: used.clone(), used, failed_reads: 0 }
    }

    /// Waits for the next change and returns the new cluster list, or why the file cannot be used.
    pub async fn next(&mut self) -> anyhow::Result<ClusterList> {
        loop {
            tokio::time::sleep(POLL_INTERVAL).await;
            if self.poll() {
                let read = self.file.read.clone();
                // Reading the options also reads the files that they name, so it may block.
                return tokio::task::spawn_blocking(move || read()).await?;
            }
            if self.failed_reads == MAX_FAILED_READS {
                // When the file exists again, it is read even if its content is the same.
                self.used = None;
                bail!("cannot read {}; the last configuration stays in effect", self.file.path.display());
            }
        }
    }

    /// Whether the file has new content that stayed the same since the last poll.
    fn poll(&mut self) -> bool {
        let Ok(content) = std::fs::read(&self.file.path) else {
            self.failed_reads = self.failed_reads.saturating_add(1);
            return false;
        };
        self.failed_reads = 0;
        let stable = self.polled.as_ref() == Some(&content);
        let new = self.used.as_ref() != Some(&content);
        self.polled = Some(content);
        if stable && new {
            self.used.clone_from(&self.polled);
        }
        stable && new
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;
    use std::sync::Arc;

    fn watcher(path: &Path, text: &str) -> SettingsWatcher {
        let read = Arc::new(|| Ok(ClusterList::default()));
        SettingsWatcher::new(ReloadableFile { path: path.to_owned(), text: text.into(), read })
    }

    #[test]
    fn a_change_counts_once_it_is_stable() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("beeline.yaml");
        std::fs::write(&path, "a").unwrap();
        let mut watcher = watcher(&path, "a");
        assert!(!watcher.poll(), "unchanged");
        std::fs::write(&path, "ab").unwrap();
        assert!(!watcher.poll(), "the file may be half-written");
        std::fs::write(&path, "abc").unwrap();
        assert!(!watcher.poll());
        assert!(watcher.poll() && !watcher.poll(), "reported once");
        std::fs::remove_file(&path).unwrap();
        assert!(!watcher.poll() && !watcher.poll(), "removed");
        std::fs::write(&path, "abc").unwrap();
        assert!(!watcher.poll() && !watcher.poll(), "restored with the same content");
    }

    #[test]
    fn a_change_during_the_start_counts() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("beeline.yaml");
        std::fs::write(&path, "changed meanwhile").unwrap();
        let mut watcher = watcher(&path, "as read at the start");
        assert!(!watcher.poll() && watcher.poll());
    }

    #[test]
    fn a_removed_file_is_reported_and_read_when_it_is_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("beeline.yaml");
        let mut watcher = watcher(&path, "a");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let error = runtime.block_on(watcher.next()).unwrap_err().to_string();
        assert!(error.starts_with("cannot read ") && error.contains("beeline.yaml"), "{error}");
        std::fs::write(&path, "a").unwrap();
        runtime.block_on(watcher.next()).unwrap();
    }
}
