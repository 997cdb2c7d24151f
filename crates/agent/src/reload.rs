//! The file with the list of clusters, read again when it changed. By looking, not by inotify: a file that is replaced by
//! a link (as Kubernetes does with a ConfigMap), on whatever file system, is all the same to a look, and what half-written
//! files say must not be believed anyway: one counts once it has stayed as it is for a moment.

use crate::settings::{Listing, Reload};
use anyhow::bail;
use std::time::Duration;

const LOOK: Duration = Duration::from_millis(400);
/// A file that is replaced is away for a moment; one that cannot be read so often after another has gone.
const AWAY: u32 = 10;

pub struct Watched {
    reload: Reload,
    /// As it was when it was last read.
    read: Option<Vec<u8>>,
    /// As it was at the last look.
    seen: Option<Vec<u8>>,
    /// Looks since it could last be read.
    away: u32,
}

impl Watched {
    pub fn new(reload: Reload) -> Watched {
        let read = Some(reload.text.as_bytes().to_owned());
        Watched { reload, seen: read.clone(), read, away: 0 }
    }

    /// Waits for the next change.
    pub async fn next(&mut self) -> anyhow::Result<Listing> {
        loop {
            tokio::time::sleep(LOOK).await;
            if self.look() {
                let read = self.reload.read.clone();
                // Options are read from disk, and so are the files that they name.
                return tokio::task::spawn_blocking(move || read()).await?;
            }
            if self.away == AWAY {
                // Whatever it says when it is back, it is read.
                self.read = None;
                bail!("{} cannot be read any more: what it said before holds", self.reload.path.display());
            }
        }
    }

    /// A file that is gone is being replaced, or was removed by mistake: what it said holds.
    fn look(&mut self) -> bool {
        let Ok(now) = std::fs::read(&self.reload.path) else {
            self.away = self.away.saturating_add(1);
            return false;
        };
        self.away = 0;
        let stable = self.seen.as_ref() == Some(&now);
        let new = self.read.as_ref() != Some(&now);
        self.seen = Some(now);
        if stable && new {
            self.read.clone_from(&self.seen);
        }
        stable && new
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn a_change_counts_once_it_stays() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("beeline.yaml");
        std::fs::write(&path, "a").unwrap();
        let read = Arc::new(|| Ok(Listing::default()));
        let mut watched = Watched::new(Reload { path: path.clone(), text: "a".into(), read });
        assert!(!watched.look(), "as it was");
        std::fs::write(&path, "ab").unwrap();
        assert!(!watched.look(), "it may be half of something");
        std::fs::write(&path, "abc").unwrap();
        assert!(!watched.look());
        assert!(watched.look() && !watched.look(), "once");
        std::fs::remove_file(&path).unwrap();
        assert!(!watched.look() && !watched.look(), "gone");
        std::fs::write(&path, "abc").unwrap();
        assert!(!watched.look() && !watched.look(), "it is back, and the same");
    }

    #[test]
    fn a_change_during_the_start_counts() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("beeline.yaml");
        std::fs::write(&path, "joined meanwhile").unwrap();
        let read = Arc::new(|| Ok(Listing::default()));
        let mut watched = Watched::new(Reload { path, text: "as the agent began".into(), read });
        assert!(!watched.look() && watched.look());
    }

    #[test]
    fn a_file_that_has_gone_is_told_and_read_when_it_is_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("beeline.yaml");
        let read = Arc::new(|| Ok(Listing::default()));
        let mut watched = Watched::new(Reload { path: path.clone(), text: "a".into(), read });
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let why = runtime.block_on(watched.next()).unwrap_err().to_string();
        assert!(why.contains("beeline.yaml cannot be read any more"), "{why}");
        std::fs::write(&path, "a").unwrap();
        runtime.block_on(watched.next()).unwrap();
    }
}
