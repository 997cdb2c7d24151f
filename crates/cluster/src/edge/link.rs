//! Whether the cloud is behind the cache. The cache does not say: a watch of it stays open and silent while it is cut off,
//! and for good if the cloud was restarted meanwhile, which has forgotten who watched. So something small is asked now and
//! then, and after a cut everything is asked again.

use super::cache::Cache;
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// Cut off it is asked this often: the cache answers by itself then, and nothing goes over the link.
const CUT_OFF: Duration = Duration::from_secs(5);

/// What is known of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Link {
    pub(crate) up: bool,
    /// How often it was looked at.
    beats: u64,
    /// How often it was lost.
    cuts: u64,
}

impl Default for Link {
    fn default() -> Link {
        Link { up: true, beats: 0, cuts: 0 }
    }
}

impl Link {
    fn see(&mut self, up: bool) {
        self.cuts += u64::from(self.up && !up);
        self.beats += 1;
        self.up = up;
    }

    /// It was lost since, and is back.
    pub(crate) fn is_mended(&self, since: &Link) -> bool {
        self.up && self.cuts != since.cuts
    }

    /// It was looked at since, and is up.
    fn is_seen(&self, since: &Link) -> bool {
        self.up && self.beats != since.beats
    }
}

/// Looks at it for ever.
pub(crate) async fn feel(cache: Cache, every: Duration, link: watch::Sender<Link>) {
    loop {
        let up = cache.reaches_cloud().await;
        link.send_modify(|link| link.see(up));
        tokio::time::sleep(if up { every } else { every.min(CUT_OFF) }).await;
    }
}

/// Until it is seen to be up, or until then.
pub(crate) async fn wait(link: &mut watch::Receiver<Link>, since: &Link, due: Instant) {
    let up = link.wait_for(|now| now.is_seen(since));
    let _ = tokio::time::timeout_at(due.into(), up).await.map(drop);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cut_is_mended_once_it_is_up_again() {
        let (start, mut link) = (Link::default(), Link::default());
        link.see(true);
        assert!(!link.is_mended(&start) && link.is_seen(&start));
        link.see(false);
        assert!(!link.is_mended(&start) && !link.is_seen(&start));
        let cut = link;
        link.see(false);
        link.see(true);
        assert!(link.is_mended(&start) && link.is_seen(&cut));
        assert!(!link.is_mended(&cut), "whoever heard the cloud after the cut began has missed nothing");
    }
}
