//! Whether a kind is really not there. A server that starts, or something in front of it, says 404 as well; whoever takes
//! that for the truth removes every policy. So discovery is asked: it names all that a server serves.

use kube::Client;
use std::time::{Duration, Instant};

/// So long others wait for it.
const MOMENT: Duration = Duration::from_millis(500);
/// Between two answers of discovery that together are believed.
const APART: Duration = Duration::from_secs(5);
/// Whatever answers for an API server names this group.
const ALWAYS: &str = "discovery.k8s.io";

#[derive(Debug, Default)]
pub(crate) struct Absence {
    since: Option<Instant>,
    likely: bool,
    /// Since when discovery does not name it, asked again and again.
    unserved: Option<Instant>,
    sure: bool,
}

impl Absence {
    /// It was not found, and this is what discovery says.
    pub(crate) fn look(&mut self, unserved: bool, now: Instant) {
        let since = *self.since.get_or_insert(now);
        self.likely |= now.saturating_duration_since(since) >= MOMENT;
        if !unserved {
            self.unserved = None;
            return;
        }
        let since = *self.unserved.get_or_insert(now);
        self.sure |= now.saturating_duration_since(since) >= APART;
    }

    pub(crate) fn is_likely(&self) -> bool {
        self.likely
    }

    pub(crate) fn is_sure(&self) -> bool {
        self.sure
    }

    /// Until the next look.
    pub(crate) fn wait(&self) -> Duration {
        if self.likely { APART } else { MOMENT }
    }
}

/// `true` only where discovery answers and does not name it. `path`: `/apis/GROUP/VERSION/PLURAL`.
pub(crate) async fn is_unserved(client: &Client, path: &str, patience: Duration) -> bool {
    let asked = tokio::time::timeout(patience, ask(client, path)).await;
    matches!(asked, Ok(Some(false)))
}

/// Whether it is served; `None`: who knows.
async fn ask(client: &Client, path: &str) -> Option<bool> {
    let (version, plural) = path.strip_prefix("/apis/")?.rsplit_once('/')?;
    let (group, _) = version.split_once('/')?;
    let groups = client.list_api_groups().await.ok()?.groups;
    if groups.iter().all(|found| found.name != ALWAYS) {
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
    fn only_discovery_that_says_it_again_is_believed() {
        let (mut absence, start, second) = (Absence::default(), Instant::now(), Duration::from_secs(1));
        let mut look = |unserved, at: u32| {
            absence.look(unserved, start + at * second);
            (absence.is_likely(), absence.is_sure())
        };
        assert_eq!([look(true, 0), look(true, 1), look(true, 4)], [(false, false), (true, false), (true, false)]);
        assert_eq!([look(false, 5), look(true, 6), look(true, 10)], [(true, false); 3], "it was named meanwhile");
        assert_eq!([look(true, 11), look(false, 12)], [(true, true); 2]);
    }

    #[test]
    fn who_is_never_told_of_by_discovery_is_never_sure() {
        let (mut absence, start) = (Absence::default(), Instant::now());
        (0..1000).for_each(|n| absence.look(false, start + n * APART));
        assert!(absence.is_likely() && !absence.is_sure());
    }
}
