//! Numbers of rows, one per table.

use crate::row::{INLINE_SLOTS, SET_FIRST, Sizes};

pub const TABLES: usize = 7;
/// As `MapError::Full` calls them.
pub const TABLE_NAMES: [&str; TABLES] = ["frontend", "set", "slot", "backend", "source", "name", "member"];

/// The names of nodes and policies share a table with those of service ports.
const NAMES_OF_NODES: u32 = 8_192;

/// The rows that one Service or policy needs in each table. Larger numbers count as `u32::MAX`: no table is that large.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableRows(pub(super) [u32; TABLES]);

impl TableRows {
    /// The rows of ports with `sets` sets each. `backends` has the number of backends of each port.
    pub fn new(frontends: u64, sets: u64, backends: impl IntoIterator<Item = u64>) -> TableRows {
        let (mut ports, mut slots, mut all) = (0u64, 0u64, 0u64);
        for backends in backends {
            let is_inline = backends <= INLINE_SLOTS as u64;
            let of_set = if is_inline { 0 } else { backends.checked_next_power_of_two().unwrap_or(u64::MAX) };
            slots = slots.saturating_add(of_set.saturating_mul(sets));
            all = all.saturating_add(backends);
            ports += 1;
        }
        let sets = ports.saturating_mul(sets);
        TableRows([clamp(frontends), clamp(sets), clamp(slots), clamp(all), 0, clamp(ports), 0])
    }

    pub fn with_sources(mut self, rows: u64) -> TableRows {
        self.0[4] = clamp(rows);
        self
    }

    pub fn with_members(mut self, rows: u64) -> TableRows {
        self.0[6] = clamp(rows);
        self
    }

    pub fn plus(self, other: TableRows) -> TableRows {
        TableRows(std::array::from_fn(|table| self.0[table].saturating_add(other.0[table])))
    }

    /// Whether it needs more rows than before in some table.
    pub fn exceeds(&self, before: &TableRows) -> bool {
        self.0.iter().zip(before.0).any(|(now, before)| *now > before)
    }
}

fn clamp(rows: u64) -> u32 {
    u32::try_from(rows).unwrap_or(u32::MAX)
}

/// Sums of rows, or the sizes of the tables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableTotals(pub(super) [u64; TABLES]);

impl TableTotals {
    /// Ids start at 1, those of sets at `SET_FIRST`.
    pub fn of_sizes(sizes: &Sizes) -> TableTotals {
        let names = sizes.names.saturating_sub(NAMES_OF_NODES).max(sizes.names / 2);
        let all = [
            sizes.frontends,
            sizes.sets.saturating_sub(SET_FIRST),
            sizes.slots,
            sizes.backends.saturating_sub(1),
            sizes.sources,
            names.saturating_sub(1),
            sizes.members,
        ];
        TableTotals(all.map(u64::from))
    }

    pub fn from_fn(rows: impl FnMut(usize) -> u64) -> TableTotals {
        TableTotals(std::array::from_fn(rows))
    }

    pub fn map(self, change: impl Fn(u64) -> u64) -> TableTotals {
        TableTotals(self.0.map(change))
    }

    pub fn plus(self, rows: TableRows) -> TableTotals {
        TableTotals::from_fn(|table| self.0[table] + u64::from(rows.0[table]))
    }

    pub fn change(&mut self, before: TableRows, now: TableRows) {
        *self = TableTotals::from_fn(|table| {
            (self.0[table] + u64::from(now.0[table])).saturating_sub(u64::from(before.0[table]))
        });
    }

    /// The first table with more rows than the limit.
    pub fn first_above(&self, limits: &TableTotals) -> Option<usize> {
        (0..TABLES).find(|table| self.0[*table] > limits.0[*table])
    }
}
