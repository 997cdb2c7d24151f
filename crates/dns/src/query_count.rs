//! Counts of DNS queries by record type and outcome.

use hickory_proto::rr::RecordType;
use std::sync::atomic::{AtomicU64, Ordering};

/// Record types that have their own counter. A client chooses the type, so all other types share one counter.
const COUNTED_TYPES: [(&str, Option<RecordType>); 7] = [
    ("A", Some(RecordType::A)),
    ("AAAA", Some(RecordType::AAAA)),
    ("SRV", Some(RecordType::SRV)),
    ("PTR", Some(RecordType::PTR)),
    ("CNAME", Some(RecordType::CNAME)),
    ("TXT", Some(RecordType::TXT)),
    ("other", None),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueryOutcome {
    Answered,
    /// The name exists, but has no record of the type.
    Empty,
    /// The name does not exist.
    Missing,
    Refused,
    Forwarded,
    Failed,
    /// The query cannot be parsed.
    Malformed,
}

impl QueryOutcome {
    pub const ALL: [QueryOutcome; 7] = [
        QueryOutcome::Answered,
        QueryOutcome::Empty,
        QueryOutcome::Missing,
        QueryOutcome::Refused,
        QueryOutcome::Forwarded,
        QueryOutcome::Failed,
        QueryOutcome::Malformed,
    ];

    pub fn label(self) -> &'static str {
        match self {
            QueryOutcome::Answered => "answered",
            QueryOutcome::Empty => "empty",
            QueryOutcome::Missing => "missing",
            QueryOutcome::Refused => "refused",
            QueryOutcome::Forwarded => "forwarded",
            QueryOutcome::Failed => "failed",
            QueryOutcome::Malformed => "malformed",
        }
    }
}

#[derive(Default)]
pub struct QueryCounts([[AtomicU64; QueryOutcome::ALL.len()]; COUNTED_TYPES.len()]);

impl QueryCounts {
    pub fn add(&self, kind: Option<RecordType>, outcome: QueryOutcome) {
        let row = COUNTED_TYPES.iter().position(|(_, counted)| *counted == kind).unwrap_or(COUNTED_TYPES.len() - 1);
        self.0[row][outcome as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// The record type, the outcome and the count of all counters that are not zero.
    pub fn all(&self) -> impl Iterator<Item = (&'static str, QueryOutcome, u64)> {
        let rows = COUNTED_TYPES.iter().zip(&self.0);
        let cells = rows.flat_map(|((kind, _), row)| QueryOutcome::ALL.iter().zip(row).map(move |cell| (*kind, cell)));
        let read = cells.map(|(kind, (outcome, count))| (kind, *outcome, count.load(Ordering::Relaxed)));
        read.filter(|(_, _, count)| *count > 0)
    }

    /// The sum over all record types.
    pub fn total(&self, outcome: QueryOutcome) -> u64 {
        self.all().filter(|(_, counted, _)| *counted == outcome).map(|(_, _, count)| count).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unserved_types_share_one_counter() {
        let counts = QueryCounts::default();
        for kind in [RecordType::A, RecordType::MX, RecordType::from(4711), RecordType::A] {
            counts.add(Some(kind), QueryOutcome::Empty);
        }
        counts.add(None, QueryOutcome::Failed);
        let all: Vec<_> = counts.all().collect();
        assert_eq!(
            all,
            [("A", QueryOutcome::Empty, 2), ("other", QueryOutcome::Empty, 2), ("other", QueryOutcome::Failed, 1)]
        );
        assert_eq!(counts.total(QueryOutcome::Empty), 4);
    }
}
