//! Whether the edge cache reaches the cloud. The cache does not report it: its watch stays open and silent while the
//! link is down, and also after the cloud was restarted and has forgotten the watch. So the cloud is probed with a
//! small request, and everything is listed again after an interruption.

use super::client::EdgeCacheClient;
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// The longest probe interval while the link is down. The cache then answers by itself, so the probes use no bandwidth.
const DOWN_INTERVAL: Duration = Duration::from_secs(5);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LinkState {
    pub(crate) is_up: bool,
    /// The number of probes.
    probes: u64,
    /// The number of times that the link went down.
    interruptions: u64,
}

impl Default for LinkState {
    fn default() -> LinkState {
        LinkState { is_up: true, probes: 0, interruptions: 0 }
    }
}

impl LinkState {
    fn record(&mut self, is_up: bool) {
        self.interruptions += u64::from(self.is_up && !is_up);
        self.probes += 1;
        self.is_up = is_up;
    }

    /// Whether the link went down since then and is up again.
    pub(crate) fn is_restored_since(&self, since: &LinkState) -> bool {
        self.is_up && self.interruptions != since.interruptions
    }

    /// Whether the link was probed since then and is up.
    fn is_confirmed_since(&self, since: &LinkState) -> bool {
        self.is_up && self.probes != since.probes
    }
}

/// Probes the link until the task is aborted.
pub(crate) async fn probe(client: EdgeCacheClient, interval: Duration, link: watch::Sender<LinkState>) {
    loop {
        let is_up = client.reaches_cloud().await;
        link.send_modify(|link| link.record(is_up));
        tokio::time::sleep(if is_up { interval } else { interval.min(DOWN_INTERVAL) }).await;
    }
}

/// Waits until a probe finds the link up, or until `due`.
pub(crate) async fn wait_until_up(link: &mut watch::Receiver<LinkState>, since: &LinkState, due: Instant) {
    let up = link.wait_for(|now| now.is_confirmed_since(since));
    let _ = tokio::time::timeout_at(due.into(), up).await.map(drop);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interruption_is_over_when_the_link_is_up_again() {
        let (start, mut link) = (LinkState::default(), LinkState::default());
        link.record(true);
        assert!(!link.is_restored_since(&start) && link.is_confirmed_since(&start));
        link.record(false);
        assert!(!link.is_restored_since(&start) && !link.is_confirmed_since(&start));
        let down = link;
        link.record(false);
        link.record(true);
        assert!(link.is_restored_since(&start) && link.is_confirmed_since(&down));
        assert!(!link.is_restored_since(&down), "a list that was read after the interruption began missed nothing");
    }
}
