//! How many questions of which type ended how.

use hickory_proto::rr::RecordType;
use std::sync::atomic::{AtomicU64, Ordering};

/// Types that are counted apart. Whoever asks chooses the type, so the rest is one.
const KINDS: [(&str, Option<RecordType>); 7] = [
    ("A", Some(RecordType::A)),
    ("AAAA", Some(RecordType::AAAA)),
    ("SRV", Some(RecordType::SRV)),
    ("PTR", Some(RecordType::PTR)),
    ("CNAME", Some(RecordType::CNAME)),
    ("TXT", Some(RecordType::TXT)),
    ("other", None),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Answered,
    /// The name exists, but has nothing of that type.
    Empty,
    Missing,
    Refused,
    Forwarded,
    Failed,
    /// No question that can be read.
    Malformed,
}

impl Outcome {
    pub const ALL: [Outcome; 7] = [
        Outcome::Answered,
        Outcome::Empty,
        Outcome::Missing,
        Outcome::Refused,
        Outcome::Forwarded,
        Outcome::Failed,
        Outcome::Malformed,
    ];

    pub fn word(self) -> &'static str {
        match self {
            Outcome::Answered => "answered",
            Outcome::Empty => "empty",
            Outcome::Missing => "missing",
            Outcome::Refused => "refused",
            Outcome::Forwarded => "forwarded",
            Outcome::Failed => "failed",
            Outcome::Malformed => "malformed",
        }
    }
}

#[derive(Default)]
pub struct Counts([[AtomicU64; Outcome::ALL.len()]; KINDS.len()]);

impl Counts {
    pub fn add(&self, kind: Option<RecordType>, outcome: Outcome) {
        let row = KINDS.iter().position(|(_, counted)| *counted == kind).unwrap_or(KINDS.len() - 1);
        self.0[row][outcome as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Type, outcome and how many, where there were any.
    pub fn all(&self) -> impl Iterator<Item = (&'static str, Outcome, u64)> {
        let rows = KINDS.iter().zip(&self.0);
        let cells = rows.flat_map(|((kind, _), row)| Outcome::ALL.iter().zip(row).map(move |cell| (*kind, cell)));
        let read = cells.map(|(kind, (outcome, count))| (kind, *outcome, count.load(Ordering::Relaxed)));
        read.filter(|(_, _, count)| *count > 0)
    }

    pub fn of(&self, outcome: Outcome) -> u64 {
        self.all().filter(|(_, had, _)| *had == outcome).map(|(_, _, count)| count).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_that_nobody_serves_are_one() {
        let counts = Counts::default();
        for kind in [RecordType::A, RecordType::MX, RecordType::from(4711), RecordType::A] {
            counts.add(Some(kind), Outcome::Empty);
        }
        counts.add(None, Outcome::Failed);
        let all: Vec<_> = counts.all().collect();
        assert_eq!(all, [("A", Outcome::Empty, 2), ("other", Outcome::Empty, 2), ("other", Outcome::Failed, 1)]);
        assert_eq!(counts.of(Outcome::Empty), 4);
    }
}
