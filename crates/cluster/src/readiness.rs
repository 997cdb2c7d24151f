//! Whether the objects of one kind have been read completely.

use std::time::{Duration, Instant};

/// A kind that is not essential is waited for no longer than this number of failures, about three seconds.
pub(crate) const MAX_FAILURES: u32 = 5;
/// That a kind is forbidden or not installed counts as confirmed after this time without any other answer. A token may
/// just have been replaced, or a server may just have started: believing it too early would remove every policy.
const CONFIRMATION: Duration = Duration::from_secs(30);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KindReadiness {
    /// Not listed yet. `failures` counts since the essential kinds (Services and slices) were listed.
    Pending { failures: u32 },
    /// Not listed, and the server has reported since then that the kind is forbidden or not installed.
    Missing { since: Instant, confirmed: bool, failures: u32 },
    /// Listed at least once. `from_cache` means that the last list may be incomplete or outdated.
    Listed { from_cache: bool },
}

impl Default for KindReadiness {
    fn default() -> KindReadiness {
        KindReadiness::Pending { failures: 0 }
    }
}

impl KindReadiness {
    pub(crate) fn is_listed(self) -> bool {
        matches!(self, KindReadiness::Listed { .. })
    }

    /// Whether waiting for this kind is over: it is listed, or cannot be read at present.
    pub(crate) fn is_settled(self) -> bool {
        match self {
            KindReadiness::Listed { .. } | KindReadiness::Missing { .. } => true,
            KindReadiness::Pending { failures } => failures >= MAX_FAILURES,
        }
    }

    /// Whether every object of this kind is known: a row in the kernel that no known object explains may be removed.
    pub(crate) fn is_complete(self) -> bool {
        match self {
            KindReadiness::Listed { from_cache } => !from_cache,
            KindReadiness::Missing { confirmed, .. } => confirmed,
            KindReadiness::Pending { .. } => false,
        }
    }

    fn failures(self) -> u32 {
        match self {
            KindReadiness::Pending { failures } | KindReadiness::Missing { failures, .. } => failures,
            KindReadiness::Listed { .. } => 0,
        }
    }

    /// A list or watch failed for another reason than that the kind is forbidden or not installed.
    pub(crate) fn record_failure(&mut self) {
        if !self.is_listed() {
            *self = KindReadiness::Pending { failures: self.failures() + 1 };
        }
    }

    /// The server reports that the kind is forbidden or not installed.
    pub(crate) fn record_missing(&mut self, now: Instant, is_failure: bool) {
        let failures = self.failures() + u32::from(is_failure);
        match *self {
            KindReadiness::Listed { .. } => {}
            KindReadiness::Pending { .. } => *self = KindReadiness::Missing { since: now, confirmed: false, failures },
            KindReadiness::Missing { since, confirmed, .. } => {
                let confirmed = confirmed || now.saturating_duration_since(since) >= CONFIRMATION;
                *self = KindReadiness::Missing { since, confirmed, failures };
            }
        }
    }

    /// Failures of the past no longer count.
    pub(crate) fn reset_failures(&mut self) {
        if !self.is_listed() {
            *self = KindReadiness::default();
        }
    }
}
