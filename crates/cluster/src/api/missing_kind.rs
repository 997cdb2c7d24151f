//! Checks whether a kind is really not installed. A server that is starting, or a proxy in front of it, answers 404
//! too, and treating that as "not installed" would delete every policy. So the discovery API is asked, which lists all
//! kinds that a server serves.

use kube::Client;
use std::time::{Duration, Instant};

/// The kind counts as probably missing after this time, and other kinds no longer wait for it.
const LIKELY_AFTER: Duration = Duration::from_millis(500);
/// The kind counts as missing if two discovery responses that are this far apart agree.
const CONFIRMATION_INTERVAL: Duration = Duration::from_secs(5);
/// A group that every API server serves. A discovery response without it is not from an API server.
const REFERENCE_GROUP: &str = "discovery.k8s.io";

#[derive(Debug, Default)]
pub(crate) struct MissingKindCheck {
    first_not_found: Option<Instant>,
    is_likely: bool,
    /// Since when every discovery response lacks the kind.
    undiscovered_since: Option<Instant>,
    is_confirmed: bool,
}

impl MissingKindCheck {
    /// Records a 404 and whether discovery lacks the kind as well.
    pub(crate) fn record(&mut self, is_undiscovered: bool, now: Instant) {
        let since = *self.first_not_found.get_or_insert(now);
        self.is_likely |= now.saturating_duration_since(since) >= LIKELY_AFTER;
        if !is_undiscovered {
            self.undiscovered_since = None;
            return;
        }
        let since = *self.undiscovered_since.get_or_insert(now);
        self.is_confirmed |= now.saturating_duration_since(since) >= CONFIRMATION_INTERVAL;
    }

    pub(crate) fn is_likely(&self) -> bool {
        self.is_likely
    }

    pub(crate) fn is_confirmed(&self) -> bool {
        self.is_confirmed
    }

    /// The delay before the next check.
    pub(crate) fn delay(&self) -> Duration {
        if self.is_likely { CONFIRMATION_INTERVAL } else { LIKELY_AFTER }
    }
}

/// Whether discovery answers and lacks the kind. `path` is `/apis/GROUP/VERSION/PLURAL`.
pub(crate) async fn is_undiscovered(client: &Client, path: &str, timeout: Duration) -> bool {
    let discovered = tokio::time::timeout(timeout, is_discovered(client, path)).await;
    matches!(discovered, Ok(Some(false)))
}

/// `None` if discovery gives no usable answer.
async fn is_discovered(client: &Client, path: &str) -> Option<bool> {
    let (version, plural) = path.strip_prefix("/apis/")?.rsplit_once('/')?;
    let (group, _) = version.split_once('/')?;
    let groups = client.list_api_groups().await.ok()?.groups;
    if groups.iter().all(|found| found.name != REFERENCE_GROUP) {
        return None;
    }
    let Some(found) = groups.iter().find(|found| found.name == group) else { return Some(false) };
    if found.versions.iter().all(|found| found.group_version != version) {
        return Some(false);
    }
    let resources = client.list_api_group_resources(version).await.ok()?.resources;
    Some(resources.iter().any(|found| found.name == plural))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_is_missing_only_after_repeated_discovery() {
        let (mut check, start, second) = (MissingKindCheck::default(), Instant::now(), Duration::from_secs(1));
        let mut record = |is_undiscovered, at: u32| {
            check.record(is_undiscovered, start + at * second);
            (check.is_likely(), check.is_confirmed())
        };
        let first = [record(true, 0), record(true, 1), record(true, 4)];
        assert_eq!(first, [(false, false), (true, false), (true, false)]);
        let interrupted = [record(false, 5), record(true, 6), record(true, 10)];
        assert_eq!(interrupted, [(true, false); 3], "discovery listed the kind in between");
        assert_eq!([record(true, 11), record(false, 12)], [(true, true); 2]);
    }

    #[test]
    fn a_kind_that_discovery_lists_is_never_confirmed_as_missing() {
        let (mut check, start) = (MissingKindCheck::default(), Instant::now());
        (0..1000).for_each(|n| check.record(false, start + n * CONFIRMATION_INTERVAL));
        assert!(check.is_likely() && !check.is_confirmed());
    }
}
